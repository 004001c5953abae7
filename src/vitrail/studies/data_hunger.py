"""How much data does a ViT need beside a convolutional network of the same size?

Three models of equal parameters and FLOPs, each trained on ever larger shares of the images: at equal steps, so that a
small share is seen many times, and at equal epochs, so that a small share is little training too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import combinations, pairwise
from pathlib import Path
from typing import NamedTuple

from vitrail.charts.palette import SERIES
from vitrail.charts.plots import legend, plots
from vitrail.config import Config, MobileConfig, MobileStage
from vitrail.data.open import open_source
from vitrail.geometry import Size
from vitrail.parts import Stem
from vitrail.plan.ledger import ledger
from vitrail.studies.findings import Column, Findings, Kept, Row, Watch
from vitrail.studies.training import train_or_resume
from vitrail.training.experiments.catalogue import BASE, RECIPE
from vitrail.training.experiments.compare import CHANCE, Spread, spread

__all__ = ["ARMS", "FRACTIONS", "Budget", "budgets", "study_data_hunger"]

FRACTIONS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0)
ARMS: dict[str, Config] = {
    "ViT": BASE,
    "ViT, stem": BASE.but(embedding=Stem(patch=Size(4, 4), widths=(12, 24))),
    "CNN": MobileConfig(
        image=BASE.image,
        stem_width=24,
        residual="basic",
        expansion=1,
        stages=(
            MobileStage(width=24, depth=2),
            MobileStage(width=40, stride=2),
            MobileStage(width=64, stride=2),
        ),
        last_width=0,
        classes=BASE.classes,
    ),
}
"""A plain ViT, one with a convolutional stem, and a ResNet: parameters and FLOPs are equal within three per cent."""
BUDGETS = {"steps": "equal steps", "epochs": "equal epochs"}
COLUMNS = {name: Column(f"{name}, %", 2, 100) for name in ARMS}
Scores = dict[tuple[str, str, float], list[float]]
"""The accuracy of every seed, by budget, arm and share of the images."""


class Budget(NamedTuple):
    """Steps of a run on a share of the images."""

    kind: str
    fraction: float
    steps: int


def budgets(steps: int) -> Iterator[Budget]:
    """Yield every run of an arm: at equal steps, and at equal epochs, which are the same run for all of the images.

    >>> [budget.steps for budget in budgets(400)]
    [400, 4, 400, 20, 400, 40, 400, 100, 400, 200, 400]
    """
    for fraction in FRACTIONS:
        yield Budget("steps", fraction, steps)
        if fraction < 1:
            yield Budget("epochs", fraction, max(1, round(fraction * steps)))


def study_data_hunger(
    data: Sequence[str],
    *,
    out: Path,
    seeds: int = 3,
    steps: int | None = None,
    watch: Watch = lambda what, done, total: None,
) -> Findings:
    """Train every arm on every share; a run is kept in `out` and resumed. `steps` are by default one pass over all."""
    source = open_source(data, image=BASE.image)
    images, steps = len(source), steps or RECIPE.for_epochs(1, len(source)).steps
    arms = {name: config.but(classes=len(source.classes), channels=source.channels) for name, config in ARMS.items()}
    kept = Kept(out / "data-hunger.parts.json", data=list(data), images=images, steps=steps)
    found: Scores = {}
    for seed in range(seeds):  # all arms before the next seed, so that early results are comparable
        for budget in budgets(steps):
            for name, config in arms.items():
                words = f"{name}, {budget.fraction:.0%} at {BUDGETS[budget.kind]}, seed {seed}"
                score = kept(words, partial(_accuracy, name, config, data, budget, seed, words, out, watch))
                found.setdefault((budget.kind, name, budget.fraction), []).append(score)
    for name in arms:  # all of the images: one pass, or as many steps, are the same run
        found["epochs", name, 1.0] = found["steps", name, 1.0]
    rows = tuple(
        Row(
            label=f"{words}, {fraction:.0%}",
            spreads={name: spread(found[kind, name, fraction]) for name in arms},
        )
        for kind, words in BUDGETS.items()
        for fraction in FRACTIONS
    )
    return Findings(
        about=_about(arms, data, images, steps, seeds),
        columns=COLUMNS,
        rows=rows,
        answers=tuple(_answers(found, seeds)),
        draw=lambda path: _draw(found, steps, seeds, path),
    )


def _accuracy(
    name: str, config: Config, data: Sequence[str], budget: Budget, seed: int, words: str, out: Path, watch: Watch
) -> float | None:
    """Return the accuracy on the test split after the last step."""
    share = f"{100 * budget.fraction:g}"
    folder = out / "runs" / f"hunger-{name.replace(', ', '-').lower()}-{share}-{budget.kind}-seed{seed}"
    recipe = RECIPE.but(steps=budget.steps, seed=seed)
    return train_or_resume(data, config, recipe, folder, words=words, watch=watch, fraction=budget.fraction).accuracy


def _about(arms: dict[str, Config], data: Sequence[str], images: int, steps: int, seeds: int) -> str:
    books = {name: ledger(config) for name, config in arms.items()}
    sizes = "; ".join(
        f"{name}: {each.params:,} parameters, {each.flops_forward / 1e6:.1f} MFLOP" for name, each in books.items()
    )
    return (
        f"{sizes}. Shares of the {images:,} training images of {', '.join(data)}, of every class, drawn by the seed. "
        f"Equal steps: {steps:,} of {RECIPE.batch} for every share. Equal epochs: {steps * RECIPE.batch / images:.3g} "
        f"for every share, so that {FRACTIONS[0]:.0%} has {max(1, round(FRACTIONS[0] * steps))} steps. AdamW, lr "
        f"{RECIPE.lr:g}, flips, one recipe for all and tuned for none. Accuracy on all test images, looked at once; "
        + (
            "one seed, so that no difference is told from chance."
            if seeds == 1
            else f"{seeds} seeds, mean ± deviation."
        )
    )


# ── where the curves cross ──────────────────────────────────────────────────────────────────────────────────────


def _answers(found: Scores, seeds: int) -> Iterator[str]:
    for kind, words in BUDGETS.items():
        for first, second in combinations(ARMS, 2):
            gaps = {fraction: _gap(found, kind, first, second, fraction) for fraction in FRACTIONS}
            yield f"At {words}, {first} against {second}: {_compared(gaps)}{_doubts(gaps, seeds)}."


def _gap(found: Scores, kind: str, first: str, second: str, fraction: float) -> Spread:
    """Return the paired difference, in points: runs of one seed are trained on the same images."""
    pairs = zip(found[kind, first, fraction], found[kind, second, fraction], strict=True)
    return spread([100 * (one - other) for one, other in pairs])


def _compared(gaps: dict[float, Spread]) -> str:
    """
    >>> _compared({0.1: spread([2.0]), 0.5: spread([-1.0]), 1.0: spread([-3.0])})
    '+2.0 points at 10%, -3.0 at 100%; the curves cross between 10% and 50%'
    """
    crossings = [
        f"between {low:.0%} and {high:.0%}"
        for (low, before), (high, after) in pairwise(gaps.items())
        if before.mean * after.mean < 0
    ]
    cross = f"the curves cross {' and '.join(crossings)}" if crossings else "the curves do not cross"
    small, large = min(gaps), max(gaps)
    return f"{gaps[small].mean:+.1f} points at {small:.0%}, {gaps[large].mean:+.1f} at {large:.0%}; {cross}"


def _doubts(gaps: dict[float, Spread], seeds: int) -> str:
    """Name the shares whose difference is smaller than chance makes likely, by Student's t over the seeds."""
    if seeds not in CHANCE:
        return ""
    doubtful = [f"{f:.0%}" for f, gap in gaps.items() if abs(gap.mean) < CHANCE[seeds] * (gap.deviation or 0)]
    return f" (may be chance at {', '.join(doubtful)})" if doubtful else ""


