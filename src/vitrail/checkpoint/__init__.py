"""Checkpoints: read weights in any dialect, adapt them to another config, and write them back."""
