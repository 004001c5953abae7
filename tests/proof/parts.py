"""Models with parts that few others have, drawn at random: cosine attention, norms after branches, relative MLPs,
separable attention."""

from __future__ import annotations

from random import Random

from cases import draw

from vitrail.config import Config, MobileConfig, PyramidConfig, ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.parts import (
    DecomposedBias,
    Learned,
    MaxPool,
    MeanPool,
    Mlp,
    Neck,
    PatchMerging,
    Prefix,
    RelativeBias,
    RelativeMlp,
    SeparableAttention,
    WindowedAttention,
)
from vitrail.plan import Workload, memory

__all__ = ["draw_parts"]


def draw_parts(count: int, seed: int) -> list[tuple[Config, Workload]]:
    """The models of `draw` with such parts in them, where no rule is broken."""
    random, cases, more = Random(seed), [], draw(4 * count, seed)
    for config, workload in more:
        if workload.library != "vitrail" or len(cases) == count:
            continue
        try:
            changed = _pyramid(random, config) if isinstance(config, PyramidConfig) else _vit(random, config)
            if isinstance(changed, ViTConfig) and random.random() < 0.4:
                changed = _necked(random, changed)
            if changed != config:
                memory(changed, workload)
                cases.append((changed, workload))
        except VitrailError:
            continue
    return cases


def _pyramid(random: Random, config: PyramidConfig) -> PyramidConfig:
    position = config.position
    if isinstance(position, RelativeBias) and random.random() < 0.7:
        position = _mlp(random, len(config.stages), shared=False)
    merging = config.merging
    if isinstance(merging, PatchMerging):
        merging = PatchMerging(norm=random.choice(["before", "after"]))
    return config.but(
        position=position,
        merging=merging,
        qkv_bias=random.choice(["all", "no_key", "none"]),
        cosine_attention=random.random() < 0.6,
        block_norm=random.choice(["before", "after", "after"]),
    )


def _vit(random: Random, config: Config) -> Config:
    if isinstance(config, MobileConfig):
        return config.but(attention=SeparableAttention())
    assert isinstance(config, ViTConfig)
    place = random.choice(["before", "after"])
    in_full = isinstance(config.attention, WindowedAttention) and bool(config.attention.full)
    cosine = config.attention.scores and random.random() < 0.4
    return config.but(
        position=config.position if in_full or random.random() < 0.4 else _mlp(random, 1, shared=random.random() < 0.4),
        cosine_attention=cosine,
        qk_norm=config.qk_norm and not cosine,
        block_norm=place,
        layer_scale=config.layer_scale if place == "before" else None,
        mlp=config.mlp.but(activation=random.choice(["relu", "tanh"])) if isinstance(config.mlp, Mlp) else config.mlp,
    )


def _mlp(random: Random, stages: int, *, shared: bool) -> RelativeMlp:
    width = random.choice([8, 24, 512])
    if random.random() < 0.3:
        return RelativeMlp(coordinates="index", shared=shared, width=width)
    return RelativeMlp(shared=shared, width=width, reference=(Size(4, 3),) * stages if random.random() < 0.3 else ())


def _necked(random: Random, config: ViTConfig) -> ViTConfig:
    """Decomposed biases in windows and in the grid, and a neck, as SAM has them."""
    attention = config.attention
    if isinstance(attention, WindowedAttention) or random.random() < 0.6:
        attention = WindowedAttention(
            window=attention.window if isinstance(attention, WindowedAttention) else Size(3, 2),
            shift=False,
            window_padding=random.choice(["masked", "zeros"]),
            full=random.choice([(), (0,), (config.depth - 1,)]),
        )
    neck = random.choice([None, Neck(width=8), Neck(width=40)])
    return config.but(
        prefix=Prefix(cls=False),
        position=random.choice([DecomposedBias(), Learned(relative=DecomposedBias())]),
        attention=attention,
        attention_dropout=0.0,
        neck=neck,
        final_norm=config.final_norm if neck is None else "none",
        pool=random.choice([MeanPool(), MaxPool()]),
    )
