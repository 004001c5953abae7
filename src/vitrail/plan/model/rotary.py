"""The cost of rotary positions.

Letters: B images, T tokens, N patches, h heads, d values per head.
"""

from __future__ import annotations

from dataclasses import dataclass

from vitrail.plan import ops
from vitrail.plan.graph import Tensor, view
from vitrail.plan.tape import Tape

__all__ = ["Rotation", "axial_rotation", "mixed_rotation"]


@dataclass(frozen=True)
class Rotation:
    """Cosine and sine per token and value."""

    cos: Tensor
    sin: Tensor

    def rotate(self, t: Tape, path: str, x: Tensor) -> Tensor:
        def scaled(x: Tensor, by: Tensor) -> Tensor:
            return ops.multiply(t, path, x, by, spread=True)

        first, second = ops.split(t, x, x.count // 2, x.count // 2)
        partner = ops.cat(t, ops.fresh(t, second), first)
        return ops.add(t, scaled(x, self.cos), scaled(partner, self.sin))


def axial_rotation(t: Tape, tokens: int, head_width: int, size: int) -> Rotation:
    """Fixed angles, computed once for all blocks."""
    return Rotation(t.new(tokens * head_width, size), t.new(tokens * head_width, size))


def mixed_rotation(t: Tape, path: str, patches: int, tokens: int, heads: int, head_width: int, size: int) -> Rotation:
    """Learned directions: angles are computed and saved in every block."""
    pairs = head_width // 2
    place = t.new(2 * patches, 4)
    frequencies = t.cast(t.parameter(path, 2 * heads * pairs, "frequencies", rows=2), 4)
    along = ops.split(t, frequencies, heads * pairs, heads * pairs)
    rows = columns = view(place.storage, heads * patches * pairs, 4)
    spread = patches > 1
    angles = ops.add(
        t, ops.multiply(t, path, rows, along[0], spread=spread), ops.multiply(t, path, columns, along[1], spread=spread)
    )
    return _rotation_of(t, path, angles, heads * tokens * pairs, size)


def _rotation_of(t: Tape, path: str, angles: Tensor, padded: int, size: int) -> Rotation:
    angles = ops.pad(t, angles, padded)
    angles = ops.repeat(t, angles, 2)
    cos, sin = t.cast(_wave(t, path, angles, 2), size), t.cast(_wave(t, path, angles, 1), size)
    return Rotation(cos, sin)


def _wave(t: Tape, path: str, angles: Tensor, steps: int) -> Tensor:
    """A cosine or sine; backward computes the other one, for a cosine also its negative, then the gradient."""
    count, size = angles.count, angles.size
    saved = t.save(path, (angles,), angles)

    def backward(grad: Tensor):
        made = t.new(count, size)
        for _ in range(steps):
            made = t.new(count, size)
        return (made,)

    return t.record(t.new(count, size), (angles,), saved, backward)
