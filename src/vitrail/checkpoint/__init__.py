"""Weights → weights: read any dialect, change grid, patch or prefix, and write back."""
