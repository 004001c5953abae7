"""Plan many questions at once: one run of the planner answers all that take the same branches of its code.

There is one planner. It runs on the `Traced` numbers of one question, and what it computed is computed again for all
others that meet the conditions of its branches, on arrays. What they leave is asked again. A refusal names its
question, so the refused are planned alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from vitrail.config import Config
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size
from vitrail.plan.cards import Card
from vitrail.plan.fit import Search, largest_batch, on_card
from vitrail.plan.hardware import flash_scratch_bytes, needed_bytes
from vitrail.plan.memory import memory, memory_of
from vitrail.plan.meter import Meter, NoMeter
from vitrail.plan.step import run_step
from vitrail.plan.traced_meter import TracedMeter
from vitrail.plan.workload import Memory, Workload
from vitrail.traced import Trace

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Describe", "Sweep", "sweep"]

Describe = Callable[..., tuple[Config, Workload]]
"""The values of one question → its config and workload. It must compute with them, and not look at them."""
_TOGETHER = 4096
"""Questions that are computed at a time: their arrays fit the processor's cache."""
_FEW = 64
"""Fewer questions than this are sooner planned one by one than NumPy is imported."""
_LEFT = 16
"""So many that other programs do not answer are sooner planned one by one than traced: few of them are alike."""


class _Alone(Exception):  # noqa: N818 - the caller plans such questions one by one
    """A question whose run answers for no other."""


@dataclass(frozen=True)
class Sweep:
    """The answers in the order of the questions, as columns of Python numbers; None where there is an error."""

    errors: list[str]
    """Why a question has no answer; empty if it has one."""
    columns: dict[str, list[Any]] = field(default_factory=dict)
    """grid.height, grid.width, tokens, params; flops_forward, flops_train, macs_forward (per image); peak_bytes,
    bytes.COMPONENT and whether it is exact, as 1 or 0; on a card also needed_bytes and max_batch, by the likely
    verdict."""

    def __len__(self) -> int:
        return len(self.errors)

    def __getitem__(self, name: str) -> list[Any]:
        return self.columns[name]


def sweep(
    describe: Describe,
    values: Mapping[str, Sequence[int | Size]],
    count: int,
    target: Card | None = None,
    *,
    batches: bool = True,
) -> Sweep:
    """Plan `count` questions, each `describe(**values)` with its place's values of the lists.

    With a card, also say what each needs there and, with `batches`, find its largest batch.

    >>> from vitrail import preset
    >>> found = sweep(
    ...     lambda image, batch: (preset("S/16").but(image=image), Workload(batch=batch, train=True)),
    ...     {"image": [Size(224, 224), Size(224, 320)], "batch": [8, 5]},
    ...     2,
    ... )
    >>> found["tokens"], found["peak_bytes"]
    ([197, 281], [751064712, 699046224])
    """
    if count < _FEW:
        return _one_by_one(describe, values, count, target, batches=batches)
    columns = _columns(values, count)
    found, stored = Sweep([""] * count), {}
    for places, answer in _answers(describe, columns, count, partial(_planned, target=target)):
        if isinstance(answer, VitrailError):
            found.errors[places[0]] = str(answer)
        else:
            _store(stored, places, answer, count)
    found.columns.update({name: _listed(column, found.errors) for name, column in stored.items()})
    if target is not None and batches:
        found.columns["max_batch"] = _largest_batches(describe, columns, target, found.errors)
    return found


def _planned(config: Config, workload: Workload, meter: Meter, target: Card | None) -> dict[str, Any]:
    work = workload if target is None else on_card(workload, target)
    if work.train and work.shard is None:
        step = run_step(config, work, meter=meter)
        held, tape, images = memory_of(step, work), step.tape, work.batch
    else:
        held, images = _held(config, work, meter), 1
        tape = run_step(config, replace(work, batch=1, accumulate=1, train=True), meter=NoMeter()).tape
    forward = tape.total(tape.per_image(tape.flops, images))
    answer = {
        "grid.height": config.grid.height,
        "grid.width": config.grid.width,
        "tokens": config.tokens,
        "params": tape.total(tape.params()),
        "flops_forward": forward,
        "flops_train": forward + tape.total(tape.per_image(tape.backward_flops, images)),
        "macs_forward": forward // 2,
        "peak_bytes": held.peak_bytes,
        "exact": int(held.exact),
        **{f"bytes.{name}": size for name, size in held.bytes.items()},
    }
    if target is not None:
        answer["needed_bytes"] = _needed(config, work, held, target)
    return answer


def _held(config: Config, work: Workload, meter: Meter) -> Memory:
    """Return the memory of a step; one that devices share depends on how each number divides."""
    if work.shard is None:
        return memory_of(run_step(config, work, meter=meter), work)
    if isinstance(meter, TracedMeter):
        raise _Alone
    return memory(config, work)


def _one_by_one(
    describe: Describe, values: Mapping[str, Sequence[int | Size]], count: int, target: Card | None, *, batches: bool
) -> Sweep:
    errors, rows = [""] * count, []
    for place in range(count):
        row: dict[str, Any] = {}
        try:
            config, workload = describe(**{name: each[place] for name, each in values.items()})
            row = _planned(config, workload, Meter(), target)
            if target is not None and batches:
                row["max_batch"] = largest_batch(config, workload, target)
        except VitrailError as error:
            errors[place] = str(error)
        rows.append(row)
    names = dict.fromkeys(name for row in rows for name in row)
    return Sweep(errors, {name: [row.get(name) for row in rows] for name in names})


