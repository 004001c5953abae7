"""What is known before any measuring: starting points by application, and when a ViT is the wrong tool. Data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Literal

from vitrail.errors import require
from vitrail.geometry import Size
from vitrail.images.survey import Survey
from vitrail.plan.hardware import GIB, Card
from vitrail.rules import PositiveInt, Range
from vitrail.value import Value

__all__ = ["APPLICATIONS", "CAPACITY", "MISFITS", "Application", "Misfit", "Question"]

EmbeddingKind = Literal["patches", "overlapping", "hierarchical", "adaptive"]


@dataclass(frozen=True, kw_only=True)
class Application:
    """Where to start for one kind of work, and why."""

    name: str
    patches: tuple[int, ...]
    """Preferred first."""
    embedding: EmbeddingKind
    image: int
    """Side of a square input, where nothing else says."""
    largest: str
    """The largest model that is worth considering."""
    why: str


APPLICATIONS = {
    entry.name: entry
    for entry in (
        Application(
            name="classification",
            patches=(16, 14),
            embedding="patches",
            image=224,
            largest="H",
            why="one object fills most of the frame, and pretrained weights come at 16 and, for huge models, 14",
        ),
        Application(
            name="medical",
            patches=(8, 4),
            embedding="hierarchical",
            image=512,
            largest="L",
            why="findings are a few pixels wide and lie anywhere, at several scales",
        ),
        Application(
            name="satellite",
            patches=(32, 16),
            embedding="adaptive",
            image=512,
            largest="L",
            why="scenes are large and mostly uniform: spend tokens where something is",
        ),
        Application(
            name="face",
            patches=(16, 8),
            embedding="overlapping",
            image=224,
            largest="B",
            why="features straddle patch borders, and their exact place matters",
        ),
        Application(
            name="detection",
            patches=(16, 8),
            embedding="hierarchical",
            image=640,
            largest="L",
            why="objects of very different size call for grids of several scales",
        ),
        Application(
            name="mobile",
            patches=(32, 16),
            embedding="patches",
            image=224,
            largest="S",
            why="tokens are what costs: few of them, a distilled model, int8 weights",
        ),
    )
}

CAPACITY = ((10_000, "S"), (100_000, "B"), (1_000_000, "L"), (None, "H"))
"""Training images, and the largest model that they can fine-tune without mostly memorising; None is no limit."""


@dataclass(frozen=True, kw_only=True)
class Question(Value):
    """What is known of the work."""

    application: str = "classification"
    image: Size | None = None
    object_pixels: PositiveInt | None = None
    """A typical object's side in the images as they are stored."""
    card: Card | None = None
    data_size: PositiveInt | None = None
    images_per_second: Annotated[float, Range("(0, inf)", "give images per second")] | None = None
    """Needed at inference, one image at a time."""
    survey: Survey | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        known = ", ".join(APPLICATIONS)
        require(self.application in APPLICATIONS, f"application {self.application!r} is unknown; use one of {known}")

    @property
    def native(self) -> Size | None:
        """The images as they are stored."""
        return self.survey.median if self.survey is not None else self.image


@dataclass(frozen=True, kw_only=True)
class Misfit:
    """A case where a ViT is the wrong tool, or the wrong way to use one."""

    name: str
    holds: Callable[[Question], bool]
    why: str
    instead: str


def _side(question: Question) -> int:
    size = question.image or question.native
    return max(size) if size is not None else 0


MISFITS = (
    Misfit(
        name="very little data",
        holds=lambda q: q.data_size is not None and q.data_size < 1_000,
        why="fewer than 1,000 images cannot teach a transformer what a convolution knows by construction",
        instead="a linear probe on frozen pretrained features, or a small pretrained convolutional network",
    ),
    Misfit(
        name="little data",
        holds=lambda q: q.data_size is not None and 1_000 <= q.data_size < 10_000,
        why="fewer than 10,000 images are too few to train a ViT from scratch",
        instead="fine-tuning pretrained weights, or a linear probe on frozen features",
    ),
    Misfit(
        name="edge device",
        holds=lambda q: q.application == "mobile" or (q.card is not None and q.card.visible_bytes < 4 * GIB),
        why="attention over many tokens is slow and memory-hungry on small devices",
        instead="a mobile hybrid (mobilevit-XS) or an int8 convolutional network; distil from a ViT",
    ),
    Misfit(
        name="real time",
        holds=lambda q: q.images_per_second is not None and q.images_per_second >= 60,
        why="at 60 images a second or more every token has to be paid in microseconds",
        instead="a convolutional network, a mobile hybrid, or a larger patch with token merging",
    ),
    Misfit(
        name="simple task",
        holds=lambda q: q.survey is not None and max(q.survey.median) <= 64,
        why="images of 64 pixels or less hold little that global attention could relate",
        instead="a small convolutional network; a ViT of patch 4 only if the data are many",
    ),
    Misfit(
        name="very large images",
        holds=lambda q: _side(q) > 1024,
        why="above 1,024 pixels attention outgrows everything else: tokens go with the area, attention with its square",
        instead="tiles, a pyramid with windows (swin-T), or adaptive patches",
    ),
)
