"""Operations on tensors without content: what each allocates and saves, forward and backward, and its FLOPs.

They follow PyTorch's CUDA operators, autocast and autograd formulas, as a tracker of its storages sees them. A FLOP
convention holds throughout: two per multiply-add, counted for matrix products, convolutions and attention.
"""

from __future__ import annotations

from vitrail.plan.meter import Number
from vitrail.plan.tape import Tape, Tensor

__all__ = [
    "add",
    "bmm",
    "cat",
    "conv",
    "copy",
    "cross_entropy",
    "dropout",
    "gelu",
    "layer_norm",
    "linear",
    "scale",
    "sdpa",
    "select",
    "softmax",
    "unbind_heads",
]


def linear(t: Tape, path: str, x: Tensor, width: Number, out: Number, *, bias: bool = True) -> Tensor:
    """x @ Wᵀ + b over the last `width` values."""
    rows = x.count // width
    b = t.weight(path, out, "bias") if bias else None
    w = t.weight(path, width * out)
    a = t.cast(x, t.compute)
    saved = t.save(path, a, w)
    flops, size, wanted = 2 * rows * width * out, t.compute, a.node is not None
    t.tally(path, flops)

    def backward(grad: Tensor):
        t.tally(path, flops * (1 + wanted))
        before = t.new(rows * width, size) if wanted else None
        weights = t.new(width * out, size)
        t.forget_recomputed()
        return before, weights, t.new(out, size) if bias else None

    return t.record(t.new(rows * out, size), (a, w, b), saved, backward)


def layer_norm(t: Tape, path: str, x: Tensor, width: Number) -> Tensor:
    rows, count = x.count // width, x.count
    w, b = t.parameter(path, width), t.parameter(path, width, "bias")
    a = t.cast(x, 4) if t.amp else x
    size = a.size
    y, mean, rstd = t.new(count, size), t.new(rows, 4), t.new(rows, 4)
    saved = t.save(path, a, mean, rstd)

    def backward(grad: Tensor):
        return t.new(count, size), t.new(width, t.size), t.new(width, t.size)

    return t.record(y, (a, w, b), saved, backward)


def gelu(t: Tape, path: str, x: Tensor) -> Tensor:
    """Any activation that is one operator and saves its input."""
    count, size = x.count, x.size
    saved = t.save(path, x)
    return t.record(t.new(count, size), (x,), saved, lambda grad: (t.new(count, size),))


def scale(t: Tape, path: str, x: Tensor, name: str, width: Number) -> Tensor:
    """x times a learned vector."""
    s = t.parameter(path, width, name)
    count, size, out_size = x.count, x.size, max(x.size, t.size)
    saved = t.save(path, x, s)

    def backward(grad: Tensor):
        before = t.new(count, out_size)
        if size != out_size:
            before = t.new(count, size)
        product = t.new(count, out_size)
        del product
        return before, t.new(width, t.size)

    return t.record(t.new(count, out_size), (x, s), saved, backward)


def dropout(t: Tape, path: str, x: Tensor, rate: float) -> Tensor:
    if not t.train or rate == 0:
        return x
    count, size = x.count, x.size
    y, mask = t.new(count, size), t.new(count, 1)
    saved = t.save(path, mask)
    return t.record(y, (x,), saved, lambda grad: (t.new(count, size),))


def add(t: Tape, x: Tensor, y: Tensor) -> Tensor:
    """x + y of one shape; the smaller type's gradient is cast back to it."""
    sizes, out = (x.size, y.size), max(x.size, y.size)
    count = x.count

    def backward(grad: Tensor):
        return tuple(grad if size == out else t.new(count, size) for size in sizes)

    return t.record(t.new(count, out), (x, y), None, backward)


def add_rows(t: Tape, x: Tensor, table: Tensor) -> Tensor:
    """x + a table that is the same for every image."""
    sizes, out, count, rows = (x.size, table.size), max(x.size, table.size), x.count, table.count

    def backward(grad: Tensor):
        return grad if sizes[0] == out else t.new(count, sizes[0]), t.new(rows, sizes[1])

    return t.record(t.new(count, out), (x, table), None, backward)


def cat(t: Tape, *parts: Tensor) -> Tensor:
    """One after the other; their gradients are views of the whole's."""
    sizes, counts = [part.size for part in parts], [part.count for part in parts]
    size = max(sizes)

    def backward(grad: Tensor):
        return [
            Tensor(grad.storage, count, own) if own == size else t.new(count, own)
            for own, count in zip(sizes, counts, strict=True)
        ]

    return t.record(t.new(sum(counts), size), parts, None, backward)


def expand(t: Tape, x: Tensor, times: Number) -> Tensor:
    """The same for every image: a view, whose gradient is summed."""
    count, size = x.count, x.size
    return t.record(Tensor(x.storage, count * times, size), (x,), None, lambda grad: (t.new(count, size),))


def conv(t: Tape, path: str, x: Tensor, weights: Number, width: Number, out: Number, *, bias: bool = True) -> Tensor:
    """A convolution with so many weights, `width` output channels and `out` output positions over the batch."""
    b = t.weight(path, width, "bias") if bias else None
    w = t.weight(path, weights)
    a = t.cast(x, t.compute)
    saved = t.save(path, a, w)
    flops, size, count, wanted = 2 * weights * out, t.compute, x.count, a.node is not None
    t.tally(path, flops)

    def backward(grad: Tensor):
        t.tally(path, flops * (1 + wanted))
        before = t.new(count, size) if wanted else None
        return before, t.new(weights, size), t.new(width, size) if bias else None

    return t.record(t.new(width * out, size), (a, w, b), saved, backward)


def select(t: Tape, x: Tensor, count: Number) -> Tensor:
    """Some of the elements: a view, whose gradient is zeros with those filled in."""
    whole, size = x.count, x.size
    return t.record(Tensor(x.storage, count, size), (x,), None, lambda grad: (t.new(whole, size),))


def cross_entropy(t: Tape, logits: Tensor) -> Tensor:
    count, size = logits.count, logits.size
    logs = t.new(count, size)
    saved = t.save("", logs)
    logs = t.record(logs, (logits,), saved, lambda grad: (t.new(count, size),))
    full = t.cast(logs, 4) if t.amp else logs
    size = full.size
    loss, total = t.new(1, size), t.new(1, size)
    saved = t.save("", full, total)
    return t.record(loss, (full,), saved, lambda grad: (t.new(count, size),))
