"""Compare a plan with what its input holds now: which inputs were added, changed or have vanished.

An input keeps its shard for ever, so that the parts of unchanged shards stay as they are; new inputs fill the last
shard and then shards of their own. The new listing is written to a temporary file and joined with the old one by
digests of the ids: 50 bytes of memory an input, however many there are.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vitrail.remote import Location
from vitrail.vectors.job.digests import digests, find
from vitrail.vectors.job.inputs import Input
from vitrail.vectors.job.listing import facts_of, read_inputs, write_listing
from vitrail.vectors.job.plan import Plan, read_shard

__all__ = ["By", "Changes", "Comparison", "cut"]

GROUP = 1024
"""Inputs in a row group of the temporary listing."""
By = Literal["time", "content"]


@dataclass(kw_only=True)
class Changes:
    """How an input differs from the plan that was made of it."""

    added: int = 0
    changed: int = 0
    vanished: int = 0
    renewed: int = 0
    """Inputs whose file was written again with the same content."""

    def matter(self, *, drop_vanished: bool) -> bool:
        """Whether they make another plan."""
        return bool(self.added or self.changed or self.renewed or (drop_vanished and self.vanished))


def cut(inputs: Iterable[Input], size: int) -> Iterator[list[Input]]:
    """Cut a stream into shards."""
    each = iter(inputs)
    while batch := list(islice(each, size)):
        yield batch


class Comparison:
    """The differences between a plan and a new listing of its input; a context, in which the new listing is kept."""

    def __init__(self, folder: Location, plan: Plan, inputs: Iterable[Input]) -> None:
        self.folder, self.plan, self.inputs = folder, plan, inputs
        self.scratch = tempfile.TemporaryDirectory(prefix="vitrail-")

    def __enter__(self) -> Comparison:
        try:
            self._list()
            self.changes = self._compare()
        except BaseException:
            self.scratch.cleanup()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.scratch.cleanup()

    def _list(self) -> None:
        """Write the new listing, and keep in memory what it is compared by."""
        keys, facts, contents = [digests(())], [np.empty(0, np.int64)], [digests(())]

        def noted(batch: list[Input]) -> list[Input]:
            keys.append(_keys(batch))
            facts.append(np.array([facts_of(each) for each in batch], np.int64))
            contents.append(_contents(batch))
            return batch

        write_listing(Path(self.scratch.name), "new", map(noted, cut(self.inputs, GROUP)))
        joined = np.concatenate(keys)
        self.order = np.argsort(joined, kind="stable")
        self.keys, self.facts, self.contents = joined[self.order], np.concatenate(facts), np.concatenate(contents)
        self.seen = np.zeros(len(joined), bool)

    def _compare(self) -> Changes:
        changes = Changes()
        for shard in range(self.plan.shards):
            places, same, as_before = self._judge(read_shard(self.folder, self.plan, shard))
            self.seen[places[places >= 0]] = True
            changes.vanished += int((places < 0).sum())
            changes.changed += int(((places >= 0) & ~same).sum())
            changes.renewed += int((same & ~as_before).sum())
        changes.added = int((~self.seen).sum())
        return changes

    def _judge(self, old: list[Input]) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_]]:
        """Return each input's place in the new listing or −1, whether it is the same, and whether its file is too."""
        if not old:
            return np.empty(0, np.int64), np.empty(0, bool), np.empty(0, bool)
        found = find(_keys(old), self.keys)
        places = np.where(found >= 0, self.order[found], -1) if len(self.order) else found
        known = places >= 0
        if not known.any():
            return places, known, known
        as_before = known & (self.facts[places] == np.array([facts_of(each) for each in old], np.int64))
        before, now = _contents(old), self.contents[places]
        hashed = (before != b"") & (now != b"")
        return places, known & np.where(hashed, before == now, as_before), as_before

    def shards(self, *, drop_vanished: bool, size: int) -> Iterator[list[Input]]:
        """Yield the inputs of every shard of the next plan; `size` is that of new shards."""
        added, last = self._added(), list[Input]()
        for shard in range(self.plan.shards):
            last = self._renewed(read_shard(self.folder, self.plan, shard), drop_vanished=drop_vanished)
            if shard < self.plan.shards - 1:
                yield last
        yield last + list(islice(added, max(0, self.plan.shard_size - len(last))))
        yield from cut(added, size)

    def _renewed(self, old: list[Input], *, drop_vanished: bool) -> list[Input]:
        places, same, as_before = self._judge(old)
        if as_before.all() and same.all() and not (self.contents[places] != b"").any():
            return old
        new = self._read(places[places >= 0])
        kept = []
        for each, place, is_same in zip(old, places.tolist(), same.tolist(), strict=True):
            if place >= 0:
                kept.append(new[place]._replace(stamp=each.stamp) if is_same else new[place])
            elif not drop_vanished:
                kept.append(each)
        return kept

    def _read(self, places: NDArray[np.int64]) -> dict[int, Input]:
        """Read inputs of the new listing by their places."""
        found: dict[int, Input] = {}
        for group in np.unique(places // GROUP).tolist():
            rows = read_inputs(Path(self.scratch.name), "new", group)
            found |= {place: rows[place % GROUP] for place in places[places // GROUP == group].tolist()}
        return found

    def _added(self) -> Iterator[Input]:
        places = np.flatnonzero(~self.seen)
        return chain.from_iterable(self._read(each).values() for each in _by_group(places))


def _by_group(places: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    return np.split(places, np.flatnonzero(np.diff(places // GROUP)) + 1) if len(places) else []


def _keys(batch: list[Input]) -> NDArray[np.bytes_]:
    return digests([each.id.encode() for each in batch])


def _contents(batch: list[Input]) -> NDArray[np.bytes_]:
    """Return 16 bytes of each content hash, none if there is none."""
    return np.array([bytes.fromhex(each.content[:32]) for each in batch], "S16")
