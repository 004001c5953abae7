"""One file per family of names: a table, read one way and written the other."""
