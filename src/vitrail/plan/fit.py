"""Whether a step fits a card, and the largest batch and image, the smallest patch and the most trained blocks that do.

Every answer is planned, and so is the next one, which does not fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import gcd
from typing import Literal

from vitrail.config import Config, MobileConfig, PyramidConfig
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size
from vitrail.plan.allocators import VERDICTS, VerdictName
from vitrail.plan.cards import Card
from vitrail.plan.hardware import flash_scratch_bytes, kernel_on, needed_bytes
from vitrail.plan.memory import memory
from vitrail.plan.workload import Workload
from vitrail.tuning import blocks_of

__all__ = [
    "Limit",
    "Quantity",
    "Search",
    "image_steps",
    "largest_batch",
    "largest_batches",
    "limits",
    "need_bytes",
    "on_card",
]


def on_card(workload: Workload, target: Card) -> Workload:
    """Return the workload with the attention kernel that would run on the card."""
    return replace(workload, attention=kernel_on(target, workload))


def need_bytes(config: Config, workload: Workload, target: Card, verdict: VerdictName = "likely") -> int:
    """Return the bytes that a step would take on the card, by one verdict."""
    real = on_card(workload, target)
    return needed_bytes(memory(config, real), target, verdict, flash_scratch_bytes(config, real))


def largest_batch(config: Config, workload: Workload, target: Card, verdict: VerdictName = "likely") -> int:
    """Return the largest batch per device that fits; 0 if not even one image does."""
    return _search(lambda batch: need_bytes(config, replace(workload, batch=batch), target, verdict), target)


def largest_batches(config: Config, workload: Workload, target: Card) -> dict[str, int]:
    """Return the largest batch for each verdict, by name."""
    return {verdict: largest_batch(config, workload, target, verdict) for verdict in VERDICTS}


# ── limits ──────────────────────────────────────────────────────────────────────────────────────────────────────

Quantity = Literal["batch", "image", "patch", "train-last"]
"""train-last: how many of the last blocks are trained; what is before them is frozen."""


@dataclass(frozen=True, kw_only=True)
class Limit:
    """The last value that fits, and the next one, which does not; None where there is none."""

    value: int | Size | str | None
    """A number, a size, or "everything" that is trained."""
    needed_bytes: int | None
    beyond: int | Size | str | None
    beyond_bytes: int | None


def limits(quantity: Quantity, config: Config, workload: Workload, target: Card) -> dict[VerdictName, Limit]:
    """Return, by verdict, the largest batch or image, the smallest patch, or the most trained blocks that fit the card.

    Images keep the config's aspect ratio and are divisible by its patch; patches keep theirs and divide the image.

    >>> from vitrail import preset
    >>> from vitrail.plan.cards import card
    >>> found = limits("image", preset("B/16"), Workload(batch=8, train=True), card("rtx-4090"))["likely"]
    >>> str(found.value), str(found.beyond)
    ('1088x1088', '1104x1104')
    """
    if quantity in ("batch", "image"):
        return {each: _largest(quantity, config, workload, target, each) for each in VERDICTS}
    candidates = _trained(config, workload) if quantity == "train-last" else _patches(config, workload)
    return {each: _first(candidates, target, each) for each in VERDICTS}


def _largest(quantity: Quantity, config: Config, workload: Workload, target: Card, verdict: VerdictName) -> Limit:
    smallest, _ = image_steps(config)

    def value(step: int) -> int | Size:
        return step if quantity == "batch" else Size(smallest.height * step, smallest.width * step)

    def need(step: int) -> int:
        if quantity == "batch":
            return need_bytes(config, replace(workload, batch=step), target, verdict)
        return need_bytes(config.but(image=value(step)), workload, target, verdict)

    most = _search(need, target)
    return Limit(
        value=value(most) if most else None,
        needed_bytes=need(most) if most else None,
        beyond=value(most + 1),
        beyond_bytes=need(most + 1),
    )


def _first(candidates: list[tuple[int | Size | str, Config, Workload]], target: Card, verdict: VerdictName) -> Limit:
    """Plan candidates in order until one fits; nothing is assumed of how their needs compare."""
    before = before_bytes = None
    for value, config, workload in candidates:
        needed = need_bytes(config, workload, target, verdict)
        if needed <= target.visible_bytes:
            return Limit(value=value, needed_bytes=needed, beyond=before, beyond_bytes=before_bytes)
        before, before_bytes = value, needed
    return Limit(value=None, needed_bytes=None, beyond=before, beyond_bytes=before_bytes)


def _trained(config: Config, workload: Workload) -> list[tuple[int | Size | str, Config, Workload]]:
    """Return steps that train ever fewer of the last blocks, from everything to what follows the blocks."""
    tuning = workload.tuning
    require(workload.train, "the most trained blocks are asked of inference, which trains none; add --train")
    require(
        tuning.last is None, f"the most trained blocks are asked, and --train-last {tuning.last} fixes them; omit it"
    )
    counts = range(blocks_of(config), 0 if tuning.lora else -1, -1)  # adapters need a block
    fewer = [(count, config, replace(workload, tuning=replace(tuning, last=count))) for count in counts]
    return [("everything", config, workload), *fewer]


def _patches(config: Config, workload: Workload) -> list[tuple[int | Size | str, Config, Workload]]:
    """Return the patches of the config's aspect ratio that it can have, finest first: a coarse one may need more, for
    the weights of its projection."""
    if isinstance(config, MobileConfig):
        raise VitrailError(f"a {config.KIND} model has no patch size to choose; ask for the largest image or batch")
    shared = gcd(*config.patch)
    finest = Size(config.patch.height // shared, config.patch.width // shared)
    found = []
    for times in range(1, config.image.height // finest.height + 1):
        patch = Size(finest.height * times, finest.width * times)
        try:
            found.append((patch, config.with_patch(patch), workload))
        except VitrailError:  # it does not divide the image, or its embedding cannot have it
            continue
    return found


def image_steps(config: Config) -> tuple[Size, int]:
    """Return the smallest image of the config's aspect ratio, and how many times it fits into a side of the config's.

    >>> from vitrail import preset
    >>> image_steps(preset("B/16", image="384x640"))
    (Size(height=48, width=80), 8)
    """
    whole = config.image if isinstance(config, PyramidConfig | MobileConfig) else config.fit(config.image).fitted
    rows, columns = (max(1, side // step) for side, step in zip(whole, config.unit, strict=True))
    times = gcd(rows, columns)
    return Size(config.unit.height * rows // times, config.unit.width * columns // times), times


class Search:
    """Find the largest number that fits: ask what `guess` needs and `tell` it, until it is `done`.

    Bytes are piecewise linear in the batch, so extrapolate, then bisect.
    """

    def __init__(self, limit: int) -> None:
        self.guess, self.fits = 1, 0
        """The next number to plan; and the largest that fits so far, 0 for none."""
        self._limit, self._fails = limit, None
        self._points: list[tuple[int, int]] = []

    @property
    def done(self) -> bool:
        return self._fails is not None and self._fails - self.fits <= 1

    def tell(self, needed: int) -> None:
        """Say how many bytes `guess` needs."""
        self._points.append((self.guess, needed))
        if needed <= self._limit:
            self.fits = self.guess
        else:
            self._fails = self.guess
        self.guess = self._next()

    def _next(self) -> int:
        points, fits, fails = self._points, self.fits, self._fails
        lowest, highest = fits + 1, max(fits + 1, 64 * fits) if fails is None else fails - 1
        if len(points) < 2 or (len(points) > 6 and len(points) % 2):  # not linear here: bisect
            return min(64, highest) if fails is None else (lowest + highest) // 2
        (first, before), (second, after) = points[-2:]
        slope = (after - before) // (second - first)
        aimed = second + (self._limit - after) // slope if slope > 0 else highest
        return min(max(aimed, lowest), highest)


def _search(need: Callable[[int], int], target: Card) -> int:
    search = Search(target.visible_bytes)
    while not search.done:
        search.tell(need(search.guess))
    return search.fits
