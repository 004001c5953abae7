"""`TwoBranches`: a vision tower, and a second one that reads the image at a higher resolution."""

from __future__ import annotations

from dataclasses import dataclass

from vitrail.config.vit import ViTConfig
from vitrail.errors import require
from vitrail.parts import BranchMerger, WindowedAttention
from vitrail.value import Value

__all__ = ["TwoBranches"]


@dataclass(frozen=True, kw_only=True)
class TwoBranches(Value):
    """Two towers that read one image, each at its own size, and the merger that joins them into the tokens of a
    language model: DeepSeek-VL's SigLIP and SAM (arXiv 2403.05525).

    >>> from vitrail.plan.vision_language import VISION_LANGUAGE
    >>> branches = VISION_LANGUAGE["deepseek-vl-hybrid"].branches
    >>> branches.low.image, branches.high.image, branches.visual_tokens
    (Size(height=384, width=384), Size(height=1024, width=1024), 576)
    """

    low: ViTConfig
    """The tower whose patches become the tokens."""
    high: ViTConfig
    """The tower of the larger image; it has a neck."""
    merger: BranchMerger

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, tower in (("low", self.low), ("high", self.high)):
            require(
                tower.merger is None and tower.classes == 0 and tower.prefix.count == 0,
                f"the {name} tower has a merger, a head or a prefix; both branches give patches alone",
            )
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
