"""OpenCLIP and OpenAI's CLIP: the vision tower, `visual.*`; the text tower is kept as it is."""

from __future__ import annotations

from typing import Any

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.dialects.dialect import Dialect, Family, Written
from vitrail.checkpoint.dialects.table import CLS, DENSE, Row, both
from vitrail.checkpoint.evidence import Known
from vitrail.checkpoint.file import Stored
from vitrail.checkpoint.preprocessing import OPENAI_CLIP, Preprocessing
from vitrail.checkpoint.said import Said
from vitrail.config import Config
from vitrail.geometry import Size
from vitrail.parts import Learned

__all__ = ["OPENCLIP"]

LAYER = "{p}transformer.resblocks.{i}"
ROWS = (
    *both("embedding", "{p}conv1"),
    Row(("prefix.cls",), ("{p}class_embedding",), CLS),
    Row(("position.table",), ("{p}positional_embedding",)),
    *both("embedding_norm", "{p}ln_pre"),
    *both("blocks.{i}.norm1", f"{LAYER}.ln_1"),
    Row(("blocks.{i}.attention.qkv.weight",), (f"{LAYER}.attn.in_proj_weight",)),
    Row(("blocks.{i}.attention.qkv.bias",), (f"{LAYER}.attn.in_proj_bias",)),
    *both("blocks.{i}.attention.out", f"{LAYER}.attn.out_proj"),
    Row(("blocks.{i}.scale1",), (f"{LAYER}.ls_1.gamma",)),
    *both("blocks.{i}.norm2", f"{LAYER}.ln_2"),
    *both("blocks.{i}.mlp.fc1", f"{LAYER}.mlp.c_fc"),
    *both("blocks.{i}.mlp.fc2", f"{LAYER}.mlp.c_proj"),
    Row(("blocks.{i}.scale2",), (f"{LAYER}.ls_2.gamma",)),
    *both("norm", "{p}ln_post"),
    Row(("head.weight",), ("{p}proj",), DENSE),
)


def _known(stored: Stored, prefix: str) -> Known:
    """OpenAI's files carry their context length and input size as tensors; its activation was the quick one."""
    openai = "input_resolution" in stored.tensors
    said = Said(stored.config).part("model_cfg")
    vision = said.part("vision_cfg")
    quick = openai or said.values.get("quick_gelu") is True
    fields: dict[str, Any] = {
        "norm_eps": 1e-5,
        "activation": "quick_gelu" if quick else "gelu",
        "position": Learned(convention="timm"),
    }
    if "head_width" in vision and "width" in vision:
        fields["num_heads"] = vision.whole("width", 0) // max(1, vision.whole("head_width", 0))
    image = vision.size("image_size")
    source = "open_clip_config.json" if vision else "names and shapes, as OpenCLIP's models have them"
    return Known(source=source, fields=fields, image=image)


def _preprocessing(stored: Stored, family: Family, image: Size) -> Preprocessing:
    mean, std = OPENAI_CLIP
    return Preprocessing(image=image, mean=mean, std=std, source="OpenAI's, as OpenCLIP's default")


def _square(config: Config) -> str | None:
    return (
        None if config.image.height == config.image.width else f"it takes square grids, and image {config.image} is not"
    )


def _describe(checkpoint: Checkpoint) -> Written:
    came_so = checkpoint.dialect == "openclip"
    return Written(prefix=None if came_so else "visual.", config=checkpoint.origin if came_so else {})


OPENCLIP = Dialect(
    name="openclip",
    suffix=".safetensors",
    preprocessing=_preprocessing,
    families=(
        Family(
            name="clip",
            rows=ROWS,
            anchor="conv1.weight",
            signs=lambda stored, prefix: f"{prefix}transformer.resblocks.0.attn.in_proj_weight" in stored.tensors,
            known=_known,
            refuse=_square,
            needs=("prefix.cls", "embedding_norm.weight", "position.table", "norm.weight"),
            statistics=OPENAI_CLIP,
            write=_describe,
            loose=frozenset({"activation"}),
        ),
    ),
)
