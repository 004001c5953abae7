"""Attention on size-only tensors: heads, explicit softmax attention, and PyTorch's fused kernels."""

from __future__ import annotations

from typing import NamedTuple

from vitrail.plan.graph import Tensor, view
from vitrail.plan.ops import add, copied_back, copy, expand, fresh, narrow, pad
from vitrail.plan.tape import Tape

__all__ = ["Problem", "fused_mix", "product", "sdpa", "softmax", "unbind_heads"]


class Problem(NamedTuple):
    """The sizes of an attention call: a score matrix of queries × keys for every image and head."""

    batch: int
    heads: int
    queries: int
    keys: int
    head_width: int

    @property
    def matrices(self) -> int:
        """The number of score matrices."""
        return self.batch * self.heads

    @property
    def single(self) -> bool:
        """Whether there is one image or one head: heads are then contiguous matrices, and a product copies nothing."""
        return self.batch == 1 or self.heads == 1

    @property
    def merges(self) -> bool:
        """Whether there is one head or one query: merging the heads of a result then needs no copy."""
        return self.heads == 1 or self.queries == 1


def unbind_heads(t: Tape, x: Tensor, parts: int, width: int) -> list[Tensor]:
    """(B, T, parts·D) → views (B, h, T, d); backward stacks their gradients and, unless there is a single token, copies
    them into x's order."""
    count, size, alone = x.count, x.size, x.count == parts * width

    def backward(grads: dict[int, Tensor]):
        stacked = t.new(count, size)
        grads.clear()
        ordered = stacked if alone else t.new(count, size)
        del stacked
        return (ordered,)

    first = t.record(view(x.storage, count // parts, size), (x,), None, backward)
    return [view(x.storage, first.count, size, first.node, slot) for slot in range(parts)]


def is_plain(t: Tape, p: Problem, mask: Tensor | None = None) -> bool:
    """Return whether no fused kernel supports the call: the memory-efficient one needs rows of 16 bytes."""
    return not is_flash(t, p, mask) and p.head_width % (16 // t.compute) != 0


def is_flash(t: Tape, p: Problem, mask: Tensor | None = None) -> bool:
    """Return whether flash runs, which supports half precision, heads of up to 256 and no mask."""
    return t.kernel != "efficient" and t.compute == 2 and p.head_width <= 256 and mask is None


def sdpa(
    t: Tape,
    path: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    p: Problem,
    mask: Tensor | None = None,
    *,
    shared: bool = False,
) -> Tensor:
    """PyTorch's scaled_dot_product_attention; a mask has a row per query of one or all heads, and may be `shared` by
    all images."""
    flash = is_flash(t, p, mask)
    if flash and p.head_width % 8:
        return _padded_flash(t, path, q, k, v, p)
    if is_plain(t, p, mask):
        return _plain(t, path, q, k, v, p, mask)
    cast = mask if mask is None or mask.size == 1 else t.cast(mask, t.compute, "attention_maps")
    v, k, q = t.cast(v, t.compute), t.cast(k, t.compute), t.cast(q, t.compute)
    m = None if cast is None else _mask(t, cast, p, shared)
    size = t.compute
    flops = 4 * p.matrices * p.queries * p.keys * p.head_width
    t.tally(path, flops)
    out = t.product(p.matrices * p.queries * p.head_width, size)
    if flash:
        statistics = t.product(p.matrices * p.queries, 4, "attention_maps")
        seed, offset = t.product(2, 8), t.product(1, 8)
    else:
        needed = any(each.node is not None for each in (q, k, v))
        statistics = t.product(p.matrices * -(-p.queries // 32) * 32 if needed else 0, 4, "attention_maps")
        seed, offset = t.product(1, 8), t.product(1, 8)
    kept = (q, k, v, out, statistics, seed, offset)
    saved = t.save(path, (q, k, v, m), *kept, m)
    counts = [p.matrices * length * p.head_width for length in (p.queries, p.keys, p.keys)]
    if m is not None and m.node is not None:  # all rows but the last are padded to 16
        counts.append((p.matrices * p.queries - 1) * (-(-p.keys // 16) * 16) + p.keys)

    def backward(grad: Tensor):
        t.tally(path, flops * 5 // 2)
        return [t.new(count, size) for count in counts]

    return t.record(out, (q, k, v) if m is None or m.node is None else (q, k, v, m), saved, backward)


def fused_mix(
    t: Tape,
    path: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    p: Problem,
    bias: Tensor | None = None,
    in_order: bool = False,
    *,
    shared: bool = True,
) -> tuple[Tensor, bool]:
    """PyTorch's fused kernel; also return whether merging the heads copies its result. A bias may be `shared` by all
    images."""
    cut = is_flash(t, p, bias) and p.head_width % 8 != 0
    heads_first = is_plain(t, p, bias) or (is_flash(t, p, bias) and in_order)
    return sdpa(t, path, q, k, v, p, bias, shared=shared), cut or (heads_first and not p.merges)


def _padded_flash(t: Tape, path: str, q: Tensor, k: Tensor, v: Tensor, p: Problem) -> Tensor:
    """Flash needs head widths in multiples of 8: queries, keys and values are padded, and the result is narrowed."""
    if p.heads == 1:
        t.approximate(f"one head of width {p.head_width}, which flash pads: the merge of its result is not verified")
    whole = p._replace(head_width=-(-p.head_width // 8) * 8)
    v, k, q = t.cast(v, t.compute), t.cast(k, t.compute), t.cast(q, t.compute)  # live until the kernel returns
    wide_q, wide_k, wide_v = (
        pad(t, x, p.matrices * length * whole.head_width) for x, length in ((q, p.queries), (k, p.keys), (v, p.keys))
    )
    return narrow(t, sdpa(t, path, wide_q, wide_k, wide_v, whole), p.matrices * p.queries * p.head_width)


def _plain(t: Tape, path: str, q: Tensor, k: Tensor, v: Tensor, p: Problem, mask: Tensor | None) -> Tensor:
    """PyTorch's unfused attention, for head widths that no fused kernel supports; it scales queries and keys."""
    t.approximate(
        f"no fused kernel supports heads of width {p.head_width}, only multiples of {16 // t.compute}: PyTorch's "
        "unfused attention is modelled, not verified"
    )
    mask = mask if mask is None or mask.size == 1 else t.cast(mask, t.compute, "attention_maps")
    whole = [t.cast(t.cast(x, t.compute), 4) for x in (q, k, v)]  # it computes in float32
    scaled = fresh(t, whole[0])
    scores = product(
        t,
        path,
        scaled,
        fresh(t, whole[1]),
        p.matrices,
        p.queries,
        p.head_width,
        p.keys,
        "attention_maps",
        copies=(not p.single, not p.single),
        size=4,
    )
    if mask is not None:
        scores = add(t, scores, mask, "attention_maps", spread=True)
    weights = softmax(t, path, scores)
    del scores
    returned = t.new(weights.count, t.compute, "attention_maps") if t.compute < 4 else None
    copies = False, not p.single
    mixed = product(t, path, weights, whole[2], p.matrices, p.queries, p.keys, p.head_width, copies=copies, size=4)
    mixed = t.cast(mixed if p.single else copied_back(t, mixed), t.compute)
    del scaled, returned
    return mixed


def _mask(t: Tape, mask: Tensor, p: Problem, shared: bool) -> Tensor:
    """Convert a mask for the kernel: to the products' type, rows padded to 8, expanded over images and heads."""
    m = mask if mask.size != 1 else t.new(mask.count, t.compute, "attention_maps")  # booleans become 0 and −∞
    if p.keys % 8:
        m = narrow(t, pad(t, m, m.count // p.keys * (-(-p.keys // 8) * 8), "attention_maps"), m.count)
    return expand(t, m, p.matrices * p.queries * p.keys, new_axis=shared)


def product(
    t: Tape,
    path: str,
    a: Tensor,
    b: Tensor,
    batch: int,
    m: int,
    k: int,
    n: int,
    component: str | None = None,
    *,
    copies: tuple[bool, bool] = (True, True),
    size: int | None = None,
) -> Tensor:
    """`batch` products of m×k and k×n matrices; `copies` says which operands must be copied first."""
    size = size or t.compute
    cast_b, cast_a = t.cast(b, size), t.cast(a, size)
    left = copy(t, cast_a) if copies[0] else cast_a
    right = copy(t, cast_b) if copies[1] else cast_b
    saved = t.save(
        path, (left, right), left if right.node is not None else None, right if left.node is not None else None
    )
    flops, counts = 2 * batch * m * k * n, (batch * m * k, batch * k * n)
    needs = left.node is not None, right.node is not None
    t.tally(path, flops)

    def backward(grad: Tensor):
        t.tally(path, flops * sum(needs))
        of_right = t.new(counts[1], size) if needs[1] else None
        return t.new(counts[0], size) if needs[0] else None, of_right

    return t.record(t.product(batch * m * n, size, component), (left, right), saved, backward)


def softmax(
    t: Tape, path: str, x: Tensor, *, precise: bool = False, component: str | None = "attention_maps"
) -> Tensor:
    """Softmax or its logarithm, in float32 under autocast or if `precise`; the kernel itself casts from and to float16,
    not bfloat16."""
    full = t.amp or precise
    a = t.cast(x, 4, component) if full and not t.fp16 else x
    count, size = a.count, a.size
    y = t.new(count, 4 if full else size, component)
    return t.record(y, (a,), t.save(path, (a,), y), [(count, size)])
