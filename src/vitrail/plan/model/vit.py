"""Every module of `vitrail.nn` on a tape: one function per module, by its name, in its order of operations.

Letters: B images, T tokens, D width, h heads, d = D/h.
"""

from __future__ import annotations

from itertools import pairwise

from vitrail.config import ViTConfig
from vitrail.errors import require
from vitrail.parts import (
    Adaptive,
    AttentionPool,
    ClsMeanPool,
    ClsPool,
    Hierarchical,
    Learned,
    MaxPool,
    MeanPool,
    Mlp,
    Patches,
    RelativeBias,
    SinCos1d,
    SinCos2d,
    Stem,
    WindowedAttention,
)
from vitrail.plan import ops
from vitrail.plan.attention_ops import Problem, copy, unbind_heads
from vitrail.plan.model.attention import Numbers, block, mlp, norm, shares_position, within
from vitrail.plan.model.patches import adaptive_embed, conv_stem, pyramid_embed
from vitrail.plan.model.sparse_attention import fused_mix
from vitrail.plan.tape import Run, Tape, Tensor, module
from vitrail.plan.workload import Workload

__all__ = ["numbers", "vit"]


def numbers(c: ViTConfig, workload: Workload) -> Numbers:
    grid, patches = c.grid, c.grid.area
    if isinstance(c.embedding, Adaptive):
        patches = workload.adaptive_tokens or patches
        require(
            patches <= grid.area,
            f"adaptive_tokens {patches} is more than the finest grid {grid} has; give at most {grid.area}",
        )
    return Numbers(
        batch=workload.batch,
        channels=c.channels,
        patch=c.patch.area,
        pixels=c.image.area,
        grid=patches,
        cells=grid.area,
        tokens=c.prefix.count + patches,
        offsets=(2 * grid.height - 1) * (2 * grid.width - 1),
        width=c.width,
        depth=c.depth,
        num_heads=c.num_heads,
        mlp_width=c.mlp.width,
        classes=c.classes,
    )


def vit(t: Tape, c: ViTConfig, n: Numbers, image: Tensor) -> Tensor:
    return classify(t, c, n, vector(t, c, n, image))


def vector(t: Tape, c: ViTConfig, n: Numbers, image: Tensor) -> Tensor:
    tokens = features(t, c, n, image)
    x = pool(t, c, n, tokens)
    return norm(t, n, x, "norm") if c.final_norm == "pooled" else x


def features(t: Tape, c: ViTConfig, n: Numbers, image: Tensor) -> Tensor:
    def one(x: Tensor, i: int) -> Tensor:
        return block(t, c, n, x, f"blocks.{i}", c.drop_path * i, shared, i % 2 == 1)

    start = [_embedded(t, c, n, image)]
    shared = within(t, c, n, "position", start[0].size) if shares_position(c) else None
    x = t.repeat("blocks", one, start.pop(), runs(c, n))
    return norm(t, n, x, "norm") if c.final_norm == "tokens" else x


def _embedded(t: Tape, c: ViTConfig, n: Numbers, image: Tensor) -> Tensor:
    x = embed(t, c, n, image)
    return norm(t, n, x, "embedding_norm") if c.embedding_norm else x


def runs(c: ViTConfig, n: Numbers) -> list[Run]:
    """Like blocks. The first drops no path and is the last to let go of a shared position; windows shift in every
    other one; a shared bias gets its first gradient in the last."""
    depth = n.depth
    first = 1 if c.drop_path or shares_position(c) else 0
    period = 2 if isinstance(c.attention, WindowedAttention) and c.attention.shift else 1
    last = depth - period if isinstance(c.position, RelativeBias) and c.position.shared else depth
    cuts = [0, first, max(first, last - (last - first) % period), depth]
    return [
        [tuple(range(i, min(i + period, stop))) for i in range(start, stop, period)] for start, stop in pairwise(cuts)
    ]


# ── front end ───────────────────────────────────────────────────────────────────────────────────────────────────


def embed(t: Tape, c: ViTConfig, n: Numbers, image: Tensor) -> Tensor:
    tokens = embedding(t, c, n, fit_pixels(t, c, image, n))
    tokens = prefix(t, c, n, tokens)
    if isinstance(c.position, Learned | SinCos1d | SinCos2d):
        tokens = position(t, c, n, tokens)
    return tokens


def fit_pixels(t: Tape, c: ViTConfig, image: Tensor, n: Numbers) -> Tensor:
    """A resized or padded image is a new one; a cropped one is a view."""
    if c.remainder == "error" or (fit := c.fit(c.image)).fitted == fit.image:
        return image
    count = n.batch * n.channels * fit.fitted.area
    return Tensor(image.storage, count, image.size) if c.remainder in ("crop", "floor") else t.new(count, image.size)


def embedding(t: Tape, c: ViTConfig, n: Numbers, image: Tensor) -> Tensor:
    match c.embedding:
        case Patches() as spec:
            return patch_embed(t, spec, n, image)
        case Stem() as spec:
            return conv_stem(t, spec, image, c.fit(c.image).fitted, n.batch, n.channels, n.width)
        case Hierarchical() as spec:
            x = pyramid_embed(t, spec, image, n.grid, n.batch, n.channels, n.width)
            gaps = c.prefix.count > 0 and n.batch > 1 and not t.amp  # between images, where the prefix's gradient is
            return ops.copied_back(t, x) if gaps else x
        case Adaptive() as spec:
            return adaptive_embed(t, spec, image, c.fit(c.image).fitted, n.grid, n.batch, n.channels, n.width)


