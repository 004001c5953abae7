"""A run over many images: a frozen plan, shards, worker processes that may die, and a folder of part files."""
