"""What a dialect is: families of models, each with its table of names and what its files say besides."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from vitrail.checkpoint.checkpoint import Checkpoint, Evidence
from vitrail.checkpoint.dialects.evidence import Known, settle
from vitrail.checkpoint.dialects.table import Row, Sizes
from vitrail.checkpoint.formats.file import Stored
from vitrail.checkpoint.preprocessing import HALF, Preprocessing, Statistics
from vitrail.config import Config, MobileConfig, PyramidConfig, ViTConfig
from vitrail.errors import require
from vitrail.geometry import Size

__all__ = ["Dialect", "Family", "Written", "anything", "nothing_beside", "sizes_of"]

Settle = Callable[..., tuple[Config, Evidence]]


@dataclass(frozen=True, kw_only=True)
class Written:
    """What goes beside the weights."""

    prefix: str | None = None
    """What stands before the model's names; None for what stood there."""
    config: Mapping[str, Any] = field(default_factory=dict)
    processor: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """What the one who loads it there should know."""


def nothing_beside(checkpoint: Checkpoint, tensors: Mapping[str, Tensor]) -> Written:
    return Written()


def anything(config: Config) -> None:
    """A family with no limits beyond its table."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """Models that one table of names covers."""

    name: str
    rows: tuple[Row, ...]
    anchor: str
    """Their name of the patch projection. Whatever precedes this name is the prefix of every name."""
    known: Callable[[Stored, str], Known]
    """(stored, prefix) → what is known besides shapes."""
    signs: Callable[[Stored, str], bool] = lambda stored, prefix: True
    """Told the prefix that the anchor gave: is it this family?"""
    spare: str = r"(?!)"
    """Tensors, as an expression, that a model may have and that its vector does not depend on."""
    statistics: Statistics = HALF
    write: Callable[[Checkpoint, Mapping[str, Tensor]], Written] = nothing_beside
    """(checkpoint, its tensors under the library's names) → what goes beside the weights."""
    needs: tuple[str, ...] = ()
    """Our names of what its models always have."""
    refuse: Callable[[Config], str | None] = anything
    """Why a config cannot be written, beyond what its table has no names for."""
    constants: Callable[[Config], dict[str, Tensor]] = lambda config: {}
    """Tensors that the library stores and a config determines, by their name without prefix."""
    loose: frozenset[str] = frozenset()
    """Fields that the library takes as arguments, so that a file need not agree on them."""
    settle: Settle = settle

    def prefix_in(self, stored: Stored) -> str | None:
        """What stands before the names, if this is the family."""
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
    """A library's way of naming and storing models."""

    name: str
    families: tuple[Family, ...]
    directory: bool = False
    """Written as a directory with the config beside the weights."""
    tells_all: bool = False
    """Its files carry vitrail's config, so that nothing has to be read from names and shapes."""
    suffix: str = ".safetensors"
    """The ending that its files usually have."""
    preprocessing: Callable[[Stored, Family, Size], Preprocessing]
    foreign: Callable[[Stored], str | None] = lambda stored: None
    """Why a file with this library's config is none of its families; None where it has no such config."""

    def family(self, name: str) -> Family | None:
        return next((family for family in self.families if family.name == name), None)


def sizes_of(config: Config) -> Sizes:
    match config:
        case ViTConfig():
            return Sizes(num_heads=config.num_heads, patch=config.patch, channels=config.channels)
        case PyramidConfig() | MobileConfig():
            return Sizes(channels=config.channels)