def _draw(found: Scores, steps: int, seeds: int, path: Path) -> None:
    over = "one seed" if seeds == 1 else f"{seeds} seeds, bars one standard deviation"
    words = f"models of equal parameters and FLOPs; accuracy on all test images; {over}"
    x = "share of the training images, %"
    labels = [(f"Accuracy after {steps:,} steps, %", x, ""), ("Accuracy after equal epochs, %", x, "")]
    sheet, panels = plots("How much data does a ViT need beside a CNN of its size?", words, labels, names=list(ARMS))
    low = min(min(scores) for scores in found.values())
    high = max(max(scores) for scores in found.values())
    for panel, kind in zip(panels, BUDGETS, strict=True):
        for name, colour in zip(ARMS, SERIES, strict=False):
            points = [spread(found[kind, name, fraction]) for fraction in FRACTIONS]
            panel.errorbar(
                [100 * fraction for fraction in FRACTIONS],
                [100 * point.mean for point in points],
                yerr=[100 * (point.deviation or 0) for point in points],
                fmt="o-",
                markersize=4,
                capsize=3,
                linewidth=1.2,
                color=colour,
                label=name,
            )
        panel.set_xscale("log")
        panel.set_xticks([100 * fraction for fraction in FRACTIONS], [f"{100 * f:g}" for f in FRACTIONS])
        panel.minorticks_off()
        panel.set_ylim(100 * low - 2, 100 * high + 2)  # one scale for both, so that they can be compared
    legend(panels[-1])
    sheet.save(path)
