"""vitrail's own: the state dict as it is, with the config in the metadata; the one dialect that takes every model."""

from __future__ import annotations

from vitrail.checkpoint.dialects.dialect import Dialect, Family
from vitrail.checkpoint.dialects.evidence import Known
from vitrail.checkpoint.dialects.table import Row
from vitrail.checkpoint.formats.file import Stored
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.geometry import Size
from vitrail.parts import Learned

__all__ = ["VITRAIL"]

ROWS = (Row(("{n}",), ("{p}{n}",)), Row(("+{n}",), ("{p}+{n}",)))
"""The state dict as it is, and what other dialects keep aside, so that it goes back to them."""


def _known(stored: Stored, prefix: str) -> Known:
    fields = {"position": Learned()}
    return Known(source="names and shapes, as vitrail's models have them, with its defaults", fields=fields)


def _preprocessing(stored: Stored, family: Family, image: Size) -> Preprocessing:
    return Preprocessing(image=image)


def _family(name: str, anchor: str) -> Family:
    return Family(
        name=name,
        rows=ROWS,
        anchor=anchor,
        signs=lambda stored, prefix: any(
            prefix + sign in stored.tensors
            for sign in (
                "blocks.0.attention.qkv.weight",
                "stages.0.blocks.0.attention.qkv.weight",
                "stages.0.residuals.0.project.conv.weight",
                "stages.0.residuals.0.second.conv.weight",
            )
        ),
        known=_known,
    )


VITRAIL = Dialect(
    name="vitrail",
    tells_all=True,
    preprocessing=_preprocessing,
    families=(
        _family("vit", "embedding.weight"),
        _family("stem", "embedding.projection.weight"),
        _family("hierarchical", "embedding.finest.weight"),
        _family("adaptive", "embedding.projections.0.weight"),
        _family("mobile", "stem.conv.weight"),
    ),
)
