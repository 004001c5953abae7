"""What a healed model should give: the original's features at the matching view of the same image."""

from __future__ import annotations

from dataclasses import dataclass

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.surgery.adapt import adapt
from vitrail.config import ViTConfig
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size

__all__ = ["Target", "at_view", "find_target", "same_grid"]


@dataclass(frozen=True, kw_only=True)
class Target:
    """The original at the view that the adapted model's features are compared with."""

    original: Checkpoint
    grid: Size
    """The adapted model's grid."""

    @property
    def image(self) -> Size:
        return self.original.config.image

    @property
    def token_by_token(self) -> bool:
        return self.original.config.grid == self.grid

    def __str__(self) -> str:
        """Describe the target in a line.

        >>> from vitrail import adapt, load
        >>> before = load("default")
        >>> str(find_target(before, adapt(before, {"patch": 8})[0]))
        'the original at 32x32; its grid 8x8 and 4x4 are compared on the coarser of both'
        """
        if self.token_by_token:
            return f"the original at {self.image}, token by token on the grid {self.grid}"
        own = self.original.config.grid
        return f"the original at {self.image}; its grid {own} and {self.grid} are compared on the coarser of both"


def find_target(before: Checkpoint, after: Checkpoint, view: Size | None = None) -> Target:
    """Return the original at `view`, by default the matching one.

    If patch and image both change, it is the view with the same grid, so that tokens correspond one to one (patch 14 at
    224 and patch 16 at 256). Otherwise it is the original's own, which shows the same image.
    """
    old, new = before.config, after.config
    for config in (old, new):
        require(
            isinstance(config, ViTConfig),
            f"a {type(config).__name__} has no patch tokens on one grid, so that it cannot be healed; heal a ViT",
        )
    assert isinstance(old, ViTConfig)
    assert isinstance(new, ViTConfig)
    require(
        old.width == new.width,
        f"width {new.width} is not the original's {old.width}; heal what adapt made of the original",
    )
    if view is None:
        view = same_grid(old, new) if old.patch != new.patch and old.image != new.image else old.image
    return Target(original=at_view(before, view), grid=new.grid)


def same_grid(old: ViTConfig, new: ViTConfig) -> Size:
    """Return the image size at which the old model has the new one's grid."""
    return Size(new.grid.height * old.patch.height, new.grid.width * old.patch.width)


def at_view(before: Checkpoint, view: Size) -> Checkpoint:
    try:
        return adapt(before, {"image": view})[0]
    except VitrailError as error:
        raise VitrailError(f"the original cannot be seen at {view}: {error}") from None
