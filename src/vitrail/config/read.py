"""Any of the three configs: read from JSON, and asked for its windows."""

from __future__ import annotations

from pathlib import Path

from vitrail.codec import from_plain
from vitrail.config.base import parse_config
from vitrail.config.mobile import MobileConfig
from vitrail.config.pyramid import PyramidConfig
from vitrail.config.vit import ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size, Windows
from vitrail.parts import WindowedAttention

__all__ = ["Config", "config_from_json", "padded_grids", "read_config"]

Config = ViTConfig | PyramidConfig | MobileConfig


def padded_grids(config: ViTConfig | PyramidConfig) -> dict[Size, Size]:
    """Return the grids that windows do not divide, each with its window.

    >>> from vitrail import PyramidConfig, padded_grids
    >>> padded_grids(PyramidConfig(image="64x96"))
    {Size(height=16, width=24): Size(height=7, width=7), Size(height=8, width=12): Size(height=7, width=7)}
    """
    stages = ((config.grid, config.attention),)
    if isinstance(config, PyramidConfig):
        stages = tuple((grid, config.attention_at(level)) for level, grid in enumerate(config.grids))
    return {
        grid: attention.window
        for grid, attention in stages
        if isinstance(attention, WindowedAttention) and Windows.of(grid, attention.window).padded != grid
    }


def config_from_json(text: str) -> Config:
    """Read any of the three configs; its "kind" says which.

    >>> from vitrail import config_from_json, preset
    >>> config_from_json(preset("swin-T").to_json()) == preset("swin-T")
    True
    """
    return from_plain(parse_config(text), Config)


def read_config(path: Path) -> Config:
    """Read a JSON file of any of the three configs.

    >>> from pathlib import Path
    >>> from vitrail import preset, read_config
    >>> _ = Path("model.json").write_text(preset("S/16").to_json())
    >>> read_config(Path("model.json")) == preset("S/16")
    True
    """
    try:
        return config_from_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise VitrailError(f"config {path} cannot be read ({error.strerror}); give a JSON file") from None
    except UnicodeDecodeError:
        raise VitrailError(f"config {path} is not text; give a JSON file") from None
