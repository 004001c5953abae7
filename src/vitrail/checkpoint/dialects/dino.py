"""DINO, DINOv2 and DINOv3 as their authors publish them: names near timm's, with tensors of their own."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vitrail.checkpoint.dialects.conditions import gated, plain
from vitrail.checkpoint.dialects.dialect import Dialect, Family
from vitrail.checkpoint.dialects.evidence import Known
from vitrail.checkpoint.dialects.table import JOINED, MASK_TOKEN, SPLIT, TOKEN, Row, both
from vitrail.checkpoint.dialects.timm_names import BLOCK, FRONT
from vitrail.checkpoint.formats.file import Stored
from vitrail.checkpoint.preprocessing import IMAGENET, Preprocessing
from vitrail.config import Config, ViTConfig
from vitrail.geometry import Size
from vitrail.parts import Learned, Position, Rotary

__all__ = ["DINO", "DINOV2", "DINOV3"]

SCALES = (
    Row(("blocks.{i}.scale1",), ("{p}blocks.{i}.ls1.gamma",)),
    Row(("blocks.{i}.scale2",), ("{p}blocks.{i}.ls2.gamma",)),
)
WITHOUT_MLP = tuple(row for row in BLOCK if ".mlp." not in row.ours[0])


PLAIN_MLP = (
    *both("blocks.{i}.mlp.fc1", "{p}blocks.{i}.mlp.fc1", when=plain),
    *both("blocks.{i}.mlp.fc2", "{p}blocks.{i}.mlp.fc2", when=plain),
)
MASK = Row((MASK_TOKEN,), ("{p}mask_token",), TOKEN)
DINO_ROWS = (*FRONT, *BLOCK, *both("norm", "{p}norm"))
DINOV2_ROWS = (
    *FRONT,
    Row(("prefix.registers",), ("{p}register_tokens",)),
    MASK,
    *WITHOUT_MLP,
    *PLAIN_MLP,
    *both("blocks.{i}.mlp.fc1", "{p}blocks.{i}.mlp.w12", when=gated),
    *both("blocks.{i}.mlp.fc2", "{p}blocks.{i}.mlp.w3", when=gated),
    *SCALES,
    *both("norm", "{p}norm"),
)
DINOV3_ROWS = (
    *FRONT,
    Row(("prefix.registers",), ("{p}storage_tokens",)),
    MASK,
    *(row for row in WITHOUT_MLP if row.ours[0] != "blocks.{i}.attention.qkv.bias"),
    Row(
        ("blocks.{i}.attention.q_bias", "+blocks.{i}.attention.k_bias", "blocks.{i}.attention.v_bias"),
        ("{p}blocks.{i}.attn.qkv.bias",),
        SPLIT,  # the keys' part is there and masked
    ),
    *PLAIN_MLP,
    *both("blocks.{i}.mlp.fc1", "{p}blocks.{i}.mlp.w1", "{p}blocks.{i}.mlp.w2", transform=JOINED, when=gated),
    *both("blocks.{i}.mlp.fc2", "{p}blocks.{i}.mlp.w3", when=gated),
    *SCALES,
    *both("norm", "{p}norm"),
)


def _known(position: Position, eps: float) -> Callable[[Stored, str], Known]:
    fields = {"norm_eps": eps, "activation": "gelu", "position": position}
    return lambda stored, prefix: Known(source="names and shapes, as the authors' models have them", fields=fields)


def _known_dinov2(stored: Stored, prefix: str) -> Known:
    """Models with registers resize positions with antialiasing and without the offset of 0.1."""
    convention = "timm" if f"{prefix}register_tokens" in stored.tensors else "dinov2"
    return _known(Learned(prefix="cls", convention=convention), 1e-6)(stored, prefix)


def _has(*names: str) -> Callable[[Stored, str], bool]:
    return lambda stored, prefix: any(prefix + name in stored.tensors for name in names)


def _mask_token(config: Config) -> dict[str, Tensor]:
    assert isinstance(config, ViTConfig)
    return {"mask_token": torch.zeros(1, config.width)}


def _dinov3_constants(config: Config) -> dict[str, Tensor]:
    assert isinstance(config, ViTConfig)
    assert isinstance(config.position, Rotary)
    mask = torch.ones(3, config.width)
    mask[1] = 0
    waves = config.head_width // 4
    biased = range(config.depth) if config.qkv_bias == "no_key" else ()
    return {
        **_mask_token(config),
        "rope_embed.periods": config.position.temperature ** (torch.arange(waves) / waves),
        **{f"blocks.{index}.attn.qkv.bias_mask": mask.flatten() for index in biased},
    }


def _preprocessing(stored: Stored, family: Family, image: Size) -> Preprocessing:
    mean, std = IMAGENET
    return Preprocessing(image=image, mean=mean, std=std, crop_share=0.875, source="the authors' evaluation")


def _dialect(family: Family) -> Dialect:
    return Dialect(name=family.name, suffix=".pth", preprocessing=_preprocessing, families=(family,))


ANCHOR = "patch_embed.proj.weight"
DINO = _dialect(
    Family(
        name="dino",
        rows=DINO_ROWS,
        anchor=ANCHOR,
        # nothing in a bare backbone tells it from timm's, whose names and meaning are the same
        signs=lambda stored, prefix: any(
            name.startswith("head.mlp.") or ".head.mlp." in name for name in stored.tensors
        ),
        known=_known(Learned(prefix="all", convention="huggingface"), 1e-6),
        spare=r"head\..*",
        needs=("prefix.cls", "position.table", "norm.weight"),
    )
)
DINOV2 = _dialect(
    Family(
        name="dinov2",
        rows=DINOV2_ROWS,
        anchor=ANCHOR,
        signs=lambda stored, prefix: (
            _has("mask_token", "register_tokens")(stored, prefix)
            and _has("blocks.0.ls1.gamma")(stored, prefix)
            and _has("pos_embed")(stored, prefix)
        ),
        known=_known_dinov2,
        spare=r"dino_head\..*|ibot_head\..*",
        needs=("prefix.cls", "position.table", "norm.weight", "blocks.0.scale1"),
        constants=_mask_token,
    )
)
DINOV3 = _dialect(
    Family(
        name="dinov3",
        rows=DINOV3_ROWS,
        anchor=ANCHOR,
        signs=_has("storage_tokens", "rope_embed.periods"),
        known=_known(Rotary(coordinates="normalised", temperature=100.0), 1e-5),
        spare=r"rope_embed\.periods|blocks\.\d+\.attn\.qkv\.bias_mask|local_cls_norm\..*",
        needs=("prefix.cls", "prefix.registers", "norm.weight", "blocks.0.scale1"),
        constants=_dinov3_constants,
    )
)
