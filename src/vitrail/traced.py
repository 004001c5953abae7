"""Whole numbers that remember how they were computed, so that one run of a function answers for other inputs too.

Arithmetic on `Traced` numbers computes a number and notes the step. A comparison is answered for the number at hand,
and noted as a condition. Inputs that meet all conditions take the same branches, so the noted steps give their results:
in Python's integers, or for thousands of inputs at once on arrays.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

__all__ = ["MARK", "Program", "Trace", "Traced", "highest"]

MARK = "≙"
"""What stands before a traced number in a text."""
_BOUNDS: dict[Callable, Callable[..., int]] = {
    operator.add: operator.add,
    operator.sub: operator.add,
    operator.mul: operator.mul,
    operator.floordiv: lambda number, divisor: number,
    operator.mod: lambda number, divisor: divisor,
    operator.getitem: lambda numbers, place: numbers,
}
"""What the absolute value of a result cannot exceed, from what those of the operands cannot."""


class Trace:
    """The steps and conditions of a run, in order; equal steps are one."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[Any, ...], Traced] = {}
        self.steps: list[tuple[Any, ...]] = []
        """By place: an operation and its operands, each a place or a constant in a tuple; or the name of an input."""
        self.conditions: dict[tuple[Any, ...], bool] = {}

    def input(self, name: str, value: int) -> Traced:
        return self._note((name,), value)

    def number(self, operation: Callable, *operands: Any) -> Traced:
        """Compute a number from others, of which some are traced, and note how."""
        step = (operation, *[each.place if type(each) is Traced else (each,) for each in operands])
        known = self._numbers.get(step)
        if known is not None:
            return known
        return self._note(step, operation(*[each.value if type(each) is Traced else each for each in operands]))

    def pair(self, operation: Callable, number: Traced, other: Any) -> Traced:
        """Compute a number from a traced and another one; `number`, made quick for what is asked most."""
        traced = type(other) is Traced
        step = (operation, number.place, other.place if traced else (other,))
        known = self._numbers.get(step)
        if known is None:
            known = self._note(step, operation(number.value, other.value if traced else other))
        return known

    def holds(self, comparison: Callable, number: Traced, other: Any) -> bool:
        """Compare for the number at hand, and note the answer as a condition."""
        traced = type(other) is Traced
        condition = (comparison, number.place, other.place if traced else (other,))
        known = self.conditions.get(condition)
        if known is None:
            known = self.conditions[condition] = comparison(number.value, other.value if traced else other)
        return known

    def program(self, results: dict[Any, Any]) -> Program:
        """Return what computes the results again, from other inputs."""
        places = {name: each.place if type(each) is Traced else (each,) for name, each in results.items()}
        self._numbers = {}  # numbers and trace refer to each other: garbage, were they not parted
        return Program(self.steps, self.conditions, places)

    def _note(self, step: tuple[Any, ...], value: Any) -> Traced:
        number = self._numbers[step] = Traced(self, value, len(self.steps))
        self.steps.append(step)
        return number


