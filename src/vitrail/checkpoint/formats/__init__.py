"""File formats of weights: validated before use when read, written atomically."""
