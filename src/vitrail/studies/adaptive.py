"""Is a learned choice of patch sizes worth more than the detail of the pixels, or than chance, at equal tokens?

Adaptive patches of two and of three sizes, split by a selector that is trained with a token budget, by the fixed detail
score, and at random places; thresholds of the last two are set so that they keep the same share of tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitrail.charts.palette import SERIES
from vitrail.charts.plots import legend, plots
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.config import ViTConfig
from vitrail.data.open import open_source
from vitrail.data.source import Source
from vitrail.geometry import Size
from vitrail.nn.adaptive import AdaptiveEmbed, tokens_saved
from vitrail.nn.vit import ViT
from vitrail.parts import Adaptive
from vitrail.studies.findings import Column, Findings, Kept, Row, Watch
from vitrail.studies.training import train_or_resume
from vitrail.training.batches import in_order, measured
from vitrail.training.evaluate import evenly
from vitrail.training.experiments.catalogue import BASE, RECIPE
from vitrail.training.experiments.compare import CHANCE, spread
from vitrail.training.recipe import Recipe, TokenBudget

__all__ = ["ARMS", "BUDGET", "calibrated", "study_adaptive", "token_share"]

BUDGET = 43 / 64
"""Share of a regular grid's tokens; the random places of two and of three sizes can keep exactly 43 of 64."""
SEEN = 1000
"""Images on which shares of tokens are measured."""


class Arm(NamedTuple):
    label: str
    selector: str
    patches: tuple[Size, ...]


_TWO = (Size(4, 4), Size(8, 8))
_SIZES = {"2 sizes": _TWO, "3 sizes": (*_TWO, Size(16, 16))}
ARMS = (
    Arm("regular grid", "none", ()),
    *(
        Arm(f"{selector}, {words}", selector, patches)
        for words, patches in _SIZES.items()
        for selector in ("random", "detail", "learned")
    ),
)
COLUMNS = {
    "share": Column("tokens, %", 1, 100),
    "accuracy": Column("accuracy, %", 2, 100),
    "difference": Column("Δ to random", 2, 100),
}


def study_adaptive(
    data: Sequence[str],
    *,
    out: Path,
    seeds: int = 3,
    steps: int | None = None,
    watch: Watch = lambda what, done, total: None,
) -> Findings:
    """Train every arm; a run is kept in `out` and resumed. `steps` are by default one pass over the images."""
    source, test = (open_source(data, split, image=BASE.image) for split in ("train", "test"))
    steps = steps or RECIPE.for_epochs(1, len(source)).steps
    base = BASE.but(classes=len(source.classes), channels=source.channels)
    kept = Kept(out / "adaptive.parts.json", data=list(data), images=len(source), steps=steps, budget=BUDGET)
    found: dict[str, list[dict[str, float]]] = {arm.label: [] for arm in ARMS}
    for seed in range(seeds):  # all arms before the next seed, so that early results are comparable
        for arm in ARMS:
            words, recipe = f"{arm.label}, seed {seed}", RECIPE.but(steps=steps, seed=seed)
            run = partial(_measured, arm, base, recipe, data, source, test, out, words, watch)
            found[arm.label].append(kept(words, run))
    rows = tuple(Row(label=arm.label, spreads=dict(_spreads(arm, found))) for arm in ARMS)
    return Findings(
        about=f"A ViT of width {base.width}, depth {base.depth} on {', '.join(data)}: {steps:,} steps of "
        f"{RECIPE.batch}, AdamW, lr {RECIPE.lr:g}, one recipe for all. Patches of 4 and 8 pixels, or of 4, 8 and 16. "
        f"Learned: trained with a loss on the share of tokens, target {BUDGET:.1%} of the regular grid's; detail and "
        f"random: thresholds set on {SEEN:,} training images to keep that share. Tokens are measured on {SEEN:,} test "
        f"images, accuracy on all, looked at once; {seeds} seeds, mean ± sample deviation; Δ is paired by seed.",
        columns=COLUMNS,
        rows=rows,
        answers=tuple(_answers(rows, seeds)),
        draw=lambda path: _draw(rows, seeds, path),
    )


