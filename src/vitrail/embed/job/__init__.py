"""A run over many images: a frozen plan, shards, workers that may die, and a folder of part files."""
