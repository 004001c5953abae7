"""Controlled experiments: arms and seeds as ordinary runs, compared with error bars, reported and drawn."""
