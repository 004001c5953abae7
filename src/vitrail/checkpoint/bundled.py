"""The weights that come with vitrail: a small ViT, trained on CIFAR-10 by the commands on its model card."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

__all__ = ["DEFAULT", "embedded_path", "names_weights", "weights_path"]

DEFAULT = "default"
"""The name that stands for these weights wherever a path to weights is taken; a file of that name is ./default."""


def names_weights(name: str) -> bool:
    """Whether a word is a path that exists, or the name of the bundled weights; a preset's name is neither."""
    return name == DEFAULT or os.path.exists(name)


def embedded_path() -> Path:
    return Path(str(files("vitrail.checkpoint") / "default" / "model.safetensors"))


def weights_path(name: str | Path) -> Path:
    """Where the weights are that a path or the bundled name stands for."""
    return embedded_path() if str(name) == DEFAULT else Path(name)
