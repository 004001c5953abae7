"""Measure what matters for patches in a set of images: sizes, aspect ratios, and detail at each patch size.

Two shares, each between 0 and 1, say how much of an image is finer than a patch:

    within         the share of the pixels' variance inside patches, around each patch's mean
    above Nyquist  the share of the spectrum's power that a grid of one value per patch cannot represent

This detail is not lost, since a token is more than a mean: tokens must represent it, because the grid cannot.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitrail.errors import require
from vitrail.geometry import Size
from vitrail.images.decode import MAX_PIXELS, ImageError, Pixels, decode
from vitrail.images.survey import Detail, Survey
from vitrail.parts import Adaptive

__all__ = [
    "ADAPTIVE",
    "PATCHES",
    "SIDES",
    "above_nyquist_share",
    "adaptive_token_count",
    "fill",
    "lost_by_resizing",
    "survey",
    "within_patch_share",
]

PATCHES = tuple(Size(side, side) for side in (4, 8, 14, 16, 32))
SIDES = (224, 384, 512, 768, 1024)
"""Sides of the square model inputs to consider."""

ADAPTIVE = Adaptive(patches=(Size(8, 8), Size(16, 16), Size(32, 32)), threshold=0.5)
"""Splits cells with at least half the standard deviation of the whole image."""

Gray = NDArray[np.float64]
"""(height, width), 0 … 255"""


# ── one image ───────────────────────────────────────────────────────────────────────────────────────────────────


def fill(pixels: Pixels, target: Size) -> Pixels:
    """Resize the largest centred part that has the target's aspect ratio; cropping first keeps long images cheap."""
    height, width = pixels.shape[:2]
    scale = min(height / target.height, width / target.width)
    crop_height, crop_width = target.height * scale, target.width * scale
    top, left = (height - crop_height) / 2, (width - crop_width) / 2
    picture = Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[..., 0])
    box = (left, top, left + crop_width, top + crop_height)
    resized = np.asarray(picture.resize((target.width, target.height), Image.Resampling.BICUBIC, box=box))
    return resized.reshape(*target, pixels.shape[2])


def luma(pixels: Pixels) -> Gray:
    weights = (0.299, 0.587, 0.114) if pixels.shape[2] == 3 else (1.0,)
    return pixels.astype(np.float64) @ np.array(weights)


def within_patch_share(gray: Gray, patch: Size) -> float:
    """Return the share of the pixels' variance inside patches, over all whole patches; 0 for a uniform image."""
    rows, columns = gray.shape[0] // patch.height, gray.shape[1] // patch.width
    require(
        rows > 0 and columns > 0,
        f"image {gray.shape[0]}x{gray.shape[1]} is smaller than patch {patch}; use a smaller one",
    )
    cells = gray[: rows * patch.height, : columns * patch.width].reshape(rows, patch.height, columns, patch.width)
    total = cells.var()
    return float(cells.var(axis=(1, 3)).mean() / total) if total > 0 else 0.0


def above_nyquist_share(gray: Gray, patch: Size) -> float:
    """Return the share of the spectrum's power, without the mean, above half a cycle per patch in any direction."""
    window = np.outer(np.hanning(gray.shape[0] + 2)[1:-1], np.hanning(gray.shape[1] + 2)[1:-1])
    mean = (gray * window).sum() / window.sum()
    power = np.abs(np.fft.fft2((gray - mean) * window)) ** 2
    rows, columns = (np.abs(np.fft.fftfreq(side)) for side in gray.shape)
    below = np.outer(rows <= 0.5 / patch.height, columns <= 0.5 / patch.width)
    total = power.sum()
    return float(power[~below].sum() / total) if total > 1e-9 * gray.size else 0.0


def lost_by_resizing(pixels: Pixels, target: Size) -> float:
    """Return the share of the variance that `fill` loses by shrinking; 0 if it does not shrink the image."""
    height, width = pixels.shape[:2]
    scale = min(height / target.height, width / target.width)
    before = luma(fill(pixels, Size(round(target.height * scale), round(target.width * scale)))).var()
    if scale <= 1 or before == 0:
        return 0.0
    return float(np.clip(1 - luma(fill(pixels, target)).var() / before, 0, 1))


