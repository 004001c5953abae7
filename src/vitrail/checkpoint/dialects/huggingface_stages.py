"""transformers' Swin: known by the exact shape of a preset, as timm's is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.dialects.dialect import Written
from vitrail.checkpoint.dialects.evidence import Known
from vitrail.checkpoint.dialects.huggingface_config import (
    GENERATION,
    LIBRARY,
    OTHER_HEADS,
    TRAINING,
    labels,
    processor_config,
)
from vitrail.checkpoint.dialects.json_config import JsonConfig
from vitrail.checkpoint.dialects.table import JOINED, Row, both
from vitrail.checkpoint.dialects.timm_stages import OUR_BLOCK, settle_stages
from vitrail.checkpoint.formats.file import Stored
from vitrail.checkpoint.header import Evidence
from vitrail.config import Config, PyramidConfig
from vitrail.errors import require
from vitrail.geometry import Size, Windows
from vitrail.parts import WindowedAttention

__all__ = ["SWIN_ROWS", "describe_swin", "known_swin", "refuse_swin", "settle_swin"]

BLOCK = "{p}encoder.layers.{s}.blocks.{i}"
SWIN_ROWS = (
    *both("embedding", "{p}embeddings.patch_embeddings.projection"),
    *both("embedding_norm", "{p}embeddings.norm"),
    *both(f"{OUR_BLOCK}.norm1", f"{BLOCK}.layernorm_before"),
    *both(
        f"{OUR_BLOCK}.attention.qkv",
        *(f"{BLOCK}.attention.self.{name}" for name in ("query", "key", "value")),
        transform=JOINED,
    ),
    Row((f"{OUR_BLOCK}.attention.position.table",), (f"{BLOCK}.attention.self.relative_position_bias_table",)),
    *both(f"{OUR_BLOCK}.attention.out", f"{BLOCK}.attention.output.dense"),
    *both(f"{OUR_BLOCK}.norm2", f"{BLOCK}.layernorm_after"),
    *both(f"{OUR_BLOCK}.mlp.fc1", f"{BLOCK}.intermediate.dense"),
    *both(f"{OUR_BLOCK}.mlp.fc2", f"{BLOCK}.output.dense"),
    # a merge is the end of a stage there, and the beginning of the next one here
    *(
        row
        for level in range(1, 5)
        for row in (
            *both(f"stages.{level}.merge.norm", f"{{p}}encoder.layers.{level - 1}.downsample.norm"),
            Row(
                (f"stages.{level}.merge.reduce.weight",),
                (f"{{p}}encoder.layers.{level - 1}.downsample.reduction.weight",),
            ),
        )
    ),
    *both("norm", "{p}layernorm"),
    *both("head", "classifier"),
)
SHOWN = frozenset({"embed_dim", "depths", "num_heads", "window_size", "mlp_ratio", "num_layers", "hidden_size"})
READ = frozenset({"image_size", "patch_size", "num_channels"})
ONLY: Mapping[str, tuple[Any, ...]] = {
    "qkv_bias": (True,),
    "layer_norm_eps": (1e-5,),
    "hidden_act": ("gelu",),
    "use_absolute_embeddings": (False,),
}


def known_swin(stored: Stored, prefix: str) -> Known:
    said = JsonConfig(stored.config)
    said.understand(LIBRARY | GENERATION | TRAINING | OTHER_HEADS | SHOWN | READ, ONLY)
    source = "config.json (swin)" if said else "names and shapes, as transformers has them"
    return Known(source=source, image=said.size("image_size"))


def settle_swin(
    tensors: dict[str, Tensor], known: Known, *, from_image: Size | None, num_heads: int | None
) -> tuple[Config, Evidence]:
    config, evidence = settle_stages(tensors, known, from_image=from_image, num_heads=num_heads)
    reason = refuse_swin(config)
    require(reason is None, f"this Swin cannot be read: {reason}; read it at an image whose grids windows divide")
    return config, evidence


def refuse_swin(config: Config) -> str | None:
    """Refuse padded windows: transformers pads them before it shifts them, and timm after."""
    if not isinstance(config, PyramidConfig) or not isinstance(config.attention, WindowedAttention):
        return "it is a pyramid of windows"
    window = config.attention.window
    padded = next((grid for grid in config.grids if Windows.of(grid, window).padded != grid), None)
    return padded and f"windows of {window} do not divide grid {padded}, and it pads them in another way than timm"


def describe_swin(checkpoint: Checkpoint, tensors: Mapping[str, Tensor]) -> Written:
    config = checkpoint.config
    assert isinstance(config, PyramidConfig)
    assert isinstance(config.attention, WindowedAttention)
    origin = checkpoint.origin if checkpoint.dialect == "huggingface" else {}
    image, patch, first = config.image, config.patch, config.stages[0]
    stated = {
        "model_type": "swin",
        **origin,
        "architectures": ["SwinForImageClassification" if config.classes else "SwinModel"],
        "image_size": image.height if image.height == image.width else list(image),
        "patch_size": patch.height,
        "num_channels": config.channels,
        "embed_dim": first.width,
        "depths": [stage.depth for stage in config.stages],
        "num_heads": [stage.num_heads for stage in config.stages],
        "window_size": config.attention.window.height,
        **labels(config.classes, origin, checkpoint.labels),
    }
    return Written(prefix="swin." if config.classes else "", config=stated, processor=processor_config(checkpoint))
