"""The figure of docs/patch-embeddings.md: six views of one photograph, every number computed by vitrail.

    python docs/figures/patch_embeddings.py            writes docs/figures/patch-embeddings.png

The photograph is scikit-image's `coffee` (Rachel Michetti, CC0).
"""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import skimage.data
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PatchCollection
from matplotlib.patches import Rectangle
from torch import Tensor, nn

from vitrail import parts
from vitrail.geometry import Size
from vitrail.nn.adaptive import AdaptiveEmbed, to_dense, tokens_saved
from vitrail.nn.patches import ConvStem, PatchEmbed
from vitrail.nn.pyramid import PyramidEmbed

IMAGE = Size(224, 320)
WIDTH = 768
INK, GREY, PAPER = "#1d2733", "#66727f", "#ffffff"
CYAN, LIME, VIOLET = "#19e3ff", "#d4ff3f", "#b79bff"
LABEL = {"facecolor": INK, "alpha": 0.78, "linewidth": 0, "boxstyle": "round,pad=0.3"}


def photograph() -> tuple[np.ndarray, Tensor]:
    """The photograph to look at, and (1, 3, 224, 320) of it to embed."""
    pixels = skimage.data.coffee()[:, 14:585]
    image = torch.from_numpy(pixels).permute(2, 0, 1)[None] / 255
    return pixels, F.interpolate(image, size=tuple(IMAGE), mode="bicubic", antialias=True).clamp(0, 1)


def show(axes: Axes, pixels: np.ndarray, title: str, numbers: str, *, dim: float = 0.0) -> None:
    axes.imshow(pixels, extent=(0, IMAGE.width, IMAGE.height, 0), interpolation="antialiased")
    if dim:
        axes.add_patch(Rectangle((0, 0), IMAGE.width, IMAGE.height, color="black", alpha=dim, linewidth=0))
    frame(axes, title, numbers)


def frame(axes: Axes, title: str, numbers: str) -> None:
    axes.set(xlim=(0, IMAGE.width), ylim=(IMAGE.height, 0), xticks=[], yticks=[], aspect="equal")
    axes.spines[:].set_visible(False)
    axes.text(0, -19, title, fontsize=13.5, fontweight="bold", color=INK, va="baseline")
    axes.text(0, -6, numbers, fontsize=10, color=GREY, va="baseline")


def grid_lines(axes: Axes, step: int, *, color: str = "white", alpha: float = 0.65, width: float = 0.7) -> None:
    rows = [[(0, y), (IMAGE.width, y)] for y in range(step, IMAGE.height, step)]
    columns = [[(x, 0), (x, IMAGE.height)] for x in range(step, IMAGE.width, step)]
    axes.add_collection(LineCollection(rows + columns, colors=color, linewidths=width, alpha=alpha))


def box(axes: Axes, top: int, left: int, size: int, color: str = CYAN, fill: float = 0.3, line: float = 2.0) -> None:
    axes.add_patch(Rectangle((left, top), size, size, facecolor=color, alpha=fill, linewidth=0))
    axes.add_patch(Rectangle((left, top), size, size, fill=False, edgecolor=color, linewidth=line, joinstyle="miter"))


def parameters(module: nn.Module) -> str:
    return f"{sum(p.numel() for p in module.parameters()):,} parameters"


def label(axes: Axes, left: float, top: float, text: str, *, size: float = 9.5) -> None:
    axes.text(left, top, text, fontsize=size, fontweight="bold", color="white", va="center", zorder=4, bbox=LABEL)


def times(size: Size) -> str:
    return f"{size.height}×{size.width}"


def regular(axes: Axes, pixels: np.ndarray, image: Tensor) -> None:
    embed = PatchEmbed(Size(16, 16), WIDTH)
    tokens, layout = embed(image)
    show(axes, pixels, "Regular", f"16×16 · {times(layout.grid)} = {tokens.shape[1]} tokens · {parameters(embed)}")
    grid_lines(axes, 16)
    box(axes, 144, 80, 16)
    label(axes, 104, 152, "one token: 16×16 pixels")


def overlapping(axes: Axes, pixels: np.ndarray, image: Tensor) -> None:
    embed = PatchEmbed(Size(16, 16), WIDTH, stride=Size(8, 8))
    tokens, layout = embed(image)
    numbers = f"16×16 every 8 · {times(layout.grid)} = {tokens.shape[1]:,} tokens · {parameters(embed)}"
    show(axes, pixels, "Overlapping", numbers)
    grid_lines(axes, 8, alpha=0.42, width=0.5)
    for top, left, color in ((144, 80, CYAN), (144, 88, LIME), (152, 80, VIOLET)):
        box(axes, top, left, 16, color)
    label(axes, 112, 156, "neighbours share half of their pixels")


