"""All dialects, by name."""

from __future__ import annotations

from vitrail.checkpoint.dialects.dialect import Dialect
from vitrail.checkpoint.dialects.dino import DINO, DINOV2, DINOV3
from vitrail.checkpoint.dialects.google import GOOGLE
from vitrail.checkpoint.dialects.huggingface import HUGGINGFACE
from vitrail.checkpoint.dialects.openclip import OPENCLIP
from vitrail.checkpoint.dialects.sam import SAM
from vitrail.checkpoint.dialects.timm import TIMM
from vitrail.checkpoint.dialects.torchvision import TORCHVISION
from vitrail.checkpoint.dialects.vitrail import VITRAIL
from vitrail.errors import VitrailError

__all__ = ["DIALECTS", "dialect_named"]

DIALECTS: dict[str, Dialect] = {
    dialect.name: dialect
    for dialect in (VITRAIL, HUGGINGFACE, DINOV3, DINOV2, DINO, SAM, TIMM, TORCHVISION, GOOGLE, OPENCLIP)
}
"""In the order in which a file is tried."""


def dialect_named(name: str) -> Dialect:
    if name not in DIALECTS:
        raise VitrailError(f"dialect {name!r} is unknown; choose one of {', '.join(DIALECTS)}")
    return DIALECTS[name]
