"""Attention by layer and head, attention rollout, and head statistics.

Shapes: h heads, T tokens of which p are the prefix, r×c grid.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from vitrail.charts.sheet import Sheet
from vitrail.errors import require
from vitrail.geometry import Size, position_id
from vitrail.look.attention_map import AttentionMap
from vitrail.look.capture import capture
from vitrail.look.draw import draw_distance, draw_focus, draw_heads
from vitrail.look.heads import attention_distance, head_entropy, uniform_attention
from vitrail.look.rollout import fuse_heads, rollout
from vitrail.look.subject import Subject
from vitrail.look.views.words import cells_on, has_cls, prefix_names, style, times
from vitrail.nn.adaptive import to_dense
from vitrail.nn.layout import Layout

__all__ = ["view_attention", "view_distance", "view_rollout"]


def view_attention(
    subject: Subject,
    *,
    layer: int | None = None,
    head: int | None = None,
    query: tuple[int, int] | None = None,
    smooth: bool = False,
) -> Sheet:
    """Draw one head in detail, all heads of a layer, one head in all layers, or all heads of all layers.

    The query is the patch at `query` (row, column) of the first grid drawn; by default CLS, or the middle patch if
    there is no CLS.
    """
    cls = query is None and has_cls(subject)
    chosen = None if layer is None else [layer]
    keep = _own_row if cls else _row_at(query)
    with torch.no_grad(), capture(subject.model, chosen, "cls" if cls else "patches", keep=keep) as kept:
        subject.model(subject.image)
    rows = dict(kept)
    if head is not None:
        for row in rows.values():
            heads = row.weights.shape[1]
            require(
                0 <= head < heads, f"head {head} is out of range for layer {row.layer}'s {heads}; use 0 to {heads - 1}"
            )
    last = rows[max(rows)]
    cells = {index: cells_on(subject, row.layout) for index, row in rows.items()}
    first = rows[min(rows)].layout.grid
    at = None if cls else _place(query, first)
    query_name = "query CLS" if at is None else f"query patch ({at[0]}, {at[1]}) of {times(first)}"
    if last.places is not None:
        query_name += f", mean over the {last.places.area} pixels of a patch"
    photo = subject.photo if at is None else replace(subject.photo, query=cells[min(rows)].box(*at))
    subtitle = f"{subject.words} · {query_name} · {style(smooth)}"
    grids = {index: row.on_grid()[0, :, 0].cpu() for index, row in rows.items()}  # (h, r, c)
    if len(rows) == 1 and head is not None:
        name = f"Attention of layer {last.layer}, head {head}"
        return draw_focus(
            grids[last.layer][head],
            cells[last.layer],
            photo,
            title=name,
            subtitle=subtitle,
            label="attention, % of the row",
            shares=_shares(subject, last.weights[0, head, 0], last.layout),
            smooth=smooth,
        )
    if len(rows) == 1 or head is not None:
        maps = list(grids[last.layer]) if head is None else [heads[head] for heads in grids.values()]
        names = [f"head {i}" for i in range(len(maps))] if head is None else [f"layer {i}" for i in rows]
        name = f"Attention of layer {last.layer}, by head" if head is None else f"Attention of head {head}, by layer"
        where = [cells[last.layer]] * len(maps) if head is None else list(cells.values())
        return draw_heads(
            maps, where, photo, names, columns=_columns(len(maps)), title=name, subtitle=subtitle, smooth=smooth
        )
    most = max(len(heads) for heads in grids.values())
    maps = [one for heads in grids.values() for one in _padded(heads, most)]
    return draw_heads(
        maps,
        [where for where in cells.values() for _ in range(most)],
        photo,
        [f"head {index}" if most <= 12 or index == 0 else str(index) for index in range(most)],
        columns=most,
        rows=[f"layer {index}" for index in rows],
        title="Attention by layer and head",
        subtitle=subtitle,
        smooth=smooth,
    )


def view_rollout(
    subject: Subject, *, query: tuple[int, int] | None = None, discard: float = 0.0, smooth: bool = False
) -> Sheet:
    """Draw the attention rollout of the CLS token or of a patch."""
    with torch.no_grad(), capture(subject.model, keep=fuse_heads) as maps:
        subject.model(subject.image)
        rolled = rollout(maps, discard=discard)
    layout = maps[0].layout
    cells = cells_on(subject, layout)
    at = None if query is None and has_cls(subject) else _place(query, layout.grid)
    row = 0 if at is None else _token_at(at, layout)
    output = "into CLS" if at is None else f"into patch ({at[0]}, {at[1]})"
    dense = to_dense(rolled[:, row, layout.prefix :, None], layout)[0, 0].cpu()
    return draw_focus(
        dense,
        cells,
        subject.photo if at is None else replace(subject.photo, query=cells.box(*at)),
        title="Attention rollout",
        subtitle=f"{subject.words} · {len(maps)} layers, mean of heads, residual 0.5 · {output} · {style(smooth)}",
        label="share of the input token, %",
        shares=_shares(subject, rolled[0, row], layout),
        smooth=smooth,
    )


def view_distance(subject: Subject) -> Sheet:
    """Draw the mean attention distance and the entropy of every head."""

    def both(attention: AttentionMap) -> tuple[Tensor, Tensor, float, float]:
        step = cells_on(subject, attention.layout).step
        uniform = uniform_attention(attention)
        distance, entropy = attention_distance(attention, step).mean(dim=0), head_entropy(attention).mean(dim=0)
        return (
            distance.cpu(),
            entropy.cpu(),
            attention_distance(uniform, step)[0].item(),
            head_entropy(uniform)[0].item(),
        )

    with torch.no_grad(), capture(subject.model, keep=both) as kept:
        subject.model(subject.image)
    distances, entropies, uniform_distance, uniform_entropy = zip(*kept.values(), strict=True)
    return draw_distance(
        distances,
        entropies,
        uniform_distance=uniform_distance,
        uniform_entropy=uniform_entropy,
        title="Attention distance and entropy by head",
        subtitle=f"{subject.words} · distances between patches, without the prefix",
    )


def _columns(count: int) -> int:
    """Return the number of columns that makes a block of maps about as wide as a page."""
    return count if count <= 4 else -(-count // -(-count // 4))


def _place(at: tuple[int, int] | None, grid: Size) -> tuple[int, int]:
    """Return a checked patch of the grid; by default, the middle one."""
    if at is None:
        return grid.height // 2, grid.width // 2
    position_id(*at, grid)
    return at


def _token_at(at: tuple[int, int], layout: Layout) -> int:
    """Return the index of the token that covers a cell of the grid."""
    if layout.rectangles is None:
        return position_id(*at, layout.grid, prefix=layout.prefix)
    top, left, height, width = layout.rectangles[0].T
    inside = (top <= at[0]) & (at[0] < top + height) & (left <= at[1]) & (at[1] < left + width)
    return layout.prefix + int(inside.nonzero()[0])


def _own_row(attention: AttentionMap) -> AttentionMap:
    return attention


def _row_at(query: tuple[int, int] | None) -> Callable[[AttentionMap], AttentionMap]:
    """Keep the row of a patch of the first grid and, on coarser grids, of the patch at the same position.

    For a mobile model it is the mean over the pixels of a patch.
    """
    first: list[Size] = []

    def keep(attention: AttentionMap) -> AttentionMap:
        grid = attention.layout.grid
        first.append(grid)
        row, column = _place(query, first[0])
        at = (row * grid.height // first[0].height, column * grid.width // first[0].width)
        index = _token_at(at, attention.layout) - attention.layout.prefix
        weights = attention.weights[:, :, index : index + 1].clone()  # a view would keep the whole map in memory
        if attention.places is not None:
            weights = weights.unflatten(0, (-1, attention.places.area)).mean(dim=1)
        return replace(attention, weights=weights, queries=attention.queries[index : index + 1])

    return keep


def _shares(subject: Subject, row: Tensor, layout: Layout) -> list[tuple[str, float]]:
    names = prefix_names(subject)
    if not names:
        return []
    shares = row[: layout.prefix].tolist()
    return [*zip(names, shares, strict=True), ("patches", row[layout.prefix :].sum().item())]


def _padded(heads: Tensor, count: int) -> list[Tensor]:
    """Fill up a layer that has fewer heads than others with empty maps."""
    return [*heads, *[torch.full_like(heads[0], torch.nan)] * (count - len(heads))]
