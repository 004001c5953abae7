"""The choices behind the Fashion-MNIST recipe, made again on images that are held out of training.

Every candidate is a short run on nine tenths of the training images, judged on the last tenth; the test images are not
opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from vitrail.charts.palette import BLUE, GREY
from vitrail.charts.plots import plots
from vitrail.config import ViTConfig
from vitrail.geometry import Size
from vitrail.parts import ClsPool, Prefix, Stem
from vitrail.presets import preset
from vitrail.studies.findings import Column, Findings, Kept, Row, Watch
from vitrail.studies.training import train_or_resume
from vitrail.training.experiments.compare import CHANCE, spread
from vitrail.training.recipe import RECIPES, Recipe

__all__ = ["CANDIDATES", "VALIDATION", "study_fashion_choices"]

VALIDATION = 0.1


class Candidate(NamedTuple):
    config: ViTConfig
    recipe: Recipe


CHOSEN = Candidate(preset("fashion-mnist"), RECIPES["fashion-mnist"].but(ema=0.99))
"""A short run has no time for the recipe's running mean of 0.999."""
NARROW = CHOSEN.config.but(embedding=Stem(patch=Size(4, 4), widths=(24, 48)))
CLS = NARROW.but(prefix=Prefix(), pool=ClsPool())
SMOOTHED = CHOSEN.recipe.but(label_smoothing=0.1, shift=2)
CANDIDATES = {
    "the recipe": CHOSEN,
    "half the learning rate": Candidate(CHOSEN.config, CHOSEN.recipe.but(lr=CHOSEN.recipe.lr / 2)),
    "narrow stem, CLS pooling": Candidate(CLS, CHOSEN.recipe),
    "narrow stem, smoothed labels, 2 px": Candidate(NARROW, SMOOTHED),
    "narrow stem, CLS pooling, smoothed labels, 2 px": Candidate(CLS, SMOOTHED),
}
"""The recipe, and what it was chosen from."""
COLUMNS = {"accuracy": Column("validation accuracy, %", 2, 100), "difference": Column("Δ to the recipe", 2, 100)}


def study_fashion_choices(
    data: Sequence[str],
    *,
    out: Path,
    seeds: int = 3,
    steps: int = 900,
    watch: Watch = lambda what, done, total: None,
) -> Findings:
    """Train every candidate for `steps` steps; a run is kept in `out` and resumed."""
    kept = Kept(out / "fashion-choices.parts.json", data=list(data), steps=steps)
    found: dict[str, list[float]] = {words: [] for words in CANDIDATES}
    for seed in range(seeds):
        for number, (words, candidate) in enumerate(CANDIDATES.items()):
            what, folder = f"{words}, seed {seed}", out / "runs" / f"fashion-choice-{number}-seed{seed}"
            recipe = candidate.recipe.but(steps=steps, seed=seed)
            found[words].append(kept(what, partial(_judged, data, candidate.config, recipe, folder, what, watch)))
    rows = tuple(
        Row(
            label=words,
            spreads={
                "accuracy": spread(scores),
                "difference": spread([a - b for a, b in zip(scores, found["the recipe"], strict=True)]),
            },
        )
        for words, scores in found.items()
    )
    return Findings(
        about=f"{steps} steps of {CHOSEN.recipe.batch} on {1 - VALIDATION:.0%} of the training images of "
        f"{', '.join(data)}, judged on the other {VALIDATION:.0%}; the test images are not opened. {seeds} seeds, "
        "mean ± sample deviation; Δ is paired by seed.",
        columns=COLUMNS,
        rows=rows,
        answers=tuple(_answers(rows, seeds)),
        draw=lambda path: _draw(rows, path),
    )


def _judged(
    data: Sequence[str], config: ViTConfig, recipe: Recipe, folder: Path, words: str, watch: Watch
) -> float | None:
    return train_or_resume(data, config, recipe, folder, words=words, watch=watch, validation=VALIDATION).accuracy


def _answers(rows: Sequence[Row], seeds: int) -> Iterator[str]:
    best = max(rows, key=lambda row: row.spreads["accuracy"].mean)
    yield f"The validation split prefers {best.label}: {best.spreads['accuracy'].text(2, 100)} %."
    for row in rows[1:]:
        gap = row.spreads["difference"]
        chance = seeds in CHANCE and abs(gap.mean) < CHANCE[seeds] * (gap.deviation or 0)
        yield f"{row.label}: {100 * gap.mean:+.2f} points{', which may be chance' if chance else ''}."


def _draw(rows: Sequence[Row], path: Path) -> None:
    words = "validation accuracy, bars: deviation over seeds"
    names = [row.label for row in rows]
    sheet, (panel,) = plots(
        "Which settings for Fashion-MNIST?", words, [("", "accuracy, %", "")], width=4.6, height=2.6, names=names
    )
    for place, row in enumerate(reversed(rows)):
        value = row.spreads["accuracy"]
        colour = BLUE if row is rows[0] else GREY
        panel.errorbar(100 * value.mean, place, xerr=100 * (value.deviation or 0), fmt="o", color=colour, capsize=3)
    panel.set_yticks(range(len(rows)), reversed(names), fontsize=8)
    panel.yaxis.tick_right()
    sheet.save(path)