class Traced:
    """A number of a trace, for one input.

    >>> trace = Trace()
    >>> side = trace.input("side", 224)
    >>> tokens = (side // 16 * (side // 16) + 1) if side % 16 == 0 else 0
    >>> program = trace.program({"tokens": tokens})
    >>> tokens.value, program({"side": 384}), program({"side": 225})
    (197, {'tokens': 577}, None)
    """

    __slots__ = ("place", "trace", "value")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, trace: Trace, value: Any, place: int) -> None:
        self.trace, self.value, self.place = trace, value, place

    def __repr__(self) -> str:
        return f"<Traced: {self.value}>"

    @property
    def product(self) -> tuple[int, int]:
        """The place of a number and a constant whose product this is."""
        operation, *operands = self.trace.steps[self.place]
        if operation is operator.mul and type(operands[1]) is tuple and operands[1][0] > 0:
            return operands[0], operands[1][0]
        return self.place, 1

    def __add__(self, other: Any) -> Traced:
        if type(other) is int and other == 0:
            return self
        return self.trace.pair(operator.add, self, other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Traced:
        return self.trace.pair(operator.sub, self, other)

    def __rsub__(self, other: Any) -> Traced:
        return self.trace.number(operator.sub, other, self)

    def __neg__(self) -> Traced:
        return self.trace.number(operator.sub, 0, self)

    def __mul__(self, other: Any) -> Traced:
        if type(other) is int and other == 1:
            return self
        return self.trace.pair(operator.mul, self, other)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> Traced:
        return self.trace.pair(operator.floordiv, self, _divisor(other))

    def __rfloordiv__(self, other: Any) -> Traced:
        return self.trace.number(operator.floordiv, other, _divisor(self))

    def __mod__(self, other: Any) -> Traced:
        return self.trace.pair(operator.mod, self, _divisor(other))

    def __rmod__(self, other: Any) -> Traced:
        return self.trace.number(operator.mod, other, _divisor(self))

    def __bool__(self) -> bool:
        return self.trace.holds(operator.ne, self, 0)

    def __eq__(self, other: object) -> bool:
        return self.trace.holds(operator.eq, self, other) if isinstance(other, _COMPARED) else NotImplemented

    def __lt__(self, other: Any) -> bool:
        return self.trace.holds(operator.lt, self, other)

    def __le__(self, other: Any) -> bool:
        return self.trace.holds(operator.le, self, other)

    def __gt__(self, other: Any) -> bool:
        return self.trace.holds(operator.gt, self, other)

    def __ge__(self, other: Any) -> bool:
        return self.trace.holds(operator.ge, self, other)

    def __index__(self) -> int:
        """Return the number itself, where one is needed; others that share the trace have the same."""
        self.trace.holds(operator.eq, self, self.value)
        return self.value

    def __str__(self) -> str:
        """Return the number for a message, and mark it: the message is about this input alone."""
        return f"{MARK}{self.value}"


_COMPARED = (Traced, int, float)


def _divisor(number: Any) -> Any:
    """Note that a divisor is not zero, before an array is divided by it."""
    return number if number else 0


class Program:
    """The steps of a run that its results need, and the conditions under which they hold."""

    def __init__(self, steps: list[Any], conditions: dict[Any, bool], results: dict[Any, Any]) -> None:
        self._constants: list[Any] = []
        """They follow the numbers of the steps, so that every operand has a place."""
        place, count = self._place, len(steps)
        self._steps = [(operation, [place(each, count) for each in operands]) for operation, *operands in steps]
        self._conditions = [
            (comparison, [place(each, count) for each in operands], expected)
            for (comparison, *operands), expected in conditions.items()
        ]
        self._results = {name: place(each, count) for name, each in results.items()}
        self._asked = self._needed(place for _, places, _ in self._conditions for place in places)
        self._rest = self._needed(self._results.values())
        self._safe: dict[int, dict[str, int]] = {}
        """By the number of steps, the largest inputs for which no number exceeds 64 bits, as far as was checked."""

    def _place(self, operand: Any, count: int) -> int:
        if type(operand) is int:
            return operand
        self._constants.append(operand[0])
        return count + len(self._constants) - 1

    def _needed(self, operands: Iterable[int]) -> list[int]:
        """Return the places of the operands, and of all that they are computed from, in order."""
        needed, count = set(operands), len(self._steps)
        for place in range(count - 1, -1, -1):
            if place in needed:
                needed.update(self._steps[place][1])
        return sorted(place for place in needed if place < count)

    def __call__(self, inputs: dict[str, int]) -> dict[Any, int] | None:
        """Return the results for the inputs, or None if they do not meet the conditions."""
        try:
            values = self._compute(self._asked, inputs)
        except ZeroDivisionError:  # that a divisor is not zero is a condition
            return None
        for comparison, operands, expected in self._conditions:
            if comparison(*[values[each] for each in operands]) is not expected:
                return None
        self._compute(self._rest, inputs, values)
        return {name: values[place] for name, place in self._results.items()}

    def met(self, inputs: dict[str, Any], count: int) -> Any:
        """Return, as an array, which of `count` inputs meet the conditions."""
        import numpy as np

        found: Any = np.ones(count, bool)
        with np.errstate(divide="ignore", invalid="ignore"):
            values = self._on_arrays(self._asked, inputs)
        for comparison, operands, expected in self._conditions:
            held = comparison(*[values[each] for each in operands])
            found = found & held if expected else found > held
        return found

    def on_arrays(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return the results for many inputs that meet the conditions: arrays, or a number that is the same for all."""
        values = self._on_arrays(self._rest, inputs)
        return {name: values[place] for name, place in self._results.items()}

    def _compute(self, places: list[int], inputs: dict[str, Any], values: list[Any] | None = None) -> list[Any]:
        values, steps = values or [*[None] * len(self._steps), *self._constants], self._steps
        for place in places:
            if values[place] is None:
                operation, operands = steps[place]
                if len(operands) == 2:
                    first, second = operands
                    values[place] = operation(values[first], values[second])
                else:
                    values[place] = operation(*[values[each] for each in operands]) if operands else inputs[operation]
        return values

    def _on_arrays(self, places: list[int], inputs: dict[str, Any]) -> list[Any]:
        """Compute on arrays of 64 bits, or of Python's integers if a number might not fit."""
        most = {name: _most(array) for name, array in inputs.items()}
        safe = self._safe.get(len(places), {})
        if safe and all(size <= safe[name] for name, size in most.items()):
            return self._compute(places, inputs)
        values, limits, certain = [*[None] * len(self._steps), *self._constants], {}, True
        limits.update(enumerate(self._constants, len(self._steps)))
        for place in places:
            operation, operands = self._steps[place]
            if not operands:
                values[place], limits[place] = inputs[operation], most[operation]
                continue
            if (limit := self._limit(limits, operation, operands)) >= 2**63:  # unless the operands' limits are too wide
                limits.update({each: _most(values[each]) for each in operands if each < len(self._steps)})
                certain = False
                if (limit := self._limit(limits, operation, operands)) >= 2**63:
                    return self._compute(places, {name: array.astype(object) for name, array in inputs.items()})
            limits[place] = limit
            values[place] = operation(*[values[each] for each in operands])
        if certain:
            self._safe[len(places)] = most
        return values

    def _limit(self, limits: dict[int, int], operation: Any, operands: list[int]) -> int:
        if operation is operator.floordiv and operands[1] >= len(self._steps):
            return -(-limits[operands[0]] // abs(limits[operands[1]]))
        bound = _BOUNDS.get(operation) or operation.bound
        return bound(*[limits[each] for each in operands])


def _most(numbers: Any) -> int:
    return int(abs(numbers).max(initial=0))


class _Highest:
    """The operation that finds the first of the highest levels."""

    def __call__(self, *levels: Any) -> Any:
        if all(type(level) is int for level in levels):
            return levels.index(max(levels))
        import numpy as np

        return np.argmax(np.array(np.broadcast_arrays(*levels)), axis=0)

    def bound(self, *levels: int) -> int:
        return max(levels)


class _Pick:
    """The operation that returns one of some numbers, by its place."""

    def __call__(self, place: Any, *numbers: Any) -> Any:
        if type(place) is int:
            return numbers[place]
        import numpy as np

        return np.take_along_axis(np.array(np.broadcast_arrays(*numbers, place)), place[None], axis=0)[0]

    def bound(self, place: int, *numbers: int) -> int:
        return max(numbers)


_HIGHEST, _PICK = _Highest(), _Pick()


def highest(moments: Sequence[tuple[Any, dict[str, Any]]]) -> tuple[Any, dict[str, Any]]:
    """Return the pair with the highest first number, the first of equal ones; if traced, each input has its own."""
    levels = [level for level, _ in moments]
    traces = [level.trace for level in levels if type(level) is Traced]
    if not traces:
        return max(moments, key=lambda moment: moment[0])
    number = traces[0].number
    place = number(_HIGHEST, *levels)
    names = dict.fromkeys(name for _, parts in moments for name in parts)
    parts = {name: number(_PICK, place, *[parts.get(name, 0) for _, parts in moments]) for name in names}
    return number(_PICK, place, *levels), parts
