"""Steps that train only a part, drawn at random: frozen parts, last blocks, norms, biases, adapters."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from cases import draw

from vitrail.config import Config
from vitrail.errors import VitrailError
from vitrail.plan import Workload, memory
from vitrail.tuning import Lora, Tuning, parts_of

__all__ = ["draw_tuned", "draw_tuning"]


def draw_tuned(count: int, seed: int) -> list[tuple[Config, Workload]]:
    """Training steps of `draw`'s configs, each with a random tuning that trains at least one tensor."""
    random, cases = Random(seed), []
    for config, workload in draw(3 * count, seed + 1):
        if not workload.train or len(cases) == count:
            continue
        tuned = replace(workload, tuning=draw_tuning(random, config))
        try:
            memory(config, tuned)
        except VitrailError:
            continue
        cases.append((config, tuned))
    return cases


def draw_tuning(random: Random, config: Config) -> Tuning:
    groups = list(dict.fromkeys(part.split(".")[0].removeprefix("distillation_") for part in parts_of(config)))
    blocks = sum("blocks." in part for part in parts_of(config))
    cut = random.randint(0, blocks)
    some = tuple(random.sample(groups, random.randint(1, len(groups))))
    lora = Lora(
        rank=random.choice([1, 2, 4, 16]),
        on=tuple(random.sample(["qkv", "out", "mlp", "fc1", "fc2"], random.randint(1, 3))),  # type: ignore[arg-type]
    )
    return random.choice(
        [
            Tuning(freeze=some),
            Tuning(freeze=("embedding",) if "embedding" in groups else ("stem",)),
            Tuning(freeze=(f"blocks[:{max(1, cut)}]", *some[:1])) if blocks else Tuning(only=("head",)),
            Tuning(freeze=(f"blocks[{random.randrange(blocks)}]",)) if blocks else Tuning(freeze=("norms",)),
            Tuning(last=cut),
            Tuning(last=min(1, blocks)),
            Tuning(only=("head",)),
            Tuning(only=some),
            Tuning(only=("norms", "head")),
            Tuning(only=("biases", *some)),
            Tuning(only=("biases",)),
            Tuning(freeze=("norms", *some[:1])),
            Tuning(freeze=("biases",)),
            Tuning(lora=lora),
            Tuning(lora=lora),
            Tuning(lora=lora, last=max(1, cut)),
            Tuning(lora=lora, only=("norms", "biases")),
            Tuning(lora=lora, only=some),
        ]
    )
