"""The arrays of the dense room: colours and similarities at every pixel that the fine grid covers.

Shapes: h×w cells of the fine grid, H×W pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import numpy as np
from torch import Tensor

from vitrail.geometry import Size
from vitrail.look.cells import Cells
from vitrail.look.dense import Dense
from vitrail.look.dense_colours import Basis, Upsampling, cell_similarity, dense_colours, to_pixels
from vitrail.look.record import Recording
from vitrail.look.subject import Subject
from vitrail.server.formulas import Formula, short
from vitrail.server.rooms.dense.dense_facts import ColourFacts, DenseSide, NearFacts, colour_formulas

__all__ = ["coloured_arrays", "near_arrays", "one_pass"]


def one_pass(subject: Subject, recording: Recording, original: Size) -> Dense:
    """Return the features of a pass that is recorded already."""
    tokens, layout = recording.features
    rows, columns = layout.grid
    step = (subject.pixels.shape[0] / rows, subject.pixels.shape[1] / columns)
    return Dense(
        features=tokens[0, layout.prefix :].T.unflatten(1, (rows, columns)),
        cells=Cells(grid=layout.grid, step=step),
        pixels=subject.pixels,
        original=original,
        passes=1,
    )


def coloured_arrays(
    images: Sequence[Dense], basis: Basis, foreground: bool
) -> tuple[ColourFacts, dict[str, np.ndarray]]:
    """Return the photographs (`photo0` …) and their colours, once for every way from tokens to pixels."""
    arrays = {f"photo{index}": _covered(each.pixels, each) for index, each in enumerate(images)}
    shares: list[float | None] = [None for _ in images]
    for way in get_args(Upsampling):
        colours = dense_colours(images, foreground=foreground, upsampling=way, basis=basis)
        for index, (rgb, each) in enumerate(zip(colours.rgb, images, strict=True)):
            shown = _covered(rgb.numpy(), each)
            arrays[f"{way}{index}"] = (shown * 255).round().astype(np.uint8)
            if foreground and way == "guided":
                shares[index] = float(shown.any(axis=2).mean())
    facts = ColourFacts(
        sides=[
            DenseSide(grid=each.cells.grid, seen=_seen(each), original=each.original, foreground=share)
            for each, share in zip(images, shares, strict=True)
        ],
        passes=sum(each.passes for each in images),
        shares=basis.shares,
        formulas=colour_formulas(basis.shares, sum(each.cells.grid.area for each in images), shares[0]),
    )
    return facts, arrays


def near_arrays(
    images: Sequence[Dense], row: int, column: int, upsampling: Upsampling
) -> tuple[NearFacts, dict[str, np.ndarray]]:
    """Return the cosine of every pixel (`near0` …) and of every cell (`cells0` …) with the token of one cell."""
    cosines = cell_similarity(images, row, column)
    arrays: dict[str, np.ndarray] = {}
    kin, largest = [], []
    for index, (near, each) in enumerate(zip(cosines, images, strict=True)):
        arrays[f"near{index}"] = _covered(to_pixels(near[None], each, upsampling)[0].numpy(), each)
        arrays[f"cells{index}"] = near.numpy()
        best, value = _best(near, (row, column) if index == 0 else None)
        kin.append(best)
        largest.append(value)
    facts = NearFacts(
        cell=(row, column),
        kin=kin,
        cosines=largest,
        formulas=_near_formulas([near.numel() for near in cosines]),
    )
    return facts, arrays


def _best(near: Tensor, itself: tuple[int, int] | None) -> tuple[tuple[int, int], float]:
    """Return the most similar cell that is not the point's own, and its cosine."""
    values = near.clone()
    if itself is not None and values.numel() > 1:
        values[itself] = -2.0
    row, column = divmod(int(values.argmax()), near.shape[1])
    return (row, column), near[row, column].item()


def _near_formulas(counts: Sequence[int]) -> list[Formula]:
    letters = {"x": "the point's token", "y": "another token"}
    names = (("nearest token", "the same image"), ("nearest in second", "the second image"))
    return [
        Formula(
            name=name,
            symbols="max x·y / (|x| |y|)",
            where=letters,
            numbers=f"the largest over {short(count)} tokens of {image} =",
        )
        for count, (name, image) in zip(counts, names, strict=False)
    ]


def _covered(pixels: np.ndarray, image: Dense) -> np.ndarray:
    """Return the part of (H, W, …) that the cells cover; beyond it, half a patch at most, nothing is known."""
    cells = image.cells
    top, left = round(cells.top), round(cells.left)
    height, width = (round(step * count) for step, count in zip(cells.step, cells.grid, strict=True))
    return pixels[top : top + height, left : left + width]


def _seen(image: Dense) -> Size:
    return Size(*(round(step * count) for step, count in zip(image.cells.step, image.cells.grid, strict=True)))
