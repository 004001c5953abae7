"""Do similar patches get similar tokens? The patches of a folder, compared as pixels and as tokens, and in clusters.

For every layer of a model: the rank correlation, over pairs of patches, of their likeness as pixels with the cosine of
their tokens, and how many of a patch's nearest neighbours by pixels are also its nearest by tokens.

Shapes: N patches, P²·C values of a patch, D width, K clusters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.charts.sheet import HEADER, MARGIN, Sheet
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.errors import VitrailError, require
from vitrail.images.decode import ImageError, Pixels, decode
from vitrail.images.folder import image_files
from vitrail.nn.vit import ViT
from vitrail.parts import Patches
from vitrail.plan.laws import TEXT_VOCABULARY, projection
from vitrail.studies.findings import Column, Findings, Kept, Row, Watch, rank_correlation
from vitrail.training.experiments.compare import spread
from vitrail.training.prepare import open_checkpoint

__all__ = [
    "NEIGHBOURS",
    "PAIRS",
    "PER_IMAGE",
    "Words",
    "cluster",
    "collect",
    "compare",
    "draw_words",
    "readable",
    "study_vocabulary",
]

PAIRS, NEIGHBOURS, PER_IMAGE, CLUSTERS, SHOWN = 20_000, 10, 16, 12, 12
COLUMNS = {"alike": Column("rank correlation"), "shared": Column(f"shared of {NEIGHBOURS} nearest, %", 1, 100)}


def study_vocabulary(
    weights: str,
    folder: str | Path,
    *,
    out: Path,
    seeds: int = 3,
    limit: int = 200,
    watch: Watch = lambda what, done, total: None,
) -> Findings:
    """Compare patches of at most `limit` images of a folder; each seed draws other patches and pairs."""
    checkpoint = open_checkpoint(weights)
    config = checkpoint.config
    if not isinstance(config.embedding, Patches):  # type: ignore[union-attr]
        raise VitrailError(f"{weights} has no plain patches; choose a ViT such as default or dinov2-S/14")
    model = checkpoint.model()
    assert isinstance(model, ViT)
    paths = image_files(Path(folder), limit=limit)
    kept = Kept(out / "vocabulary.parts.json", weights=weights, folder=str(folder), images=len(paths))
    layers = [_place(layer) for layer in range(len(model.blocks) + 1)]

    def collected(seed: int) -> Words:
        images = readable(paths, lambda done: watch(f"reading patches, seed {seed}", done, len(paths)))
        words = collect(model, checkpoint.preprocessing, images, seed=seed)
        require(
            words.images > 1, f"{words.images} of {len(paths)} images could be read; give a folder with more images"
        )
        return words

    found = [kept(f"seed {seed}", lambda seed=seed: compare(collected(seed), seed)) for seed in range(seeds)]
    rows = tuple(
        Row(
            label=name,
            spreads={key: spread([each[layer][place] for each in found]) for place, key in enumerate(COLUMNS)},
        )
        for layer, name in enumerate(layers)
    )
    return Findings(
        about=f"{weights} on {len(paths)} images of {folder}: {PER_IMAGE} patches of {config.patch} from each, drawn "
        f"anew for each of {seeds} seeds. Correlation: over {PAIRS:,} pairs, of minus the distance of the pixels with "
        "the cosine of the tokens. The embedding is the projection alone, without positions.",
        columns=COLUMNS,
        rows=rows,
        answers=tuple(_answers(rows, checkpoint)),
        draw=lambda path: _draw(weights, collected(0), layers, path),
    )


def _place(layer: int) -> str:
    return "embedding" if layer == 0 else f"block {layer - 1}"


# ── measuring ───────────────────────────────────────────────────────────────────────────────────────────────────


class Words(NamedTuple):
    """Patches of several images."""

    pixels: Tensor
    """(N, P, P, C), uint8."""
    layers: list[Tensor]
    """Their tokens, (N, D): after the projection alone, then after every block."""
    images: int


def readable(paths: Iterable[Path], watch: Callable[[int], None] = lambda done: None) -> Iterator[Pixels]:
    """Yield the images that can be decoded."""
    for index, path in enumerate(paths):
        watch(index)
        with suppress(ImageError):
            yield decode(path)


@torch.no_grad()
def collect(
    model: ViT, preprocessing: Preprocessing, images: Iterable[Pixels], *, seed: int = 0, per_image: int = PER_IMAGE
) -> Words:
    """Draw patches from every image and run the model on it; the positions are not part of the first layer."""
    random, patch = np.random.default_rng(seed), model.config.patch
    pixels: list[Tensor] = []
    tokens: list[list[Tensor]] = []
    for each in images:
        image = torch.from_numpy(preprocessing.pixels(each).pixels)  # (H, W, C)
        values = preprocessing.normalise(image.permute(2, 0, 1)[None])
        plain, layout = model.embedding(values)
        chosen = torch.from_numpy(random.permutation(layout.grid.area)[:per_image])
        cells = image.unfold(0, patch.height, patch.height).unfold(1, patch.width, patch.width)  # (h, w, C, P, P)
        pixels.append(cells.flatten(0, 1)[chosen].permute(0, 2, 3, 1))
        later = model.intermediates(values)
        tokens.append([layer[0, chosen] for layer in (plain, *later)])
    require(len(pixels) > 0, "none of the images could be read; give a folder with images")
    return Words(torch.cat(pixels), [torch.cat(layer) for layer in zip(*tokens, strict=True)], len(pixels))


def compare(words: Words, seed: int = 0) -> list[list[float]]:
    """Return the rank correlation and the share of common neighbours, by layer."""
    generator = torch.Generator().manual_seed(seed)
    values = words.pixels.flatten(1).float() / 255
    count = len(values)
    first, second = torch.randint(0, count, (2, PAIRS), generator=generator)
    first, second = first[first != second], second[first != second]
    likeness = -(values[first] - values[second]).norm(dim=1)
    near = _nearest(-torch.cdist(values, values))
    found = []
    for tokens in words.layers:
        unit = F.normalize(tokens.float(), dim=1)
        shared = (near[:, :, None] == _nearest(unit @ unit.T)[:, None, :]).any(dim=2).double().mean().item()
        found.append([rank_correlation(likeness, (unit[first] * unit[second]).sum(dim=1)), shared])
    return found


def _nearest(likeness: Tensor) -> Tensor:
    """Return (N, NEIGHBOURS): the nearest others."""
    return likeness.fill_diagonal_(-torch.inf).topk(min(NEIGHBOURS, len(likeness) - 1), dim=1).indices


def cluster(vectors: Tensor, count: int, *, seed: int = 0, rounds: int = 30) -> tuple[Tensor, Tensor]:
    """Cluster (N, D) by k-means with k-means++ starts; return the centres (K, D) and each vector's cluster (N,)."""
    generator = torch.Generator().manual_seed(seed)
    centres = vectors[torch.randint(len(vectors), (1,), generator=generator)]
    while len(centres) < min(count, len(vectors)):
        distance = torch.cdist(vectors, centres).amin(dim=1).square()
        centres = torch.cat([centres, vectors[torch.multinomial(distance + 1e-12, 1, generator=generator)]])
    for _ in range(rounds):
        nearest = torch.cdist(vectors, centres).argmin(dim=1)
        one_hot = F.one_hot(nearest, len(centres)).to(vectors.dtype)  # (N, K)
        sizes = one_hot.sum(dim=0)[:, None]
        centres = torch.where(sizes > 0, one_hot.T @ vectors / sizes.clamp(min=1), centres)
    return centres, torch.cdist(vectors, centres).argmin(dim=1)


