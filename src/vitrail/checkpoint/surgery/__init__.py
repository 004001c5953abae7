"""Weights carried to another config: positions, projections, prefix, pool and head, with a list of what changed."""
