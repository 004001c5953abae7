"""The cost of the Vision Transformer."""

from __future__ import annotations

from itertools import pairwise
from operator import index

from vitrail.config import ViTConfig
from vitrail.errors import require
from vitrail.parts import Adaptive, WindowedAttention
from vitrail.plan.graph import Tensor
from vitrail.plan.model.attention import shares_position, within
from vitrail.plan.model.block import block, note_copies
from vitrail.plan.model.front import embed
from vitrail.plan.model.head import classify
from vitrail.plan.model.layout import Sizes
from vitrail.plan.model.mergers import merger
from vitrail.plan.model.neck import behind, neck
from vitrail.plan.model.norm import norm
from vitrail.plan.model.pool import pool
from vitrail.plan.model.rotary import Rotation
from vitrail.plan.repetition import Run
from vitrail.plan.tape import Tape
from vitrail.plan.workload import Workload

__all__ = ["embedded", "encode", "features", "runs", "sizes", "vector", "vit"]


def sizes(c: ViTConfig, workload: Workload) -> Sizes:
    grid = c.grid
    patches = c.steps * grid.area
    if isinstance(c.embedding, Adaptive):
        patches = workload.adaptive_tokens or patches
        require(
            patches <= grid.area,
            f"adaptive_tokens {patches} is more than the finest grid {grid} has; give at most {grid.area}",
        )
    return Sizes(
        batch=workload.batch,
        patches=patches,
        tokens=c.prefix.count + patches,
        width=c.width,
        num_heads=c.num_heads,
    )


def vit(t: Tape, c: ViTConfig, n: Sizes, image: Tensor) -> Tensor:
    if c.merger is not None:
        return merger(t, c, n, features(t, c, n, image))
    x = vector(t, c, n, image)
    return classify(t, x, c.vector_width, c.classes, distillation=c.prefix.distillation, bias=c.head_bias)


def vector(t: Tape, c: ViTConfig, n: Sizes, image: Tensor) -> Tensor:
    tokens = features(t, c, n, image)
    x = pool(t, c, behind(c, n), tokens)
    return norm(t, c.norm, "norm", x, c.width) if c.final_norm == "pooled" else x


def features(t: Tape, c: ViTConfig, n: Sizes, image: Tensor) -> Tensor:
    start = [embedded(t, c, n, image)]
    shared = within(t, c, n, "position", start[0].size) if shares_position(c) else None
    x = encode(t, c, n, start.pop(), shared)
    if c.neck is not None:
        return neck(t, c, c.neck, n, x)
    return norm(t, c.norm, "norm", x, c.width) if c.final_norm == "tokens" else x


def encode(
    t: Tape, c: ViTConfig, n: Sizes, x: Tensor, shared: Rotation | Tensor | None, some: list[Run] | None = None
) -> Tensor:
    """All blocks, or some of the model's runs."""
    note_copies(t, c)

    def one(x: Tensor, i: int) -> Tensor:
        kind = c.attention.at(i)
        own = c if kind is c.attention else c.but(attention=kind)
        return block(t, own, n, x, f"blocks.{i}", c.drop_path * i, shared, i % 2 == 1)

    start = [x]
    del x
    return t.repeat("blocks", one, start.pop(), runs(c) if some is None else some)


def embedded(t: Tape, c: ViTConfig, n: Sizes, image: Tensor) -> Tensor:
    x = embed(t, c, n, image)
    return norm(t, c.norm, "embedding_norm", x, c.width) if c.embedding_norm else x


def runs(c: ViTConfig) -> list[Run]:
    """Group blocks of equal cost. The first drops no path and is the last to release a shared position; windows shift
    in every other one, or some attend to the whole grid; a shared bias gets its first gradient in the last."""
    depth = index(c.depth)  # one number, in a sweep too
    first = 1 if c.drop_path or shares_position(c) else 0
    period = 2 if isinstance(c.attention, WindowedAttention) and c.attention.shift else 1
    last = depth - period if c.position.acts_on == "scores" and not c.position.per_block else depth
    alike = max(first, last - (last - first) % period)
    cuts = [0, first, alike, depth - (depth - alike) % period, depth]
    full = c.attention.full if isinstance(c.attention, WindowedAttention) else ()
    cuts = sorted({*cuts, *full, *(index + 1 for index in full)}) if full else cuts
    found: list[Run] = [
        [tuple(range(i, min(i + period, stop))) for i in range(start, stop, period)] for start, stop in pairwise(cuts)
    ]
    plain = (first, period, last) == (0, 1, depth)
    return _periods(found, [start in full for start in cuts[:-1]]) if full and plain else found


def _periods(runs: list[Run], full: list[bool]) -> list[Run]:
    """Join windowed and full blocks that come again and again in the same order."""
    kinds = [(len(run), whole) for run, whole in zip(runs, full, strict=True)]
    length = next(each for each in range(1, len(kinds) + 1) if kinds == (kinds[:each] * len(kinds))[: len(kinds)])
    whole = len(runs) // length * length
    return [[tuple(runs[start : start + length]) for start in range(0, whole, length)], *runs[whole:]]
