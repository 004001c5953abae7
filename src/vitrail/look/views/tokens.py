"""Patches, adaptive patches, and tokens as colours.

Shapes: r×c grid.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from vitrail.charts.sheet import Sheet
from vitrail.config import MobileConfig, ViTConfig
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size
from vitrail.look.cells import Cells, cells_of
from vitrail.look.draw import draw_patches, draw_quadtree, draw_tokens
from vitrail.look.pca import pca_colours
from vitrail.look.subject import Subject
from vitrail.look.tokens import norm_outliers, token_norms, tokens_after
from vitrail.look.views.words import cells_on, prefix_names, style, times
from vitrail.nn.adaptive import AdaptiveEmbed, to_dense, tokens_saved
from vitrail.nn.layout import Layout
from vitrail.parts import Adaptive

__all__ = ["view_adaptive", "view_patches", "view_pca"]


def view_patches(subject: Subject) -> Sheet:
    """Draw the grid on the image, the patches, and the sequence."""
    config = subject.model.config
    if isinstance(config, MobileConfig):
        raise VitrailError("a mobile model has no patches of pixels; use a ViT or a pyramid")
    if isinstance(config.embedding, Adaptive):
        return view_adaptive(subject)
    patch, grid = config.patch, config.fit(Size(*subject.image.shape[2:])).grid
    prefix = prefix_names(subject)
    cells = cells_of(config, grid, subject.photo.seen)
    stride = "" if cells.step == tuple(patch) else f" every {cells.step[0]:g}×{cells.step[1]:g}"
    count = f"{times(grid)} = {grid.area:,} patches of {times(patch)} pixels{stride}"
    total = f" + {len(prefix)} = {grid.area + len(prefix):,} tokens" if prefix else ""
    return draw_patches(
        subject.photo,
        subject.pixels,
        cells,
        patch,
        prefix,
        title="From image to sequence",
        subtitle=f"{subject.words} · {count}{total}",
    )


def view_adaptive(subject: Subject, *, threshold: float | None = None) -> Sheet:
    """Draw the quadtree of adaptive patches: the model's own, or that of the selector "detail" on this image."""
    config = subject.model.config
    own = config.embedding if isinstance(config, ViTConfig) and isinstance(config.embedding, Adaptive) else None
    spec = own or Adaptive()
    if threshold is not None:
        spec = replace(spec, threshold=threshold)
    whole = spec.fit(subject.photo.seen, "crop")
    pixels = torch.from_numpy(subject.pixels).permute(2, 0, 1)[None].float() / 255
    pixels = pixels[:, :, : whole.fitted.height, : whole.fitted.width]
    if own is not None and not own.looks_at_pixels:
        require(
            threshold is None, f"threshold {threshold} cannot change a {own.selector} selector; leave threshold out"
        )
        with torch.no_grad():
            layout = subject.model.embedding(subject.image)[1]  # type: ignore[operator]
    else:
        layout = AdaptiveEmbed(spec, 1)(pixels)[1]
    assert layout.rectangles is not None
    sizes = layout.rectangles[0, :, 2]
    counts = [f"{int((sizes == 2**i).sum())} of {times(patch)}" for i, patch in enumerate(spec.patches)]
    saved = tokens_saved(layout)
    chosen = "the model's own" if own else "for comparison: the model has a regular grid"
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


def view_pca(subject: Subject, *, layer: int | None = None, foreground: bool = False, smooth: bool = False) -> Sheet:
    """Draw the tokens after a layer (default: the last) as colours, and their norms."""
    tokens, layout = tokens_after(subject.model, subject.image, layer)
    colours, norms = pca_colours(tokens, layout, foreground=foreground), token_norms(tokens, layout)
    outliers = int(norm_outliers(norms, layout).sum())
    shares = ", ".join(f"{100 * share:.0f}" for share in colours.shares)
    after = "the last layer" if layer is None else f"layer {layer}"
    facts = f"{shares} % of the variance · {outliers or 'no'} outlier{'s' * (outliers != 1)} in norm"
    return draw_tokens(
        to_dense(colours.rgb, layout)[0].permute(1, 2, 0).cpu(),
        to_dense(norms.unsqueeze(-1), layout)[0, 0].cpu(),
        cells_on(subject, layout),
        subject.photo,
        title=f"Tokens after {after}",
        subtitle=f"{subject.words} · {facts} · {style(smooth)}",
        smooth=smooth,
    )


def _cropped(subject: Subject, fitted: Size):
    pixels, seen = subject.photo.pixels, subject.photo.seen
    rows = round(pixels.shape[0] * fitted.height / seen.height)
    return pixels[:rows, : round(pixels.shape[1] * fitted.width / seen.width)]


def _mean_colours(spec: Adaptive, pixels: Tensor, layout: Layout) -> Tensor:
    """Return (r, c, 3): the mean colour of every leaf, in all of its cells."""
    height, width = spec.patch
    cells = torch.nn.functional.avg_pool2d(pixels, (height, width))[0].permute(1, 2, 0)  # (r, c, 3)
    assert layout.rectangles is not None
    for top, left, rows, columns in layout.rectangles[0].tolist():
        part = cells[top : top + rows, left : left + columns]
        part[:] = part.mean(dim=(0, 1))
    return cells.clamp(0, 1)
