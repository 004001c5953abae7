"""Why one plan costs more than another: the difference attributed to the fields in which they differ.

Every field that differs is a cause. What a cause adds depends on when it is changed: more depth costs more on a larger
image. A cause's part is therefore its average over all orders in which the causes can be changed one at a time, each
step a valid model (the Shapley value, over valid orders). Every step is planned, and the parts sum to the difference.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from html import escape
from typing import Any, NamedTuple

from vitrail.charts.notebook import Shown, html_table
from vitrail.charts.numbers import bytes_text, count_text
from vitrail.config import Config
from vitrail.errors import VitrailError
from vitrail.plan.ledger import ledger
from vitrail.plan.memory import memory
from vitrail.plan.shapley import averages, whole_numbers
from vitrail.plan.workload import Memory, Workload
from vitrail.value import Value, reads_itself

__all__ = ["Case", "Cause", "Cost", "Why", "why"]

MOST = 8
"""Causes that are told apart: 2⁸ plans. More are ranked by what each does alone, and the smallest are one cause."""
TOLD = 3
"""Fields that a cause of several names; of more it gives the number."""
ARCHITECTURE = "config"
"""The cause of a difference between kinds of config, which have these fields in common."""
SHARED = ("image", "channels", "classes")

WORDS = {
    "config": "architecture",
    "config.embedding.patch": "patch",
    "config.layer_scale": "LayerScale",
    "config.mlp": "MLP",
    "config.mlp.activation": "activation",
    "config.mlp.width": "MLP width",
    "config.num_heads": "heads",
    "config.position": "positions",
    "config.prefix.registers": "registers",
    "config.qk_norm": "QK norm",
    "config.attention": "attention kind",
    "workload.attention": "attention kernel",
    "workload.library": "implementation",
    "workload.train": "training",
    "workload.tuning.freeze": "frozen",
    "workload.tuning.last": "last blocks trained",
    "workload.tuning.lora": "LoRA",
    "workload.tuning.only": "trained only",
}
"""Names of causes that the field alone does not say."""


@dataclass(frozen=True, kw_only=True)
class Case(Value):
    """A config and the step that is planned on it.

    >>> from vitrail import preset
    >>> from vitrail.plan import Case, Workload
    >>> Case(config=preset("B/16"), workload=Workload(batch=8)).workload
    Workload(batch=8)
    """

    config: Config
    workload: Workload = Workload()


class Cost(NamedTuple):
    """What a step costs: bytes at its peak, FLOPs of all its images, and the model's parameters."""

    bytes: int
    flops: int
    params: int


@dataclass(frozen=True)
class Cause:
    """A field that differs, its two values, and its part of the difference.

    >>> from vitrail import preset
    >>> from vitrail.plan import Case, why
    >>> why(Case(config=preset("B/16")), Case(config=preset("B/16", depth=13))).causes[0].name
    'depth'
    """

    fields: tuple[str, ...]
    before: str
    after: str
    part: Cost

    @property
    def name(self) -> str:
        if len(self.fields) > TOLD:
            return f"{len(self.fields)} others"
        return " + ".join(_words(field) for field in self.fields)


@dataclass(frozen=True, kw_only=True, repr=False)
class Why(Shown):
    """Two costs and the causes of their difference, largest first.

    >>> from vitrail import preset
    >>> from vitrail.plan import Case, why
    >>> found = why(Case(config=preset("B/16")), Case(config=preset("B/16", image=384)))
    >>> sum(cause.part.bytes for cause in found.causes) == found.after.bytes - found.before.bytes
    True
    """

    before: Cost
    after: Cost
    memory: tuple[Memory, Memory]
    causes: tuple[Cause, ...]
    without_effect: tuple[str, ...]
    """Names of fields that differ and change neither bytes nor FLOPs nor parameters."""
    orders: int
    """The number of orders that the parts are averages of."""

    def _summary(self) -> str:
        largest = f"; the largest cause is {self.causes[0].name}" if self.causes else ""
        return f"{bytes_text(self.before.bytes)} → {bytes_text(self.after.bytes)}{largest}"

    def _panel(self) -> Iterator[str]:
        rows = ((escape(each.name), escape(f"{each.before} → {each.after}"), *texts(each.part)) for each in self.causes)
        yield html_table(("cause", "", "bytes", "FLOPs of a step", "parameters"), rows, "llrrr")

    def to_json(self) -> dict[str, Any]:
        return {
            "before": self.before._asdict() | {"by_component": self.memory[0].bytes},
            "after": self.after._asdict() | {"by_component": self.memory[1].bytes},
            "causes": [
                {
                    "name": each.name,
                    "fields": list(each.fields),
                    "before": each.before,
                    "after": each.after,
                    **each.part._asdict(),
                }
                for each in self.causes
            ],
            "without_effect": list(self.without_effect),
            "orders": self.orders,
            "exact": all(held.exact for held in self.memory),
            "notes": list(dict.fromkeys(held.note for held in self.memory if held.note)),
        }


def texts(part: Cost) -> tuple[str, str, str]:
    """Return a part's bytes, FLOPs and parameters with their signs; nothing where there is no difference."""
    said = bytes_text(abs(part.bytes)), count_text(abs(part.flops), "FLOP"), count_text(abs(part.params))
    return tuple(f"{'−' if value < 0 else '+'}{text}" if value else "" for value, text in zip(part, said, strict=True))  # type: ignore[return-value]


