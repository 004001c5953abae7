"""Model + image → picture: one function for each thing there is to see.

Shapes: h heads, T tokens of which p are the prefix, r×c grid.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from vitrail.config import ViTConfig
from vitrail.errors import require
from vitrail.geometry import Size, position_id
from vitrail.look.capture import AttentionMap, capture
from vitrail.look.cells import Cells, cells_of
from vitrail.look.draw import (
    Sheet,
    draw_distance,
    draw_filters,
    draw_focus,
    draw_heads,
    draw_patches,
    draw_positions,
    draw_quadtree,
    draw_tokens,
)
from vitrail.look.filters import projection_filters
from vitrail.look.heads import attention_distance, head_entropy
from vitrail.look.pca import pca_colours
from vitrail.look.positions import position_similarity
from vitrail.look.rollout import fuse_heads, rollout
from vitrail.look.subject import Subject
from vitrail.look.tokens import norm_outliers, token_norms, tokens_after
from vitrail.nn.adaptive import AdaptiveEmbed, to_dense, tokens_saved
from vitrail.nn.layout import Layout
from vitrail.parts import Adaptive

__all__ = [
    "view_adaptive",
    "view_attention",
    "view_distance",
    "view_filters",
    "view_patches",
    "view_pca",
    "view_positions",
    "view_rollout",
]


def view_attention(
    subject: Subject,
    *,
    layer: int | None = None,
    head: int | None = None,
    query: tuple[int, int] | None = None,
    smooth: bool = False,
) -> Sheet:
    """One head in detail, the heads of a layer, a head through the layers, or all of both.

    CLS asks, or the patch at `query` (row, column) of the first grid drawn; where there is no CLS, the middle one.
    """
    cls = query is None and _has_cls(subject)
    chosen = None if layer is None else [layer]
    keep = _own_row if cls else _row_at(query)
    with torch.no_grad(), capture(subject.model, chosen, "cls" if cls else "patches", keep=keep) as kept:
        subject.model(subject.image)
    rows = dict(kept)
    if head is not None:
        for found in rows.values():
            heads = found.weights.shape[1]
            require(0 <= head < heads, f"head {head} is not among layer {found.layer}'s {heads}; use 0 to {heads - 1}")
    last = rows[max(rows)]
    cells = {index: _cells(subject, found.layout) for index, found in rows.items()}
    first = rows[min(rows)].layout.grid
    at = None if cls else _place(query, first)
    who = "CLS asks" if at is None else f"patch ({at[0]}, {at[1]}) of {_times(first)} asks"
    if last.places is not None:
        who += f", mean over the {last.places.area} places of a patch"
    photo = subject.photo if at is None else replace(subject.photo, query=cells[min(rows)].box(*at))
    subtitle = f"{subject.words} · {who} · {_drawn(smooth)}"
    grids = {index: found.on_grid()[0, :, 0].cpu() for index, found in rows.items()}  # (h, r, c)
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
        [f"head {index}" if most <= 12 else str(index) for index in range(most)],
        columns=most,
        rows=[f"layer {index}" for index in rows],
        title="Attention by layer and head",
        subtitle=subtitle,
        smooth=smooth,
    )


def view_rollout(
    subject: Subject, *, query: tuple[int, int] | None = None, discard: float = 0.0, smooth: bool = False
) -> Sheet:
    """Attention through all layers, to the CLS token or to a patch."""
    with torch.no_grad(), capture(subject.model, keep=fuse_heads) as maps:
        subject.model(subject.image)
        rolled = rollout(maps, discard=discard)
    layout = maps[0].layout
    cells = _cells(subject, layout)
    at = None if query is None and _has_cls(subject) else _place(query, layout.grid)
    row = 0 if at is None else _token_at(at, layout)
    who = "into CLS" if at is None else f"into patch ({at[0]}, {at[1]})"
    dense = to_dense(rolled[:, row, layout.prefix :, None], layout)[0, 0].cpu()
    return draw_focus(
        dense,
        cells,
        subject.photo if at is None else replace(subject.photo, query=cells.box(*at)),
        title="Attention rollout",
        subtitle=f"{subject.words} · {len(maps)} layers, heads' mean, residual 0.5 · {who} · {_drawn(smooth)}",
        label="share of the input token, %",
        shares=_shares(subject, rolled[0, row], layout),
        smooth=smooth,
    )


def view_distance(subject: Subject) -> Sheet:
    """Mean attention distance and entropy of every head."""

    def both(found: AttentionMap) -> tuple[Tensor, Tensor, float, float]:
        step = _cells(subject, found.layout).step
        reach = (found.weights > 0).to(found.weights)  # what it may meet, evenly
        uniform = replace(found, weights=(reach / reach.sum(dim=-1, keepdim=True).clamp_min(1))[:, :1])
        distance, entropy = attention_distance(found, step).mean(dim=0), head_entropy(found).mean(dim=0)
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
        title="What kind of heads",
        subtitle=f"{subject.words} · distances between patches, the prefix left out",
    )


def view_pca(subject: Subject, *, layer: int | None = None, foreground: bool = False, smooth: bool = False) -> Sheet:
    """The tokens after a layer (the last unless chosen) as colours, and their lengths."""
    tokens, layout = tokens_after(subject.model, subject.image, layer)
    colours, norms = pca_colours(tokens, layout, foreground=foreground), token_norms(tokens, layout)
    outliers = int(norm_outliers(norms, layout).sum())
    shares = ", ".join(f"{100 * share:.0f}" for share in colours.shares)
    after = "the last layer" if layer is None else f"layer {layer}"
    facts = f"{shares} % of the variance · {outliers or 'no'} outlier{'s' * (outliers != 1)} in length"
    return draw_tokens(
        to_dense(colours.rgb, layout)[0].permute(1, 2, 0).cpu(),
        to_dense(norms.unsqueeze(-1), layout)[0, 0].cpu(),
        _cells(subject, layout),
        subject.photo,
        title=f"Tokens after {after}",
        subtitle=f"{subject.words} · {facts} · {_drawn(smooth)}",
        smooth=smooth,
    )


def view_positions(subject: Subject, *, layer: int | None = None, head: int | None = None) -> Sheet:
    """Position similarity on the image's own grid, as a grid of grids."""
    config = subject.model.config
    grid = config.fit(Size(*subject.image.shape[2:])).grid if isinstance(config, ViTConfig) else None
    found = position_similarity(subject.model, grid=grid, layer=layer or 0, head=head)
    return draw_positions(
        found,
        title=f"Positions: {found.kind}, {_times(found.grid)}",
        subtitle=f"{subject.words} · every tile is a patch, at its place: its likeness to all patches",
    )


