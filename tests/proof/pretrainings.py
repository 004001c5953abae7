"""Self-supervised steps, drawn at random: crops and a teacher, masked patches and a decoder, a queue of keys."""

from __future__ import annotations

from random import Random

from cases import draw

from vitrail.checkpointing import Checkpointing
from vitrail.config import Config, ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.plan import Workload, memory
from vitrail.pretraining import Dino, MaskedAutoencoder, MomentumContrast, Pretraining

__all__ = ["draw_pretraining"]


def draw_pretraining(count: int, seed: int) -> list[tuple[Config, Workload]]:
    """Steps of the plain ViTs among `draw`'s configs for which a step of this kind is defined."""
    random, cases, batch = Random(seed), [], iter(range(10**6))
    while len(cases) < count:
        for config, workload in draw(count, seed + 101 * next(batch)):
            if not isinstance(config, ViTConfig) or workload.library != "vitrail" or len(cases) == count:
                continue
            how = random.choice([None, None, Checkpointing(), Checkpointing("selective"), Checkpointing(every=2)])
            chosen = _step(random)
            try:
                work = workload.but(train=True, checkpointing=how, pretraining=chosen)
                memory(config, work)
            except VitrailError:
                continue
            cases.append((config, work))
    return cases


def _step(random: Random) -> Pretraining:
    return random.choice(
        [
            Dino(
                local_crops=random.choice([0, 1, 3]),
                local_image=Size(16 * random.choice([1, 2, 3]), 16 * random.choice([2, 3])),
                hidden=random.choice([24, 200]),
                bottleneck=random.choice([8, 40]),
                prototypes=random.choice([30, 700]),
            ),
            MaskedAutoencoder(
                mask=random.choice([0.25, 0.5, 0.75]),
                decoder_width=random.choice([64, 128]),
                decoder_depth=random.choice([1, 2, 5]),
                decoder_heads=random.choice([2, 4]),
            ),
            MomentumContrast(queue=random.choice([2, 30, 500]), dimension=random.choice([8, 24])),
        ]
    )
