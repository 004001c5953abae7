"""transformers' Swin and Swin v2: read by what config.json says; a Swin without one is known by the exact shape of a
preset, as timm's is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.dialects.dialect import Written
from vitrail.checkpoint.dialects.evidence import Known
from vitrail.checkpoint.dialects.huggingface_config import (
    OTHER_HEADS,
    UNRELATED,
    labels,
    processor_config,
)
from vitrail.checkpoint.dialects.json_config import JsonConfig
from vitrail.checkpoint.dialects.swin_config import is_second, swin_config, swin_fields
from vitrail.checkpoint.dialects.table import JOINED, Row, both
from vitrail.checkpoint.dialects.timm_stages import OUR_BLOCK, settle_stages
from vitrail.checkpoint.formats.file import Stored
from vitrail.checkpoint.header import Evidence
from vitrail.config import Config, PyramidConfig, padded_grids
from vitrail.errors import require
from vitrail.geometry import Size
from vitrail.parts import WindowedAttention

__all__ = ["SWIN2_ROWS", "SWIN_ROWS", "describe_swin", "known_swin", "refuse_swin", "settle_swin"]

BLOCK = "{p}encoder.layers.{s}.blocks.{i}"
QKV = tuple(f"{BLOCK}.attention.self.{name}" for name in ("query", "key", "value"))
AROUND = (
    *both("embedding", "{p}embeddings.patch_embeddings.projection"),
    *both("embedding_norm", "{p}embeddings.norm"),
    *both(f"{OUR_BLOCK}.norm1", f"{BLOCK}.layernorm_before"),
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
SWIN_ROWS = (
    *AROUND,
    *both(f"{OUR_BLOCK}.attention.qkv", *QKV, transform=JOINED),
    Row((f"{OUR_BLOCK}.attention.position.table",), (f"{BLOCK}.attention.self.relative_position_bias_table",)),
)
SWIN2_ROWS = (
    *AROUND,
    Row((f"{OUR_BLOCK}.attention.qkv.weight",), tuple(f"{name}.weight" for name in QKV), JOINED),
    Row((f"{OUR_BLOCK}.attention.q_bias",), (f"{QKV[0]}.bias",)),
    Row((f"{OUR_BLOCK}.attention.v_bias",), (f"{QKV[2]}.bias",)),
    Row((f"{OUR_BLOCK}.attention.scale",), (f"{BLOCK}.attention.self.logit_scale",)),
    *both(f"{OUR_BLOCK}.attention.position.fc1", f"{BLOCK}.attention.self.continuous_position_bias_mlp.0"),
    *both(f"{OUR_BLOCK}.attention.position.fc2", f"{BLOCK}.attention.self.continuous_position_bias_mlp.2"),
)
READ = frozenset(
    {
        *("image_size", "patch_size", "num_channels", "embed_dim", "depths", "num_heads", "window_size", "mlp_ratio"),
        *("qkv_bias", "pretrained_window_sizes", "num_layers", "hidden_size"),
    }
)
ONLY: Mapping[str, tuple[Any, ...]] = {
    "layer_norm_eps": (1e-5,),
    "hidden_act": ("gelu",),
    "use_absolute_embeddings": (False,),
}


def known_swin(*, second: bool = False, **own: Any) -> Callable[[Stored, str], Known]:
    def read(stored: Stored, prefix: str) -> Known:
        said = JsonConfig(stored.config)
        said.understand(UNRELATED | OTHER_HEADS | READ, ONLY)
        image = said.size("image_size") or Size(224, 224)
        if said:
            config = swin_config(said, image, second=second, **own)
            return Known(source=f"config.json ({said.text('model_type')})", fields={"config": config}, image=image)
        require(not second, f"{stored.path} does not show the windows of its Swin v2; put its config.json beside it")
        return Known(source="names and shapes, as transformers has them")

    return read


def settle_swin(
    tensors: dict[str, Tensor], known: Known, *, from_image: Size | None, num_heads: int | None
) -> tuple[Config, Evidence]:
    config, evidence = settle_stages(tensors, known, from_image=from_image, num_heads=num_heads)
    reason = refuse_swin(config)
    require(reason is None, f"this Swin cannot be read: {reason}; read it at an image whose grids windows divide")
    return config, evidence


def refuse_swin(config: Config) -> str | None:
    """Refuse windows that transformers pads or shifts in another way than timm."""
    if not isinstance(config, PyramidConfig) or not isinstance(config.attention, WindowedAttention):
        return "it is a pyramid of windows"
    for grid, window in padded_grids(config).items():
        return f"windows of {window} do not divide grid {grid}, and it pads them in another way than timm"
    window = config.attention.window
    for grid in config.grids:
        if min(grid) <= window.height < max(grid):
            return f"grid {grid} has several windows of {window} along one side only, and it does not shift these"
    if any(stage.window for stage in config.stages):
        return "its stages have the same window"
    return None


def describe_swin(checkpoint: Checkpoint, tensors: Mapping[str, Tensor]) -> Written:
    config = checkpoint.config
    assert isinstance(config, PyramidConfig)
    origin = checkpoint.origin if checkpoint.dialect == "huggingface" else {}
    image, (kind, model, prefix) = config.image, ("swin", "Swin", "swin.")
    if is_second(config):
        kind, model, prefix = "swinv2", "Swinv2", "swinv2."
    elif config.final_norm == "none":
        kind, model, prefix = "donut-swin", "DonutSwin", "donut."
    stated = {
        "model_type": kind,
        **origin,
        "architectures": [f"{model}ForImageClassification" if config.classes else f"{model}Model"],
        "image_size": image.height if image.height == image.width else list(image),
        "num_channels": config.channels,
        **swin_fields(config),
        **labels(config.classes, origin, checkpoint.labels),
    }
    return Written(prefix=prefix if config.classes else "", config=stated, processor=processor_config(checkpoint))
