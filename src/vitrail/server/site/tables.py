"""Which results of Positions and Transfer a page has: both rooms need a model's weights, and no image.

What can be asked is bounded here: some grids, the default number of bands, the first components of a table.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import suppress
from itertools import product
from typing import Any, get_args

from vitrail.config import ViTConfig
from vitrail.errors import VitrailError
from vitrail.server.rooms import transfer
from vitrail.server.rooms.positions import position_kinds as positions
from vitrail.server.rooms.transfer import transfer_projection
from vitrail.server.rooms.transfer.transfer_question import LARGEST_PATCH, Resampling
from vitrail.server.session import Session

__all__ = ["OTHERS", "limits_of_tables", "tables_of"]

GRIDS = range(4, 24, 4)
"""Rows and columns of the grids of Positions, besides the model's own grid."""
NEW_GRIDS = range(8, 26, 6)
"""Rows and columns of the new grids of Transfer."""
INDICES = range(4)
"""Components and channels of the resampled table."""
HOW = ("pinv", "natural", "interpolate")


def _words(sides: range) -> str:
    return ", ".join(map(str, sides[:-1])) + f" or {sides[-1]} rows and columns"


OTHERS = {
    "positions": f"an exported page has grids of {_words(GRIDS)}, and the model's own; run vitrail studio for others",
    "transfer": f"an exported page resamples the model's own table to {_words(NEW_GRIDS)}; "
    "run vitrail studio for others",
}
"""What is said of a question that was not asked when the site was written, by the first word of its key."""
OTHERS |= dict.fromkeys(("transfer maps", "transfer filters", "filters", "filter curves"), OTHERS["transfer"])


def tables_of(weights: str, session: Session) -> dict[str, dict[Hashable, Any]]:
    """Return the results by room and by the key of `Session.once`."""
    return {
        "positions": dict(_positions(weights, session)),
        "transfer": dict([*_resampled(weights, session), *_resized(weights, session)]),
    }


def limits_of_tables(config: ViTConfig) -> dict[str, tuple[int, int, int]]:
    """Return the lowest value, the highest and the step of the controls."""
    grids, new = ((sides[0], sides[-1], sides.step) for sides in (GRIDS, NEW_GRIDS))
    bands = transfer.Question().bands
    return {
        "grid_rows": grids,
        "grid_columns": grids,
        "position_layer": (0, 0, 1),
        "position_head": (-1, -1, 1),
        "new_rows": new,
        "new_columns": new,
        "bands": (bands, bands, 1),
        "table_index": (INDICES[0], INDICES[-1], 1),
        "resized_patch": (1, _largest(config.patch.height), 1),
    }


def _largest(patch: int) -> int:
    return min(LARGEST_PATCH, 2 * patch)


def _positions(weights: str, session: Session) -> Iterator[tuple[Hashable, Any]]:
    """Every kind of position; those that differ by head as the mean of heads."""
    for rows, columns in [(0, 0), *product(GRIDS, GRIDS)]:
        asked = positions.Question(weights=weights, grid_rows=rows, grid_columns=columns)
        for kind in positions.WORDS:
            with suppress(VitrailError):  # not possible with this width or number of heads, or too large
                yield positions.measured_key(kind, asked, session), positions.measure_kind(kind, asked, session)


def _resampled(weights: str, session: Session) -> Iterator[tuple[Hashable, Any]]:
    views = [("colours", 0), *product(("component", "channel"), INDICES)]
    for rows, columns, method in product(NEW_GRIDS, NEW_GRIDS, get_args(Resampling)):
        asked = transfer.Question(weights=weights, new_rows=rows, new_columns=columns, resampling=method)
        yield transfer.transfer_key(asked, session), transfer.transfer(asked, session)
        for view, index in views:
            shown = asked.model_copy(update={"table_view": view, "table_index": index})
            yield transfer.maps_key(shown, session), transfer.maps(shown, session)


def _resized(weights: str, session: Session) -> Iterator[tuple[Hashable, Any]]:
    try:
        patch = transfer_projection.plain_config(transfer.Question(weights=weights), session).patch
    except VitrailError:  # no single projection, as the room itself says
        return
    for height, how in product(range(1, _largest(patch.height) + 1), HOW):
        asked = transfer.Question(weights=weights, resized_patch=height, filter_resize=how)
        answer = transfer.projection(asked, session)
        yield transfer_projection.loss_key(asked, session), answer.chosen
        yield ("filter curves", weights), answer.curves
        yield transfer_projection.filters_key(asked, session), transfer.filters(asked, session)
