"""transformers' SAM 2: its Hiera backbone, alone, with its neck, or inside a whole SAM 2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.dialects.dialect import Family, Written
from vitrail.checkpoint.dialects.evidence import Known
from vitrail.checkpoint.dialects.hiera import hiera_config, hiera_rows, hiera_said, refuse_hiera, shape_of
from vitrail.checkpoint.dialects.huggingface_config import UNRELATED, processor_config
from vitrail.checkpoint.dialects.huggingface_family import of_type
from vitrail.checkpoint.dialects.json_config import JsonConfig
from vitrail.checkpoint.dialects.timm_stages import settle_stages
from vitrail.checkpoint.formats.file import Stored
from vitrail.checkpoint.preprocessing import IMAGENET
from vitrail.config import Config, PyramidConfig
from vitrail.errors import require
from vitrail.geometry import Size
from vitrail.parts import TiledTable

__all__ = ["HUGGINGFACE_SAM2"]

PATH = ("vision_config", "backbone_config")
"""Where a whole SAM 2 has its backbone's config."""
TYPES = ("sam2", "sam2_video", "sam2_vision_model", "sam2_hiera_det_model")
SHOWN = frozenset(
    {"hidden_size", "num_channels", "num_attention_heads", "embed_dim_per_stage", "blocks_per_stage"}
    | {"window_positional_embedding_background_size"}
)
READ = frozenset(
    {
        "image_size",
        "num_attention_heads_per_stage",
        "window_size_per_stage",
        "global_attention_blocks",
        "layer_norm_eps",
    }
)
ONLY: Mapping[str, tuple[Any, ...]] = {
    **{
        "patch_kernel_size": ([7, 7],),
        "patch_stride": ([4, 4],),
        "patch_padding": ([3, 3],),
        "query_stride": ([2, 2],),
    },
    **{"num_query_pool_stages": (3,), "mlp_ratio": (4.0,), "hidden_act": ("gelu",)},
}


def _backbone(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the backbone's config in the config of what is around it."""
    for key in PATH:
        inside = config.get(key)
        config = inside if isinstance(inside, Mapping) else config
    return config


def _known(stored: Stored, prefix: str) -> Known:
    said = JsonConfig(_backbone(stored.config))
    require(bool(said), f"{stored.path} does not show the windows of its SAM 2; put its config.json beside it")
    said.understand(UNRELATED | SHOWN | READ, ONLY)
    image = said.size("image_size") or Size(1024, 1024)
    config, sizes = hiera_config(
        stored.path,
        shape_of(stored, prefix, "projection"),
        image,
        heads=_wholes(said, "num_attention_heads_per_stage", (1, 2, 4, 8)),
        windows=_wholes(said, "window_size_per_stage", (8, 4, 14, 7)),
        full=_wholes(said, "global_attention_blocks", (5, 7, 9)),
        norm_eps=said.number("layer_norm_eps", 1e-6),
        final_norm="none",
    )
    whole = stored.config.get("model_type")
    return Known(source=f"config.json ({whole})", fields={"config": config}, image=image, sizes=sizes)


def _wholes(said: JsonConfig, key: str, usual: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(value) for value in said.numbers(key, usual))


def _describe(checkpoint: Checkpoint, tensors: Mapping[str, Tensor]) -> Written:
    config = checkpoint.config
    assert isinstance(config, PyramidConfig)
    assert isinstance(config.position, TiledTable)
    origin = checkpoint.origin if checkpoint.dialect == "huggingface" else {}
    windows, full = hiera_said(config)
    found = {
        "model_type": "sam2_hiera_det_model",
        "image_size": list(config.image),
        "num_channels": config.channels,
        "hidden_size": config.stages[0].width,
        "num_attention_heads": config.stages[0].num_heads,
        "blocks_per_stage": [stage.depth for stage in config.stages],
        "embed_dim_per_stage": [stage.width for stage in config.stages],
        "num_attention_heads_per_stage": [stage.num_heads for stage in config.stages],
        "window_size_per_stage": windows,
        "global_attention_blocks": list(full),
        "window_positional_embedding_background_size": list(config.position.background),
        "layer_norm_eps": config.norm_eps,
    }
    processor = processor_config(checkpoint)
    if not origin:
        return Written(prefix="", config={**found, "architectures": ["Sam2HieraDetModel"]}, processor=processor)
    return Written(config=_inside(origin, found), processor=processor)


def _inside(around: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """Put the backbone's config back where it was."""
    for key in PATH:
        if isinstance(around.get(key), Mapping):
            return {**around, key: _inside(around[key], found)}
    return {**around, **found}


def _refuse(config: Config) -> str | None:
    reason = refuse_hiera(config)
    if reason is not None or not isinstance(config, PyramidConfig):
        return reason
    if not isinstance(config.position, TiledTable) or config.final_norm != "none" or config.classes:
        return "SAM 2's backbone has tiled positions, and neither a final norm nor a head"
    return None if config.mlp_ratio == 4 and len(config.stages) == 4 else "it has four stages and an mlp_ratio of 4"


HUGGINGFACE_SAM2 = Family(
    name="sam2",
    rows=hiera_rows("projection", "layer_norm", ("proj_in", "proj_out"), "pos_embed_window"),
    anchor="patch_embed.projection.weight",
    signs=of_type(
        "sam2",
        "sam2_video",
        "sam2_vision_model",
        "sam2_hiera_det_model",
        names=lambda names: "pos_embed_window" in names,
    ),
    known=_known,
    statistics=IMAGENET,
    write=_describe,
    needs=("position.window", "stages.1.blocks.0.shortcut.weight"),
    refuse=_refuse,
    settle=settle_stages,
)
