"""The vision towers of Qwen2-VL, Qwen2.5-VL and Qwen3-VL, for still images.

A patch is two frames deep there, and a still image is given as two equal frames. The projection of two equal frames is
that of one by the sum of their weights; the weights themselves are kept aside, and go back as they were.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.dialects.dialect import Written
from vitrail.checkpoint.dialects.evidence import Known
from vitrail.checkpoint.dialects.huggingface_config import (
    UNRELATED,
    activation_of,
    processor_config,
    tower_type,
)
from vitrail.checkpoint.dialects.json_config import JsonConfig
from vitrail.checkpoint.dialects.table import JOINED, Row, Sizes, Transform, both
from vitrail.checkpoint.formats.file import Stored
from vitrail.config import ViTConfig
from vitrail.errors import require
from vitrail.geometry import Size
from vitrail.parts import FullAttention, Learned, MeanPool, Rotary, WindowedAttention

__all__ = [
    "FRAMES",
    "QWEN2_5_VL_ROWS",
    "QWEN2_VL_ROWS",
    "QWEN3_VL_ROWS",
    "describe_qwen",
    "known_qwen",
    "known_qwen3",
]

FRAMES = "+embedding.frames"
"""(D, C, frames, P, Q): the projection of a patch that is several frames deep."""


def _write_frames(tensors: list[Tensor], sizes: Sizes, count: int) -> list[Tensor]:
    """The weights as they were, unless the projection has changed: then an equal share for every frame."""
    weight, frames = tensors
    if frames.ndim == 5 and torch.equal(frames.sum(2), weight):
        return [frames]
    return [torch.stack([weight / 2, weight / 2], dim=2)]


STILL = Transform(read=lambda tensors, sizes, count: [tensors[0].sum(2), tensors[0]], write=_write_frames)
BLOCK = "{p}blocks.{i}"
COMMON = (
    Row(("embedding.weight", FRAMES), ("{p}patch_embed.proj.weight",), STILL),
    *both("blocks.{i}.norm1", f"{BLOCK}.norm1"),
    *both("blocks.{i}.attention.qkv", f"{BLOCK}.attn.qkv"),
    *both("blocks.{i}.attention.out", f"{BLOCK}.attn.proj"),
    *both("blocks.{i}.norm2", f"{BLOCK}.norm2"),
)
QWEN2_VL_ROWS = (
    *COMMON,
    *both("blocks.{i}.mlp.fc1", f"{BLOCK}.mlp.fc1"),
    *both("blocks.{i}.mlp.fc2", f"{BLOCK}.mlp.fc2"),
)
QWEN2_5_VL_ROWS = (
    *COMMON,
    *both("blocks.{i}.mlp.fc1", f"{BLOCK}.mlp.gate_proj", f"{BLOCK}.mlp.up_proj", transform=JOINED),
    *both("blocks.{i}.mlp.fc2", f"{BLOCK}.mlp.down_proj"),
)
QWEN3_VL_ROWS = (
    *COMMON,
    Row(("embedding.bias",), ("{p}patch_embed.proj.bias",)),
    Row(("position.table",), ("{p}pos_embed.weight",)),
    *both("blocks.{i}.mlp.fc1", f"{BLOCK}.mlp.linear_fc1"),
    *both("blocks.{i}.mlp.fc2", f"{BLOCK}.mlp.linear_fc2"),
)
SHOWN = frozenset({"depth", "hidden_size", "embed_dim", "intermediate_size", "mlp_ratio", "in_channels", "in_chans"})
READ = frozenset({"num_heads", "hidden_act", "patch_size", "window_size", "fullatt_block_indexes", "rope_parameters"})
TABLE = "num_position_embeddings"
BEHIND = frozenset({"out_hidden_size", "spatial_merge_size", "tokens_per_second", "deepstack_visual_indexes"})
"""What only the merger, or the language model, reads."""
ONLY: Mapping[str, tuple[Any, ...]] = {"temporal_patch_size": (2,), "spatial_patch_size": (14,)}


def _tower(stored: Stored) -> JsonConfig:
    """Return the config of a tower, which is the whole config of one that was saved alone."""
    said = JsonConfig(stored.config)
    return said.part("vision_config") if "vision_config" in said else said


def known_qwen(stored: Stored, prefix: str) -> Known:
    said = _tower(stored)
    said.understand(UNRELATED | SHOWN | READ | BEHIND, ONLY)
    rope = said.part("rope_parameters")
    rope.understand({"rope_theta"}, {"rope_type": ("axial", "default")})
    heads, patch = said.whole("num_heads", 16), said.whole("patch_size", 14)
    newer = f"{prefix}blocks.0.mlp.gate_proj.weight" in stored.tensors
    fields: dict[str, Any] = {
        **({"num_heads": heads} if said else {}),
        "norm_eps": 1e-6,
        "activation": activation_of(said, "quick_gelu"),
        "position": Rotary(temperature=rope.number("rope_theta", 10_000.0), pairs="halves"),
        "attention": _windows(said, patch) if newer else FullAttention(),
        "pool": MeanPool(),
    }
    require(
        not newer or said.text("hidden_act", "silu") == "silu",
        f"{said.where} has hidden_act {said.text('hidden_act')!r} in a gated MLP, and vitrail's has 'silu'",
    )
    kind = f"{tower_type(stored.config) or 'qwen2_vl'}, for still images"
    source = f"config.json ({kind})" if said else f"names and shapes, as transformers has them ({kind})"
    stated = said.stated(depth="depth", patch="patch_size", channels="in_channels")
    return Known(source=source, fields=fields, any_image=Size.of(32 * patch), stated=stated, assumed=_assumed(said))


def known_qwen3(stored: Stored, prefix: str) -> Known:
    """A learned table of a square grid, resampled linearly with aligned corners, and rotations beside it."""
    said = _tower(stored)
    said.understand(UNRELATED | SHOWN | READ | BEHIND | {TABLE}, ONLY)
    rope = said.part("rope_parameters")
    rope.understand({"rope_theta"}, {"rope_type": ("axial", "default")})
    rotary = Rotary(temperature=rope.number("rope_theta", 10_000.0), pairs="halves")
    fields: dict[str, Any] = {
        **({"num_heads": said.whole("num_heads", 16)} if said else {}),
        "norm_eps": 1e-6,
        "activation": activation_of(said, "gelu_pytorch_tanh"),
        "position": Learned(convention="big_vision", rotary=rotary),
        "pool": MeanPool(),
    }
    count, patch = said.whole(TABLE, 2304), said.whole("patch_size", 16)
    side = math.isqrt(max(0, count))
    require(side * side == count, f"{said.where} has {TABLE} {count}, and the table is square by definition; mend it")
    kind = f"{tower_type(stored.config) or 'qwen3_vl'}, for still images"
    source = f"config.json ({kind})" if said else f"names and shapes, as transformers has them ({kind})"
    stated = said.stated(depth="depth", patch="patch_size", channels="in_channels")
    return Known(source=source, fields=fields, image=Size.of(side * patch), stated=stated, assumed=_assumed(said))


def _assumed(said: JsonConfig) -> tuple[str, ...]:
    return () if said else ("activation", "norm_eps", "position")


def _windows(said: JsonConfig, patch: int) -> WindowedAttention:
    side = said.whole("window_size", 112) // patch
    full = said.numbers("fullatt_block_indexes", (7.0, 15.0, 23.0, 31.0))
    return WindowedAttention(window=Size.of(side), shift=False, full=tuple(int(index) for index in full))


def describe_qwen(checkpoint: Checkpoint, tensors: Mapping[str, Tensor]) -> Written:
    """The whole model that the tower came with; its config says nothing about the image."""
    config, origin = checkpoint.config, checkpoint.origin
    assert isinstance(config, ViTConfig)
    require(
        bool(origin),
        "a tower of Qwen's is written with the merger of its own file, which other names have no place for; "
        "convert the file that transformers wrote",
    )
    nested = "vision_config" in origin
    before = origin.get("vision_config", {}) if nested else origin
    vision = {**before, "patch_size": config.patch.height, "in_channels": config.channels}
    if isinstance(config.attention, WindowedAttention):
        vision["window_size"] = config.attention.window.height * config.patch.height
    if isinstance(config.position, Learned):
        vision[TABLE] = config.grid.area
    whole = {**origin, "vision_config": vision} if nested else vision
    return Written(config=whole, processor=processor_config(checkpoint))
