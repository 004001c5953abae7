"""vitrail plan --why: two plans, and the causes of the difference between them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from vitrail.charts.numbers import bytes_text, count_text
from vitrail.checkpointing import Checkpointing
from vitrail.cli.plan_why_module import is_module, run_why_modules
from vitrail.cli.tables import show, table, write_json
from vitrail.config import Config
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size
from vitrail.plan.why import Case, Why, texts, why
from vitrail.plan.workload import Shard, Workload
from vitrail.tuning import Lora

__all__ = ["run_why"]

READERS: dict[str, Callable[[str], Any]] = {
    "image": Size.of,
    "patch": Size.of,
    "remainder": str,
    "width": int,
    "depth": int,
    "num_heads": int,
    "classes": int,
    "batch": int,
    "accumulate": int,
    "precision": str,
    "optimizer": str,
    "attention": str,
    "checkpointing": Checkpointing.of,
    "shard": Shard.of,
    "as": str,
    "train_last": lambda text: {"last": int(text)},
    "lora": lambda text: {"lora": Lora(rank=int(text))},
}
"""What may follow a model's name, KEY=VALUE, and how its value is read."""
FLAGS = {
    "train": {"train": True},
    "infer": {"train": False},
    "checkpointing": {"checkpointing": Checkpointing()},
    "offload": {"offload": True},
}
OPTIONS = [field.name for field in fields(Shard)[2:]]
"""What may follow shard=KIND:DEVICES after a comma."""
EXAMPLE = "vitrail plan --why B/16 dinov2-B/14,batch=8,attention=eager --train"


def run_why(
    sides: Sequence[str],
    asked: dict[str, Any],
    workload: Workload,
    *,
    build: Callable[..., Config],
    shapes: str | None,
    json: bool,
) -> None:
    """Plan both sides, which share the command's options except for those that they change, and show the causes."""
    require(len(sides) == 2, f"--why compares two plans, not {len(sides)}; write {EXAMPLE}")
    read = [_read(side, asked, workload) for side in sides]
    if any(is_module(model) for _, model, _, _ in read):
        run_why_modules(read, build=build, shapes=shapes, json=json)
        return
    require(shapes is None, f"--input {shapes} is the shape that a module takes, and none is compared; give --image")
    names = [name for name, _, _, _ in read]
    cases = [Case(config=build(**question), workload=work) for _, _, question, work in read]
    found = why(*cases)
    if json:
        write_json({"models": names, **found.to_json()})
    else:
        _show(found, names, cases)


def _read(side: str, asked: dict[str, Any], workload: Workload) -> tuple[str, str, dict[str, Any], Workload]:
    """`dinov2-B/14,batch=8,attention=eager` → its title, its model, the question and the workload."""
    model, *changes = re.split(f",(?!{'|'.join(OPTIONS)})", side)
    question, work = {**asked, "model": model}, {}
    for change in changes:
        key, equals, text = change.partition("=")
        if not equals and key in FLAGS:
            work |= FLAGS[key]
            continue
        require(
            key in READERS and bool(equals),
            f"--why {change!r} is not KEY=VALUE or {', '.join(FLAGS)}; keys are {', '.join(READERS)}",
        )
        try:
            value = READERS[key](text)
        except VitrailError:
            raise
        except ValueError:
            raise VitrailError(f"--why {key}={text!r} is not a whole number; write {key}=8") from None
        if key in asked:
            question[key] = value
        elif key in ("train_last", "lora"):
            work["tuning"] = work.get("tuning", workload.tuning).but(**value)
        else:
            work["library" if key == "as" else key] = value
    name = Path(model).name if Path(model).exists() else model
    return ",".join((name, *changes)), model, question, workload.but(**work)


def _show(found: Why, names: Sequence[str], cases: Sequence[Case]) -> None:
    parts = [
        (each.name, f"{each.before} → {each.after}" if each.before else each.after, *texts(each.part))
        for each in found.causes
    ]
    heads = ("cause", "change", "bytes", "FLOPs", "params")
    show(
        f"\n[bold]{_headline(found)}[/]",
        *([table("", heads, parts, "lwrrr", caption=_caption(found))] if parts else [""]),
        table("The two plans", ("", *names), _side_by_side(found, cases), "lrr"),
        *(f"[dim]note: {note}[/]" for note in dict.fromkeys(held.note for held in found.memory if held.note)),
    )


def _side_by_side(found: Why, cases: Sequence[Case]) -> list[tuple[str, ...]]:
    costs = (found.before, found.after)
    tokens = [getattr(case.config, "tokens", case.config.grid.area) for case in cases]
    first, second = (held.bytes for held in found.memory)
    rows: list[tuple[str, ...]] = [
        ("tokens", *(f"{count:,}" for count in tokens)),
        ("parameters", *(f"{cost.params:,}" for cost in costs)),
        ("FLOPs of a step", *(count_text(cost.flops, "FLOP") for cost in costs)),
        ("bytes at the peak", *(bytes_text(cost.bytes) for cost in costs)),
    ]
    largest_first = sorted(first, key=lambda name: -max(first[name], second[name]))
    return rows + [
        (f"  {name.replace('_', ' ')}", bytes_text(first[name]), bytes_text(second[name]))
        for name in largest_first
        if first[name] or second[name]
    ]


def _headline(found: Why) -> str:
    before, after = found.before.bytes, found.after.bytes
    if before == after:
        return "Both take the same memory"
    more = f"{bytes_text(abs(after - before))} {'more' if after > before else 'less'}"
    return f"The second takes {more}, {bytes_text(after)} instead of {bytes_text(before)}, because of"


def _caption(found: Why) -> str:
    orders = "one order" if found.orders == 1 else f"the mean over {found.orders:,} orders"
    text = f"what each change adds, {orders} of making one change at a time; parts sum exactly to the difference"
    return text + (f". No effect: {', '.join(found.without_effect)}" if found.without_effect else "")
