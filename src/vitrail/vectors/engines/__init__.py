"""Engines that run a model fast: float32 or int8, on packed, merged or adaptive tokens; and exports."""