def _needed(config: Config, work: Workload, held: Memory, target: Card) -> Any:
    return needed_bytes(held, target, scratch_bytes=flash_scratch_bytes(config, work))


# ── questions that are alike ────────────────────────────────────────────────────────────────────────────────────


def _columns(values: Mapping[str, Sequence[int | Size]], count: int) -> dict[str, Any]:
    """Return an array of each question's numbers; a size has two, its name.height and name.width."""
    columns: dict[str, Any] = {}
    for name, each in values.items():
        require(len(each) == count, f"a sweep of {count} questions has {len(each)} values of {name}; give one for each")
        if each and isinstance(each[0], Size):
            for side in ("height", "width"):
                columns[f"{name}.{side}"] = _array([getattr(size, side) for size in each])
        else:
            columns[name] = _array(each)
    return columns


def _array(values: Sequence[Any]) -> np.ndarray:
    """Return an array of int64; of objects if they are no such numbers, which are then planned one by one."""
    import numpy as np

    found = np.array(values)
    whole = found.dtype.kind == "i" and found.ndim == 1
    return found.astype(np.int64) if whole else np.array([*values, None], dtype=object)[:-1]


def _answers(
    describe: Describe, columns: dict[str, Any], count: int, plan: Callable[[Config, Workload, Meter], Any]
) -> Iterator[tuple[Any, Any]]:
    """Yield (places, what is planned for all of them), or (one place, why it has no plan)."""
    import numpy as np

    together = np.arange(count)
    exact = all(column.dtype != object for column in columns.values())
    waiting = [together] if exact else [together[start : start + _LEFT] for start in range(0, count, _LEFT)]
    while waiting:
        places = waiting.pop()
        asked, trace = {name: column[places] for name, column in columns.items()}, Trace()
        if len(places) <= _LEFT:
            for place in range(len(places)):
                alone = {name: column[place : place + 1] for name, column in asked.items()}
                yield places[place : place + 1], _alone(describe, alone, plan)
            continue
        try:
            found = plan(*describe(**_values(asked, trace)), TracedMeter(trace))
        except (VitrailError, _Alone):
            found = None
        program = trace.program(found or {})
        alike = np.concatenate([program.met(part, len(here)) for here, part in _parts(places, asked)])
        if not alike.all():
            waiting.append(places[~alike])
        if found is None:
            waiting += [places[alike][start : start + _LEFT] for start in range(0, int(alike.sum()), _LEFT)]
            continue
        for here, part in _parts(places[alike], {name: column[alike] for name, column in asked.items()}):
            yield here, program.on_arrays(part)


def _parts(places: Any, asked: dict[str, Any]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield the questions in parts whose arrays stay small."""
    for start in range(0, len(places), _TOGETHER):
        part = slice(start, start + _TOGETHER)
        yield places[part], {name: column[part] for name, column in asked.items()}


def _alone(describe: Describe, asked: dict[str, Any], plan: Callable[[Config, Workload, Meter], Any]) -> Any:
    """Plan a single question, or return why it has no plan."""
    try:
        return plan(*describe(**_values(asked)), Meter())
    except VitrailError as error:
        return error


def _values(asked: dict[str, Any], trace: Trace | None = None) -> dict[str, Any]:
    """Return the values of the first of some questions; with a trace, traced where they differ."""
    found: dict[str, Any] = {}
    for name, column in asked.items():
        value: Any = column[len(column) // 2 :][:1].tolist()[0]
        if trace is not None and (column != value).any():
            value = trace.input(name, value)
        part, dot, side = name.partition(".")
        if not dot:
            found[name] = value
        elif side == "height":
            found[part] = value
        else:
            found[part] = Size(found[part], value)
    return found


# ── answers as columns ──────────────────────────────────────────────────────────────────────────────────────────


def _store(columns: dict[str, Any], places: Any, answer: dict[str, Any], count: int) -> None:
    import numpy as np

    for name, value in answer.items():
        column = columns.setdefault(name, np.zeros(count, dtype=np.int64))
        large = abs(value) >= 2**63 if isinstance(value, int) else value.dtype == object
        if large and column.dtype != object:
            column = columns[name] = column.astype(object)
        column[places] = value


def _listed(column: Any, errors: list[str]) -> list[Any]:
    values = column.tolist()
    if any(errors):
        return [None if error else value for value, error in zip(values, errors, strict=True)]
    return values


def _largest_batches(describe: Describe, columns: dict[str, Any], target: Card, errors: list[str]) -> list[int | None]:
    """Return the largest batch of each question that likely fits; every search takes a step in each run."""
    import numpy as np

    searches = {place: Search(target.visible_bytes) for place, error in enumerate(errors) if not error}
    active = list(searches)

    def described(batch_: Any, **values: Any) -> tuple[Config, Workload]:
        config, workload = describe(**values)
        return config, replace(workload, batch=batch_)

    def plan(config: Config, workload: Workload, meter: Meter) -> dict[str, Any]:
        work = on_card(workload, target)
        return {"needed": _needed(config, work, _held(config, work, meter), target)}

    while active:
        asked = {name: column[active] for name, column in columns.items()}
        asked["batch_"] = np.array([searches[place].guess for place in active])
        needs: dict[str, Any] = {}
        for places, answer in _answers(described, asked, len(active), plan):
            if isinstance(answer, VitrailError):
                raise answer
            _store(needs, places, answer, len(active))
        for place, needed in zip(active, needs["needed"].tolist(), strict=True):
            searches[place].tell(needed)
        active = [place for place in active if not searches[place].done]
    return [searches[place].fits if place in searches else None for place in range(len(errors))]