@module
def patch_embed(t: Tape, spec: Patches, n: Numbers, image: Tensor) -> Tensor:
    weights = n.width * n.channels * n.patch
    return ops.conv(t, "embedding", image, weights, n.width, n.batch * n.grid, spec.bias)


@module
def prefix(t: Tape, c: ViTConfig, n: Numbers, tokens: Tensor) -> Tensor:
    spec = c.prefix
    if spec.count == 0:
        return tokens
    kept = [("cls", spec.cls), ("distillation", spec.distillation), ("registers", spec.registers)]
    before = [
        ops.expand(t, t.parameter("prefix", count * n.width, name), n.batch * count * n.width)
        for name, count in kept
        if count
    ]
    return ops.cat(t, *before, tokens)


@module
def position(t: Tape, c: ViTConfig, n: Numbers, tokens: Tensor) -> Tensor:
    """Tables that are added: the learned, and the fixed ones, which are buffers."""
    spec, count = c.position, c.prefix.count
    match spec:
        case SinCos1d():
            return ops.add(t, tokens, t.buffer("position", n.tokens * n.width, t.size), spread=True)
        case SinCos2d():
            return _add_rows(t, n, tokens, count, None, t.buffer("position", n.grid * n.width, t.size))
    assert isinstance(spec, Learned)
    rows = {"all": count, "cls": int(c.prefix.cls), "none": 0}[spec.prefix]
    table = t.parameter("position", (rows + n.cells) * n.width, "table")
    if rows == count and not isinstance(c.embedding, Adaptive):
        return ops.add(t, tokens, table, spread=True)
    of_prefix, of_patches = ops.split(t, table, rows * n.width, n.cells * n.width)
    if isinstance(c.embedding, Adaptive):  # a patch takes the mean of its cells
        of_patches = ops.index(t, of_patches, n.batch * n.grid * n.width)
    return _add_rows(t, n, tokens, count, of_prefix, of_patches)


def _add_rows(t: Tape, n: Numbers, tokens: Tensor, count: int, of_prefix: Tensor | None, rows: Tensor) -> Tensor:
    """Patches' rows, and those of as many leading prefix tokens as have one."""
    before, patches = ops.split(t, tokens, n.batch * count * n.width, n.batch * n.grid * n.width)
    if of_prefix is not None and of_prefix.count:
        before = ops.add(t, before, ops.pad(t, of_prefix, count * n.width), spread=True)
    return ops.cat(t, before, ops.add(t, patches, rows, spread=True))


# ── pool and head ───────────────────────────────────────────────────────────────────────────────────────────────


@module
def pool(t: Tape, c: ViTConfig, n: Numbers, x: Tensor) -> Tensor:
    match c.pool:
        case ClsPool():
            return ops.narrow(t, x, n.batch * n.width * (1 + c.prefix.distillation))
        case MeanPool():
            return ops.mean(t, _patches(t, c, n, x), n.batch * n.width)
        case ClsMeanPool():
            mean = ops.mean(t, _patches(t, c, n, x), n.batch * n.width)
            return ops.cat(t, ops.narrow(t, x, n.batch * n.width), mean)
        case MaxPool():
            return ops.amax(t, "pool", _patches(t, c, n, x), n.batch * n.width)
    return attention_pool(t, c, c.pool, n, x)


@module
def attention_pool(t: Tape, c: ViTConfig, spec: AttentionPool, n: Numbers, x: Tensor) -> Tensor:
    d, keys = n.width, n.tokens
    if c.prefix.count and not spec.prefix:
        x, keys = _patches(t, c, n, x), n.grid
        if n.batch > 1:  # one image's patches lie together as they are
            x = copy(t, x)
    if c.final_norm == "none" and c.prefix.count == 0:
        t.approximate("a pool that reads tokens in the convolution's own order copies them, which is not modelled")
    q = _linear(t, "pool.q", t.weight("pool", d, "query"), d, d)
    q = ops.expand(t, q, n.batch * d)
    k, v = unbind_heads(t, _linear(t, "pool.kv", x, d, 2 * d), 2, d)
    mixed, copies = fused_mix(t, "pool", q, k, v, Problem(n.batch, spec.num_heads, 1, keys, d // spec.num_heads))
    x = _linear(t, "pool.out", copy(t, mixed) if copies else mixed, d, d)
    kind = Mlp(width=spec.mlp_width, activation=spec.activation)
    x = ops.add(t, x, mlp(t, kind, d, spec.mlp_width, norm(t, n, x, "pool.norm"), "pool.mlp", 0.0))
    return ops.narrow(t, x, n.batch * d)


@module
def _linear(t: Tape, path: str, x: Tensor, before: int, after: int) -> Tensor:
    return ops.linear(t, path, x, before, after)


def _patches(t: Tape, c: ViTConfig, n: Numbers, x: Tensor) -> Tensor:
    return ops.narrow(t, x, n.batch * n.grid * n.width) if c.prefix.count else x


def classify(t: Tape, c: ViTConfig, n: Numbers, x: Tensor) -> Tensor:
    if not c.classes:
        return x
    if not c.prefix.distillation:
        return head(t, c, n, x, "head")
    cls, distillation = ops.unbind(t, x, 2)
    return ops.fresh(t, ops.add(t, head(t, c, n, cls, "head"), head(t, c, n, distillation, "distillation_head")))


@module
def head(t: Tape, c: ViTConfig, n: Numbers, x: Tensor, path: str) -> Tensor:
    return ops.linear(t, path, x, c.vector_width, n.classes, c.head_bias)