def stem(axes: Axes, pixels: np.ndarray, image: Tensor) -> None:
    embed = ConvStem(parts.Stem(widths=(48, 96, 192, 384)), WIDTH).eval()
    tokens, layout = embed(image.requires_grad_())
    row, column = 9, 5
    (sight,) = torch.autograd.grad(tokens[0, row * layout.grid.width + column].square().sum(), image)
    rows, columns = sight[0].abs().sum(0).nonzero().unbind(1)
    top, left, side = int(rows.min()), int(columns.min()), int(rows.max() - rows.min()) + 1
    numbers = f"3×3 stride 2, ×4 · {times(layout.grid)} = {tokens.shape[1]} tokens · {parameters(embed)}"
    show(axes, pixels, "Convolutional stem", numbers)
    grid_lines(axes, 16, alpha=0.45, width=0.6)
    box(axes, top, left, side, LIME, fill=0.2)
    box(axes, 16 * row, 16 * column, 16)
    label(axes, 104, 152, f"one token sees {side}×{side} pixels")


def pyramid(axes: Axes, pixels: np.ndarray, image: Tensor) -> None:
    embed = PyramidEmbed(parts.Hierarchical(finest=Size(4, 4), widths=(96, 192, 384)), WIDTH)
    levels = [(tokens, layout.grid) for tokens, layout in embed.levels(image)]
    _, last = levels[-1]
    numbers = f"4 → 8 → 16 → 32 · the last {times(last)} = {last.area} tokens · {parameters(embed)}"
    frame(axes, "Hierarchical", numbers)
    scales = (0.62, 0.50, 0.40, 0.32)
    steps = (0.0, 0.27, 0.49, 0.68)
    for (tokens, grid), scale, step in zip(levels, scales, steps, strict=True):
        mosaic = F.adaptive_avg_pool2d(image.detach(), (grid.height, grid.width))[0].permute(1, 2, 0).numpy()
        width, height = scale * IMAGE.width, scale * IMAGE.height
        left, top = step * IMAGE.width, (1 - scale) * IMAGE.height * step / steps[-1]
        axes.add_patch(Rectangle((left - 2, top - 2), width + 4, height + 4, color=PAPER, linewidth=0, zorder=2))
        axes.imshow(mosaic, extent=(left, left + width, top + height, top), interpolation="nearest", zorder=2)
        label(axes, left + 5, top + height - 8, f"{times(grid)} × {tokens.shape[2]}", size=8)
    axes.set(xlim=(0, IMAGE.width), ylim=(IMAGE.height, 0))


def adaptive(axes: Axes, dense: Axes, pixels: np.ndarray, image: Tensor) -> None:
    spec = parts.Adaptive()
    embed = AdaptiveEmbed(spec, WIDTH)
    tokens, layout = embed(image)
    assert layout.rectangles is not None
    saved = tokens_saved(layout)
    numbers = (
        f"8, 16 or 32 · {tokens.shape[1]} of {saved.finest:,} tokens, {saved.share:.0%} saved · {parameters(embed)}"
    )
    show(axes, pixels, "Adaptive", numbers)
    boxes = [
        Rectangle(
            (left * spec.patch.width, top * spec.patch.height), columns * spec.patch.width, rows * spec.patch.height
        )
        for top, left, rows, columns in layout.rectangles[0].tolist()
    ]
    axes.add_collection(PatchCollection(boxes, facecolor="none", edgecolor="white", linewidth=0.7, alpha=0.85))

    # the mean colour of every patch as a three-number token: what one projection per size can do at its simplest
    colours = AdaptiveEmbed(spec, 3)
    for projection in colours.projections:
        assert isinstance(projection, PatchEmbed)
        projection.weight.data = torch.eye(3)[:, :, None, None].expand_as(projection.weight) / projection.patch.area
    map_ = to_dense(*colours(image))[0].permute(1, 2, 0).detach().numpy()
    frame(dense, "… and back", f"its tokens, here mean colours, as a dense {times(layout.grid)} map")
    dense.imshow(map_.clip(0, 1), extent=(0, IMAGE.width, IMAGE.height, 0), interpolation="nearest")
    dense.set(xlim=(0, IMAGE.width), ylim=(IMAGE.height, 0))


def main() -> None:
    torch.manual_seed(0)
    pixels, image = photograph()
    figure, axes = plt.subplots(2, 3, figsize=(16.5, 8.6), facecolor=PAPER)
    figure.subplots_adjust(left=0.015, right=0.985, bottom=0.02, top=0.915, wspace=0.05, hspace=0.22)
    regular(axes[0, 0], pixels, image)
    overlapping(axes[0, 1], pixels, image)
    stem(axes[0, 2], pixels, image.clone())
    pyramid(axes[1, 0], pixels, image)
    adaptive(axes[1, 1], axes[1, 2], pixels, image)
    figure.savefig(Path(__file__).with_name("patch-embeddings.png"), dpi=110, pil_kwargs={"optimize": True})


if __name__ == "__main__":
    main()
