"""Clips, drawn at random: tubelets of every depth under every position that takes them."""

from __future__ import annotations

from random import Random

from vitrail.config import Config, ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.parts import (
    AttentionPool,
    ClsPool,
    FullAttention,
    Learned,
    LinearAttention,
    MaxPool,
    MeanPool,
    Mlp,
    NoPosition,
    Prefix,
    RelativeBias,
    Rotary,
    Rotary3d,
    RotaryMixed,
    SinCos1d,
    SinCos2d,
    SinCos3d,
    Tubelets,
)
from vitrail.plan import Workload, memory

__all__ = ["draw_clips"]

POSITIONS = (
    Learned(),
    Learned(prefix="none"),
    Learned(rotary=Rotary()),
    SinCos1d(),
    SinCos2d(),
    SinCos3d(),
    Rotary(),
    Rotary3d(),
    RotaryMixed(),
    RelativeBias(),
    NoPosition(),
)


def draw_clips(count: int, seed: int) -> list[tuple[Config, Workload]]:
    random, cases = Random(seed), []
    while len(cases) < count:
        try:
            config, workload = _clip(random), _workload(random)
            refused = "PyTorch cannot train" in memory(config, workload).note
        except VitrailError:
            continue
        if not refused:
            cases.append((config, workload))
    return cases


def _clip(random: Random) -> ViTConfig:
    frames, tubelet = random.choice([(6, 2), (4, 4), (3, 1), (2, 1), (2, 2)])
    return ViTConfig(
        image=Size(random.choice([8, 24]), random.choice([16, 32, 36])),
        channels=random.choice([1, 3]),
        embedding=Tubelets(
            patch=Size(random.choice([4, 8]), 8), frames=frames, tubelet=tubelet, bias=random.random() < 0.7
        ),
        remainder=random.choice(["resize", "crop", "pad"]),
        prefix=Prefix(cls=random.random() < 0.6, registers=random.choice([0, 2])),
        position=random.choice(POSITIONS),
        patch_norm=random.random() < 0.3,
        embedding_norm=random.random() < 0.3,
        width=48,
        depth=random.choice([1, 3]),
        num_heads=random.choice([1, 3]),
        attention=random.choice([FullAttention(), FullAttention(), FullAttention(fused=False), LinearAttention()]),
        qk_norm=random.random() < 0.3,
        mlp=Mlp(width=40),
        pool=random.choice([ClsPool(), MeanPool(), MaxPool(), AttentionPool(num_heads=3, mlp_width=20)]),
        classes=random.choice([0, 7]),
    )


def _workload(random: Random) -> Workload:
    return Workload(
        batch=random.choice([1, 2, 3]),
        train=random.random() < 0.75,
        precision=random.choice(["fp32", "bf16", "amp-bf16"]),
        attention=random.choice(["flash", "efficient"]),
    )
