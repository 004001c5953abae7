"""Choose an engine by a short tournament: compared with a reference on real images first, then timed in turns.

Shapes: B images, H×W pixels, C channels, D width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter, process_time
from typing import Annotated

from torch import Tensor

from vitrail.errors import require
from vitrail.rules import PositiveInt, Range
from vitrail.value import Value
from vitrail.vectors.engines.engine import Engine, agreement_of
from vitrail.vectors.engines.names import RuntimeName

__all__ = ["LARGEST_ERROR", "Candidate", "Choice", "hold_tournament", "least_cosine"]

Cosine = Annotated[float, Range("[-1, 1]", "cosines are in it")]
NonNegativeFloat = Annotated[float, Range("[0, inf)", "times and differences are in it")]
LARGEST_ERROR = 1e-4
"""A float32 engine is out if a vector differs from the plain model's by more than this share of its length. Rounding
in another order costs about 1e-6; bfloat16 would cost 4e-3."""
ROUNDS, LEAST_ROUNDS, SECONDS = 5, 2, 1.0
"""Rounds in which candidates take turns, fewer once each has been timed for `SECONDS`."""


@dataclass(frozen=True, kw_only=True)
class Candidate(Value):
    """What a tournament found out about one engine."""

    engine: RuntimeName
    error: NonNegativeFloat | None = None
    """The largest difference to the reference's vectors, as a share of their length."""
    cosine: Cosine | None = None
    """The mean cosine to the reference's vectors."""
    lowest_cosine: Cosine | None = None
    seconds_per_image: NonNegativeFloat | None = None
    out: str | None = None
    """Why it was not considered."""


@dataclass(frozen=True, kw_only=True)
class Choice(Value):
    """The engine of a run, and how it was chosen."""

    engine: RuntimeName
    why: str
    batch: PositiveInt | None = None
    threads: PositiveInt | None = None
    images: PositiveInt | None = None
    """Images that the candidates were compared on."""
    candidates: tuple[Candidate, ...] = ()

    @property
    def winner(self) -> Candidate | None:
        """What was found out about the chosen engine, if a tournament was held."""
        return next((each for each in self.candidates if each.engine == self.engine), None)


def hold_tournament(
    candidates: Mapping[RuntimeName, Callable[[], Engine]],
    images: Tensor,
    reference: Tensor,
    *,
    batch: int,
    threads: int,
    exact: bool = True,
) -> Choice:
    """Build every candidate, compare its vectors of uint8 `images` (B, H, W, C) with `reference`, and time the rest.

    With `exact`, candidates must come within `LARGEST_ERROR`; otherwise the first sets the cosine to be reached.
    """
    found: dict[RuntimeName, Candidate] = {}
    engines: dict[RuntimeName, Engine] = {}
    least = None if exact else -1.0  # the first of int8's is our own, which the others have to reach
    for name, build in candidates.items():
        try:
            engine = build()
            vectors = engine.vectors(images)
        except Exception as error:  # whatever a runtime raises, the others can do the work
            found[name] = Candidate(
                engine=name, out=(str(error).strip().splitlines() or [type(error).__name__])[0][:160]
            )
            continue
        found[name] = each = _compared(name, vectors, reference, least)
        if each.out is None:
            engines[name] = engine
        if least == -1.0 and each.cosine is not None:
            least = least_cosine(each.cosine)
    _require_one(found, engines)
    spent = _timed(engines, images[:batch], process_time if threads == 1 else perf_counter)
    for name, times in spent.items():
        found[name] = found[name].but(seconds_per_image=min(times) / min(batch, len(images)))
    fastest = min(spent, key=lambda name: min(spent[name]))
    why = "the fastest here" if len(engines) > 1 else "the only one here"
    return Choice(
        engine=fastest, why=why, batch=batch, threads=threads, images=len(images), candidates=tuple(found.values())
    )


def least_cosine(own: float) -> float:
    """Return the mean cosine to float32 that an int8 engine has to reach: the error of our own int8 and a tenth of it.

    >>> round(least_cosine(0.998), 6)
    0.9978
    """
    return 1 - 1.1 * (1 - own)


def _compared(name: RuntimeName, vectors: Tensor, reference: Tensor, least: float | None) -> Candidate:
    ours, theirs = vectors.double(), reference.double()
    error = ((ours - theirs).norm(dim=1) / theirs.norm(dim=1).clamp_min(1e-12)).max().item()
    if not math.isfinite(error):
        return Candidate(engine=name, out="its vectors have numbers that are not finite")
    found, out = agreement_of(vectors, reference), None
    if least is None and error > LARGEST_ERROR:
        out = f"its vectors differ from the plain model's by {error:.1e}, more than {LARGEST_ERROR:.0e}"
    elif least is not None and found.mean < least:
        out = f"its cosine to float32, {found.mean:.4f}, is lower than our own int8's"
    mean, lowest = (min(1.0, each) for each in (found.mean, found.lowest))  # beyond it by rounding
    return Candidate(engine=name, error=error, cosine=mean, lowest_cosine=lowest, out=out)


def _require_one(found: Mapping[RuntimeName, Candidate], engines: Mapping[RuntimeName, Engine]) -> None:
    reasons = "; ".join(f"{name}: {each.out}" for name, each in found.items())
    require(len(engines) > 0, f"no engine can run this model ({reasons}); use --engine torch")


def _timed(
    engines: Mapping[RuntimeName, Engine], images: Tensor, clock: Callable[[], float]
) -> dict[RuntimeName, list[float]]:
    """Return the seconds of every round; the comparison before was the warm-up.

    One thread is timed by the processor's clock, on which other work of the machine does not count.
    """
    spent: dict[RuntimeName, list[float]] = {name: [] for name in engines}
    if len(engines) == 1:
        return {name: [_seconds(engine, images, clock)] for name, engine in engines.items()}
    while len(first := next(iter(spent.values()))) < ROUNDS and (len(first) < LEAST_ROUNDS or sum(first) < SECONDS):
        for name, engine in engines.items():
            spent[name].append(_seconds(engine, images, clock))
    return spent


def _seconds(engine: Engine, images: Tensor, clock: Callable[[], float]) -> float:
    start = clock()
    engine.vectors(images)
    return clock() - start