def why(a: Case, b: Case) -> Why:
    """Attribute the difference between two plans to the fields in which they differ.

    >>> from vitrail import preset
    >>> from vitrail.plan import Case, Workload, why
    >>> clip = Case(config=preset("clip-B/16"), workload=Workload(batch=8, train=True))
    >>> dino = Case(config=preset("dinov2-B/14"), workload=Workload(batch=8, train=True))
    >>> [(cause.name, cause.before, cause.after) for cause in why(clip, dino).causes][0]
    ('image', '224x224', '518x518')
    """
    question = _Question(a, b)
    first, last = question.cost(frozenset()), question.cost(frozenset(question.fields))
    assert first is not None
    assert last is not None
    groups, silent = question.groups()
    shares, orders = averages(groups, question.cost)
    columns = zip(*shares.values(), strict=True)
    # without a cause there are no columns
    parts = [whole_numbers(column, whole) for column, whole in zip(columns, _minus(last, first), strict=False)]
    causes = [
        Cause(group, *question.values(group), Cost(*part))
        for group, part in zip(shares, zip(*parts, strict=True), strict=True)
    ]
    return Why(
        before=first,
        after=last,
        memory=(memory(a.config, a.workload), memory(b.config, b.workload)),
        causes=tuple(sorted(causes, key=lambda cause: [-abs(number) for number in cause.part])),
        without_effect=tuple(_words(field) for field in silent),
        orders=orders,
    )


class _Question:
    """Two cases, the fields in which they differ, and the cost of every mixture of the two."""

    def __init__(self, a: Case, b: Case) -> None:
        self.a, self.b = a, b
        self.fields = [".".join(path) for path in _differences(a, b)]
        self.cost = cache(self._cost)
        self._books = cache(ledger)

    def _cost(self, changed: frozenset[str]) -> Cost | None:
        """Return the cost of the first case with these fields from the second, or None if that is not valid."""
        try:
            case = _mixed(self.a, self.b, changed)
            work = case.workload
            held = memory(case.config, work)
            # a ledger is of one image, and neither the optimizer nor shards have FLOPs that count
            books = self._books(case.config, replace(work, batch=1, accumulate=1, optimizer="adamw", shard=None))
        except VitrailError:
            if changed in (frozenset(), frozenset(self.fields)):
                raise
            return None
        flops = books.flops_train if work.train else books.flops_forward
        return Cost(held.peak_bytes, flops * work.batch * work.accumulate, books.params)

    def groups(self) -> tuple[list[tuple[str, ...]], list[str]]:
        """Return the fields that are changed together, mostly one by one, and those that change nothing."""
        whole = frozenset(self.fields)
        nothing, everything = self.cost(frozenset()), self.cost(whole)
        assert everything is not None
        alone = {
            field: [
                _minus(after, before)
                for before, after in (
                    (nothing, self.cost(frozenset({field}))),
                    (self.cost(whole - {field}), everything),
                )
                if before is not None and after is not None
            ]
            for field in self.fields
        }
        silent = [field for field, found in alone.items() if found and not any(map(any, found))]
        if self.cost(whole - set(silent)) != everything:  # together they do something after all
            silent = []
        loud = [field for field in self.fields if field not in silent]
        loud.sort(key=lambda field: -max((abs(found.bytes) for found in alone[field]), default=everything.bytes))
        rest = tuple(loud[MOST - 1 :])
        return [*((field,) for field in loud[: MOST - 1]), *([rest] if rest else [])], silent

    def values(self, group: tuple[str, ...]) -> tuple[str, str]:
        """Return the two values of a group's fields in words."""
        if len(group) > TOLD:
            return "", ", ".join(_words(field) for field in group)
        said = [[_said(_at(case, field)) for field in group] for case in (self.a, self.b)]
        return ", ".join(said[0]), ", ".join(said[1])


def _minus(after: Cost, before: Cost) -> Cost:
    return Cost(*(a - b for a, b in zip(after, before, strict=True)))


# ── fields of a case ────────────────────────────────────────────────────────────────────────────────────────────


def _differences(a: Any, b: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the paths of fields that differ; parts of the same kind are compared field by field."""
    if a == b:
        return
    if path == (ARCHITECTURE,) and type(a) is not type(b):
        yield path
        yield from ((*path, name) for name in SHARED if getattr(a, name) != getattr(b, name))
    elif isinstance(a, Value) and type(a) is type(b) and dataclasses.fields(a):
        for field in dataclasses.fields(a):
            yield from _differences(getattr(a, field.name), getattr(b, field.name), (*path, field.name))
    else:
        yield path


def _mixed(a: Any, b: Any, changed: frozenset[str], path: str = "") -> Any:
    """Return `a` with the changed fields of `b`; raise an error if the result is not valid."""
    if path == ARCHITECTURE and type(a) is not type(b):
        base = b if ARCHITECTURE in changed else a
        return base.but(**{name: getattr(b if f"{path}.{name}" in changed else a, name) for name in SHARED})
    if path in changed:
        return b
    if not any(field.startswith(path and f"{path}.") for field in changed):
        return a
    return a.but(
        **{
            field.name: _mixed(
                getattr(a, field.name), getattr(b, field.name), changed, f"{path}.{field.name}".strip(".")
            )
            for field in dataclasses.fields(a)
        }
    )


def _at(case: Case, field: str) -> Any:
    found: Any = case
    for name in field.split("."):
        found = getattr(found, name)
    return found.KIND if field == ARCHITECTURE else found


def _words(field: str) -> str:
    return WORDS.get(field) or field.partition(".")[2].replace(".", " ").replace("_", " ")


def _said(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, Value):
        return str(value) if value.changed_fields() or reads_itself(type(value)) else type(value).__name__
    if isinstance(value, tuple) and all(isinstance(each, str) for each in value):
        return ", ".join(value) or "none"
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)