# ── reporting ───────────────────────────────────────────────────────────────────────────────────────────────────


def _answers(rows: tuple[Row, ...], checkpoint) -> list[str]:
    first, last = rows[0].spreads, rows[-1].spreads
    config = checkpoint.config
    cost = projection(config.patch, config.width, config.channels)
    return [
        f"The correlation is {first['alike'].text()} after the projection and {last['alike'].text()} after the last "
        f"block; {first['shared'].mean:.0%} and {last['shared'].mean:.0%} of a patch's nearest neighbours by pixels "
        "are also its nearest by tokens.",
        f"The projection has {cost.params:,} parameters for any patch. A text model looks its tokens up in a table of "
        f"{TEXT_VOCABULARY:,} rows of {config.width}, {cost.lookup_params:,} parameters; patches have no such table, "
        "and the clusters are what comes nearest to a vocabulary.",
    ]


def _draw(weights: str, words: Words, names: list[str], path: Path) -> None:
    """Draw the patches nearest to each cluster's centre, for the projection and for the last block."""
    side, gap = 3.6, 0.4
    sheet = Sheet(
        HEADER + side + 0.75,
        2 * MARGIN + 2 * side + gap,
        f"Clusters of {weights}'s patch tokens",
        f"a row per cluster: the {SHOWN} patches nearest to its centre, of {len(words.pixels):,}",
    )
    for place, layer in enumerate((0, len(names) - 1)):
        axes = sheet.plot(HEADER + 0.3, MARGIN + place * (side + gap), side, side, title=names[layer], x="", y="")
        axes.imshow(draw_words(words, layer), interpolation="nearest")
        axes.set_axis_off()
    sheet.save(path)


def draw_words(words: Words, layer: int) -> np.ndarray:
    """Return one picture: a row per cluster of tokens, largest first, of the patches nearest to its centre."""
    pixels, unit = words.pixels, F.normalize(words.layers[layer].float(), dim=1)
    centres, owners = cluster(unit, CLUSTERS)
    distance = torch.cdist(unit, centres)
    height, width, channels = pixels.shape[1:]
    edge = max(1, height // 8)
    canvas = np.full(((height + edge) * CLUSTERS, (width + edge) * SHOWN, 3), 255, dtype=np.uint8)
    for row, owner in enumerate(torch.bincount(owners, minlength=len(centres)).argsort(descending=True).tolist()):
        members = (owners == owner).nonzero().flatten()
        nearest = members[distance[members, owner].argsort()][:SHOWN]
        for column, index in enumerate(nearest.tolist()):
            top, left = row * (height + edge), column * (width + edge)
            patch = pixels[index].numpy()
            canvas[top : top + height, left : left + width] = patch if channels == 3 else patch[..., :1]
    return canvas
