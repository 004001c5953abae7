"""timm's PiT and MobileViT, and how a model in stages is settled: by what its config says, or by the exact shape of a
preset."""

from __future__ import annotations

import torch
from torch import Tensor

from vitrail.checkpoint.dialects.conditions import on_first_grid
from vitrail.checkpoint.dialects.evidence import Known
from vitrail.checkpoint.dialects.table import GRID, TWO_TOKENS, Row, both, pointwise
from vitrail.checkpoint.header import Evidence
from vitrail.config import Config, MobileConfig, PyramidConfig
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size
from vitrail.nn.build import build
from vitrail.parts import Learned, WindowedAttention
from vitrail.presets import PRESETS

__all__ = [
    "MOBILE2_ROWS",
    "MOBILE_ROWS",
    "OUR_BLOCK",
    "PIT_DISTILLED_ROWS",
    "PIT_ROWS",
    "block_rows",
    "conv_norm_rows",
    "settle_stages",
]


def block_rows(ours: str, theirs: str) -> tuple[Row, ...]:
    """Return the rows of a block, which all of them name alike."""
    return (
        *both(f"{ours}.norm1", f"{theirs}.norm1"),
        *both(f"{ours}.attention.qkv", f"{theirs}.attn.qkv"),
        *both(f"{ours}.attention.out", f"{theirs}.attn.proj"),
        *both(f"{ours}.norm2", f"{theirs}.norm2"),
        *both(f"{ours}.mlp.fc1", f"{theirs}.mlp.fc1"),
        *both(f"{ours}.mlp.fc2", f"{theirs}.mlp.fc2"),
    )


OUR_BLOCK = "stages.{s}.blocks.{i}"
PIT = (
    *both("embedding", "{p}patch_embed.conv"),
    Row(("position.table",), ("{p}pos_embed",), GRID, on_first_grid),
    *both("stages.{s}.merge.conv", "{p}transformers.{s}.pool.conv"),
    *both("stages.{s}.merge.prefix", "{p}transformers.{s}.pool.fc"),
    *block_rows(OUR_BLOCK, "{p}transformers.{s}.blocks.{i}"),
    *both("norm", "{p}norm"),
    *both("head", "{p}head"),
)
PIT_ROWS = (*PIT, Row(("prefix.cls",), ("{p}cls_token",)))
PIT_DISTILLED_ROWS = (
    *PIT,
    Row(("prefix.cls", "prefix.distillation"), ("{p}cls_token",), TWO_TOKENS),
    *both("distillation_head", "{p}head_dist"),
)


def conv_norm_rows(ours: str, theirs: str) -> tuple[Row, ...]:
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
OUR_MAP_BLOCK, MAP_BLOCK = f"{OUR_MAP}.blocks.{{i}}", f"{MAP}.transformer.{{i}}"
MOBILE = (
    *conv_norm_rows("stem", "{p}stem"),
    *conv_norm_rows("stages.{s}.residuals.{i}.expand", "{p}stages.{s}.{i}.conv1_1x1"),
    *conv_norm_rows("stages.{s}.residuals.{i}.depthwise", "{p}stages.{s}.{i}.conv2_kxk"),
    *conv_norm_rows("stages.{s}.residuals.{i}.project", "{p}stages.{s}.{i}.conv3_1x1"),
    *conv_norm_rows(f"{OUR_MAP}.local", f"{MAP}.conv_kxk"),
    Row((f"{OUR_MAP}.into.weight",), (f"{MAP}.conv_1x1.weight",)),
    *both(f"{OUR_MAP}.norm", f"{MAP}.norm"),
    *conv_norm_rows(f"{OUR_MAP}.back", f"{MAP}.conv_proj"),
    *both("head", "{p}head.fc"),
)
MOBILE_ROWS = (
    *MOBILE,
    *block_rows(OUR_MAP_BLOCK, MAP_BLOCK),
    *conv_norm_rows(f"{OUR_MAP}.fuse", f"{MAP}.conv_fusion"),
    *conv_norm_rows("last", "{p}final_conv"),
)
MOBILE2_ROWS = (
    *MOBILE,
    *both(f"{OUR_MAP_BLOCK}.norm1", f"{MAP_BLOCK}.norm1"),
    *pointwise(f"{OUR_MAP_BLOCK}.attention.qkv", f"{MAP_BLOCK}.attn.qkv_proj"),
    *pointwise(f"{OUR_MAP_BLOCK}.attention.out", f"{MAP_BLOCK}.attn.out_proj"),
    *both(f"{OUR_MAP_BLOCK}.norm2", f"{MAP_BLOCK}.norm2"),
    *pointwise(f"{OUR_MAP_BLOCK}.mlp.fc1", f"{MAP_BLOCK}.mlp.fc1"),
    *pointwise(f"{OUR_MAP_BLOCK}.mlp.fc2", f"{MAP_BLOCK}.mlp.fc2"),
)
"""MobileViT v2: its linear layers are convolutions of single pixels."""


