"""Operations on size-only tensors: what each allocates and saves, forward and backward, and its FLOPs.

They follow PyTorch's CUDA operators, autocast and autograd formulas, and are tested against a tracker of PyTorch's
storages. FLOPs are two per multiply-add, of matrix products, convolutions and attention.
"""

from __future__ import annotations

from typing import Any

from vitrail.plan.graph import Tensor, module, view
from vitrail.plan.tape import Tape

__all__ = [
    "BatchNorm",
    "Conv",
    "LayerNorm",
    "Linear",
    "RMSNorm",
    "activate",
    "add",
    "cat",
    "conv",
    "copied_back",
    "copy",
    "cross_entropy",
    "dropout",
    "expand",
    "fresh",
    "gradients",
    "layer_norm",
    "linear",
    "multiply",
    "narrow",
    "reorder",
    "saving_output",
    "split",
]


# ── matrix products and norms ───────────────────────────────────────────────────────────────────────────────────


def linear(
    t: Tape, path: str, x: Tensor, width: int, out: int, bias: bool | Tensor = True, *, partial: bool = False
) -> Tensor:
    """x @ Wᵀ + b over the last `width` values, and the adapter's share if there is one; the bias may be a computed
    tensor. A `partial` result is summed over devices, each of which adds its share of the bias."""
    y = _linear(t, path, x, width, out, bias, partial=partial)
    if t.tuned is None or not (rank := t.adapter_rank(path)):
        return y
    if t.naming is not None:  # peft takes the input in the weights' type, and scales the output
        x = t.cast(x, t.size)
        low = [_linear(t, path, x, width, rank, False, "lora_a")]
        return add(t, y, fresh(t, _linear(t, path, low.pop(), rank, out, False, "lora_b")))
    low = [fresh(t, _linear(t, path, x, width, rank, False, "lora_a"))]
    return add(t, y, _linear(t, path, low.pop(), rank, out, False, "lora_b"))


def _linear(
    t: Tape,
    path: str,
    x: Tensor,
    width: int,
    out: int,
    bias: bool | Tensor,
    name: str = "weight",
    *,
    partial: bool = False,
) -> Tensor:
    rows = x.count // width
    b = t.weight(path, out, "bias") if bias is True else t.cast(bias, t.compute) if bias else None
    w = t.weight(path, width * out, name, rows=out)
    a = t.cast(x, t.compute)
    saved = t.save(path, (a, w, b), a if w.node is not None else None, w if a.node is not None else None)
    flops, size, biased = 2 * rows * width * out, t.compute, b is not None
    of_input, of_weights, of_bias = a.node is not None, w.node is not None, b is not None and b.node is not None
    t.tally(path, flops)

    def backward(grad: Tensor):
        t.tally(path, flops * (of_input + of_weights))
        weights = t.new(width * out, size) if of_weights and not biased else None  # before the input's, without a bias
        before = t.new(rows * width, size) if of_input else None
        if of_weights and biased:
            weights = t.new(width * out, size)
        t.forget_recomputed()
        return t.new(out, size) if of_bias else None, weights, before

    share = t.new(out, size) if partial else None
    y = t.product(rows * out, size)
    del share
    # the parameters' gradients are accumulated before the input's, which passes a view
    return t.record(y, (b, w, a), saved, backward)


def gathered_linear(t: Tape, path: str, x: Tensor, width: int, rows: int, out: int, flops: int) -> Tensor:
    """A linear layer over gathered rows, which need no gradient, with the given FLOPs."""
    b, w = t.weight(path, out, "bias"), t.weight(path, width * out, rows=out)
    a = t.cast(x, t.compute)
    saved, size = t.save(path, (w, b), a), t.compute
    t.tally(path, flops)

    def backward(grad: Tensor):
        t.tally(path, flops)
        return t.new(width * out, size), t.new(out, size)

    return t.record(t.new(rows * out, size), (w, b), saved, backward)


