"""Do early layers look locally and late ones globally, and how soon can classes be read?

After every block: a linear probe of the CLS token and of the mean of the patch tokens, and the mean attention distance
of the block's heads, as a share of the distance that equal attention would have.

Shapes: B images, T tokens, D width, h heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from vitrail.charts.palette import GREY, SERIES
from vitrail.charts.plots import legend, plots
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.checkpoint.surgery.adapt import adapt
from vitrail.data.source import Source
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.look.heads import patch_distances
from vitrail.look.inputs import AttentionInputs
from vitrail.look.record import record
from vitrail.look.statistics import head_statistics
from vitrail.nn.vit import ViT
from vitrail.studies.findings import Column, Findings, Kept, Row, Watch, drawn_splits, rank_correlation
from vitrail.training.batches import in_order
from vitrail.training.experiments.compare import spread
from vitrail.training.prepare import open_checkpoint
from vitrail.training.probe import linear_probe

__all__ = ["study_layers"]

LARGEST = 224
"""Models with a larger input are adapted to the whole patches nearest to this side."""
BATCH = 32
ATTENDED = 64
"""Number of test images over which attention distances are averaged."""
COLUMNS = {
    "patches": Column("probe of the mean, %", 1, 100),
    "cls": Column("probe of CLS, %", 1, 100),
    "distance": Column("distance"),
    "nearest": Column("most local head"),
    "farthest": Column("most global head"),
}


class _Layer(NamedTuple):
    """One seed's figures of one layer."""

    patches: float
    cls: float | None
    """None for a model without a CLS token."""
    distances: list[float]
    """By head, over the distance of equal attention; empty for the embedding, which has no attention."""


def study_layers(
    weights: Sequence[str],
    data: Sequence[str],
    *,
    out: Path,
    seeds: int = 3,
    limit: int = 2000,
    watch: Watch = lambda what, done, total: None,
) -> Findings:
    """Measure every layer of trained models on `limit` training images and half as many test images per seed.

    Finished models and seeds are kept in `out`.
    """
    kept = Kept(out / "layers.parts.json", data=list(data), limit=limit, attended=ATTENDED)
    rows, answers, curves = [], [], {}
    for name in weights:
        model, steps = _loaded(name)
        per_seed = [
            kept(f"{name} seed {seed}", partial(_measured, model, steps, name, data, seed, limit, watch))
            for seed in range(seeds)
        ]
        layers = [[_Layer(*figures) for figures in layer] for layer in zip(*per_seed, strict=True)]
        curves[name] = [_row(f"{name}, {_place(place)}", figures) for place, figures in enumerate(layers)]
        rows += curves[name]
        answers += _answers(name, curves[name], steps.image)
    return Findings(
        about=f"{', '.join(weights)} on {', '.join(data)}: {limit:,} training and {limit // 2:,} test images "
        f"drawn anew for each of {seeds} seeds; mean ± sample deviation. Distance: mean attention distance over heads, "
        f"patches and {ATTENDED} test images, divided by that of equal attention: 1 is global, 0 looks at itself only.",
        columns=COLUMNS,
        rows=tuple(rows),
        answers=tuple(answers),
        draw=lambda path: _draw(curves, path),
    )


def _place(layer: int) -> str:
    return "embedding" if layer == 0 else f"block {layer - 1}"


# ── measuring ───────────────────────────────────────────────────────────────────────────────────────────────────


def _loaded(name: str) -> tuple[ViT, Preprocessing]:
    """Return a model with an input of at most LARGEST pixels a side, and its preprocessing."""
    checkpoint = open_checkpoint(name)
    if max(checkpoint.config.image) > LARGEST:
        size = Size(*(max(1, round(LARGEST / side)) * side for side in checkpoint.config.unit))
        checkpoint, _ = adapt(checkpoint, {"image": size})
    model = checkpoint.model()
    if not isinstance(model, ViT):
        raise VitrailError(f"{name} is not a plain ViT, whose blocks have one width; choose another model")
    return model, checkpoint.preprocessing


def _measured(
    model: ViT, steps: Preprocessing, name: str, data: Sequence[str], seed: int, limit: int, watch: Watch
) -> list[_Layer]:
    """Return one seed's figures, by layer."""
    train, test = drawn_splits(data, steps.image, seed=seed, limit=limit)
    fitted = _features(model, train, steps, f"{name}, seed {seed}, training images", watch)
    held = _features(model, test, steps, f"{name}, seed {seed}, test images", watch)
    found = []
    for layer in range(len(model.blocks) + 1):
        mean, cls = (
            linear_probe((one[layer], fitted.labels), (other[layer], held.labels), len(train.classes)) if one else None
            for one, other in ((fitted.means, held.means), (fitted.cls, held.cls))
        )
        assert mean is not None
        found.append(_Layer(mean, cls, held.distances[layer - 1].tolist() if layer else []))
    return found


