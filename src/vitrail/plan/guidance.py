"""Rules of thumb as data: starting points by application, reasons for a ViT, and when it is the wrong tool."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

from vitrail.errors import require
from vitrail.geometry import Size
from vitrail.images.survey import Survey
from vitrail.plan.cards import GIB, Card
from vitrail.rules import PositiveInt, Range
from vitrail.value import Value

__all__ = ["APPLICATIONS", "CAPACITY", "MISFITS", "REASONS", "Application", "Misfit", "Question", "Reason"]

EmbeddingKind = Literal["patches", "overlapping", "hierarchical", "adaptive"]


@dataclass(frozen=True, kw_only=True)
class Application:
    """A starting point for one application, and the reason."""

    name: str
    patches: tuple[int, ...]
    """Patch sizes, preferred first."""
    embedding: EmbeddingKind
    image: int
    """The default side of a square input."""
    largest: str
    """The largest model worth considering."""
    why: str
    alternatives: tuple[str, ...]
    """What else is usual for this application, beside a ViT."""


APPLICATIONS = {
    entry.name: entry
    for entry in (
        Application(
            name="classification",
            patches=(16, 14),
            embedding="patches",
            image=224,
            largest="H",
            why="one object fills most of the frame, and most pretrained weights have patch 16, or 14 for huge models",
            alternatives=(
                "ConvNeXt or EfficientNet, if there is little data and no pretrained ViT",
                "a hybrid with a convolutional stem (CoAtNet, CCT), which learns faster from few images",
            ),
        ),
        Application(
            name="medical",
            patches=(8, 4),
            embedding="hierarchical",
            image=512,
            largest="L",
            why="findings are a few pixels wide, can be anywhere and have several scales",
            alternatives=(
                "U-Net or nnU-Net for segmentation",
                "ConvNeXt, or a Swin pyramid for several scales",
            ),
        ),
        Application(
            name="satellite",
            patches=(32, 16),
            embedding="adaptive",
            image=512,
            largest="L",
            why="scenes are large and mostly uniform, so tokens should go where there is detail",
            alternatives=(
                "a Swin pyramid or ConvNeXt over tiles",
                "U-Net for dense maps",
            ),
        ),
        Application(
            name="face",
            patches=(16, 8),
            embedding="overlapping",
            image=224,
            largest="B",
            why="features straddle patch borders, and their exact position matters",
            alternatives=(
                "a ResNet with a margin loss (ArcFace), which is small and well understood",
                "a hybrid with a convolutional stem",
            ),
        ),
        Application(
            name="detection",
            patches=(16, 8),
            embedding="hierarchical",
            image=640,
            largest="L",
            why="objects of very different sizes need grids of several scales",
            alternatives=(
                "DETR-style detectors (DINO, RT-DETR) on any backbone",
                "a convolutional network or Swin with a feature pyramid (FPN), or a YOLO detector",
            ),
        ),
        Application(
            name="mobile",
            patches=(32, 16),
            embedding="patches",
            image=224,
            largest="S",
            why="tokens dominate the cost: use few of them, a distilled model and int8 weights",
            alternatives=(
                "MobileNet or EfficientNet-Lite in int8",
                "MobileViT or another mobile hybrid",
            ),
        ),
    )
}

CAPACITY = ((10_000, "S"), (100_000, "B"), (1_000_000, "L"), (None, "H"))
"""(training images below, largest model that they can fine-tune without mostly memorising); None means no limit."""


@dataclass(frozen=True, kw_only=True)
class Question(Value):
    """What is known about the task."""

    application: str = "classification"
    image: Size | None = None
    object_pixels: PositiveInt | None = None
    """A typical object's side, in pixels of the stored images."""
    card: Card | None = None
    data_size: PositiveInt | None = None
    images_per_second: Annotated[float, Range("(0, inf)", "give images per second")] | None = None
    """The required inference speed, with one image at a time."""
    survey: Survey | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        names = ", ".join(APPLICATIONS)
        require(self.application in APPLICATIONS, f"application {self.application!r} is unknown; use one of {names}")

    @property
    def native(self) -> Size | None:
        """The size of the stored images."""
        return self.survey.median if self.survey is not None else self.image


@dataclass(frozen=True, kw_only=True)
class Misfit:
    """A case where a ViT is the wrong tool, or the wrong way to use one."""

    name: str
    applies: Callable[[Question], bool]
    why: str
    instead: str


@dataclass(frozen=True, kw_only=True)
class Reason:
    """A reason for a ViT that holds for a question."""

    name: str
    applies: Callable[[Question], bool]
    why: str


REASONS = (
    Reason(
        name="much data",
        applies=lambda q: q.data_size is not None and q.data_size >= 1_000_000,
        why="with a million images or more, attention learns what convolutions assume, and larger models keep gaining",
    ),
    Reason(
        name="transfer",
        applies=lambda q: q.data_size is None or q.data_size < 1_000_000,
        why="pretrained ViTs (DINOv2, CLIP, SigLIP) have features that a linear classifier reads with few labels",
    ),
    Reason(
        name="global relations",
        applies=lambda q: q.application in ("medical", "satellite", "detection"),
        why="every token sees every other from the first block on; a convolution needs depth for that",
    ),
    Reason(
        name="several modalities",
        applies=lambda q: q.application not in ("mobile", "face"),
        why="tokens of images, text and other inputs can go through one encoder, as in vision-language models",
    ),
)
"""Reasons for a ViT, beside those against it."""


def _side(question: Question) -> int:
    size = question.image or question.native
    return max(size) if size is not None else 0


MISFITS = (
    Misfit(
        name="very little data",
        applies=lambda q: q.data_size is not None and q.data_size < 1_000,
        why="with fewer than 1,000 images a transformer cannot learn the locality that convolutions have built in",
        instead="a linear probe on frozen pretrained features, or a small pretrained convolutional network",
    ),
    Misfit(
        name="little data",
        applies=lambda q: q.data_size is not None and 1_000 <= q.data_size < 10_000,
        why="fewer than 10,000 images are too few to train a ViT from scratch",
        instead="fine-tuning pretrained weights, or a linear probe on frozen features",
    ),
    Misfit(
        name="edge device",
        applies=lambda q: q.application == "mobile" or (q.card is not None and q.card.visible_bytes < 4 * GIB),
        why="attention over many tokens is slow and needs much memory on small devices",
        instead="a mobile hybrid (mobilevit-XS) or an int8 convolutional network, distilled from a ViT",
    ),
    Misfit(
        name="real time",
        applies=lambda q: q.images_per_second is not None and q.images_per_second >= 60,
        why="at 60 images per second or more, every token must take microseconds",
        instead="a convolutional network, a mobile hybrid, or a larger patch with token merging",
    ),
    Misfit(
        name="simple task",
        applies=lambda q: q.survey is not None and max(q.survey.median) <= 64,
        why="images of at most 64 pixels gain little from global attention",
        instead="a small convolutional network, or a ViT of patch 4 if there is much data",
    ),
    Misfit(
        name="very large images",
        applies=lambda q: _side(q) > 1024,
        why="above 1,024 pixels attention dominates: tokens grow with the area, attention with its square",
        instead="tiles, a pyramid with windows (swin-T), or adaptive patches",
    ),
)
