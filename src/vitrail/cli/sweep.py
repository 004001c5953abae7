"""vitrail plan --sweep: one question for every combination of some values."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from vitrail.charts.numbers import bytes_text, count_text
from vitrail.cli.tables import plain, show, table, write_csv, write_json, written
from vitrail.config import Config
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size
from vitrail.plan.cards import Card
from vitrail.plan.sweep import Sweep, sweep
from vitrail.plan.workload import Workload

__all__ = ["Answer", "parse", "run_sweep"]

SIZES = ("image", "patch")
NUMBERS = ("width", "depth", "num_heads", "classes", "batch", "accumulate")
WORDS = ("model", "precision", "optimizer", "attention")
WORKLOAD = ("batch", "accumulate", "precision", "optimizer", "attention")
FLOPS = "FLOPs are per image; peak: live tensors per device"
MOST = 200_000
"""The most questions that one command answers."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One combination: its numbers, or why there are none."""

    values: dict[str, Any]
    numbers: dict[str, Any]
    error: str = ""


def parse(tokens: Sequence[str]) -> dict[str, list[Any]]:
    """`patch=8,16 image=224` → {"patch": [8x8, 16x16], "image": [224x224]}."""
    found: dict[str, list[Any]] = {}
    for token in tokens:
        key, equals, values = token.partition("=")
        require(bool(equals and values), f"sweep {token!r} is not KEY=VALUE,VALUE; write patch=8,16,32")
        known = (*WORDS, *SIZES, *NUMBERS)
        require(key in known, f"sweep key {key!r} is unknown; use one of {', '.join(known)}")
        require(key not in found, f"sweep key {key!r} is given twice; list its values once, as {key}=A,B")
        found[key] = [_value(key, text.strip()) for text in values.split(",")]
    require(len(found) > 0, "sweep has no keys; write --sweep patch=8,16,32 image=224,384")
    count = prod(len(values) for values in found.values())
    require(
        count <= MOST,
        f"sweep of {count:,} questions is above {MOST:,}; give fewer values",
    )
    return found


def _value(key: str, text: str) -> Any:
    if key in SIZES:
        return Size.of(text)
    if key in NUMBERS:
        try:
            return int(text)
        except ValueError:
            raise VitrailError(f"sweep {key}={text!r} is not a whole number; write {key}=8,16") from None
    require(text != "", f"sweep key {key!r} has an empty value; write {key}=A,B")
    return text


def run_sweep(
    tokens: Sequence[str],
    asked: dict[str, Any],
    workload: Workload,
    target: Card | None,
    *,
    build: Callable[..., Config],
    chart: Path | None,
    json: bool,
    csv: bool,
) -> None:
    """Answer every combination, and show, write or draw the answers."""
    axes = parse(tokens)
    answers = _answers(axes, asked, workload, target, build)
    if all(answer.error for answer in answers):
        raise VitrailError(answers[0].error)
    if chart is not None:
        from vitrail.cli.plan_charts import sweep_chart

        fixed = [] if "model" in axes else [asked["model"]]
        fixed += [f"{key} {values[0]}" for key, values in axes.items() if len(values) == 1]
        fixed += [f"{key} {getattr(workload, key)}" for key in ("batch", "precision", "attention") if key not in axes]
        kind = "training" if workload.train else "inference"
        sweep_chart(axes, answers, target, chart, title=f"Memory of {kind}", subtitle=", ".join(fixed))
    if json:
        rows = [{**answer.values, **answer.numbers, "error": answer.error or None} for answer in answers]
        write_json({"sweep": axes, "rows": rows})
    elif csv:
        _write_csv(axes, answers)
    else:
        _show(axes, answers, workload)
        if chart is not None:
            written(chart)


