"""How much is needed, and where would a request go? Formulas, and the file's own decisions asked once."""
