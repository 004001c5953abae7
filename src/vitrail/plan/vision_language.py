"""How vision-language models read an image: what their vision tower receives, and how many tokens the language model.

Each way is a value with the settings that the published processors have. Tests compare the counts with transformers'
processors on a thousand sizes.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from vitrail.config import ViTConfig
from vitrail.errors import require
from vitrail.geometry import Size, fit
from vitrail.parts import MeanPool, Mlp, Patches, Prefix, Rotary, SwiGLU, WindowedAttention
from vitrail.presets import preset
from vitrail.rules import PositiveInt
from vitrail.value import Value

__all__ = [
    "VISION_LANGUAGE",
    "AnyResolution",
    "NativeResolution",
    "PatchBudget",
    "Reading",
    "Tiles",
    "VisionLanguage",
    "vision_language",
]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What becomes of one image."""

    image: Size
    crops: int
    """Images that the tower receives."""
    crop: Size
    """The size of each."""
    patches: int
    """Patches in all crops."""
    tokens: int
    """Tokens that the language model receives."""
    steps: tuple[str, ...]
    """What was done, in order."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


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
        patches = fit(resized, Size.of(self.patch)).grid.area
        steps = (
            f"resized to {resized}, multiples of {unit}",
            f"{self.merge}x{self.merge} patches merged into a token",
        )
        return Reading(
            image=image, crops=1, crop=resized, patches=patches, tokens=patches // self.merge**2, steps=steps
        )


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
        crops = best.area + 1 if best.area > 1 else 1
        grid = fit(Size.of(self.tile), Size.of(self.patch)).grid
        each = (grid.height // self.merge) * (grid.width // self.merge)
        steps = (
            f"cut into {best} tiles of {self.tile}" + (", and a thumbnail" if crops > 1 else ""),
            f"{self.merge}x{self.merge} patches shuffled into a token: {each} for each crop",
            f"{self.framing} tokens for the beginning and the end of the image",
        )
        return Reading(
            image=image,
            crops=crops,
            crop=Size.of(self.tile),
            patches=crops * grid.area,
            tokens=crops * each + self.framing,
            steps=steps,
        )

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
        best = self._best(image)
        side = self.base // self.patch
        tiles = Size(best.height // self.base, best.width // self.base)
        rows, columns = side * tiles.height, side * tiles.width
        if image.width / image.height > columns / rows:
            rows -= (rows - int(round(image.height * (columns / image.width), 7))) // 2 * 2
        else:
            columns -= (columns - int(round(image.width * (rows / image.height), 7))) // 2 * 2
        steps = (
            f"resized to {Size.of(self.base)}, and to {best} in {tiles} tiles",
            f"padding dropped: {rows}x{columns} patches of the tiles are left",
            f"a token at the end of each of their {rows} rows",
        )
        return Reading(
            image=image,
            crops=tiles.area + 1,
            crop=Size.of(self.base),
            patches=(tiles.area + 1) * side * side,
            tokens=side * side + rows * columns + rows,
            steps=steps,
        )

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
        steps = (f"resized to {crop}: at most {self.most} patches",)
        return Reading(image=image, crops=1, crop=crop, patches=grid.area, tokens=grid.area, steps=steps)

    def _grid(self, image: Size, scale: float) -> Size:
        return Size(*(max(1, math.ceil(side * scale / self.patch)) for side in image))


ImageReader = NativeResolution | Tiles | AnyResolution | PatchBudget


@dataclass(frozen=True, kw_only=True)
class VisionLanguage(Value):
    """A way to read images, and the tower that reads them."""

    reader: ImageReader
    tower: ViTConfig
    left_out: str
    """What of the vision model the tower's plan does not count."""

    def on(self, reading: Reading) -> ViTConfig:
        """Return the tower for the crops of a reading."""
        return self.tower.but(image=reading.crop)


def _qwen(width: int, depth: int, mlp: Mlp | SwiGLU, patch: int, **changes: Any) -> ViTConfig:
    """Two frames make a patch, and a still image is given twice: six channels."""
    return ViTConfig(
        image=Size.of(28 * patch),
        channels=6,
        embedding=Patches(patch=Size.of(patch), bias=False),
        prefix=Prefix(cls=False),
        position=Rotary(temperature=10_000.0, pairs="halves"),
        width=width,
        depth=depth,
        num_heads=16,
        mlp=mlp,
        final_norm="none",
        pool=MeanPool(),
        classes=0,
        **changes,
    )


WINDOWS = WindowedAttention(window=Size(8, 8), shift=False, full=(7, 15, 23, 31))
RESIZED = "its table of positions, which is resized, is counted as resized"
VISION_LANGUAGE: dict[str, VisionLanguage] = {
    "qwen2-vl": VisionLanguage(
        reader=NativeResolution(),
        tower=_qwen(1280, 32, Mlp(width=5120, activation="quick_gelu"), 14),
        left_out="the merger's norm and two linear layers are not counted",
    ),
    "qwen2.5-vl": VisionLanguage(
        reader=NativeResolution(),
        tower=_qwen(1280, 32, SwiGLU(width=3420), 14, norm="rms", attention=WINDOWS),
        left_out="the merger's norm and two linear layers are not counted",
    ),
    "qwen3-vl": VisionLanguage(
        reader=NativeResolution(patch=16, min_pixels=65_536, max_pixels=16_777_216),
        tower=_qwen(1152, 27, Mlp(width=4304, activation="gelu_tanh"), 16).but(
            embedding=Patches(patch=Size(16, 16)),
        ),
        left_out="the table of positions, 2,304 rows, and its four mergers are not counted",
    ),
    "internvl3": VisionLanguage(
        reader=Tiles(),
        tower=preset("L/14", image=Size(448, 448), layer_scale=0.1, final_norm="none", classes=0),
        left_out="the projection to the language model is not counted",
    ),
    "llava-next": VisionLanguage(
        reader=AnyResolution(),
        tower=preset("clip-L/14-336", classes=0),
        left_out="the projection to the language model is not counted",
    ),
    "siglip2-naflex": VisionLanguage(
        reader=PatchBudget(),
        tower=preset("siglip2-B/16"),
        left_out=RESIZED,
    ),
}
"""Settings of Qwen2-VL-7B, Qwen2.5-VL-7B, Qwen3-VL-8B, InternVL3-8B, LLaVA-NeXT and SigLIP 2 B/16, as published."""


def vision_language(name: str) -> VisionLanguage | None:
    """Return the model of a name, in any case; None if none has it.

    >>> vision_language("Qwen2.5-VL").reader.read(Size(224, 448)).tokens
    128
    """
    return VISION_LANGUAGE.get(name.strip().lower())
