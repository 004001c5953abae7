"""Many whole numbers that compute as one, so that code written for one config answers for thousands.

Arithmetic is element by element on a NumPy array. A comparison returns one bool if it holds for all numbers or for
none; otherwise it raises `Split`, and the caller asks again for each part. So whatever branches the code takes, it
takes them for every number alike. A bound in Python's own integers says when an array could overflow: that raises
`TooLarge`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

__all__ = ["LIMIT", "Many", "Split", "TooLarge", "count_true"]

LIMIT = 2**63
"""What an array's number must stay below."""


class Split(Exception):  # noqa: N818 - a question asked in parts is no error
    """The numbers differ where the code needs one answer; `keys` are equal for those that agree."""

    def __init__(self, keys: np.ndarray) -> None:
        super().__init__("these numbers take different branches")
        self.keys = keys


class TooLarge(Exception):  # noqa: N818 - the caller computes these one by one, in Python's integers
    """A number might not fit 64 bits."""


class Many:
    """An array of int64 and a bound on their absolute values.

    >>> import numpy as np
    >>> sides = Many(np.array([224, 384]), 384)
    >>> (sides // 16 * (sides // 16) + 1).values.tolist(), sides % 16 == 0
    ([197, 577], True)
    """

    __slots__ = ("_multiples", "bound", "values")
    __hash__ = None  # type: ignore[assignment]
    __array_ufunc__ = None  # an array on the left leaves arithmetic to this class

    def __init__(self, values: np.ndarray, bound: int) -> None:
        if bound >= LIMIT:
            raise TooLarge
        self.values, self.bound = values, bound
        self._multiples: dict[int, Many] | None = None

    def __repr__(self) -> str:
        return f"{len(self.values)} numbers of up to {self.bound}"

    # ── arithmetic ──────────────────────────────────────────────────────────────────────────────────────────────

    def tight(self) -> int:
        """Return the largest absolute value, which becomes the bound."""
        self.bound = int(abs(self.values).max())
        return self.bound

    def __add__(self, other: Any) -> Many:
        if type(other) is Many:
            bound = self.bound + other.bound
            return Many(self.values + other.values, bound if bound < LIMIT else self.tight() + other.tight())
        if isinstance(other, int):
            bound = self.bound + abs(other)
            return Many(self.values + other, bound if bound < LIMIT else self.tight() + abs(other))
        return NotImplemented

    __radd__ = __add__

    def __sub__(self, other: Any) -> Many:
        return self + -other if isinstance(other, Many | int) else NotImplemented

    def __rsub__(self, other: Any) -> Many:
        return -self + other

    def __neg__(self) -> Many:
        return Many(-self.values, self.bound)

    def __mul__(self, other: Any) -> Many:
        if type(other) is Many:
            bound = self.bound * other.bound
            return Many(self.values * other.values, bound if bound < LIMIT else self.tight() * other.tight())
        if isinstance(other, int):  # kept: elements become bytes by the same few factors again and again
            if self._multiples is None:
                self._multiples = {}
            elif (known := self._multiples.get(other)) is not None:
                return known
            bound = self.bound * abs(other)
            product = Many(self.values * other, bound if bound < LIMIT else self.tight() * abs(other))
            self._multiples[other] = product
            return product
        return NotImplemented

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Many:
        if type(other) is Many:
            return Many(self.values // _divisor(other), self.bound)
        if isinstance(other, int):
            return Many(self.values // _divisor(other), -(-self.bound // abs(other)))
        return NotImplemented

    def __rfloordiv__(self, other: Any) -> Many:
        return Many(other // _divisor(self), abs(other)) if isinstance(other, int) else NotImplemented

    def __mod__(self, other: Any) -> Many:
        if not isinstance(other, Many | int):
            return NotImplemented
        return Many(self.values % _divisor(other), other.bound if isinstance(other, Many) else abs(other))

    def __rmod__(self, other: Any) -> Many:
        return Many(other % _divisor(self), self.bound) if isinstance(other, int) else NotImplemented

    # ── one answer for all ──────────────────────────────────────────────────────────────────────────────────────

    def __bool__(self) -> bool:
        return _agreed(self.values != 0)

    def __eq__(self, other: object) -> bool:
        return _agreed(self.values == _raw(other)) if isinstance(other, _COMPARED) else NotImplemented

    def __lt__(self, other: Any) -> bool:
        return _agreed(self.values < _raw(other)) if isinstance(other, _COMPARED) else NotImplemented

    def __le__(self, other: Any) -> bool:
        return _agreed(self.values <= _raw(other)) if isinstance(other, _COMPARED) else NotImplemented

    def __gt__(self, other: Any) -> bool:
        return _agreed(self.values > _raw(other)) if isinstance(other, _COMPARED) else NotImplemented

    def __ge__(self, other: Any) -> bool:
        return _agreed(self.values >= _raw(other)) if isinstance(other, _COMPARED) else NotImplemented

    def __index__(self) -> int:
        if (self.values == self.values[0]).all():
            return int(self.values[0])
        raise Split(self.values)


_COMPARED = (Many, int, float)


def _raw(other: Any) -> Any:
    return other.values if type(other) is Many else other


def _divisor(other: Many | int) -> Any:
    if type(other) is not Many:
        return other if other else 1 // other  # raises Python's error
    return other.values if other else 1 // 0


def _agreed(truths: np.ndarray) -> bool:
    true = count_true(truths)
    if 0 < true < len(truths):
        raise Split(truths)
    return true > 0


def count_true(truths: np.ndarray) -> int:
    """Return how many are true, in one pass, where `all` and `any` would take two."""
    import numpy as np

    return int(np.count_nonzero(truths))
