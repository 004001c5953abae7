"""Run the blocks of a model on a tape: of blocks that cost the same, only the first."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from vitrail.checkpointing import Checkpointing
from vitrail.plan.graph import Frame, Node, Tensor
from vitrail.plan.meter import Meter, Stretch
from vitrail.tuning import Tuned

__all__ = ["Repetition", "Run", "flat"]

Run = list[tuple[Any, ...]]
"""Groups of block numbers, or of runs; all groups of a run have the same costs."""


def flat(runs: list[Run]) -> list[Run]:
    """Return the runs with groups of runs taken apart."""
    found: list[Run] = []
    for run in runs:
        nested = run and isinstance(run[0][0], list)
        found += flat([inner for group in run for inner in group]) if nested else [run]
    return found


def _numbers(group: tuple[Any, ...]) -> Sequence[int]:
    nested = isinstance(group[0], list)
    return [number for run in group for inner in run for number in _numbers(inner)] if nested else group


class Repetition:
    """What a tape needs to run some blocks for all."""

    __slots__ = (
        *("meter", "train", "checkpointing", "tuned", "naming", "scope", "repeats"),
        *("_times", "_nodes", "_casts", "_past_casts", "_frame"),
    )

    def __init__(
        self,
        meter: Meter,
        *,
        train: bool,
        checkpointing: Checkpointing | None,
        tuned: Tuned | None,
        naming: Callable[[str, str], str] | None,
    ) -> None:
        self.meter, self.train, self.checkpointing, self.tuned, self.naming = meter, train, checkpointing, tuned, naming
        """`tuned` is what is trained, None for everything; `naming` gives vitrail's path of a tensor, where another
        library's model runs."""
        self.scope = ""
        """The path of the model that runs, with a dot, where a step has several."""
        self.repeats: dict[str, dict[str, None]] = {}
        """Blocks that were run, and the skipped blocks that they represent."""
        self._times: dict[str, int] = {}
        self._nodes: list[Node | Callable[[], None]] = []
        self._casts: dict[tuple[str, str], Tensor] = {}
        self._past_casts: dict[str, tuple[dict[tuple[str, str], Tensor], int]] = {}
        """Casts of the weights of blocks, by the first block of a group, and the skipped groups that have as many."""
        self._frame: Frame | None = None

    def total(self, rows: dict[str, int]) -> int:
        """Return the sum over all modules, including skipped blocks."""
        return sum([value * self.times(path) for path, value in rows.items()])

    def times(self, path: str) -> int:
        """Return the number of modules that the one at `path` stands for, itself included."""
        if (known := self._times.get(path)) is not None:
            return known
        times = 1
        for template, others in self.repeats.items():
            if path.startswith(template) and path[len(template) : len(template) + 1] in ("", "."):
                times += len(others)
        self._times[path] = times
        return times

    def repeat(self, name: str, block: Callable[[Tensor, int], Tensor], x: Tensor, runs: list[Run]) -> Tensor:
        """Run numbered blocks; the groups of a run have the same costs.

        Every group of a run changes the live bytes by the same amount, forward and backward, so that one stands for all
        that follow it. A group is no model of the next one if its result is the first of another type, or the first
        that needs a gradient; nor is the group after that, which is the last to release what blocks share; nor is one
        whose input outlives it, because the caller holds it.
        """
        given = [x]
        del x
        return self._repeat(f"{self.scope}{name}.", block, given, self._alike(name, runs))

    def _repeat(
        self, prefix: str, block: Callable, given: list[Tensor], runs: list[Run], begins: bool = False
    ) -> Tensor:
        """Run blocks on what is given, in a list: it is taken from there, so that the first block releases it."""
        x = given.pop()
        for groups in runs:
            done = 0
            while done < len(groups):
                group, kind = groups[done], (x.size, x.node is None)
                forward, backward = Stretch(self.meter), Stretch(self.meter)
                forward.begin()
                self._nodes.append(backward.end)
                given = [x]
                del x
                if isinstance(group[0], list):
                    x = self._repeat(prefix, block, given, [*group], begins)
                else:
                    x = self._group(prefix, block, given, group)
                self._nodes.append(backward.begin)
                steady = (x.size, x.node is None) == kind
                outlived = x.node is None and forward.change("activations") != 0
                more = len(groups) - done - 1 if steady and not begins and not outlived else 0
                begins = not steady
                forward.more = backward.more = more
                forward.end()
                if more:
                    self._stand_for(prefix, group, groups[done + 1 :])
                done += 1 + more
        return x

    def _group(self, prefix: str, block: Callable, given: list[Tensor], group: tuple[int, ...]) -> Tensor:
        x, key, outer = given.pop(), f"{prefix}{group[0]}", self._casts
        self._casts = self._past_casts[key][0] if key in self._past_casts else {}  # those of a first pass
        for number in group:
            x = self.checkpoint(block, x, number) if self._recomputes(number) else block(x, number)
        self._past_casts[key], self._casts = (self._casts, 0), outer
        return x

    def _stand_for(self, prefix: str, group: tuple[Any, ...], skipped: Run) -> None:
        """Note which skipped blocks each block of a group represents, those that it already represents included."""
        self._times.clear()
        others = [_numbers(each) for each in skipped]
        owners = {other: template for template, known in self.repeats.items() for other in known}
        for place, number in enumerate(_numbers(group)):
            path = f"{prefix}{number}"
            alike = self.repeats.setdefault(owners.get(path, path), {})
            alike.update(dict.fromkeys(f"{prefix}{each[place]}" for each in others))
            if path in self._past_casts:
                casts, times = self._past_casts[path]
                self._past_casts[path] = casts, (times + 1) * (len(skipped) + 1) - 1

    def _alike(self, name: str, runs: list[Run]) -> list[Run]:
        """Cut runs where other tensors are trained, and join groups until each has as many checkpointed blocks."""
        often = self.checkpointing is None or self.checkpointing.every == 1 or not self.train
        if self.tuned is None and often:
            return runs
        runs = flat(runs)
        if self.tuned is not None:
            tuned, cut = self.tuned, []
            for groups in runs:
                alike = groupby(groups, key=lambda group: [tuned.status(self._own(f"{name}.{i}")) for i in group])
                cut += [list(run) for _, run in alike]
            runs = cut
        if self.checkpointing is None or often:
            return runs
        return [run for groups in runs if groups for run in _periodic(groups, self.checkpointing.every)]

    def _recomputes(self, number: int) -> bool:
        return self.train and self.checkpointing is not None and self.checkpointing.covers(number)

    def checkpoint(self, block: Callable[[Tensor, int], Tensor], x: Tensor, number: int) -> Tensor:
        """Run a block and keep only its input, and its products if that is chosen; backward runs it again."""
        assert self.checkpointing is not None
        selective = self.checkpointing.kind == "selective"
        self._frame = Frame(lambda: block(x, number), deque() if selective else None)
        out = block(x, number)
        self._frame = None
        return out

    def end_autocast(self) -> None:
        """Release the cached casts of weights; those that backward needs stay alive."""
        for casts, times in [*self._past_casts.values(), (self._casts, 0)]:
            stretch = Stretch(self.meter, times)
            stretch.begin()
            casts.clear()
            stretch.end()
        self._past_casts = {}

    def _own(self, path: str, name: str = "weight") -> str:
        return path if self.naming is None else self.naming(path, name)


def _periodic(groups: Run, every: int) -> list[Run]:
    """Join consecutive groups so that the number of blocks in each is a multiple of `every`; the rest stay single."""
    joined = every // math.gcd(every, len(groups[0]))
    whole = len(groups) // joined * joined
    joint = [sum(groups[start : start + joined], ()) for start in range(0, whole, joined)]
    return [joint, *([group] for group in groups[whole:])]