def conv(
    t: Tape, path: str, x: Tensor, weights: int, width: int, out: int, bias: bool = True, filters: Tensor | None = None
) -> Tensor:
    """A convolution with `weights` weights, to `width` channels at `out` positions of the whole batch; the filters may
    be a computed tensor."""
    b = t.weight(path, width, "bias") if bias else None
    w = t.weight(path, weights, rows=width) if filters is None else t.cast(filters, t.compute)
    a = t.cast(x, t.compute)
    saved = t.save(path, (a, w, b), a, w)
    flops, size, count = 2 * weights * out, t.compute, x.count
    of_input, of_weights, of_bias = a.node is not None, w.node is not None, b is not None and b.node is not None
    t.tally(path, flops)

    def backward(grad: Tensor):
        t.tally(path, flops * (of_input + of_weights))
        before = t.new(count, size) if of_input else None
        return before, t.new(weights, size) if of_weights else None, t.new(width, size) if of_bias else None

    return t.record(t.new(width * out, size), (a, w, b), saved, backward)


def layer_norm(t: Tape, path: str, x: Tensor, width: int, *, affine: bool = True) -> Tensor:
    """Layer norm, in float32 under autocast; it saves the mean and rstd of every row."""
    rows, count = x.count // width, x.count
    learned = (t.parameter(path, width), t.parameter(path, width, "bias")) if affine else ()
    a = t.cast(x, 4) if t.amp else x
    size = a.size
    y, mean, rstd = t.new(count, size), t.new(rows, 4), t.new(rows, 4)
    saved = t.save(path, (a, *learned), a, mean, rstd)
    sizes = gradients((a, count, size), *((each, width, t.size) for each in learned))

    return t.record(y, (a, *learned), saved, sizes)


def rms_norm(t: Tape, path: str, x: Tensor, width: int, affine: bool = True) -> Tensor:
    """RMS norm, in float32 under autocast; it saves the rstd of every row."""
    rows, count = x.count // width, x.count
    w = (t.parameter(path, width),) if affine else ()
    a = t.cast(x, 4) if t.amp else x
    size = a.size
    y, rstd = t.new(count, size), t.new(rows, 4)
    saved = t.save(path, (a, *w), a, rstd)
    sizes = gradients((a, count, size), *((each, width, t.size) for each in w))

    return t.record(y, (a, *w), saved, sizes)


def batch_norm(t: Tape, path: str, x: Tensor, width: int) -> Tensor:
    """Batch norm; half-precision inputs stay in half precision under autocast, with statistics in float32."""
    if t.train and x.count == width:
        t.approximate(f"{path} has one value per channel, which PyTorch cannot train; use a batch of 2 or more")
    w, b = t.parameter(path, width), t.parameter(path, width, "bias")
    t.buffer(path, 2 * width, t.size, "statistics")
    t.buffer(path, 1, 8, "count")
    count, size = x.count, x.size
    y = t.new(count, size)
    mean, rstd = t.new(width, 4), t.new(width, 4)
    saved = t.save(path, (x, w, b), x, mean, rstd)
    sizes = gradients((x, count, size), (w, width, t.size), (b, width, t.size))

    return t.record(y, (x, w, b), saved, sizes)


def gradients(*inputs: tuple[Tensor, int, int]) -> list[tuple[int, int] | None]:
    """Return count and size of the gradients of the tensors that need one, and None for the others."""
    return [(count, size) if tensor.node is not None else None for tensor, count, size in inputs]


# ── element by element ──────────────────────────────────────────────────────────────────────────────────────────


def fresh(t: Tape, x: Tensor, saved: Any = None) -> Tensor:
    """An elementwise operation that allocates a tensor of x's size, forward and backward."""
    count, size = x.count, x.size
    return t.record(t.new(count, size), (x,), saved, [(count, size)])


def activate(t: Tape, path: str, x: Tensor) -> Tensor:
    """An activation that saves its input, like GELU and SiLU."""
    saved = t.save(path, (x,), x)
    return fresh(t, x, saved)


def saving_output(t: Tape, path: str, x: Tensor) -> Tensor:
    """An activation that saves its output, like sigmoid and ReLU."""
    count, size = x.count, x.size
    y = t.new(count, size)
    return t.record(y, (x,), t.save(path, (x,), y), [(count, size)])


