"""What timm's names of models stand for: the class, and the arguments that its code passes to it.

A config.json of timm's names an architecture and says only what differs from it; the rest is in timm's own code. The
table beside this file holds those arguments as data, for every ViT of timm 1.0.30 (`tests/survey/architectures.py`
writes it by asking timm, and a test compares the two).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib import resources
from typing import Any

from vitrail.checkpoint.dialects.json_config import JsonConfig
from vitrail.checkpoint.formats.file import Stored
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size

__all__ = ["Architecture", "architecture_named", "architecture_shown", "architectures_of", "shape_digest"]

BY_IMAGE_OR_TASK = re.compile(
    r"(head|head_dist|pre_logits)\.|pos_embed$|.*relative_position_(bias_table|index)$|mask_token$|decoder|rope\.periods$"
)
"""Tensors whose presence or shape depends on the image or on the task, not on the architecture."""


UNTRAINED = re.compile(r"vit_\w+_resnet\d+d")
"""timm's names of hybrids with a ResNet of its own, of which it has no weights."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """timm's name of the architecture."""

    name: str
    kind: str
    """The class in timm that builds it."""
    image: Size
    shapes: str
    """A digest of its tensors' names and shapes."""
    arguments: Mapping[str, Any]
    """Arguments that differ from the class's defaults."""


def architecture_named(name: str) -> Architecture:
    table = _table()
    if name not in table:
        require(
            UNTRAINED.match(name) is None,
            f"timm's {name} has a ResNet-D with batch norms before its patches, which vitrail's ResNetStem is not, and "
            "timm has no weights of it; use one of its trained hybrids, such as vit_base_r50_s16_224",
        )
        near = get_close_matches(name, table, n=1)
        raise VitrailError(
            f"timm's architecture {name!r} is not one of the {len(table)} that vitrail reads"
            + (f" (the nearest name is {near[0]!r})" if near else "")
            + "; give the one it is built as by --architecture"
        )
    return table[name]


def architectures_of(shapes: Mapping[str, Sequence[int]]) -> list[Architecture]:
    """Return the architectures with these names and shapes, ignoring tensors that depend on image size or task."""
    digest = shape_digest(shapes)
    alike = [each for each in _table().values() if each.shapes == digest]
    return sorted(alike, key=lambda each: (not each.name.startswith("vit_"), each.name))


def architecture_shown(stored: Stored, prefix: str) -> tuple[Architecture, str] | None:
    """Return the architecture that the config names, or the only one with these names and shapes, and what shows it."""
    if name := JsonConfig(stored.config).text("architecture"):
        return architecture_named(name), "config.json (timm's {})"
    own = {key.removeprefix(prefix): each for key, each in stored.tensors.items() if key.startswith(prefix)}
    alike = architectures_of({key: tuple(tensor.shape) for key, tensor in own.items()})
    return (alike[0], "the exact names and shapes of timm's {}") if len(alike) == 1 else None


def shape_digest(shapes: Mapping[str, Sequence[int]]) -> str:
    text = [[name, list(shape)] for name, shape in sorted(shapes.items()) if not BY_IMAGE_OR_TASK.match(name)]
    return hashlib.sha256(json.dumps(text).encode()).hexdigest()[:12]


@cache
def _table() -> dict[str, Architecture]:
    text = (resources.files("vitrail.checkpoint.dialects") / "timm_architectures.json").read_text()
    return {
        name: Architecture(
            name=name,
            kind=entry["class"],
            image=Size(*entry["image"]),
            shapes=entry["shapes"],
            arguments=entry["arguments"],
        )
        for name, entry in json.loads(text).items()
    }
