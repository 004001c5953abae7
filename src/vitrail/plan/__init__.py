"""Config → numbers, before anything runs: no torch here, microseconds a question."""