def multiply(t: Tape, path: str, x: Tensor, y: Tensor, *, spread: bool = False) -> Tensor:
    """x · y, where y has x's shape or is broadcast (`spread`); each is saved if the other needs a gradient."""
    needs = x.node is not None, y.node is not None
    like, count, size = ((x.count, x.size), (y.count, y.size)), x.count, max(x.size, y.size)
    saved = t.save(path, (x, y), y if needs[0] else None, x if needs[1] else None)

    def backward(grad: Tensor):
        whole = [t.new(count, size) if need else None for need in needs]
        t.forget_recomputed()
        first = _reduced(t, whole, *like[0], count, size, spread=False)
        return first, _reduced(t, whole, *like[1], count, size, spread=spread)

    return t.record(t.new(count, size), (x, y), saved, backward)


def _reduced(
    t: Tape, whole: list[Tensor | None], count: int, size: int, old: int, old_size: int, *, spread: bool
) -> Tensor | None:
    """Return the next gradient, in its tensor's type, summed over broadcast axes (even those of size one)."""
    part = whole.pop(0)
    if part is None:
        return None
    if spread or count != old:
        part = t.new(count, old_size)
    return part if size == old_size else t.new(count, size)


def add(t: Tape, x: Tensor, y: Tensor, component: str | None = None, *, spread: bool = False) -> Tensor:
    """x + y, where y has x's shape or is broadcast (`spread`); gradients share one tensor if they can."""
    like, count, size = ((x.count, x.size), (y.count, y.size)), x.count, max(x.size, y.size)
    needs = x.node is not None, y.node is not None
    if all(needs) and not spread and like[0] == like[1]:
        return t.record(t.new(count, size, component), (x, y), None, _to_both)

    def backward(grad: Tensor):
        whole = [grad if need else None for need in needs]
        first = _reduced(t, whole, *like[0], count, size, spread=False)
        return first, _reduced(t, whole, *like[1], count, size, spread=spread)

    return t.record(t.new(count, size, component), (x, y), None, backward)


def _to_both(grad: Tensor) -> tuple[Tensor, Tensor]:
    return grad, grad


def divide(t: Tape, path: str, x: Tensor, y: Tensor) -> Tensor:
    """x / y, where y is broadcast."""
    count, size, small = x.count, x.size, y.count
    saved = t.save(path, (x, y), x, y)

    def backward(grad: Tensor):
        steps = [t.new(count, size) for _ in range(4)]  # x/y, x/y/y, its negative, times the gradient
        del steps[:3]
        before = t.new(count, size)
        t.forget_recomputed()
        return before, t.new(small, size)

    return t.record(t.new(count, size), (x, y), saved, backward)


def dropout(t: Tape, path: str, x: Tensor, rate: float) -> Tensor:
    if not t.train or rate == 0:
        return x
    count, size = x.count, x.size
    y, mask = t.new(count, size), t.new(count, 1)
    return t.record(y, (x,), t.save(path, (x,), mask), [(count, size)])


# ── shapes ──────────────────────────────────────────────────────────────────────────────────────────────────────


def cat(t: Tape, *parts: Tensor) -> Tensor:
    """Concatenate; gradients are views of the result's gradient."""
    sizes, counts = [part.size for part in parts], [part.count for part in parts]
    size = max(sizes)

    def backward(grad: Tensor):
        return [
            view(grad.storage, count, own) if own == size else t.new(count, own)
            for own, count in zip(sizes, counts, strict=True)
        ]

    return t.record(t.new(sum(counts), size), parts, None, backward)


def expand(t: Tape, x: Tensor, count: int, *, new_axis: bool = False) -> Tensor:
    """Repeat as a view, whose gradient is summed, even over a new axis of size one."""
    own, size = x.count, x.size
    if own == count and not new_axis:
        return x
    return t.record(view(x.storage, count, size), (x,), None, [(own, size)])


