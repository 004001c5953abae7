"""timm's Swin and MobileViT: models in stages, known by the exact shape of a preset."""

from __future__ import annotations

import torch
from torch import Tensor

from vitrail.checkpoint.dialects.evidence import Known
from vitrail.checkpoint.dialects.table import Row, both
from vitrail.checkpoint.header import Evidence
from vitrail.config import Config, MobileConfig, PyramidConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.nn.build import build
from vitrail.presets import PRESETS

__all__ = ["MOBILE_ROWS", "SWIN_ROWS", "settle_stages"]

SWIN_BLOCK, OUR_BLOCK = "{p}layers.{s}.blocks.{i}", "stages.{s}.blocks.{i}"
SWIN_ROWS = (
    *both("embedding", "{p}patch_embed.proj"),
    *both("embedding_norm", "{p}patch_embed.norm"),
    *both("stages.{s}.merge.norm", "{p}layers.{s}.downsample.norm"),
    Row(("stages.{s}.merge.reduce.weight",), ("{p}layers.{s}.downsample.reduction.weight",)),
    *both(f"{OUR_BLOCK}.norm1", f"{SWIN_BLOCK}.norm1"),
    *both(f"{OUR_BLOCK}.attention.qkv", f"{SWIN_BLOCK}.attn.qkv"),
    *both(f"{OUR_BLOCK}.attention.out", f"{SWIN_BLOCK}.attn.proj"),
    Row((f"{OUR_BLOCK}.attention.position.table",), (f"{SWIN_BLOCK}.attn.relative_position_bias_table",)),
    *both(f"{OUR_BLOCK}.norm2", f"{SWIN_BLOCK}.norm2"),
    *both(f"{OUR_BLOCK}.mlp.fc1", f"{SWIN_BLOCK}.mlp.fc1"),
    *both(f"{OUR_BLOCK}.mlp.fc2", f"{SWIN_BLOCK}.mlp.fc2"),
    *both("norm", "{p}norm"),
    *both("head", "{p}head.fc"),
)


def _conv_norm(ours: str, theirs: str) -> tuple[Row, ...]:
    """Return the rows of a convolution and its batch norm, with running statistics."""
    return (
        Row((f"{ours}.conv.weight",), (f"{theirs}.conv.weight",)),
        *(
            Row((f"{ours}.norm.{part}",), (f"{theirs}.bn.{part}",))
            for part in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
        ),
    )


MAP, OUR_MAP = "{p}stages.{s}.1", "stages.{s}.transformer"
"""A transformer stands behind one inverted residual, so that its number is 1."""
MOBILE_ROWS = (
    *_conv_norm("stem", "{p}stem"),
    *_conv_norm("stages.{s}.residuals.{i}.expand", "{p}stages.{s}.{i}.conv1_1x1"),
    *_conv_norm("stages.{s}.residuals.{i}.depthwise", "{p}stages.{s}.{i}.conv2_kxk"),
    *_conv_norm("stages.{s}.residuals.{i}.project", "{p}stages.{s}.{i}.conv3_1x1"),
    *_conv_norm(f"{OUR_MAP}.local", f"{MAP}.conv_kxk"),
    Row((f"{OUR_MAP}.into.weight",), (f"{MAP}.conv_1x1.weight",)),
    *both(f"{OUR_MAP}.blocks.{{i}}.norm1", f"{MAP}.transformer.{{i}}.norm1"),
    *both(f"{OUR_MAP}.blocks.{{i}}.attention.qkv", f"{MAP}.transformer.{{i}}.attn.qkv"),
    *both(f"{OUR_MAP}.blocks.{{i}}.attention.out", f"{MAP}.transformer.{{i}}.attn.proj"),
    *both(f"{OUR_MAP}.blocks.{{i}}.norm2", f"{MAP}.transformer.{{i}}.norm2"),
    *both(f"{OUR_MAP}.blocks.{{i}}.mlp.fc1", f"{MAP}.transformer.{{i}}.mlp.fc1"),
    *both(f"{OUR_MAP}.blocks.{{i}}.mlp.fc2", f"{MAP}.transformer.{{i}}.mlp.fc2"),
    *both(f"{OUR_MAP}.norm", f"{MAP}.norm"),
    *_conv_norm(f"{OUR_MAP}.back", f"{MAP}.conv_proj"),
    *_conv_norm(f"{OUR_MAP}.fuse", f"{MAP}.conv_fusion"),
    *_conv_norm("last", "{p}final_conv"),
    *both("head", "{p}head.fc"),
)


def settle_stages(
    tensors: dict[str, Tensor], known: Known, *, from_image: Size | None, num_heads: int | None
) -> tuple[Config, Evidence]:
    """The preset whose every tensor but the head's has the same shape, at its own image or at the one that is known: a
    small image has smaller windows, and so smaller tables. timm pads windows with zeros that take part in attention."""
    classes = tensors["head.weight"].shape[0] if "head.weight" in tensors else 0
    for name, preset in PRESETS.items():
        if not isinstance(preset, PyramidConfig | MobileConfig):
            continue
        image = from_image or known.image or preset.image
        told = "the caller" if from_image else known.source if known.image else f"preset {name}"
        own = _has_shapes(preset, tensors)
        if not own and not _takes(preset, image):
            continue
        padding = {"window_padding": "zeros"} if isinstance(preset, PyramidConfig) else {}
        config = preset.but(image=image, classes=classes, **padding)
        if _has_shapes(config, tensors):
            shape = f"the exact shape of preset {name}"
            return config, Evidence(config=shape, grid=f"image {image} from {told}")
        if own:
            raise VitrailError(
                f"preset {name}, which these weights are, has smaller windows at image {image} from {told} than the "
                f"weights have; read them at image {preset.image} and adapt"
            )
    raise VitrailError(
        "this model in stages has the shape of no preset, and shapes alone do not tell its strides; if it was made for "
        "a small image, whose windows are smaller, give --from-image HEIGHTxWIDTH"
    )


def _takes(preset: PyramidConfig | MobileConfig, image: Size) -> bool:
    try:
        preset.check(image)
    except VitrailError:
        return False
    return True


def _has_shapes(config: Config, tensors: dict[str, Tensor]) -> bool:
    with torch.device("meta"):
        return _shapes(build(config).state_dict()) == _shapes(tensors)


def _shapes(tensors: dict[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items() if not name.startswith("head.")}
