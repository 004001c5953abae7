"""A family of transformers' models: how it is recognised, and what all of them have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.dialects.dialect import Family, Written
from vitrail.checkpoint.dialects.evidence import Known
from vitrail.checkpoint.dialects.huggingface_config import tower_type
from vitrail.checkpoint.dialects.table import Row
from vitrail.checkpoint.formats.file import Stored
from vitrail.checkpoint.preprocessing import HALF, Statistics
from vitrail.config import Config

__all__ = ["MODEL_TYPES", "SPARE", "TOWER", "family", "of_type", "square"]

MODEL_TYPES: list[str] = []


def of_type(*types: str, names: Callable[[set[str]], bool]) -> Callable[[Stored, str], bool]:
    """Match by the config's model_type, or by tensor names if there is no config."""
    MODEL_TYPES.extend(kind for kind in types if kind not in MODEL_TYPES)

    def signs(stored: Stored, prefix: str) -> bool:
        if "model_type" in stored.config:
            return tower_type(stored.config) in types
        return names({name.removeprefix(prefix) for name in stored.tensors if name.startswith(prefix)})

    return signs


def square(config: Config) -> str | None:
    return (
        None if config.image.height == config.image.width else f"its tables are square and image {config.image} is not"
    )


SPARE = r"embeddings\.mask_token|pooler\..*|embeddings\.position_ids|.*relative_position_index"


def family(
    name: str,
    rows: tuple[Row, ...],
    read: Callable[[Stored, str], Known],
    signs: Callable[[Stored, str], bool],
    write: Callable[[Checkpoint, Mapping[str, Tensor]], Written],
    *,
    anchor: str = "embeddings.patch_embeddings.projection.weight",
    statistics: Statistics = HALF,
    spare: str = SPARE,
    **options: Any,
) -> Family:
    return Family(
        name=name,
        rows=rows,
        anchor=anchor,
        known=read,
        signs=signs,
        spare=spare,
        statistics=statistics,
        write=write,
        **options,
    )


TOWER = "embeddings.patch_embedding.weight"
"""The projection of CLIP's, SigLIP's and similar towers."""