class _Features(NamedTuple):
    means: list[Tensor]
    """(N, D) by layer, like `cls`, which is empty for a model without a CLS token."""
    cls: list[Tensor]
    labels: Tensor
    distances: list[Tensor]
    """(h,) by block."""


@torch.no_grad()
def _features(model: ViT, source: Source, preprocessing: Preprocessing, words: str, watch: Watch) -> _Features:
    means, cls, labels, distances = [], [], [], []
    for pixels, own, _ in in_order(source, preprocessing, BATCH):
        done = BATCH * len(labels)
        watch(words, done, len(source))
        image = preprocessing.normalise(pixels)
        recording = record(model, image)
        layers = [model.embed(image), *recording.blocks]
        means.append([tokens[:, layout.prefix :].mean(dim=1) for tokens, layout in layers])
        # a copy: a view would keep the tokens of all images in memory
        cls.append([tokens[:, 0].clone() for tokens, _ in layers] if model.config.prefix.cls else [])
        if done < ATTENDED:
            distances.append([_relative_distance(inputs) for inputs in recording.attention])
        labels.append(own)
    return _Features(
        means=[torch.cat(each) for each in zip(*means, strict=True)],
        cls=[torch.cat(each) for each in zip(*cls, strict=True)],
        labels=torch.cat(labels),
        distances=[torch.cat(each).mean(dim=0) for each in zip(*distances, strict=True)],
    )


def _relative_distance(inputs: AttentionInputs) -> Tensor:
    """Return (B, h): the mean attention distance over that of equal attention."""
    heads = head_statistics(inputs.chunks(), patch_distances(inputs.layout, inputs.k))
    return heads.distance / heads.even_distance


# ── reporting ───────────────────────────────────────────────────────────────────────────────────────────────────


def _row(label: str, per_seed: list[_Layer]) -> Row:
    held = {"patches": [each.patches for each in per_seed], "cls": [each.cls for each in per_seed]}
    if per_seed[0].distances:
        for name, reduce in (("distance", lambda d: sum(d) / len(d)), ("nearest", min), ("farthest", max)):
            held[name] = [reduce(each.distances) for each in per_seed]
    known = {name: [value for value in values if value is not None] for name, values in held.items()}
    return Row(label=label, spreads={name: spread(values) for name, values in known.items() if values})


def _answers(name: str, rows: list[Row], size: Size) -> list[str]:
    distances = [row.spreads["distance"].mean for row in rows[1:]]
    rank = rank_correlation(torch.arange(len(distances)), torch.tensor(distances))
    reads = [row.spreads["patches"].mean for row in rows]
    soon = next(layer for layer, value in enumerate(reads) if value >= 0.9 * max(reads))
    local, wide = (
        min(row.spreads["nearest"].mean for row in rows[1:]),
        max(row.spreads["farthest"].mean for row in rows[1:]),
    )
    return [
        f"{name} at {size}: mean distance {distances[0]:.2f} in the first block and {distances[-1]:.2f} in the last; "
        f"rank correlation with depth {rank:+.2f}. Single heads range from {local:.2f} to {wide:.2f}.",
        f"{name}: the mean of the patch tokens gives {reads[0]:.1%} after the embedding, at most {max(reads):.1%}, "
        f"and nine tenths of that from {_place(soon)} on.",
    ]


def _draw(curves: dict[str, list[Row]], path: Path) -> None:
    labels = [
        ("Attention distance, 1 = equal attention", "block", ""),
        ("Linear probe of the mean patch token, %", "blocks passed", ""),
    ]
    title = "What each layer looks at, and what can be read from it"
    words = "shaded: range over heads; bars: deviation over seeds"
    sheet, (distance, probe) = plots(title, words, labels, names=list(curves))
    distance.axhline(1, linestyle=":", color=GREY)
    for (name, rows), colour in zip(curves.items(), cycle(SERIES)):
        blocks = range(len(rows) - 1)
        means, low, high = ([row.spreads[key].mean for row in rows[1:]] for key in ("distance", "nearest", "farthest"))
        distance.plot(blocks, means, "o-", markersize=3, color=colour, label=name)
        distance.fill_between(blocks, low, high, alpha=0.15, color=colour, linewidth=0)
        held = [row.spreads["patches"] for row in rows]
        bars = [100 * (each.deviation or 0) for each in held]
        values = [100 * each.mean for each in held]
        probe.errorbar(range(len(rows)), values, bars, fmt="o-", markersize=3, capsize=2, color=colour, label=name)
    legend(probe)
    sheet.save(path)
