"""Comparisons and experiments as Markdown, and as values for JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from vitrail.config import ViTConfig
from vitrail.plan.ledger import ledger
from vitrail.training.experiments.compare import CHANCE, Group, Spread, spread
from vitrail.training.experiments.run import ArmResult, Result

__all__ = ["compare_columns", "compare_json", "compare_markdown", "experiment_json", "experiment_markdown",
           "experiment_rows", "markdown_table"]  # fmt: skip

COLUMNS = {
    "first_epoch_loss": ("loss, epoch 1", 3, 1.0),
    "accuracy": ("accuracy, %", 2, 100.0),
    "equal_time": ("% in equal time", 2, 100.0),
    "resolutions": ("% at …", 1, 100.0),
    "tokens": ("patches", 0, 1.0),
    "parameters": ("parameters", 0, 1.0),
    "flops": ("MFLOP", 1, 1e-6),
    "images_per_second": ("images/s", 0, 1.0),
    "structure": ("trained", 3, 1.0),
    "untrained structure": ("untrained", 3, 1.0),
    "difference": ("Δ accuracy", 2, 100.0),
}
"""A measure's heading, digits and scale."""
MEANINGS = {
    "first_epoch_loss": "the mean training loss over the first epoch",
    "accuracy": "that on the test split at the end",
    "equal_time": "accuracy of runs with as many steps as take the first arm's time, by the images per second",
    "difference": "points against the first row, paired: runs of one seed see the same images in the same order",
    "resolutions": "by weights carried there, trained there only if the arm says so; the same part of the test images",
    "flops": "of a forward pass, by the planner, two per multiply-add",
    "images_per_second": "in training steps on this machine, all arms in turns, the fastest round of each",
    "structure": "the correlation, over all pairs of patches, of their position rows' cosine with their distance",
}


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


# ── experiments ─────────────────────────────────────────────────────────────────────────────────────────────────


