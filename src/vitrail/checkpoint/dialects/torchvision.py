"""torchvision's VisionTransformer: square images, a CLS token, norms of 1e-6."""

from __future__ import annotations

from vitrail.checkpoint.dialects.dialect import Dialect, Family
from vitrail.checkpoint.dialects.evidence import Known
from vitrail.checkpoint.dialects.table import TABLE, Row, both, never
from vitrail.checkpoint.formats.file import Stored
from vitrail.checkpoint.preprocessing import IMAGENET, Preprocessing
from vitrail.config import Config
from vitrail.geometry import Size
from vitrail.parts import Learned

__all__ = ["TORCHVISION"]

LAYER = "{p}encoder.layers.encoder_layer_{i}"
ROWS = (
    *both("embedding", "{p}conv_proj"),
    Row(("prefix.cls",), ("{p}class_token",)),
    Row(("position.table",), ("{p}encoder.pos_embedding",), TABLE),
    *both("blocks.{i}.norm1", f"{LAYER}.ln_1"),
    Row(("blocks.{i}.attention.qkv.weight",), (f"{LAYER}.self_attention.in_proj_weight",)),
    Row(("blocks.{i}.attention.qkv.bias",), (f"{LAYER}.self_attention.in_proj_bias",)),
    *both("blocks.{i}.attention.out", f"{LAYER}.self_attention.out_proj"),
    *both("blocks.{i}.norm2", f"{LAYER}.ln_2"),
    *both("blocks.{i}.mlp.fc1", f"{LAYER}.mlp.0"),
    *both("blocks.{i}.mlp.fc2", f"{LAYER}.mlp.3"),
    *both("blocks.{i}.mlp.fc1", f"{LAYER}.mlp.linear_1", when=never),  # files of its first releases
    *both("blocks.{i}.mlp.fc2", f"{LAYER}.mlp.linear_2", when=never),
    *both("norm", "{p}encoder.ln"),
    *both("head", "{p}heads.head"),
)


def _known(stored: Stored, prefix: str) -> Known:
    fields = {"norm_eps": 1e-6, "activation": "gelu", "position": Learned(convention="torchvision")}
    return Known(source="names and shapes, as torchvision's models have them", fields=fields)


def _preprocessing(stored: Stored, family: Family, image: Size) -> Preprocessing:
    mean, std = IMAGENET
    return Preprocessing(
        image=image,
        mean=mean,
        std=std,
        interpolation="bilinear",
        crop_share=0.875,
        source="torchvision's IMAGENET1K_V1 transforms",
    )


def _refuse(config: Config) -> str | None:
    if config.image.height != config.image.width:
        return f"it takes square images, and {config.image} is not"
    if config.patch.height != config.patch.width:
        return f"it takes square patches, and {config.patch} is not"
    return None if config.channels == 3 else f"it takes 3 channels, and this model {config.channels}"


TORCHVISION = Dialect(
    name="torchvision",
    suffix=".pth",
    preprocessing=_preprocessing,
    families=(
        Family(
            name="vit",
            rows=ROWS,
            anchor="conv_proj.weight",
            known=_known,
            refuse=_refuse,
            needs=(
                "prefix.cls",
                "position.table",
                "norm.weight",
                "embedding.bias",
                "blocks.0.attention.qkv.bias",
                "head.weight",
            ),
            spare=r"heads\.pre_logits\..*",
        ),
    ),
)
