"""Operations of self-supervised losses on size-only tensors: unit vectors, sums, differences, gathered tokens."""

from __future__ import annotations

from vitrail.plan.graph import Tensor, view
from vitrail.plan.ops import expand
from vitrail.plan.tape import Tape

__all__ = ["gather", "normalise", "squared", "subtract", "total"]


def normalise(t: Tape, path: str, x: Tensor, width: int) -> Tensor:
    """F.normalize over rows of `width` values: x / ‖x‖, with norms in float32 under autocast."""
    lengths = expand(t, _clamp(t, path, _norm(t, path, x, width)), x.count, new_axis=True)
    count, own, size = x.count, x.size, max(x.size, lengths.size)
    saved = t.save(path, (x, lengths), x, lengths)

    def backward(grad: Tensor):
        steps = [t.new(count, size) for _ in range(4)]  # x/‖x‖, divided again, its negative, times the gradient
        del steps[:3]
        before = t.new(count, size)
        if own != size:
            before = t.new(count, own)
        return before, steps.pop()

    return t.record(t.new(count, size), (x, lengths), saved, backward)


def _norm(t: Tape, path: str, x: Tensor, width: int) -> Tensor:
    rows, count, own = x.count // width, x.count, x.size
    size = 4 if t.amp else own
    norm = t.new(rows, size)

    def backward(grad: Tensor):
        direction, zero = [t.new(count, size)], t.new(rows, 1)
        before = t.new(count, size)
        del zero
        direction.clear()
        return (before if own == size else t.new(count, own),)

    return t.record(norm, (x,), t.save(path, (x,), x, norm), backward)


def _clamp(t: Tape, path: str, x: Tensor) -> Tensor:
    """clamp_min."""
    count, size = x.count, x.size

    def backward(grad: Tensor):
        zero, inside = t.new(1, size), t.new(count, 1)
        before = t.new(count, size)
        del zero, inside
        return (before,)

    return t.record(t.new(count, size), (x,), t.save(path, (x,), x), backward)


def total(t: Tape, x: Tensor, count: int) -> Tensor:
    """The sum over some axes, leaving `count` values; its gradient is a view."""
    own, size = x.count, x.size
    return t.record(t.new(count, size), (x,), None, lambda grad: (view(grad.storage, own, size),))


def subtract(t: Tape, x: Tensor, y: Tensor) -> Tensor:
    """x − y of the same shape; y's gradient is negated, and a narrower x's is cast."""
    count, size, own, wide = x.count, max(x.size, y.size), x.size, y.node is not None

    def backward(grad: Tensor):
        first = grad if own == size else t.new(count, own)
        return first, t.new(count, size) if wide else None

    return t.record(t.new(count, size), (x, y), None, backward)


def squared(t: Tape, path: str, x: Tensor) -> Tensor:
    """x²; backward computes the power x¹, doubles it, and multiplies the gradient."""
    count, size = x.count, x.size
    saved = t.save(path, (x,), x)

    def backward(grad: Tensor):
        power, doubled = t.new(count, size), t.new(count, size)
        before = t.new(count, size)
        del doubled, power
        return (before,)

    return t.record(t.new(count, size), (x,), saved, backward)


def gather(t: Tape, path: str, x: Tensor, places: Tensor, count: int) -> Tensor:
    """Tokens at the given places; backward adds them into zeros, out of place."""
    own, size = x.count, x.size
    saved = t.save(path, (x,), x, places)

    def backward(grad: Tensor):
        zeros = t.new(own, size)
        filled = t.new(own, size)
        del zeros
        return (filled,)

    return t.record(t.new(count, size), (x,), saved, backward)