def _answers(
    axes: dict[str, list[Any]],
    asked: dict[str, Any],
    workload: Workload,
    target: Card | None,
    build: Callable[..., Config],
) -> list[Answer]:
    """Answer every combination, in the order of the axes; those that differ only in numbers are planned together."""
    questions = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    numeric = [key for key in axes if key not in WORDS]
    together: dict[tuple[str, ...], list[int]] = {}
    for place, question in enumerate(questions):
        together.setdefault(tuple(question[key] for key in axes if key in WORDS), []).append(place)
    answers: dict[int, Answer] = {}
    for words, places in together.items():
        said = dict(zip((key for key in axes if key in WORDS), words, strict=True))

        def describe(said: dict[str, str] = said, **numbers: Any) -> tuple[Config, Workload]:
            values = said | numbers
            of_step = {key: value for key, value in values.items() if key in WORKLOAD}
            of_model = {key: value for key, value in values.items() if key not in WORKLOAD}
            return build(**{**asked, **of_model}), replace(workload, **of_step)

        found = sweep(
            describe, {key: [questions[place][key] for place in places] for key in numeric}, len(places), target
        )
        for row, place in enumerate(places):
            numbers = {} if found.errors[row] else _numbers(found, row, target)
            answers[place] = Answer(values=questions[place], numbers=numbers, error=found.errors[row])
    return [answers[place] for place in range(len(questions))]


def _numbers(found: Sweep, row: int, target: Card | None) -> dict[str, Any]:
    names = ("tokens", "params", "flops_forward", "flops_train", "macs_forward", "peak_bytes")
    numbers = {"grid": Size(found["grid.height"][row], found["grid.width"][row])}
    numbers |= {name: found[name][row] for name in names}
    if target is not None:
        needed = found["needed_bytes"][row]
        numbers |= {
            "needed_bytes": needed,
            "fits": needed <= target.visible_bytes,
            "max_batch": found["max_batch"][row],
        }
    return numbers


def _write_csv(axes: dict[str, list[Any]], answers: list[Answer]) -> None:
    names = list(dict.fromkeys(name for answer in answers for name in answer.numbers))
    write_csv(
        (*axes, *names, "error"),
        (
            (*answer.values.values(), *(_flat(answer.numbers.get(name, "")) for name in names), answer.error)
            for answer in answers
        ),
    )


def _flat(value: Any) -> Any:
    return str(value) if isinstance(value, Size) else plain(value)


def _show(axes: dict[str, list[Any]], answers: list[Answer], workload: Workload) -> None:
    on_a_card = any("fits" in answer.numbers for answer in answers)
    flops = "flops_train" if workload.train else "flops_forward"
    # what is the same in every row is said once, above
    several = [key for key, values in axes.items() if len(values) > 1] or list(axes)
    title = ", ".join(f"{key} {values[0]}" for key, values in axes.items() if key not in several)
    headings = (*several, "tokens", "params", "train" if workload.train else "forward", "peak")
    headings += ("fits", "max batch") if on_a_card else ()
    rows, missing = [], []
    for answer in answers:
        said, numbers = [str(answer.values[key]) for key in several], answer.numbers
        if answer.error:
            rows.append((*said, *["–"] * (len(headings) - len(said))))
            missing.append(f" [dim]{' '.join(said)}: {answer.error.partition(';')[0]}[/]")
            continue
        row = [
            f"{numbers['tokens']:,}",
            count_text(numbers["params"]),
            count_text(numbers[flops], "FLOP"),
            bytes_text(numbers["peak_bytes"]),
        ]
        if on_a_card:
            row += ["[green]✓[/]" if numbers["fits"] else "[red]✗[/]", f"{numbers['max_batch']:,}"]
        rows.append((*said, *row))
    on_card = "; fits and max batch: the likely verdict" if on_a_card else ""
    align = "l" * len(several) + "rrrr" + ("lr" if on_a_card else "")
    show(
        table(title, headings, rows, align, caption=f"{FLOPS}{on_card}", keys=len(several)),
        *missing,
    )