InStages = PyramidConfig | MobileConfig


def settle_stages(
    tensors: dict[str, Tensor], known: Known, *, from_image: Size | None, num_heads: int | None
) -> tuple[Config, Evidence]:
    """The model that a config describes; or the preset whose every tensor but the head's has the same shape, at the
    image that is known, or at its own."""
    classes = tensors["head.weight"].shape[0] if "head.weight" in tensors else 0
    image, told = from_image or known.image, "the caller" if from_image else known.source
    if "config" in known.fields:
        config = known.fields["config"].but(image=image, classes=classes)
        return config, Evidence(config=known.source, grid=f"image {image} from {told}")
    for name, preset in PRESETS.items():
        if isinstance(preset, InStages) and _begins_like(preset, tensors):
            if known.sizes.grid is not None:
                found = _settle_table(name, preset, tensors, known.sizes.grid, image, told)
            else:
                found = _settle_windows(name, preset, tensors, image, told)
            if found is not None:
                return found[0].but(classes=classes), found[1]
    raise VitrailError(
        "this model in stages has the shape of no preset, and shapes alone do not tell its strides; if it was made for "
        "a small image, whose windows are smaller, give --from-image HEIGHTxWIDTH"
    )


def _settle_windows(
    name: str, preset: InStages, tensors: dict[str, Tensor], image: Size | None, told: str
) -> tuple[InStages, Evidence] | None:
    """A small image has smaller windows, and so smaller tables. timm pads windows with zeros that take part."""
    if image is None:
        image, told = preset.image, f"preset {name}"
    own = _has_shapes(preset, tensors)
    if not own and not _takes(preset, image):
        return None
    zeros = {}
    if isinstance(preset, PyramidConfig) and isinstance(preset.attention, WindowedAttention):
        zeros = {"attention": preset.attention.but(window_padding="zeros")}
    config = preset.but(image=image, **zeros)
    if _has_shapes(config, tensors):
        return config, Evidence(config=f"the exact shape of preset {name}", grid=f"image {image} from {told}")
    require(
        not own,
        f"preset {name}, which these weights are, has smaller windows at image {image} from {told} than the weights "
        f"have; read them at image {preset.image} and adapt",
    )
    return None


def _settle_table(
    name: str, preset: InStages, tensors: dict[str, Tensor], grid: Size, image: Size | None, told: str
) -> tuple[InStages, Evidence] | None:
    """The position table has the shape of the first grid, from which the image follows."""
    if not isinstance(preset, PyramidConfig) or not isinstance(preset.position, Learned) or preset.embedding.padded:
        return None
    sides = zip(grid, preset.patch, preset.embedding.stride or preset.patch, strict=True)
    config = preset.but(image=Size(*((count - 1) * step + side for count, side, step in sides)))
    if not _has_shapes(config, tensors):
        return None
    require(
        image in (None, config.image),
        f"preset {name}, which these weights are, has positions on grid {grid}, for image {config.image}, and not for "
        f"image {image} from {told}; read them at image {config.image} and adapt",
    )
    return config, Evidence(config=f"the exact shape of preset {name}", grid="the shape of the position table")


def _begins_like(preset: InStages, tensors: dict[str, Tensor]) -> bool:
    """Whether the first layer has the preset's width: a quick test that spares building the others."""
    first = tensors.get("embedding.weight" if isinstance(preset, PyramidConfig) else "stem.conv.weight")
    width = preset.stages[0].width if isinstance(preset, PyramidConfig) else preset.stem_width
    return first is not None and first.shape[0] == width


def _takes(preset: InStages, image: Size) -> bool:
    try:
        preset.check(image)
    except VitrailError:
        return False
    return True


def _has_shapes(config: Config, tensors: dict[str, Tensor]) -> bool:
    with torch.device("meta"):
        return _shapes(build(config).state_dict()) == _shapes(tensors)


def _shapes(tensors: dict[str, Tensor]) -> dict[str, torch.Size]:
    heads = "head.", "distillation_head."
    return {name: tensor.shape for name, tensor in tensors.items() if not name.startswith(heads)}