def adaptive_token_count(pixels: Pixels, spec: Adaptive) -> int:
    """Return the tokens of adaptive patches with the selector "detail" or "local", for an image of whole cells.

    The tree is that of `vitrail.nn.adaptive`: a cell splits if the standard deviation of its pixels, over all channels
    and relative to that of the whole image or to the root mean square over the coarsest cells, reaches the threshold.
    """
    require(
        spec.looks_at_pixels,
        f"selector {spec.selector!r} is not computed from pixels alone; use 'detail' or 'local'",
    )
    coarse = spec.patches[-1]
    require(
        pixels.shape[0] % coarse.height == 0 and pixels.shape[1] % coarse.width == 0,
        f"image {pixels.shape[0]}x{pixels.shape[1]} is not divisible by {coarse}; fill a size that is divisible",
    )
    values = pixels.astype(np.float64)
    whole = _cell_variances(values, coarse).mean() if spec.selector == "local" else values.var(axis=(0, 1)).sum()
    active = np.ones((pixels.shape[0] // coarse.height, pixels.shape[1] // coarse.width), bool)
    count = 0
    for patch in reversed(spec.patches[1:]):
        score = np.sqrt(_cell_variances(values, patch) / max(whole, np.finfo(np.float64).tiny))
        split = active & (score >= spec.threshold)
        count += int((active & ~split).sum())
        active = split.repeat(2, axis=0).repeat(2, axis=1)
    return count + int(active.sum())


def _cell_variances(values: NDArray[np.float64], patch: Size) -> NDArray[np.float64]:
    rows, columns = values.shape[0] // patch.height, values.shape[1] // patch.width
    return values.reshape(rows, patch.height, columns, patch.width, -1).var(axis=(1, 3)).sum(-1)


# ── a set of images ─────────────────────────────────────────────────────────────────────────────────────────────


def survey(
    paths: Iterable[Path | bytes], *, image: Size, adaptive: Adaptive = ADAPTIVE, max_pixels: int = MAX_PIXELS
) -> Survey:
    """Decode and measure every image; files that cannot be decoded are skipped and listed."""
    patches = [patch for patch in PATCHES if patch.height <= image.height and patch.width <= image.width]
    divides = all(side % cell == 0 for side, cell in zip(image, adaptive.patches[-1], strict=True))
    sizes: list[Size] = []
    failed: list[tuple[str, str]] = []
    within, above, lost, tokens = [], [], [], []
    for path in paths:
        try:
            pixels = decode(path, max_pixels=max_pixels)
        except ImageError as error:
            failed.append((str(path), str(error).removeprefix(f"{path}: ")))
            continue
        sizes.append(Size(*pixels.shape[:2]))
        seen = fill(pixels, image)
        gray = luma(seen)
        within.append([within_patch_share(gray, patch) for patch in patches])
        above.append([above_nyquist_share(gray, patch) for patch in patches])
        lost.append([lost_by_resizing(pixels, Size(side, side)) for side in SIDES])
        if divides:
            tokens.append(adaptive_token_count(seen, adaptive))
    require(len(sizes) > 0, f"none of {len(failed)} images could be read ({failed[0][1] if failed else 'none given'})")
    by_area = sorted(sizes, key=lambda size: (size.area, size))
    aspects = np.quantile([size.width / size.height for size in sizes], (0.1, 0.5, 0.9))
    return Survey(
        images=len(sizes),
        failed=tuple(failed),
        smallest=by_area[0],
        median=by_area[len(by_area) // 2],
        largest=by_area[-1],
        aspect_low=float(aspects[0]),
        aspect_median=float(aspects[1]),
        aspect_high=float(aspects[2]),
        image=image,
        details=tuple(
            Detail(patch=patch, within_share=float(inside), above_nyquist_share=float(beyond))
            for patch, inside, beyond in zip(patches, np.median(within, 0), np.median(above, 0), strict=True)
        ),
        lost_by_resizing=dict(zip(SIDES, map(float, np.median(lost, 0)), strict=True)),
        adaptive_tokens=round(float(np.mean(tokens))) if tokens else None,
    )
