"""Questions for the planner, drawn at random from a seed: every part of a config and of a workload takes its turn."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from vitrail.checkpointing import Checkpointing
from vitrail.config import Config, MobileConfig, MobileStage, PyramidConfig, PyramidStage, ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.parts import (
    AttentionPool,
    ClsPool,
    FullAttention,
    GridPooling,
    Hierarchical,
    Learned,
    LinearAttention,
    MaxPool,
    MeanPool,
    Mlp,
    NoPosition,
    Patches,
    Prefix,
    RelativeBias,
    Rotary,
    RotaryMixed,
    SinCos1d,
    SinCos2d,
    SparseAttention,
    Stem,
    SwiGLU,
    WindowedAttention,
)
from vitrail.plan import Workload, memory

__all__ = ["draw"]


def draw(count: int, seed: int) -> list[tuple[Config, Workload]]:
    """Valid pairs that the planner does not refuse: pyramids, mobile networks, timm's and transformers' plain ViTs, and
    for the most part every kind of ViT. Half of them have degenerate sizes: one head, one image, one row of patches,
    where PyTorch views what it would copy elsewhere."""
    random, later, latest, cases = _Draw(seed), Random(seed), Random(seed), []
    while len(cases) < count:
        kind, library = random.random(), "vitrail"
        random.degenerate = random.random() < 0.5
        try:
            if kind < 0.1:
                config = _pyramid(random)
            elif kind < 0.18:
                config = _mobile(random)
            elif kind < 0.36:
                library = random.choice(["timm", "huggingface"])
                config = _plain(random) if library == "timm" else _plainest(random)
            else:
                config = _vit(random)
            config = _varied(later, config)
            if library == "vitrail" and isinstance(config, ViTConfig) and latest.random() < 0.4:
                config = _normed(latest, config)
            workload = replace(_workload(random, config), library=library)
            refused = "PyTorch cannot train" in memory(config, workload).note
        except VitrailError:
            continue
        if refused:
            continue
        cases.append((config, workload))
    return cases


class _Draw(Random):
    """Random choices that, for a degenerate case, are biased to the sizes at which a copy becomes a view."""

    degenerate = False

    def pick(self, usual: list[Any], edges: list[Any]) -> Any:
        return self.choice(edges if self.degenerate and self.random() < 0.6 else usual)


def _varied(random: Random, config: Config) -> Config:
    """Choices with a stream of their own, so that the others stay what they are."""
    chosen = random.random() < 0.5
    if isinstance(config, PyramidConfig) and isinstance(config.attention, WindowedAttention):
        config = config.but(attention=config.attention.but(window_padding="zeros" if chosen else "masked"))
        return _pooling(random, config) if random.random() < 0.5 else config
    if isinstance(config, ViTConfig):
        if isinstance(config.attention, WindowedAttention):
            config = config.but(attention=replace(config.attention, window_padding="zeros" if chosen else "masked"))
        if isinstance(config.pool, AttentionPool):
            config = config.but(pool=replace(config.pool, prefix=chosen))
    return config


def _normed(random: Random, config: ViTConfig) -> ViTConfig:
    """Norms, biases and rotations as models since EVA-02 have them."""
    position = config.position
    if isinstance(position, Learned) and random.random() < 0.5:
        position = position.but(rotary=random.choice([Rotary(reference=Size(3, 5)), Rotary(), RotaryMixed()]))
    windows, depth = config.attention, config.depth
    if isinstance(windows, WindowedAttention) and not isinstance(position, RelativeBias):
        full = random.sample(range(depth), random.randint(1, depth))
        windows = windows.but(shift=False, full=tuple(sorted(full)))
    return config.but(
        position=position,
        attention=windows,
        norm=random.choice(["layer", "rms", "rms"]),
        patch_norm=random.random() < 0.3,
        attention_norm=random.random() < 0.3,
        out_bias=random.random() < 0.6,
        mlp=config.mlp.but(bias=random.random() < 0.6, norm=random.random() < 0.4),
    )


def _workload(random: _Draw, config: Config) -> Workload:
    plain = isinstance(config, ViTConfig) and isinstance(config.attention, FullAttention)
    train = random.random() < 0.75
    return Workload(
        batch=random.pick([1, 2, 3, 5], [1]),
        train=train,
        precision=random.choice(["fp32", "amp-bf16", "amp-fp16", "bf16"]),
        optimizer=random.pick(["sgd", "momentum", "adamw", "adamw-fused"], ["sgd"]),
        attention=random.choice(["flash", "efficient", "eager"] if plain else ["flash", "efficient"]),
        checkpointing=Checkpointing.of(train and random.random() < 0.3),
        accumulate=random.choice([1, 1, 2]) if train else 1,
    )


def _vit(random: _Draw) -> ViTConfig:
    num_heads = random.pick([2, 3, 4, 6], [1])
    width = num_heads * random.pick([16, 24, 32, 64], [1, 2, 4, 8, 12, 264])
    prefix = random.choice([Prefix(), Prefix(), Prefix(registers=4), Prefix(cls=False), Prefix(distillation=True)])
    pools = [MeanPool(), MaxPool(), AttentionPool(num_heads=random.pick([2], [1]), mlp_width=2 * width)]
    embedding = random.pick(
        [Patches(patch=Size(16, 16))] * 4
        + [Patches(patch=Size(8, 16)), Patches(patch=Size(16, 16), stride=Size(8, 8)), Patches(bias=False)]
        + [Stem(widths=(8, 16, 24, 32)), Hierarchical(widths=(24, 40))],
        [Patches(patch=Size(16, 16)), Patches(patch=Size(4, 8))],  # many tokens beside few weights: activations peak
    )
    attention = random.choice(
        [FullAttention()] * 5
        + [FullAttention(fused=False), LinearAttention(), SparseAttention()]
        + [WindowedAttention(window=random.pick([Size(3, 4)], [Size(1, 1), Size(1, 8), Size(8, 8), Size(8, 1)]))]
        + [WindowedAttention(window=random.pick([Size(5, 2)], [Size(1, 2), Size(2, 8), Size(8, 2)]), shift=False)]
    )
    added = [Learned(), Learned(), Learned(prefix="none"), SinCos1d(), SinCos2d(), NoPosition()]
    inside = [Rotary(), Rotary(coordinates="normalised"), RotaryMixed()]
    biases = [RelativeBias(prefix=False), RelativeBias(shared=True, prefix=False)]
    position = random.choice([*added, *inside, *biases])
    dropout = random.choice([0.0, 0.0, 0.1])
    return ViTConfig(
        image=_image(random),
        channels=random.pick([1, 3], [1]),
        embedding=embedding,
        prefix=prefix,
        position=position,
        embedding_norm=random.random() < 0.2,
        width=width,
        depth=random.pick([1, 2, 3, 4, 5, 6, 7], [1]),
        num_heads=num_heads,
        attention=attention,
        qkv_bias=random.choice(["all", "all", "no_key", "none"]),
        qk_norm=random.random() < 0.2,
        mlp=random.choice(
            [Mlp(width=4 * width), Mlp(width=width + 24, activation="quick_gelu"), SwiGLU(width=2 * width)]
        ),
        layer_scale=random.choice([None, 1e-5]),
        dropout=dropout,
        attention_dropout=dropout if isinstance(attention, FullAttention) else 0.0,
        drop_path=random.choice([0.0, 0.0, 0.1]),
        final_norm=random.choice(["tokens", "tokens", "pooled", "none"]),
        pool=ClsPool() if prefix.distillation else random.choice([*pools, *([ClsPool()] * 3 if prefix.cls else [])]),
        classes=random.pick([7, 100, 1000, 0 if not prefix.distillation else 9], [1]),
        head_bias=random.random() < 0.8,
    )


def _image(random: _Draw) -> Size:
    """At 16 pixels a patch: a grid of at least 3×3, or one of a single row, column or patch."""
    sides = [3, 4, 5, 6, 7, 8]
    return Size(16 * random.pick(sides, [1]), 16 * random.pick(sides, [1]))


def _plain(random: _Draw) -> ViTConfig:
    """What timm can express too."""
    num_heads = random.pick([2, 3, 4], [1])
    width = num_heads * random.pick([16, 32, 64], [1, 2, 4, 8, 12, 264])
    norm = random.random() < 0.2
    return ViTConfig(
        image=_image(random),
        embedding=Patches(bias=not norm),
        embedding_norm=norm,
        prefix=random.choice([Prefix(), Prefix(), Prefix(registers=2)]),
        position=random.choice([Learned(), Learned(), Learned(prefix="none")]),
        width=width,
        depth=random.pick([1, 2, 3, 4, 5, 6], [1]),
        num_heads=num_heads,
        qkv_bias=random.choice(["all", "none"]),
        qk_norm=random.random() < 0.2,
        mlp=Mlp(width=random.choice([2, 4]) * width),
        layer_scale=random.choice([None, None, 1e-5]),
        attention_dropout=random.choice([0.0, 0.1]),
        drop_path=random.choice([0.0, 0.0, 0.1]),
        pool=random.choice([ClsPool(), ClsPool(), MeanPool()]),
        classes=random.pick([10, 1000], [1]),
    )


def _plainest(random: _Draw) -> ViTConfig:
    """What transformers can express too."""
    return _plain(random).but(
        embedding=Patches(),
        embedding_norm=False,
        prefix=Prefix(),
        position=Learned(),
        qk_norm=False,
        layer_scale=None,
        drop_path=0.0,
        pool=ClsPool(),
    )


def _pyramid(random: _Draw) -> PyramidConfig:
    widths = [24 * 2**level for level in range(random.randint(1, 3))]
    return PyramidConfig(
        image=Size(32 * random.pick([2, 3, 4], [1]), 32 * random.pick([2, 3, 4], [1])),
        stages=tuple(
            PyramidStage(width=width, depth=random.randint(1, 4), num_heads=random.pick([3], [1])) for width in widths
        ),
        attention=WindowedAttention(
            window=Size(random.pick([3, 4, 7], [1, 2, 32]), random.pick([2, 4, 7], [1, 2, 32]))
        ),
        drop_path=random.choice([0.0, 0.2]),
        classes=random.choice([0, 50]),
    )


def _pooling(random: Random, config: PyramidConfig) -> PyramidConfig:
    """A pyramid that pools between its stages, as PiT does."""
    cls = random.random() < 0.7
    distilled = cls and config.classes > 0 and random.random() < 0.5  # two vectors have no cross-entropy
    attention = random.choice([FullAttention(), config.attention])
    return config.but(
        embedding=Patches(patch=Size(8, 8), stride=Size(4, 8)),
        prefix=Prefix(cls=cls, distillation=distilled, registers=random.choice([0, 2])),
        position=random.choice([Learned(prefix="none"), Learned(), RelativeBias(prefix=False)]),
        embedding_norm=random.random() < 0.3,
        attention=attention,
        merging=GridPooling(),
        pool=ClsPool() if cls else MeanPool(),
    )


def _mobile(random: _Draw) -> MobileConfig:
    return MobileConfig(
        image=Size(32 * random.pick([1, 2, 3], [1]), random.pick([64], [32])),
        stem_width=8,
        num_heads=random.pick([4], [1]),
        patch=random.pick([Size(2, 2)], [Size(1, 1), Size(8, 1), Size(8, 8)]),
        stages=(
            MobileStage(width=16, depth=random.randint(1, 2)),
            MobileStage(width=24, stride=2, transformer_width=32, transformer_depth=random.randint(1, 4)),
        ),
        last_width=64,
        classes=random.choice([0, 50]),
    )