def experiment_rows(result: Result) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows: a row per arm, a column per measure, mean ± deviation over seeds."""
    first, names = result.arms[0], list(result.arms[0].spreads)
    if "accuracy" in names and len(result.arms) > 1:
        names.insert(names.index("accuracy") + 1, "difference")
    rows = []
    for arm in result.arms:
        held = arm.spreads | {"difference": _difference(first, arm)}
        rows.append([arm.arm.label, *(_text(name, held.get(name)) for name in names)])
    return ["", *(_column(name)[0] for name in names)], rows


def _column(name: str) -> tuple[str, int, float]:
    return COLUMNS[name] if name in COLUMNS else (f"% at {name.partition('@')[2]}", 1, 100.0)


def _text(name: str, value: Spread | None) -> str:
    _, digits, scale = _column(name)
    return "–" if value is None else value.text(digits, scale)


def _difference(first: ArmResult, other: ArmResult) -> Spread | None:
    """Return the paired difference of accuracies: runs of one seed see the same images in the same order."""
    if first is other:
        return None
    ours, theirs = ([run.results().get("final_accuracy") for run in arm.runs] for arm in (other, first))
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if a is not None and b is not None]
    return spread([a - b for a, b in pairs]) if pairs else None


def experiment_markdown(result: Result, command: str, picture: Path | None) -> str:
    experiment, data = result.experiment, result.data
    config, recipe = result.arms[0].arm.config, result.arms[0].runs[0].job.recipe
    head, rows = experiment_rows(result)
    epochs = result.steps * recipe.batch / data.images
    lines = [
        f"# {experiment.name}: {experiment.question}",
        "",
        f"    {command}",
        "",
        f"{_model(config)} on {', '.join(data.sources)} ({data.images:,} images, {len(data.classes)} classes): "
        f"{result.steps:,} steps of {recipe.batch} (epochs: {epochs:.2g}), AdamW, lr {recipe.lr:g}, one recipe for all "
        f"arms and tuned for none. Accuracy on {result.test_images:,} test images; mean ± sample deviation over "
        f"{result.seeds} seeds. torch {torch.__version__}, {torch.get_num_threads()} thread(s).",
        "",
        *markdown_table(head, rows),
        "",
    ]
    names = [*experiment.measures, *(["difference"] if len(result.arms) > 1 else [])]
    lines += [f"- {_column(name)[0]}: {MEANINGS[name]}." for name in names if name in MEANINGS]
    if len(result.arms) > 1 and result.seeds in CHANCE:
        lines += [
            f"- With {result.seeds} seeds a Δ smaller than {CHANCE[result.seeds]:g} times its deviation may be chance "
            "(95 %, Student's t)."
        ]
    lines += [""]
    if picture is not None:
        lines += [f"![{experiment.name}]({picture.name})", ""]
    return "\n".join(lines)


def _model(config: ViTConfig) -> str:
    return (
        f"A ViT of width {config.width}, depth {config.depth}, {config.num_heads} heads, patch {config.patch} at "
        f"{config.image} ({ledger(config).params:,} parameters), one part of it exchanged per arm,"
    )


def experiment_json(result: Result, command: str) -> dict[str, Any]:
    return {
        "experiment": result.experiment.name,
        "question": result.experiment.question,
        "command": command,
        "data": list(result.data.sources),
        "images": result.data.images,
        "test_images": result.test_images,
        "steps": result.steps,
        "seeds": result.seeds,
        "arms": [
            {
                "label": arm.arm.label,
                "run": arm.arm.run,
                "measures": {name: _spread(value) for name, value in arm.spreads.items()},
                "difference": _spread(_difference(result.arms[0], arm)),
            }
            for arm in result.arms
        ],
    }


def _spread(value: Spread | None) -> dict[str, Any] | None:
    return value and asdict(value)


# ── runs ────────────────────────────────────────────────────────────────────────────────────────────────────────


def compare_columns(groups: Sequence[Group]) -> tuple[list[str], list[list[str]]]:
    head = ["runs", "seeds", "steps", "state", "final loss", "best loss", "accuracy, %", "best, %"]
    rows = []
    for group in groups:
        held = group.spreads()
        states = ", ".join(sorted({run.state for run in group.runs}))
        steps = " ".join(sorted({f"{run.step:,}/{run.job.recipe.steps:,}" for run in group.runs}))
        results = [held.get(name) for name in ("final_loss", "best_loss")]
        scores = [held.get(name) for name in ("final_accuracy", "best_accuracy")]
        rows.append(
            [group.name, " ".join(map(str, group.seeds)), steps, states]
            + ["–" if value is None else value.text(3) for value in results]
            + ["–" if value is None else value.text(2, 100) for value in scores]
        )
    return head, rows


def compare_markdown(groups: Sequence[Group], command: str, picture: Path | None) -> str:
    head, rows = compare_columns(groups)
    lines = ["# Runs side by side", "", f"    {command}", "", *markdown_table(head, rows), ""]
    lines += [
        "Losses are means over the last twentieth of a run's steps; accuracy is the test split's, or the validation "
        "split's of runs that have one. Runs that differ in "
        "their seed only are one row: mean ± sample deviation over the finished ones. The best accuracy was chosen on "
        "that split, so it flatters.",
        "",
    ]
    if len(groups) > 1:
        lines += [f"## What differs from {groups[0].name}", ""]
        lines += [f"- {group.name}: {'; '.join(group.changes)}" for group in groups[1:]]
        lines += [""]
    if picture is not None:
        lines += [f"![loss and accuracy]({picture.name})", ""]
    return "\n".join(lines)


def compare_json(groups: Sequence[Group]) -> list[dict[str, Any]]:
    return [
        {
            "runs": [
                {"path": str(run.path), "seed": run.job.recipe.seed, "state": run.state, "step": run.step,
                 "steps": run.job.recipe.steps, **run.results()}
                for run in group.runs
            ],
            "differs": list(group.changes),
            "spread": {name: _spread(value) for name, value in group.spreads().items()},
        }
        for group in groups
    ]  # fmt: skip
