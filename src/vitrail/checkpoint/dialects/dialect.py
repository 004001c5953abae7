"""What a dialect is: families of models, each with its table of names and what its files say besides."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.dialects.evidence import Known, settle
from vitrail.checkpoint.dialects.table import Row, Sizes
from vitrail.checkpoint.formats.file import Stored
from vitrail.checkpoint.header import Evidence
from vitrail.checkpoint.preprocessing import HALF, Preprocessing, Statistics
from vitrail.config import Config, MobileConfig, PyramidConfig, ViTConfig
from vitrail.errors import require
from vitrail.geometry import Size
from vitrail.parts import TiledTable, WindowedAttention

__all__ = ["Dialect", "Family", "Written", "anything", "nothing_beside", "sizes_of", "without"]

Settle = Callable[..., tuple[Config, Evidence]]


@dataclass(frozen=True, kw_only=True)
class Written:
    """The files written beside the weights."""

    prefix: str | None = None
    """The prefix of every name; None keeps the original prefix."""
    config: Mapping[str, Any] = field(default_factory=dict)
    processor: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """Notes for the user who loads the file in that library."""


def nothing_beside(checkpoint: Checkpoint, tensors: Mapping[str, Tensor]) -> Written:
    return Written()


def anything(config: Config) -> None:
    """Accept every config that the family's table can name."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """A group of models that share one table of names."""

    name: str
    rows: tuple[Row, ...]
    anchor: str
    """The library's name of the patch projection. Whatever precedes it is the prefix of every name."""
    known: Callable[[Stored, str], Known]
    """(stored, prefix) → facts that the shapes do not show."""
    signs: Callable[[Stored, str], bool] = lambda stored, prefix: True
    """Return whether a file with this prefix belongs to the family."""
    spare: str = r"(?!)"
    """A regular expression for tensors that a model may have and that its vector does not depend on."""
    statistics: Statistics = HALF
    write: Callable[[Checkpoint, Mapping[str, Tensor]], Written] = nothing_beside
    """(checkpoint, its tensors under the library's names) → the files written beside the weights."""
    needs: tuple[str, ...] = ()
    """vitrail's names of tensors that every model of the family has."""
    lacks: frozenset[str] = frozenset()
    """Tensors of a plain ViT, by `without`'s names, that its models may lack."""
    refuse: Callable[[Config], str | None] = anything
    """Return why a config cannot be written, apart from tensors that the table cannot name; None if it can."""
    constants: Callable[[Config], dict[str, Tensor]] = lambda config: {}
    """Tensors that the library stores although the config determines them, by name without prefix."""
    clips: bool = False
    """Whether its models take clips; otherwise they take still images."""
    loose: frozenset[str] = frozenset()
    """Fields that the library takes as arguments, so a file may differ in them."""
    settle: Settle = settle

    def prefix_in(self, stored: Stored) -> str | None:
        """Return the prefix of the names if the file belongs to this family, otherwise None."""
        found = [
            name.removesuffix(self.anchor)
            for name in stored.tensors
            if name.endswith(self.anchor) and (name == self.anchor or name[: -len(self.anchor)].endswith((".", "/")))
        ]
        found = [prefix for prefix in found if self.signs(stored, prefix)]
        require(
            len(found) <= 1,
            f"{stored.path} has {len(found)} vision models, at {', '.join(found[:3])}; save the one you mean by itself",
        )
        return found[0] if found else None

    def is_spare(self, name: str, prefix: str) -> bool:
        return not name.startswith(prefix) or re.fullmatch(self.spare, name.removeprefix(prefix)) is not None


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """How a library names and stores models."""

    name: str
    families: tuple[Family, ...]
    directory: bool = False
    """Whether a model is written as a folder with the config beside the weights."""
    tells_all: bool = False
    """Whether files contain vitrail's config, so that names and shapes need not be interpreted."""
    suffix: str = ".safetensors"
    """The usual file suffix."""
    preprocessing: Callable[[Stored, Family, Size], Preprocessing]
    foreign: Callable[[Stored], str | None] = lambda stored: None
    """Return why a file with this library's config belongs to none of its families; None if it has no such config."""

    def family(self, name: str) -> Family | None:
        return next((family for family in self.families if family.name == name), None)


def without(config: Config) -> dict[str, str]:
    """Return which tensors of a plain ViT a config does without, each in words. A library that expects them would
    fill them at random."""
    if not isinstance(config, ViTConfig):
        return {}
    absent = {
        "norm biases": config.norm == "rms",
        "out biases": not config.out_bias,
        "mlp biases": not config.mlp.bias,
    }
    return {name: f"its layers have {name}, and this model's do not" for name, lacks in absent.items() if lacks}


def sizes_of(config: Config) -> Sizes:
    match config:
        case ViTConfig():
            return Sizes(
                num_heads=config.num_heads,
                patch=config.patch,
                channels=config.channels,
                grid=config.grid,
                tubelet=config.frames // config.steps,
            )
        case PyramidConfig():
            tiled, windows = config.position, config.attention_at(0)
            return Sizes(
                channels=config.channels,
                grid=config.position_grid,
                background=tiled.background if isinstance(tiled, TiledTable) else None,
                window=windows.window if isinstance(windows, WindowedAttention) else None,
                depths=tuple(stage.depth for stage in config.stages),
            )
        case MobileConfig():
            return Sizes(channels=config.channels, grid=config.position_grid)
