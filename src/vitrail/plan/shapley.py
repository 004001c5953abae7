"""Shares of a difference: what each change adds, averaged over all orders of making one change at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

__all__ = ["averages", "whole_numbers"]

Group = tuple[str, ...]
"""Changes that are made together, mostly one."""


def averages(
    groups: Sequence[Group], cost: Callable[[frozenset[str]], Sequence[int] | None]
) -> tuple[dict[Group, list[Fraction]], int]:
    """Return what each group adds to every number of the cost, and the number of orders that this is the average of.

    Only orders count in which every set of changes on the way has a cost; None means that it is not valid. Where there
    is no such order, changes that cannot be made alone are made together, last.

    >>> prices = {"": (0,), "a": (4,), "b": (1,), "ab": (9,)}
    >>> averages([("a",), ("b",)], lambda made: prices["".join(sorted(made))])
    ({('a',): [Fraction(6, 1)], ('b',): [Fraction(3, 1)]}, 2)
    """
    # A set of groups is a number whose bits are the groups. The orders through a step from one set to the next are
    # those that lead to the one times those that lead on from the other.
    bits, full = [1 << place for place in range(len(groups))], (1 << len(groups)) - 1
    members = dict(zip(bits, groups, strict=True))
    costs: dict[int, Sequence[int]] = {}
    ways_to = {0: 1}
    for now in range(full + 1):
        ways = 1 if now == 0 else sum(ways_to.get(now - bit, 0) for bit in bits if now & bit)
        found = cost(frozenset(change for bit in bits if now & bit for change in members[bit])) if ways else None
        if found is not None:
            costs[now], ways_to[now] = found, ways
    if full not in costs:
        most = max(costs, key=int.bit_count)
        apart = [group for bit, group in members.items() if most & bit]
        together = tuple(change for bit, group in members.items() if not most & bit for change in group)
        return averages([*apart, together], cost)
    ways_on = {full: 1}
    for now in sorted(costs, reverse=True)[1:]:
        ways_on[now] = sum(ways_on.get(now | bit, 0) for bit in bits if not now & bit)
    shares = {}
    for bit, group in members.items():
        share = [Fraction(0)] * len(costs[0])
        for now in costs:
            if not now & bit and now | bit in costs:
                weight = Fraction(ways_to[now] * ways_on[now | bit], ways_to[full])
                steps = zip(share, costs[now | bit], costs[now], strict=True)
                share = [sum_ + weight * (after - before) for sum_, after, before in steps]
        shares[group] = share
    return shares, ways_to[full]


def whole_numbers(parts: Sequence[Fraction], whole: int) -> list[int]:
    """Round parts to whole numbers that still sum to the whole: those with the largest remainders are rounded up.

    >>> whole_numbers([Fraction(10, 3), Fraction(10, 3), Fraction(4, 3)], 8)
    [4, 3, 1]
    """
    rounded = [part.__floor__() for part in parts]
    order = sorted(range(len(parts)), key=lambda place: rounded[place] - parts[place])
    for place in order[: whole - sum(rounded)]:
        rounded[place] += 1
    return rounded
