"""Models with a network of convolutions before their patches, drawn at random."""

from __future__ import annotations

from random import Random
from typing import Literal

from cases import draw

from vitrail.config import Config, ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.parts import ResNetStem, Stem
from vitrail.plan import Workload, memory

__all__ = ["draw_stems"]


def draw_stems(count: int, seed: int) -> list[tuple[Config, Workload]]:
    """The ViTs of `draw` with a ResNet, or with convolutions that cut patches, where no rule is broken."""
    random, cases = Random(seed), []
    for config, workload in draw(4 * count, seed):
        if workload.library != "vitrail" or not isinstance(config, ViTConfig) or len(cases) == count:
            continue
        try:
            changed = config.but(embedding=_embedding(random))
            memory(changed, workload)
        except VitrailError:
            continue
        cases.append((changed, workload))
    return cases


def _embedding(random: Random) -> ResNetStem | Stem:
    if random.random() < 0.3:
        widths = random.choice([(8,), (8, 12), (3, 5, 7)])
        activation: Literal["relu", "gelu"] = "relu" if random.random() < 0.5 else "gelu"
        return Stem(
            patch=random.choice([Size(16, 16), Size(8, 16)]), widths=widths, overlap=False, activation=activation
        )
    depths = random.choice([(), (1,), (2,), (1, 2), (3, 1), (1, 2, 2)])
    groups = random.choice([1, 4])
    cells = random.choice([Size(1, 1), Size(1, 1), Size(2, 1), Size(2, 2)])
    return ResNetStem(depths=depths, width=8, groups=groups, cells=cells)
