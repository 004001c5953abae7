"""Vision-language models whose visual tokens are counted: a way to read images, and the tower that reads them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vitrail.config import TwoBranches, ViTConfig
from vitrail.geometry import Size
from vitrail.parts import BranchMerger, MeanPool, Mlp, MlpMerger, Patches, Prefix, Rotary, SwiGLU, WindowedAttention
from vitrail.plan.branches import plan_branches
from vitrail.plan.ledger import ledger
from vitrail.plan.reading import AnyResolution, ImageReader, NativeResolution, PatchBudget, Reading, Tiles, TwoSizes
from vitrail.presets import preset
from vitrail.value import Value

__all__ = ["VISION_LANGUAGE", "VisionLanguage", "vision_language"]


@dataclass(frozen=True, kw_only=True)
class VisionLanguage(Value):
    """A way to read images, and the tower that reads them, with the merger behind it."""

    title: str
    reader: ImageReader
    tower: ViTConfig
    high: ViTConfig | None = None
    """A second tower, which reads the image at a higher resolution."""
    branch_merger: BranchMerger | None = None
    """What joins the two towers."""
    left_out: str = ""
    """What of the vision model the tower's plan does not count, or counts in another way."""

    def on(self, reading: Reading) -> ViTConfig:
        """Return the tower for the crops of a reading."""
        return self.tower.but(image=reading.crop)

    @property
    def branches(self) -> TwoBranches | None:
        """Both towers and what joins them; None for a model of one tower."""
        if self.high is None or self.branch_merger is None:
            return None
        return TwoBranches(low=self.tower, high=self.high, merger=self.branch_merger)

    def flops(self, reading: Reading) -> int:
        """Return the forward FLOPs of a reading: of its crops in the tower, or of both towers and what joins them."""
        if self.branches is not None:
            return plan_branches(self.branches).flops()
        return reading.crops * ledger(self.on(reading)).flops_forward


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
QWEN = MlpMerger(width=3584, mlp_width=5120)
VISION_LANGUAGE: dict[str, VisionLanguage] = {
    "qwen2-vl": VisionLanguage(
        title="Qwen2-VL-7B",
        reader=NativeResolution(),
        tower=_qwen(1280, 32, Mlp(width=5120, activation="quick_gelu"), 14, merger=QWEN),
    ),
    "qwen2.5-vl": VisionLanguage(
        title="Qwen2.5-VL-7B",
        reader=NativeResolution(),
        tower=_qwen(1280, 32, SwiGLU(width=3420), 14, norm="rms", attention=WINDOWS, merger=QWEN.but(norm="rms")),
    ),
    "qwen3-vl": VisionLanguage(
        title="Qwen3-VL-8B",
        reader=NativeResolution(patch=16, min_pixels=65_536, max_pixels=16_777_216),
        tower=_qwen(
            1152,
            27,
            Mlp(width=4304, activation="gelu_tanh"),
            16,
            merger=MlpMerger(width=4096, mlp_width=4608),
        ).but(embedding=Patches(patch=Size(16, 16))),
        left_out="the table of positions, 2,304 rows, and the three mergers inside the tower are not counted",
    ),
    "internvl3": VisionLanguage(
        title="InternVL3-8B",
        reader=Tiles(),
        tower=preset(
            "L/14",
            image=Size(448, 448),
            layer_scale=0.1,
            final_norm="none",
            classes=0,
            merger=MlpMerger(width=3584, mlp_width=3584, norm_merged=True, norm_eps=1e-5),
        ),
    ),
    "llava-next": VisionLanguage(
        title="LLaVA-NeXT-7B",
        reader=AnyResolution(),
        tower=preset("clip-L/14-336", classes=0).but(
            depth=23,
            final_norm="none",
            merger=MlpMerger(width=4096, mlp_width=4096, merge=1, norm="none"),
        ),
        left_out="the tower's last block and norm, whose output is not read, are not counted",
    ),
    "siglip2-naflex": VisionLanguage(
        title="SigLIP 2 B/16 NaFlex",
        reader=PatchBudget(),
        tower=preset("siglip2-B/16"),
        left_out="its table of positions, which is resized, is counted as resized",
    ),
    "deepseek-vl-hybrid": VisionLanguage(
        title="DeepSeek-VL-7B",
        reader=TwoSizes(),
        tower=TwoBranches().low,
        high=TwoBranches().high,
        branch_merger=TwoBranches().merger,
        left_out="transformers keeps the tokens of all blocks of the second tower, and here those that are read",
    ),
}
"""Settings as published."""


def vision_language(name: str) -> VisionLanguage | None:
    """Return the model of a name, in any case; None if none has it.

    >>> vision_language("Qwen2.5-VL").reader.read(Size(224, 448)).tokens
    128
    """
    return VISION_LANGUAGE.get(name.strip().lower())
