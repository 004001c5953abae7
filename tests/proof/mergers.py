"""Vision towers with a merger, drawn at random."""

from __future__ import annotations

from random import Random

from cases import draw

from vitrail.config import Config, ViTConfig
from vitrail.errors import VitrailError
from vitrail.parts import LinearMerger, Merger, MergerNorm, MlpMerger
from vitrail.plan import Workload, memory

__all__ = ["draw_mergers"]


def draw_mergers(count: int, seed: int) -> list[tuple[Config, Workload]]:
    """The ViTs of `draw` with a merger behind them, where no rule is broken."""
    random, cases = Random(seed), []
    for config, workload in draw(8 * count, seed):
        if not isinstance(config, ViTConfig) or workload.library != "vitrail" or len(cases) == count:
            continue
        try:
            tower = config.but(classes=0, merger=_merger(random))
            memory(tower, workload)
            cases.append((tower, workload))
        except VitrailError:
            continue
    return cases


def _merger(random: Random) -> Merger:
    width, merge = random.choice([1, 24, 160]), random.choice([1, 2, 2])
    norms: list[MergerNorm] = ["layer", "rms", "none"]
    norm, bias = random.choice(norms), random.random() < 0.7
    if random.random() < 0.4:
        return LinearMerger(width=width, merge=merge, norm=norm, bias=bias)
    return MlpMerger(
        width=width,
        mlp_width=random.choice([1, 40, 200]),
        merge=merge,
        norm=norm,
        norm_merged=random.random() < 0.5,
        activation=random.choice(["gelu", "gelu_tanh", "quick_gelu", "relu"]),
        bias=bias,
    )
