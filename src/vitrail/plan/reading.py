"""How vision-language models read an image: what their vision tower receives of it, and the language model.

Each way is a value with the settings that the published processors have. Tests compare the counts with transformers'
processors on a thousand sizes.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from vitrail.errors import require
from vitrail.geometry import Size, fit
from vitrail.rules import PositiveInt
from vitrail.value import Value

__all__ = ["AnyResolution", "ImageReader", "NativeResolution", "PatchBudget", "Reading", "Tiles", "TwoSizes", "View"]


@dataclass(frozen=True, kw_only=True)
class View:
    """The whole image at one size: cut into crops for the tower, these into patches, which become tokens."""

    name: str
    size: Size
    """The pixels that are cut, padding included."""
    content: Size
    """The pixels that the image fills, in the middle; the rest is padding."""
    crop: Size
    """The pixels of each image that the tower receives."""
    patch: int
    merge: int = 1
    """Patches of this many rows and columns become one token."""
    dropped_rows: int = 0
    """Rows of tokens that are dropped at the top, and as many at the bottom, because they are padding."""
    dropped_columns: int = 0
    """Columns of tokens that are dropped at each side."""
    row_ends: bool = False
    """Whether a token of its own ends every row."""
    joins: bool = False
    """Whether its patches become a part of another view's tokens, and no tokens of their own."""

    @property
    def crops(self) -> Size:
        """Rows and columns of crops."""
        return fit(self.size, self.crop).grid

    @property
    def grid(self) -> Size:
        """Rows and columns of patches."""
        return fit(self.size, Size.of(self.patch)).grid

    @property
    def kept(self) -> tuple[int, int]:
        """Rows and columns of tokens that are left, in the middle; a very long image may leave none."""
        if self.joins:
            return 0, 0
        rows, columns = fit(self.size, Size.of(self.patch * self.merge)).grid
        return rows - 2 * self.dropped_rows, columns - 2 * self.dropped_columns

    @property
    def tokens(self) -> int:
        rows, columns = self.kept
        return rows * (columns + self.row_ends)


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What becomes of one image."""

    image: Size
    views: tuple[View, ...]
    steps: tuple[str, ...]
    """What was done, in order."""
    framing: int = 0
    """Tokens around the image, for its beginning and its end."""

    @property
    def crops(self) -> int:
        """Images that the tower receives."""
        return sum(view.crops.area for view in self.views)

    @property
    def crop(self) -> Size:
        """The size of each."""
        return self.views[0].crop

    @property
    def patches(self) -> int:
        """Patches in all crops."""
        return sum(view.grid.area for view in self.views)

    @property
    def tokens(self) -> int:
        """Tokens that the language model receives."""
        return sum(view.tokens for view in self.views) + self.framing

    def to_json(self) -> dict[str, Any]:
        return {
            "image": asdict(self.image),
            "crops": self.crops,
            "crop": asdict(self.crop),
            "patches": self.patches,
            "tokens": self.tokens,
            "steps": self.steps,
        }


@dataclass(frozen=True, kw_only=True)
class NativeResolution(Value):
    """The image's own size, rounded to whole merged patches, with limits on its pixels (Qwen2-VL, arXiv 2409.12191).

    >>> NativeResolution().read(Size(4000, 3000)).tokens
    15301
    """

    patch: PositiveInt = 14
    merge: PositiveInt = 2
    """Patches of this many rows and columns become one token of the language model."""
    min_pixels: PositiveInt = 56 * 56
    max_pixels: PositiveInt = 12_845_056

    def read(self, image: Size) -> Reading:
        longest, shortest = max(image), min(image)
        require(
            longest <= 200 * shortest,
            f"image {image} is more than 200 times as long as wide, which its processor refuses; crop it",
        )
        unit = self.patch * self.merge
        sides = [round(side / unit) * unit for side in image]
        if math.prod(sides) > self.max_pixels:
            shrink = math.sqrt(image.area / self.max_pixels)
            sides = [max(unit, math.floor(side / shrink / unit) * unit) for side in image]
        elif math.prod(sides) < self.min_pixels:
            grow = math.sqrt(self.min_pixels / image.area)
            sides = [math.ceil(side * grow / unit) * unit for side in image]
        resized = Size(*sides)
        steps = (
            f"resized to {resized}, multiples of {unit}",
            f"{self.merge}x{self.merge} patches merged into a token",
        )
        view = View(name="the image", size=resized, content=resized, crop=resized, patch=self.patch, merge=self.merge)
        return Reading(image=image, views=(view,), steps=steps)


@dataclass(frozen=True, kw_only=True)
class Tiles(Value):
    """Square tiles in the arrangement nearest to the image's shape, and a thumbnail (InternVL, arXiv 2404.16821).

    >>> Tiles().read(Size(800, 1200)).crops
    7
    """

    tile: PositiveInt = 448
    most: PositiveInt = 12
    patch: PositiveInt = 14
    merge: PositiveInt = 2
    framing: PositiveInt = 2
    """Tokens around the image: its beginning and its end."""

    def read(self, image: Size) -> Reading:
        ratio, best, nearest = image.width / image.height, Size(1, 1), math.inf
        for columns, rows in self._arrangements():
            distance = abs(ratio - columns / rows)
            # of equals, the one with more tiles, unless they would cover more than twice the image
            enough = image.area > 0.5 * self.tile * self.tile * columns * rows
            if distance < nearest or (distance == nearest and enough):
                best, nearest = Size(rows, columns), distance
        tile, cut = Size.of(self.tile), {"crop": Size.of(self.tile), "patch": self.patch, "merge": self.merge}
        whole = Size(best.height * self.tile, best.width * self.tile)
        views = (View(name="tiles" if best.area > 1 else "the image", size=whole, content=whole, **cut),)
        if best.area > 1:
            views += (View(name="a thumbnail", size=tile, content=tile, **cut),)
        each = fit(tile, Size.of(self.patch * self.merge)).grid.area
        steps = (
            f"cut into {best} tiles of {self.tile}" + (", and a thumbnail" if best.area > 1 else ""),
            f"{self.merge}x{self.merge} patches shuffled into a token: {each} for each crop",
            f"{self.framing} tokens for the beginning and the end of the image",
        )
        return Reading(image=image, views=views, steps=steps, framing=self.framing)

    def _arrangements(self) -> list[tuple[int, int]]:
        sides = range(1, self.most + 1)
        found = [(columns, rows) for columns in sides for rows in sides if columns * rows <= self.most]
        return sorted(found, key=lambda each: each[0] * each[1])


@dataclass(frozen=True, kw_only=True)
class AnyResolution(Value):
    """The whole image at the tower's own size, and tiles of the resolution that fits it best (LLaVA-NeXT).

    Rows of patches that padding fills are dropped, and a token ends every row.

    >>> AnyResolution().read(Size(600, 800)).tokens
    2340
    """

    base: PositiveInt = 336
    patch: PositiveInt = 14
    resolutions: tuple[Size, ...] = (
        Size(336, 672),
        Size(672, 336),
        Size(672, 672),
        Size(1008, 336),
        Size(336, 1008),
    )

    def read(self, image: Size) -> Reading:
        best, base = self._best(image), Size.of(self.base)
        tiles = fit(best, base).grid
        rows, columns = fit(best, Size.of(self.patch)).grid
        above = beside = 0
        if image.width / image.height > columns / rows:
            above = (rows - int(round(image.height * (columns / image.width), 7))) // 2
        else:
            beside = (columns - int(round(image.width * (rows / image.height), 7))) // 2
        scale = min(best.width / image.width, best.height / image.height)
        content = Size(*(min(math.ceil(side * scale), most) for side, most in zip(image, best, strict=True)))
        cut = {"crop": base, "patch": self.patch}
        tiled = View(
            name="tiles", size=best, content=content, dropped_rows=above, dropped_columns=beside, row_ends=True, **cut
        )
        rows, columns = tiled.kept
        steps = (
            f"resized to {base}, and to {best} in {tiles} tiles",
            f"padding dropped: {rows}x{columns} patches of the tiles are left",
            f"a token at the end of each of their {rows} rows",
        )
        views = (View(name="the whole image", size=base, content=base, **cut), tiled)
        return Reading(image=image, views=views, steps=steps)

    def _best(self, image: Size) -> Size:
        """Return the resolution that keeps the most pixels of the image and, of equals, wastes the fewest."""

        def kept(to: Size) -> int:
            scale = min(to.width / image.width, to.height / image.height)
            return min(int(image.width * scale) * int(image.height * scale), image.area)

        return max(self.resolutions, key=lambda to: (kept(to), kept(to) - to.area))


@dataclass(frozen=True, kw_only=True)
class PatchBudget(Value):
    """The largest size of the image's shape whose patches stay within a budget (NaFlex, SigLIP 2, arXiv 2502.14786).

    >>> PatchBudget().read(Size(600, 800)).crop
    Size(height=224, width=288)
    """

    patch: PositiveInt = 16
    most: PositiveInt = 256

    def read(self, image: Size) -> Reading:
        low, high = 1e-6, 100.0
        while high - low >= 1e-5:  # as its processor searches
            scale = (low + high) / 2
            low, high = (scale, high) if self._grid(image, scale).area <= self.most else (low, scale)
        grid = self._grid(image, low)
        crop = Size(grid.height * self.patch, grid.width * self.patch)
        view = View(name="the image", size=crop, content=crop, crop=crop, patch=self.patch)
        steps = (f"resized to {crop}: at most {self.most} patches",)
        return Reading(image=image, views=(view,), steps=steps)

    def _grid(self, image: Size, scale: float) -> Size:
        return Size(*(max(1, math.ceil(side * scale / self.patch)) for side in image))


@dataclass(frozen=True, kw_only=True)
class TwoSizes(Value):
    """The whole image at two sizes, padded to squares, for two towers of which the first gives the tokens (DeepSeek-VL,
    arXiv 2403.05525).

    >>> TwoSizes().read(Size(600, 800)).tokens
    576
    """

    low: PositiveInt = 384
    high: PositiveInt = 1024
    patch: PositiveInt = 16
    shortest: PositiveInt = 14
    """No side of the resized image is shorter than this."""

    def read(self, image: Size) -> Reading:
        scale = self.high / max(image)
        fine = Size(*(max(round(side * scale), self.shortest) for side in image))
        names = ("the image", self.low, Size.of(self.low), False), ("the image, finer", self.high, fine, True)
        views = tuple(
            View(name=name, size=Size.of(side), content=content, crop=Size.of(side), patch=self.patch, joins=joins)
            for name, side, content, joins in names
        )
        steps = (
            f"resized to {fine} and padded to {Size.of(self.high)}",
            f"that resized to {Size.of(self.low)}, whose patches give the tokens",
            "both towers' feature maps joined",
        )
        return Reading(image=image, views=views, steps=steps)


ImageReader = NativeResolution | Tiles | AnyResolution | PatchBudget | TwoSizes
