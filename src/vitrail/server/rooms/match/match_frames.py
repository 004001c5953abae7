"""The arrays of the match room, by cells of the grids: an adaptive patch fills several.

Shapes: c cells of the first image, d of the second.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vitrail.look.kin import best_buddies, token_cosines
from vitrail.look.likeness import likeness
from vitrail.look.record import Recording
from vitrail.look.subject import Subject
from vitrail.nn.layout import Layout
from vitrail.server.cells import covered_photo, patch_of_cell
from vitrail.server.plans import Pair
from vitrail.server.rooms.match.match_facts import MatchFacts, MatchSide, match_formulas

__all__ = ["matched_arrays"]

SHOWN_SIDE = 512


def matched_arrays(
    first: tuple[Subject, Recording], second: tuple[Subject, Recording], layer: int | None
) -> tuple[MatchFacts, dict[str, np.ndarray]]:
    """Match the tokens after a layer (default: the features) of two images."""
    recordings = (first[1], second[1])
    after = [each.after(layer) for each in recordings]
    layouts = [layout for _, layout in after]
    cells = [patch_of_cell(layout) for layout in layouts]  # (c,) and (d,)
    cosines = token_cosines(after[0], after[1])
    alike, buddies = likeness(*recordings), best_buddies(cosines)
    cross = cosines[cells[0]][:, cells[1]]  # (c, d)
    firsts = [_first_cells(each, layout) for each, layout in zip(cells, layouts, strict=True)]
    sides = [
        MatchSide(
            grid=layout.grid,
            seen=subject.photo.seen,
            nearest=firsts[1 - number][cosines.argmax(dim=1 - number)[cells[number]]].tolist(),
            cosines=cosines.amax(dim=1 - number)[cells[number]].tolist(),
            parts_grid=recording.features[1].grid,
            parts=_parts_by_cell((alike.first, alike.second)[number], recording.features[1]).tolist(),
        )
        for number, ((subject, recording), layout) in enumerate(zip((first, second), layouts, strict=True))
    ]
    pairs: list[Pair] = [(int(firsts[0][one]), int(firsts[1][other])) for one, other in buddies.pairs.tolist()]
    counts = (len(alike.first), len(alike.second))
    facts = MatchFacts(
        first=sides[0],
        second=sides[1],
        buddies=pairs,
        score=alike.score,
        vectors=alike.vectors,
        prefix=alike.prefix,
        approximation=alike.approximation,
        formulas=match_formulas(counts, alike.score, alike.vectors, len(pairs), not alike.approximation),
    )
    arrays = {
        "photo0": covered_photo(first[0], layouts[0], SHOWN_SIDE),
        "photo1": covered_photo(second[0], layouts[1], SHOWN_SIDE),
        "cross": cross.numpy(),
    }
    for number, (each, cell) in enumerate(zip(after, cells, strict=True)):
        arrays[f"own{number}"] = token_cosines(each, each)[cell][:, cell].numpy()
    return facts, arrays


def _first_cells(cells: Tensor, layout: Layout) -> Tensor:
    """Return the first cell of every patch."""
    if layout.rectangles is None:
        return cells
    top, left = layout.rectangles[0, :, 0], layout.rectangles[0, :, 1]
    return top * layout.grid.width + left


def _parts_by_cell(parts: Tensor, layout: Layout) -> Tensor:
    """Share the part of a patch among the cells that it fills, so that cells add up as patches do."""
    cells = patch_of_cell(layout)
    return (parts / torch.bincount(cells, minlength=len(parts)).clamp_min(1))[cells]
