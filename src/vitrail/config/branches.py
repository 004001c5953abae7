"""`TwoBranches`: a vision tower, and a second one that reads the image at a higher resolution."""

from __future__ import annotations

from dataclasses import dataclass

from vitrail.config.vit import ViTConfig
from vitrail.errors import require
from vitrail.geometry import Size
from vitrail.parts import BranchMerger, DecomposedBias, Learned, MeanPool, Mlp, Neck, Prefix, WindowedAttention
from vitrail.value import Value

__all__ = ["TwoBranches"]


PATCHES = {"prefix": Prefix(cls=False), "pool": MeanPool(), "classes": 0}
SIGLIP = ViTConfig(
    image=Size(384, 384),
    position=Learned(convention="huggingface"),
    width=1024,
    depth=24,
    num_heads=16,
    mlp=Mlp(width=4096),
    **PATCHES,
)
SAM = ViTConfig(
    image=Size(1024, 1024),
    position=Learned(relative=DecomposedBias()),
    attention=WindowedAttention(window=Size(14, 14), shift=False, window_padding="zeros", full=(2, 5, 8, 11)),
    final_norm="none",
    neck=Neck(width=256),
    **PATCHES,
)


@dataclass(frozen=True, kw_only=True)
class TwoBranches(Value):
    """Two towers that read one image, each at its own size, and the merger that joins them into the tokens of a
    language model; the defaults are DeepSeek-VL's SigLIP and SAM (arXiv 2403.05525).

    >>> from vitrail import TwoBranches
    >>> branches = TwoBranches()
    >>> branches.low.image, branches.high.image, branches.visual_tokens
    (Size(height=384, width=384), Size(height=1024, width=1024), 576)
    """

    low: ViTConfig = SIGLIP
    """The tower whose patches become the tokens."""
    high: ViTConfig = SAM
    """The tower of the larger image; it has a neck."""
    merger: BranchMerger = BranchMerger(width=4096)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, tower in (("low", self.low), ("high", self.high)):
            require(
                tower.merger is None and tower.classes == 0 and tower.prefix.count == 0,
                f"the {name} tower has a merger, a head or a prefix; both branches give patches alone",
            )
        width = self.merger.width
        require(width % 2 == 0, f"width {width} is odd, and each tower gives half of it; use an even one")
        require(self.high.neck is not None, "the high tower has no neck, which the merger reads; give it Neck()")
        windows = self.high.attention
        require(
            isinstance(windows, WindowedAttention) and bool(windows.full),
            "the high tower has no full block between windows, whose tokens the merger reads; use "
            "WindowedAttention(shift=False, full=...)",
        )

    @property
    def early(self) -> int:
        """The index of the high tower's first full block, whose tokens the merger reads beside the last ones."""
        assert isinstance(self.high.attention, WindowedAttention)
        return min(self.high.attention.full)

    @property
    def visual_tokens(self) -> int:
        """Tokens that the language model receives: one for each patch of the low tower."""
        return self.low.grid.area

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The values of both images."""
        return (self.low.channels * self.low.image.area + self.high.channels * self.high.image.area,)
