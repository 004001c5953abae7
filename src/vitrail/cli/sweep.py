"""vitrail plan --sweep: one question for every combination of some values."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from vitrail.charts.numbers import bytes_text, count_text
from vitrail.cli.progress import counted
from vitrail.cli.tables import plain, show, table, write_csv, write_json, written
from vitrail.config import Config
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size
from vitrail.plan.cards import Card
from vitrail.plan.fit import largest_batch, need_bytes, on_card
from vitrail.plan.ledger import ledger
from vitrail.plan.memory import memory
from vitrail.plan.workload import Workload

__all__ = ["Answer", "parse", "run_sweep"]

SIZES = ("image", "patch")
NUMBERS = ("width", "depth", "num_heads", "classes", "batch", "accumulate")
WORDS = ("model", "precision", "optimizer", "attention")
WORKLOAD = ("batch", "accumulate", "precision", "optimizer", "attention")
FLOPS = "FLOPs are per image; peak: live tensors per device"
MOST = 20_000
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
    questions = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    answers = [
        _answer(question, asked, workload, target, build) for question in counted(questions, "planning", len(questions))
    ]
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


def _answer(
    values: dict[str, Any],
    asked: dict[str, Any],
    workload: Workload,
    target: Card | None,
    build: Callable[..., Config],
) -> Answer:
    question = {key: value for key, value in values.items() if key not in WORKLOAD}
    try:
        work = replace(workload, **{key: value for key, value in values.items() if key in WORKLOAD})
        config = build(**{**asked, **question})
        real = work if target is None else on_card(work, target)
        books, held = ledger(config, replace(real, batch=1, accumulate=1, train=True)), memory(config, real)
    except VitrailError as error:
        return Answer(values=values, numbers={}, error=str(error))
    numbers = {
        "grid": config.grid,
        "tokens": config.tokens,
        "params": books.params,
        "flops_forward": books.flops_forward,
        "flops_train": books.flops_train,
        "macs_forward": books.macs_forward,
        "peak_bytes": held.peak_bytes,
    }
    if target is not None:
        needed = need_bytes(config, work, target)
        numbers["needed_bytes"] = needed
        numbers["fits"] = needed <= target.visible_bytes
        numbers["max_batch"] = largest_batch(config, work, target)
    return Answer(values=values, numbers=numbers)


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
