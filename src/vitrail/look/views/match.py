"""Two matched images: lines between best buddies, and the parts of their score."""

from __future__ import annotations

from vitrail.charts.sheet import Sheet
from vitrail.look.draw.match import Line, draw_match
from vitrail.look.likeness import Likeness
from vitrail.look.match import ImageMatch, Seen
from vitrail.look.views.words import cells_on, times
from vitrail.nn.adaptive import to_dense

__all__ = ["view_match"]


def view_match(found: ImageMatch, *, names: tuple[str, str], lines: int) -> Sheet:
    """Draw up to `lines` pairs of best buddies, and the parts of every patch in the score."""
    sides, alike = (found.first, found.second), found.likeness
    pairs = found.buddies.pairs[:lines].tolist()
    layouts = [side.recording.features[1] for side in sides]
    parts = [
        to_dense(len(values) * values[None, :, None], layout)[0, 0].float()
        for values, layout in zip((alike.first, alike.second), layouts, strict=True)
    ]
    own = f"cosine of the vectors {alike.vectors:.4f}"
    grids = " and ".join(times(layout.grid) for layout in found.layouts)
    return draw_match(
        [side.subject.photo for side in sides],
        [
            Line(*(side.centre(layout, patch) for side, layout, patch in zip(sides, found.layouts, pair, strict=True)))
            for pair in pairs
        ],
        parts,
        [cells_on(side.subject, layout) for side, layout in zip(sides, layouts, strict=True)],
        even=alike.score - alike.prefix,
        title=f"{names[0]} and {names[1]}: {alike.score:.4f}",
        subtitle=f"{_words(sides)} · {grids} patches · {own}",
        words=(
            f"{len(pairs)} of {len(found.buddies.pairs)} best buddies: patches that are each other's nearest",
            f"Why they are alike: parts of {_whose(alike)} cosine, which add up to {alike.score:.4f} in either image",
        ),
        note=alike.approximation and f"An approximation: {alike.approximation}.",
    )


def _whose(alike: Likeness) -> str:
    return "the mean patch tokens'" if alike.approximation else "the vectors'"


def _words(sides: tuple[Seen, Seen]) -> str:
    first, second = (side.subject for side in sides)
    same = first.photo.seen == second.photo.seen
    return first.words if same else f"{first.words} and {second.photo.seen}"