def narrow(t: Tape, x: Tensor, count: int) -> Tensor:
    """Some of the elements as a view, whose gradient is copied into zeros."""
    whole, size = x.count, x.size
    return t.record(view(x.storage, count, size), (x,), None, [(whole, size)])


def split(t: Tape, x: Tensor, *counts: int) -> list[Tensor]:
    """Split x into views; their gradients are concatenated."""
    whole, size = x.count, x.size

    def backward(grads: Any):
        missing = [] if isinstance(grads, Tensor) else [t.new(c, size) for i, c in enumerate(counts) if i not in grads]
        joined = t.new(whole, size)
        del missing
        return (joined,)

    first = t.record(view(x.storage, counts[0], size), (x,), None, backward)
    return [view(x.storage, count, size, first.node, slot) for slot, count in enumerate(counts)]


def copied_back(t: Tape, x: Tensor) -> Tensor:
    """A view whose gradient must be copied, because it arrives in another order."""
    count, size = x.count, x.size
    return t.record(view(x.storage, count, size), (x,), None, [(count, size)])


def copy(t: Tape, x: Tensor) -> Tensor:
    """A new tensor with the same elements in another order; its gradient is passed through."""
    return t.record(t.new(x.count, x.size), (x,), None, lambda grad: (grad,))


def reorder(t: Tape, x: Tensor) -> Tensor:
    """A copy in another order, and one of the gradient in x's order."""
    return fresh(t, x)


def unbind(t: Tape, x: Tensor, parts: int) -> list[Tensor]:
    """Split x into equal views along an axis; their gradients are stacked."""
    return split(t, x, *[x.count // parts] * parts)


def pad(t: Tape, x: Tensor, count: int, component: str | None = None) -> Tensor:
    """A larger copy; its gradient is a copy too."""
    own, size = x.count, x.size
    return t.record(t.new(count, size, component), (x,), None, [(own, size)])


def repeat(t: Tape, x: Tensor, times: int) -> Tensor:
    """Repeat every element `times` times; gradients are summed."""
    own, size = x.count, x.size
    return t.record(t.new(own * times, size), (x,), None, [(own, size)])


def index(t: Tape, x: Tensor, count: int) -> Tensor:
    """Select elements by a table of indices; backward accumulates them into zeros, out of place."""
    own, size = x.count, x.size

    def backward(grad: Tensor):
        zeros = t.new(own, size)
        filled = t.new(own, size)
        del zeros
        return (filled,)

    return t.record(t.new(count, size), (x,), None, backward)


def mean(t: Tape, x: Tensor, count: int) -> Tensor:
    """The mean over some axes, leaving `count` values."""
    own, size = x.count, x.size
    return t.record(t.new(count, size), (x,), None, [(own, size)])


def amax(t: Tape, path: str, x: Tensor, count: int) -> Tensor:
    """The maximum over some axes; backward finds it again, counts ties and divides the gradient among them."""
    own, size = x.count, x.size
    y = t.new(count, size)

    def backward(grad: Tensor):
        steps = t.new(own, 1), t.new(count, 8), t.new(count, size)  # mask, number of ties, divided gradient
        before = t.new(own, size)
        del steps
        return (before,)

    return t.record(y, (x,), t.save(path, (x,), x, y), backward)


# ── PyTorch's modules, which keep their input alive until they return ───────────────────────────────────────────

BatchNorm, Conv, LayerNorm, Linear = module(batch_norm), module(conv), module(layer_norm), module(linear)
RMSNorm = module(rms_norm)


# ── loss ────────────────────────────────────────────────────────────────────────────────────────────────────────


def cross_entropy(t: Tape, logits: Tensor, labels: Tensor | None = None) -> Tensor:
    """The mean over a batch; labels that only the loss refers to live until its backward."""
    logs = saving_output(t, "loss", logits)
    full = t.cast(logs, 4) if t.amp else logs
    count, size = full.count, full.size
    loss, total = t.new(1, size), t.new(1, size)
    return t.record(loss, (full,), t.save("loss", (full,), full, total, labels), [(count, size)])
