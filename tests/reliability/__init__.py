"""Does every case of the catalogue hold? Black-box tests that name their case, corpora of bytes, and the oracles over all of them."""
