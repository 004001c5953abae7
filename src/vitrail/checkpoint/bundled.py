"""The bundled weights: a small ViT, trained on CIFAR-10 with the commands on its model card."""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path

__all__ = ["DEFAULT", "embedded_path", "names_weights", "weights_path"]

DEFAULT = "default"
"""The name of the bundled weights, accepted instead of a path; a file of that name is ./default."""


def names_weights(name: str) -> bool:
    """Whether a name is an existing path or the bundled weights, rather than a preset."""
    return name == DEFAULT or os.path.exists(name)


def embedded_path() -> Path:
    return Path(str(files("vitrail.checkpoint") / "default" / "model.safetensors"))


def weights_path(name: str | Path) -> Path:
    """Return the path of weights that are given by path or by the bundled name."""
    return embedded_path() if str(name) == DEFAULT else Path(name)
