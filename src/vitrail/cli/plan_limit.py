"""vitrail plan --largest and --smallest: the last value that fits a card, and the next one, which does not."""

from __future__ import annotations

from typing import Any

from vitrail.charts.numbers import bytes_text
from vitrail.cli.tables import show, table, write_json
from vitrail.config import Config
from vitrail.geometry import Size
from vitrail.plan.cards import Card
from vitrail.plan.fit import Quantity, limits
from vitrail.plan.workload import Workload

__all__ = ["run_limit"]

RULES = {
    "batch": "images per device",
    "image": "images of the model's aspect ratio that its patch divides",
    "patch": "patches of the model's aspect ratio that divide the image",
    "train-last": "last blocks that are trained, with what follows them; the rest is frozen",
}


def run_limit(quantity: Quantity, config: Config, workload: Workload, target: Card, *, title: str, json: bool) -> None:
    found = limits(quantity, config, workload, target)
    if json:
        write_json({"model": title, "quantity": quantity, "gpu": target, "limits": found})
        return
    rows = [
        (name, _said(each.value), _bytes(each.needed_bytes), _said(each.beyond), _bytes(each.beyond_bytes))
        for name, each in found.items()
    ]
    word = "smallest" if quantity == "patch" else "largest"
    named = "trained blocks" if quantity == "train-last" else f"{word} {quantity}"
    asked = "The most trained blocks that fit" if quantity == "train-last" else f"The {word} {quantity} that fits"
    show(
        f"\n[bold]{title}[/]",
        table(
            f"{asked} {target.name}, {bytes_text(target.visible_bytes)} visible",
            ("verdict", named, "needs", "the next", "needs"),
            rows,
            "lrrrr",
            caption=f"{RULES[quantity]}; both were planned. Verdicts are modelled, not measured",
        ),
    )


def _said(value: Any) -> str:
    return "none" if value is None else str(value) if isinstance(value, Size | str) else f"{value:,}"


def _bytes(size: int | None) -> str:
    return "" if size is None else bytes_text(size)
