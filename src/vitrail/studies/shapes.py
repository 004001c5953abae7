"""Does a random, frozen front end separate four shapes, as lessons say, or does it take training?

Linear probes on drawn circles, squares, triangles and stars: the front end's CLS token, its patch tokens pooled by mean
and by maximum, the same behind a random encoder, and all of it once trained on the shapes.

Shapes: B images, T tokens, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from vitrail.charts.palette import BLUE, GREY, RED
from vitrail.charts.plots import plots
from vitrail.config import ViTConfig
from vitrail.data.shapes import SHAPES
from vitrail.data.source import Source
from vitrail.geometry import Size
from vitrail.nn.build import build
from vitrail.nn.vit import ViT
from vitrail.parts import Mlp, Patches
from vitrail.studies.findings import Column, Findings, Kept, Row, Watch, drawn_splits
from vitrail.studies.training import train_or_resume
from vitrail.training.batches import in_order, measured
from vitrail.training.experiments.compare import spread
from vitrail.training.probe import linear_probe
from vitrail.training.random import reseed
from vitrail.training.recipe import Recipe

__all__ = ["study_shapes"]

MODEL = ViTConfig(
    image=Size(64, 64),
    embedding=Patches(patch=Size(8, 8)),
    width=64,
    depth=4,
    num_heads=4,
    mlp=Mlp(width=256),
    classes=len(SHAPES),
)
BATCH = 64
COLUMNS = {"accuracy": Column("accuracy, %", 1, 100), "over": Column("points over chance", 1, 100)}
READERS: dict[str, Callable[[ViT, Tensor], Tensor]] = {
    "front end, CLS token": lambda model, x: model.embed(x)[0][:, 0],
    "front end, mean of the patches": lambda model, x: model.embed(x)[0][:, 1:].mean(dim=1),
    "front end, maximum over the patches": lambda model, x: model.embed(x)[0][:, 1:].amax(dim=1),
    "whole encoder, CLS token": lambda model, x: model.features(x)[0][:, 0],
    "whole encoder, mean of the patches": lambda model, x: model.features(x)[0][:, 1:].mean(dim=1),
}


def study_shapes(
    *,
    out: Path,
    seeds: int = 3,
    limit: int = 2000,
    steps: int = 600,
    watch: Watch = lambda what, done, total: None,
) -> Findings:
    """Probe random and trained models. A trained one is a run of `steps` steps in `out`, which is kept and resumed."""
    kept = Kept(out / "shapes.parts.json", limit=limit, steps=steps)
    makers = {"random": _random, "trained": partial(_trained, out=out, steps=steps, watch=watch)}
    chance, rows = 1 / len(SHAPES), []
    per_seed = {
        state: [kept(f"{state} seed {seed}", partial(_probed, make, seed, limit, watch)) for seed in range(seeds)]
        for state, make in makers.items()
    }
    for state, found in per_seed.items():
        for place, words in enumerate(READERS):
            scores = [each[place] for each in found]
            over = spread([score - chance for score in scores])
            rows.append(Row(label=f"{state} {words}", spreads={"accuracy": spread(scores), "over": over}))
    return Findings(
        about=f"A ViT of width {MODEL.width} and patch {MODEL.patch} at {MODEL.image}, linear probes on {limit:,} "
        f"drawn shapes, judged on {limit // 2:,} others; {seeds} seeds, mean ± sample deviation. Chance is "
        f"{chance:.0%}. Trained: {steps} steps of {BATCH} on the training drawings, then frozen.",
        columns=COLUMNS,
        rows=tuple(rows),
        answers=tuple(_answers(rows)),
        draw=lambda path: _draw(rows, chance, path),
    )


def _random(seed: int) -> ViT:
    reseed("weights", seed)
    return build(MODEL).eval()


def _trained(seed: int, *, out: Path, steps: int, watch: Watch) -> ViT:
    recipe = Recipe(steps=steps, batch=BATCH, lr=1e-3, warmup=0.1, seed=seed)
    folder = out / "runs" / f"shapes-seed{seed}"
    run = train_or_resume("shapes", MODEL, recipe, folder, words=f"training, seed {seed}", watch=watch)
    model = run.checkpoint().model()
    assert isinstance(model, ViT)
    return model


def _probed(make: Callable[[int], ViT], seed: int, limit: int, watch: Watch) -> list[float]:
    """Return the accuracy of every reader."""
    model = make(seed)
    found, splits = [], drawn_splits("shapes", MODEL.image, seed=seed, limit=limit)
    for reader in READERS.values():
        watch(f"probing, seed {seed}", len(found), len(READERS))
        train_part, test_part = (_read(model, reader, source) for source in splits)
        found.append(linear_probe(train_part, test_part, len(SHAPES)))
    return found


@torch.no_grad()
def _read(model: ViT, reader: Callable[[ViT, Tensor], Tensor], source: Source) -> tuple[Tensor, Tensor]:
    steps = measured(source, MODEL.image)
    found = [(reader(model, steps.normalise(pixels)), labels) for pixels, labels, _ in in_order(source, steps, 256)]
    return torch.cat([features for features, _ in found]), torch.cat([labels for _, labels in found])


def _answers(rows: list[Row]) -> list[str]:
    by_label = {row.label: row.spreads for row in rows}
    constant = by_label["random front end, CLS token"]["over"]
    best = max((row for row in rows if row.label.startswith("random")), key=lambda row: row.spreads["accuracy"].mean)
    top = max(rows, key=lambda row: row.spreads["accuracy"].mean)
    return [
        f"The front end's CLS token is {constant.text(1, 100)} points over chance: before any block it is the same "
        "vector for every image, trained or not, so that it cannot separate anything.",
        f"Without training, {best.label.removeprefix('random ')} reads best: "
        f"{best.spreads['accuracy'].text(1, 100)} %.",
        f"Best overall: {top.label}, {top.spreads['accuracy'].text(1, 100)} %.",
    ]


def _draw(rows: list[Row], chance: float, path: Path) -> None:
    title, words = "What separates four shapes", "linear probe; bars: deviation over seeds"
    sheet, (panel,) = plots(title, words, [("", "accuracy, %", "")], width=5.2, height=3.6)
    for place, row in enumerate(reversed(rows)):
        value = row.spreads["accuracy"]
        colour = RED if row.label.startswith("random") else BLUE
        panel.barh(place, 100 * value.mean, xerr=100 * (value.deviation or 0), color=colour, height=0.4, capsize=2)
        panel.text(0.4, place + 0.24, row.label, fontsize=8, va="bottom")  # above its bar: it is long
    panel.axvline(100 * chance, color=GREY, linestyle=":")
    panel.set_yticks([])
    panel.set_ylim(-0.5, len(rows) - 0.1)
    sheet.save(path)
