"""transformers' MobileViT and MobileViT v2: known by the exact shape of a preset, as timm's are.

Its models read blue before red, which its processor sees to. Here a model reads red first: the channels of the first
convolution are turned around when it is read, and back when it is written.
"""

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
from vitrail.checkpoint.dialects.table import CHANNELS_TURNED, JOINED, Row, both, pointwise
from vitrail.checkpoint.formats.file import Stored
from vitrail.config import Config, MobileConfig
from vitrail.parts import SeparableAttention

__all__ = ["MOBILEVIT2_ROWS", "MOBILEVIT_ROWS", "describe_mobilevit", "known_mobilevit", "refuse_mobilevit"]


def _norm(ours: str, theirs: str) -> tuple[Row, ...]:
    parts = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    return tuple(Row((f"{ours}.norm.{part}",), (f"{theirs}.normalization.{part}",)) for part in parts)


def _conv(ours: str, theirs: str) -> tuple[Row, ...]:
    return (Row((f"{ours}.conv.weight",), (f"{theirs}.convolution.weight",)), *_norm(ours, theirs))


def _residual(ours: str, theirs: str) -> tuple[Row, ...]:
    names = {"expand": "expand_1x1", "depthwise": "conv_3x3", "project": "reduce_1x1"}
    return tuple(row for own, other in names.items() for row in _conv(f"{ours}.{own}", f"{theirs}.{other}"))


def _layers(block: str, layer: str) -> tuple[Row, ...]:
    qkv = (f"{layer}.attention.attention.{name}" for name in ("query", "key", "value"))
    return (
        *both(f"{block}.attention.qkv", *qkv, transform=JOINED),
        *both(f"{block}.attention.out", f"{layer}.attention.output.dense"),
        *both(f"{block}.mlp.fc1", f"{layer}.intermediate.dense"),
        *both(f"{block}.mlp.fc2", f"{layer}.output.dense"),
    )


def _layers2(block: str, layer: str) -> tuple[Row, ...]:
    return (
        *pointwise(f"{block}.attention.qkv", f"{layer}.attention.qkv_proj.convolution"),
        *pointwise(f"{block}.attention.out", f"{layer}.attention.out_proj.convolution"),
        *pointwise(f"{block}.mlp.fc1", f"{layer}.ffn.conv1.convolution"),
        *pointwise(f"{block}.mlp.fc2", f"{layer}.ffn.conv2.convolution"),
    )


def _stage(level: int, layers: Callable[[str, str], tuple[Row, ...]]) -> tuple[Row, ...]:
    """A stage of residuals alone, or of one residual and a transformer."""
    ours, theirs = f"stages.{level}", f"{{p}}encoder.layer.{level}"
    if level < 2:
        return _residual(f"{ours}.residuals.{{i}}", f"{theirs}.layer.{{i}}")
    block, layer = f"{ours}.transformer.blocks.{{i}}", f"{theirs}.transformer.layer.{{i}}"
    return (
        *_residual(f"{ours}.residuals.0", f"{theirs}.downsampling_layer"),
        *_conv(f"{ours}.transformer.local", f"{theirs}.conv_kxk"),
        Row((f"{ours}.transformer.into.weight",), (f"{theirs}.conv_1x1.convolution.weight",)),
        *both(f"{block}.norm1", f"{layer}.layernorm_before"),
        *both(f"{block}.norm2", f"{layer}.layernorm_after"),
        *layers(block, layer),
        *both(f"{ours}.transformer.norm", f"{theirs}.layernorm"),
        *_conv(f"{ours}.transformer.back", f"{theirs}.conv_projection"),
        *_conv(f"{ours}.transformer.fuse", f"{theirs}.fusion"),
    )


def _rows(layers: Callable[[str, str], tuple[Row, ...]]) -> tuple[Row, ...]:
    return (
        Row(("stem.conv.weight",), ("{p}conv_stem.convolution.weight",), CHANNELS_TURNED),
        *_norm("stem", "{p}conv_stem"),
        *(row for level in range(5) for row in _stage(level, layers)),
        *_conv("last", "{p}conv_1x1_exp"),
        *both("head", "classifier"),
    )


MOBILEVIT_ROWS, MOBILEVIT2_ROWS = _rows(_layers), _rows(_layers2)
SHOWN = frozenset({"hidden_sizes", "neck_hidden_sizes", "expand_ratio", "mlp_ratio", "num_channels", "image_size"})
SHOWN |= {"width_multiplier", "base_attn_unit_dims", "n_attn_blocks", "ffn_multiplier"}
ELSEWHERE = frozenset({"aspp_out_channels", "atrous_rates", "aspp_dropout_prob", "classifier_dropout_prob"})
ELSEWHERE |= {"attn_dropout", "ffn_dropout"}
"""What a segmentation head has, and dropout."""
ONLY: Mapping[str, tuple[Any, ...]] = {
    **{"qkv_bias": (True,), "layer_norm_eps": (1e-5,), "hidden_act": ("silu", "swish"), "num_attention_heads": (4,)},
    **{"patch_size": (2,), "conv_kernel_size": (3,), "output_stride": (32,)},
}


def known_mobilevit(stored: Stored, prefix: str) -> Known:
    said = JsonConfig(stored.config)
    said.understand(UNRELATED | OTHER_HEADS | SHOWN | ELSEWHERE, ONLY)
    source = (
        f"config.json ({said.text('model_type', 'mobilevit')})"
        if said
        else "names and shapes, as transformers has them"
    )
    return Known(source=source, image=said.size("image_size"))


def refuse_mobilevit(config: Config) -> str | None:
    if (
        not isinstance(config, MobileConfig)
        or config.residual != "inverted"
        or config.image.height != config.image.width
    ):
        return "it is a MobileViT for square images"
    return None if config.channels == 3 else f"its images have three colours, and this model {config.channels} channels"


def describe_mobilevit(checkpoint: Checkpoint, tensors: Mapping[str, Tensor]) -> Written:
    config, origin = checkpoint.config, checkpoint.origin if checkpoint.dialect == "huggingface" else {}
    assert isinstance(config, MobileConfig)
    second = isinstance(config.attention, SeparableAttention)
    name, model = ("mobilevitv2", "MobileViTV2") if second else ("mobilevit", "MobileViT")
    stated = {
        "model_type": name,
        **origin,
        "architectures": [f"{model}ForImageClassification" if config.classes else f"{model}Model"],
        "image_size": config.image.height,
        "expand_ratio": float(config.expansion),
        **(_sizes2(config) if second else _sizes(config)),
        **labels(config.classes, origin, checkpoint.labels),
    }
    processor = {
        **processor_config(checkpoint),
        "image_processor_type": "MobileViTImageProcessor",
        "do_flip_channel_order": True,
    }
    return Written(prefix=f"{name}." if config.classes else "", config=stated, processor=processor)


def _sizes(config: MobileConfig) -> dict[str, Any]:
    return {
        "hidden_sizes": [stage.transformer_width for stage in config.stages if stage.transformer_depth],
        "neck_hidden_sizes": [config.stem_width, *(stage.width for stage in config.stages), config.last_width],
    }


def _sizes2(config: MobileConfig) -> dict[str, Any]:
    return {
        "width_multiplier": config.stages[-1].width / 512,
        "n_attn_blocks": [stage.transformer_depth for stage in config.stages if stage.transformer_depth],
        "ffn_multiplier": config.mlp_ratio,
    }
