"""Convert arrays to pictures with Pillow alone, since matplotlib is an optional dependency."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageColor, ImageDraw, ImageFont

from vitrail.charts.palette import HEAT, INK, PAPER

__all__ = ["data_uri", "encode_png", "filter_picture", "font", "heat", "mosaic", "tile"]


@cache
def font(size: int) -> Any:
    """Return Pillow's default font."""
    return ImageFont.load_default(size)


def heat(values: NDArray, low: float, high: float, stops: Sequence[str] = HEAT) -> NDArray[np.uint8]:
    """(h, w) → uint8 (h, w, 3): a heat map through evenly spaced colours, from the first at `low` to the last."""
    share = ((values.astype(np.float64) - low) / max(high - low, 1e-12)).clip(0, 1)
    channels = zip(*map(ImageColor.getrgb, stops), strict=True)
    channels = [np.interp(share, np.linspace(0, 1, len(stops)), each) for each in channels]
    return np.rint(np.stack(channels, axis=-1)).astype(np.uint8)


def filter_picture(values: NDArray) -> NDArray[np.uint8]:
    """(C, P, Q) → uint8 (P, Q, 3), with zero as grey; other than 1 or 3 channels are averaged."""
    values = values.astype(np.float64)
    if values.shape[0] != 3:
        values = values.mean(axis=0, keepdims=True).repeat(3, axis=0)
    share = 0.5 + 0.5 * values / max(np.abs(values).max(), 1e-30)
    return np.rint(share.transpose(1, 2, 0) * 255).astype(np.uint8)


def mosaic(tiles: NDArray, gap: int, *, fill: float) -> NDArray:
    """(rows, columns, height, width, …) → one picture of tiles, `gap` pixels apart."""
    rows, columns, height, width, *rest = tiles.shape
    spaced = np.full((rows, columns, height + gap, width + gap, *rest), fill, tiles.dtype)
    spaced[:, :, :height, :width] = tiles
    whole = spaced.swapaxes(1, 2).reshape(rows * (height + gap), columns * (width + gap), *rest)
    return whole[:-gap, :-gap]


def tile(
    rows: Sequence[Sequence[NDArray[np.uint8]]],
    *,
    row_labels: Sequence[str],
    column_labels: Sequence[str],
    cell: int = 180,
) -> Image.Image:
    """Arrange pictures in labelled rows, each scaled to a square cell without smoothing."""
    gap, margin, head = 12, 110, 34
    size = (margin + len(column_labels) * (cell + gap), head + len(rows) * (cell + gap))
    ground = Image.new("RGB", size, PAPER)
    pen = ImageDraw.Draw(ground)
    for across, label in enumerate(column_labels):
        pen.text((margin + across * (cell + gap), 9), label, fill=INK, font=font(14))
    for down, (label, row) in enumerate(zip(row_labels, rows, strict=True)):
        top = head + down * (cell + gap)
        pen.text((gap, top + cell // 2 - 9), label, fill=INK, font=font(14))
        for across, picture in enumerate(row):
            scale = cell / max(picture.shape[:2])
            size = (max(1, round(picture.shape[1] * scale)), max(1, round(picture.shape[0] * scale)))
            enlarged = Image.fromarray(picture).resize(size, Image.Resampling.NEAREST)
            ground.paste(enlarged, (margin + across * (cell + gap), top + (cell - size[1]) // 2))
    return ground


def encode_png(picture: Image.Image) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, format="PNG", optimize=True)
    return stream.getvalue()


def data_uri(picture: NDArray[np.uint8]) -> str:
    return "data:image/png;base64," + base64.b64encode(encode_png(Image.fromarray(picture))).decode()