def view_filters(subject: Subject) -> Sheet:
    """The projection's filters and the principal ones: the visual vocabulary."""
    found = projection_filters(subject.model)
    count, channels, height, width = found.filters.shape
    facts = f"{count} filters of {height}×{width}×{channels} · effective rank {found.effective_rank:.1f}"
    return draw_filters(
        found,
        title=f"The visual vocabulary: {found.stage}",
        subtitle=f"{subject.words} · {facts} · each scaled to its largest value, zero is grey",
    )


def view_patches(subject: Subject) -> Sheet:
    """The grid on the image, the patches, and the sequence."""
    config = subject.model.config
    if not isinstance(config, ViTConfig):
        patch = getattr(config, "patches", (None,))[0]
        require(patch is not None, "a mobile model has no patches at its entrance; use a ViT or a pyramid")
        assert isinstance(patch, Size)
        grid, prefix = Size(subject.photo.seen.height // patch.height, subject.photo.seen.width // patch.width), []
    elif isinstance(config.embedding, Adaptive):
        return view_adaptive(subject)
    else:
        patch, grid = config.patch, config.fit(Size(*subject.image.shape[2:])).grid
        prefix = _prefix_names(subject)
    cells = cells_of(config, grid, subject.photo.seen)
    stride = "" if cells.step == tuple(patch) else f" every {cells.step[0]:g}×{cells.step[1]:g}"
    count = f"{_times(grid)} = {grid.area:,} patches of {_times(patch)} pixels{stride}"
    total = f" + {len(prefix)} = {grid.area + len(prefix):,} tokens" if prefix else ""
    return draw_patches(
        subject.photo,
        cells,
        patch,
        prefix,
        title="From image to sequence",
        subtitle=f"{subject.words} · {count}{total}",
    )


def view_adaptive(subject: Subject, *, threshold: float | None = None) -> Sheet:
    """The quadtree of adaptive patches: the model's own, or what detail alone would choose on this image."""
    config = subject.model.config
    own = config.embedding if isinstance(config, ViTConfig) and isinstance(config.embedding, Adaptive) else None
    spec = own or Adaptive()
    if threshold is not None:
        spec = replace(spec, threshold=threshold)
    whole = spec.fit(subject.photo.seen, "crop")
    pixels = torch.from_numpy(subject.photo.pixels).permute(2, 0, 1)[None].float() / 255
    pixels = torch.nn.functional.interpolate(pixels, size=tuple(subject.photo.seen), mode="bilinear", antialias=True)
    pixels = pixels[:, :, : whole.fitted.height, : whole.fitted.width]
    if own is not None and own.selector == "learned":
        require(threshold is None, "the learned selector's threshold is the model's; leave threshold out")
        with torch.no_grad():
            layout = subject.model.embedding(subject.image)[1]  # type: ignore[operator]
    else:
        layout = AdaptiveEmbed(replace(spec, selector="detail"), 1)(pixels)[1]
    assert layout.rectangles is not None
    sizes = layout.rectangles[0, :, 2]
    counts = [f"{int((sizes == 2**i).sum())} of {_times(patch)}" for i, patch in enumerate(spec.patches)]
    saved = tokens_saved(layout)
    chosen = "the model's own" if own else "the model itself has a regular grid"
    photo = replace(
        subject.photo,
        pixels=_cropped(subject, whole.fitted),
        seen=whole.fitted,
    )
    return draw_quadtree(
        photo,
        layout.rectangles[0],
        _mean_colours(spec, pixels, layout),
        Cells(grid=layout.grid, step=(spec.patch.height, spec.patch.width)),
        title=f"Adaptive patches: {saved.kept[0]:,} of {saved.finest:,} tokens, {saved.share:.0%} saved",
        subtitle=f"{subject.words} · {', '.join(counts)} · threshold {spec.threshold:g} · {chosen}",
    )


# ── what views share ────────────────────────────────────────────────────────────────────────────────────────────


def _has_cls(subject: Subject) -> bool:
    config = subject.model.config
    return isinstance(config, ViTConfig) and config.prefix.cls


def _prefix_names(subject: Subject) -> list[str]:
    config = subject.model.config
    if not isinstance(config, ViTConfig):
        return []
    names = ["CLS"] * config.prefix.cls + ["dist"] * config.prefix.distillation
    return names + [f"reg {index}" for index in range(config.prefix.registers)]


def _cells(subject: Subject, layout: Layout) -> Cells:
    return cells_of(subject.model.config, layout.grid, subject.photo.seen)


def _drawn(smooth: bool) -> str:
    return "drawn smooth (bicubic)" if smooth else "one square a token"


def _times(size: Size) -> str:
    return f"{size.height}×{size.width}"


def _columns(count: int) -> int:
    """Columns for a block of maps that is about as wide as a page."""
    return count if count <= 4 else -(-count // -(-count // 4))


def _place(at: tuple[int, int] | None, grid: Size) -> tuple[int, int]:
    """A patch of the grid; of none, the one in the middle."""
    if at is None:
        return grid.height // 2, grid.width // 2
    position_id(*at, grid)
    return at


def _token_at(at: tuple[int, int], layout: Layout) -> int:
    """The token that holds a cell of the grid."""
    if layout.rectangles is None:
        return position_id(*at, layout.grid, prefix=layout.prefix)
    top, left, height, width = layout.rectangles[0].T
    inside = (top <= at[0]) & (at[0] < top + height) & (left <= at[1]) & (at[1] < left + width)
    return layout.prefix + int(inside.nonzero()[0])


def _own_row(found: AttentionMap) -> AttentionMap:
    return found


def _row_at(query: tuple[int, int] | None) -> Callable[[AttentionMap], AttentionMap]:
    """Keep the row of a patch of the first grid, and on coarser ones of the patch over the same place.

    Of a mobile model it is the mean of the places that attend apart.
    """
    first: list[Size] = []

    def keep(found: AttentionMap) -> AttentionMap:
        grid = found.layout.grid
        first.append(grid)
        row, column = _place(query, first[0])
        here = (row * grid.height // first[0].height, column * grid.width // first[0].width)
        index = _token_at(here, found.layout) - found.layout.prefix
        weights = found.weights[:, :, index : index + 1].clone()  # a view would hold the whole map
        if found.places is not None:
            weights = weights.unflatten(0, (-1, found.places.area)).mean(dim=1)
        return replace(found, weights=weights, queries=found.queries[index : index + 1])

    return keep


def _shares(subject: Subject, row: Tensor, layout: Layout) -> list[tuple[str, float]]:
    names = _prefix_names(subject)
    if not names:
        return []
    shares = row[: layout.prefix].tolist()
    return [*zip(names, shares, strict=True), ("patches", row[layout.prefix :].sum().item())]


def _padded(heads: Tensor, count: int) -> list[Tensor]:
    """Where layers differ in heads, the missing ones are left empty."""
    return [*heads, *[torch.full_like(heads[0], torch.nan)] * (count - len(heads))]


def _cropped(subject: Subject, fitted: Size):
    pixels, seen = subject.photo.pixels, subject.photo.seen
    rows = round(pixels.shape[0] * fitted.height / seen.height)
    return pixels[:rows, : round(pixels.shape[1] * fitted.width / seen.width)]


def _mean_colours(spec: Adaptive, pixels: Tensor, layout: Layout) -> Tensor:
    """(r, c, 3): the mean colour of every leaf, in all of its cells."""
    height, width = spec.patch
    cells = torch.nn.functional.avg_pool2d(pixels, (height, width))[0].permute(1, 2, 0)  # (r, c, 3)
    assert layout.rectangles is not None
    for top, left, rows, columns in layout.rectangles[0].tolist():
        part = cells[top : top + rows, left : left + columns]
        part[:] = part.mean(dim=(0, 1))
    return cells.clamp(0, 1)
