"""What all configs share: an image, a grid, conversion to and from JSON, and rules that more than one kind has."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, Self

from vitrail.codec import from_plain, parse_json, to_plain
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size
from vitrail.parts import ClsMeanPool, ClsPool, Pool, Prefix
from vitrail.rules import PositiveInt, Range, multiple
from vitrail.value import Value

__all__ = ["NormKind", "NormPlace", "QkvBias"]

NormKind = Literal["layer", "rms"]
NormPlace = Literal["before", "after"]
QkvBias = Literal["all", "no_key", "none"]
Epsilon = Annotated[float, Range("[0, inf)", "1e-6 is usual")]
LayerScale = Annotated[float, Range("[0, inf)", "1e-5 is usual, None leaves it out")]


class BaseConfig(Value):
    """What every config has: an image, a grid, and conversion to and from JSON."""

    image: Size
    channels: PositiveInt

    @property
    def grid(self) -> Size:
        """The grid of the patches, or the last one of several."""
        raise NotImplementedError

    @property
    def position_grid(self) -> Size:
        """The grid that positions are on: the first one if a pyramid has a table of them, otherwise `grid`."""
        return self.grid

    @property
    def tokens(self) -> int:
        """Prefix tokens and patches on `grid`."""
        return self.grid.area

    @property
    def frames(self) -> int:
        """Frames of the clips that the model takes; 1 for still images."""
        return 1

    @property
    def steps(self) -> int:
        """Grids of patches, one after the other in time; 1 for still images."""
        return 1

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of an image as the model takes it, (channels, height, width), with the frames of a clip first.

        >>> from vitrail import ViTConfig
        >>> ViTConfig().input_shape
        (3, 224, 224)
        """
        shape = (self.channels, *self.image)
        return shape if self.frames == 1 else (self.frames, *shape)

    def require_still(self, who: str) -> None:
        """Raise an error if the model takes clips, for `who` takes still images."""
        require(
            self.frames == 1,
            f"{who} takes still images, and this model clips of {self.frames} frames; adapt it to still images with "
            "vitrail adapt --frames 1",
        )

    def with_frames(self, frames: int, tubelet: int | None = None) -> Self:
        """Return the config for clips of this many frames, or for still images with 1; `tubelet` is a patch's depth in
        frames (default: unchanged, and 2 for a model of still images)."""
        raise VitrailError(f"a {type(self).__name__} takes still images, not clips of {frames} frames; use a ViTConfig")

    def to_json(self) -> str:
        return json.dumps(to_plain(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> Self:
        return from_plain(parse_config(text), cls)


def parse_config(text: str) -> Any:
    return parse_json(text, "config", "write one with to_json()")


# ── rules that more than one kind has ───────────────────────────────────────────────────────────────────────────


def check_sides(kind: str, image: Size, unit: Size) -> None:
    multiple(kind, "image height", image.height, unit.height)
    multiple(kind, "image width", image.width, unit.width)


def check_pool(pool: Pool, prefix: Prefix) -> None:
    if isinstance(pool, ClsPool | ClsMeanPool):
        require(prefix.cls, f"{type(pool).__name__} needs a CLS token; use Prefix(cls=True) or MeanPool()")
    require(
        not prefix.distillation or isinstance(pool, ClsPool),
        f"{type(pool).__name__} does not read the distillation token; use ClsPool()",
    )
