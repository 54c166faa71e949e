"""How long do the parts of the path take, and has one become slower? `make bench`; docs/performance.md says how to read it."""