def _measured(
    arm: Arm, base: ViTConfig, recipe: Recipe, data: Sequence[str], source: Source, test: Source, out: Path,
    words: str, watch: Watch,
) -> dict[str, float | None]:  # fmt: skip
    """Train an arm; return its accuracy and its share of tokens."""
    config, steps = base, measured(source, base.image)
    if arm.patches:
        spec = Adaptive(patches=arm.patches, selector=arm.selector)  # type: ignore[arg-type]
        config = base.but(embedding=spec if arm.selector == "learned" else calibrated(spec, _pixels(source, steps)))
    if arm.selector == "learned":
        recipe = recipe.but(token_budget=TokenBudget(share=BUDGET))
    name = f"adaptive-{arm.label.replace(', ', '-').replace(' ', '-')}-seed{recipe.seed}"
    run = train_or_resume(data, config, recipe, out / "runs" / name, words=words, watch=watch)
    model = run.checkpoint().model()
    assert isinstance(model, ViT)
    embedding = model.embedding
    share = 1.0
    if isinstance(embedding, AdaptiveEmbed):
        share = token_share(embedding, _pixels(test, run.job.data.preprocessing))
    return {"accuracy": run.accuracy, "share": share}


def _pixels(source: Source, steps: Preprocessing) -> Tensor:
    """Return some images of the source, normalised: (B, C, H, W)."""
    return torch.cat([steps.normalise(pixels) for pixels, _, _ in in_order(evenly(source, SEEN), steps, 256)])


@torch.no_grad()
def token_share(embedding: AdaptiveEmbed, pixels: Tensor) -> float:
    """Return the mean share of the finest grid's tokens that the embedding keeps."""
    return float(np.mean([1 - tokens_saved(embedding(part)[1]).share for part in pixels.split(250)]))


def calibrated(spec: Adaptive, pixels: Tensor, share: float = BUDGET) -> Adaptive:
    """Return the patches with the threshold at which these images keep nearly that share of tokens, by bisection."""

    def kept_at(threshold: float) -> float:
        return token_share(AdaptiveEmbed(spec.but(threshold=threshold), 1, channels=pixels.shape[1]), pixels)

    low, high = 0.0, 8.0  # a cell's deviation is rarely more than that of its whole image
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if kept_at(middle) > share else (low, middle)
    return spec.but(threshold=min(low, high, key=lambda threshold: abs(kept_at(threshold) - share)))


def _spreads(arm: Arm, found: dict[str, list[dict[str, float]]]) -> Iterator[tuple[str, Any]]:
    for name in ("share", "accuracy"):
        yield name, spread([each[name] for each in found[arm.label]])
    if arm.selector in ("detail", "learned"):
        control = found[f"random, {arm.label.partition(', ')[2]}"]
        pairs = zip(found[arm.label], control, strict=True)
        yield "difference", spread([own["accuracy"] - other["accuracy"] for own, other in pairs])


def _answers(rows: Sequence[Row], seeds: int) -> Iterator[str]:
    for row in rows:
        gap = row.spreads.get("difference")
        if gap is None:
            continue
        chance = seeds in CHANCE and abs(gap.mean) < CHANCE[seeds] * (gap.deviation or 0)
        doubt = ", which may be chance" if chance else ""
        yield (
            f"{row.label}: {100 * gap.mean:+.1f} points against random places{doubt}, with "
            f"{row.spreads['share'].mean:.1%} of the tokens."
        )


def _draw(rows: Sequence[Row], seeds: int, path: Path) -> None:
    words = f"{seeds} seeds, bars one standard deviation; all but the regular grid aim at {BUDGET:.1%} of the tokens"
    labels = [("Test accuracy against tokens, %", "tokens, % of the regular grid's", "")]
    names = [row.label for row in rows]
    sheet, (panel,) = plots("Which patches should be small?", words, labels, width=5.6, names=names)
    for row, colour in zip(rows, SERIES, strict=False):
        share, accuracy = row.spreads["share"], row.spreads["accuracy"]
        panel.errorbar(
            100 * share.mean,
            100 * accuracy.mean,
            xerr=100 * (share.deviation or 0),
            yerr=100 * (accuracy.deviation or 0),
            fmt="o" if "3 sizes" not in row.label else "s",
            capsize=3,
            markersize=5,
            color=colour,
            label=row.label,
        )
    legend(panel)
    sheet.save(path)
