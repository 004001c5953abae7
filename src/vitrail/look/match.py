"""Match two images (`vitrail.match`): which patch is which, and why the images are alike.

Shapes: N patches of the first image, M of the second.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from vitrail.charts.notebook import Shown, facts
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.pixels import Image, read_pixels
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.checkpoint.read import load
from vitrail.checkpoint.sources.names import DEFAULT, short_name
from vitrail.checkpoint.surgery.adapt import adapt
from vitrail.errors import require
from vitrail.geometry import Size, in_shape_of
from vitrail.look.kin import Buddies, best_buddies, token_cosines
from vitrail.look.likeness import Likeness, likeness
from vitrail.look.record import Recording, record
from vitrail.look.subject import Subject, subject_of
from vitrail.look.views.words import cells_on, times
from vitrail.nn.layout import Layout
from vitrail.nn.mobile import MobileViT
from vitrail.nn.pyramid import PyramidViT
from vitrail.nn.vit import ViT

__all__ = ["ImageMatch", "Seen", "Viewer", "match", "match_seen"]

MOST_PATCHES = 4096
"""Patches of an image: the cosines of all pairs then take 64 MB."""


class Seen(NamedTuple):
    """An image as a model has seen it, in one pass."""

    subject: Subject
    recording: Recording
    original: Size
    """The size of the whole image."""
    part: tuple[float, float, float, float]
    """The part of it that the model sees: top, left, height and width, in pixels."""

    def centre(self, layout: Layout, patch: int) -> tuple[float, float]:
        """Return the centre of a patch: its row and column, in pixels of the model's input."""
        cells, centres = cells_on(self.subject, layout), layout.centres(torch.device("cpu"))
        row, column = (centres[0] if centres.ndim == 3 else centres)[patch].tolist()
        return cells.top + (row + 0.5) * cells.step[0], cells.left + (column + 0.5) * cells.step[1]

    def place(self, layout: Layout, patch: int) -> tuple[float, float]:
        """Return the centre of a patch in the whole image: its row and column, in pixels."""
        (down, across), seen = self.centre(layout, patch), self.subject.photo.seen
        top, left, height, width = self.part
        return top + height * down / seen.height, left + width * across / seen.width


@dataclass(frozen=True, kw_only=True, repr=False)
class ImageMatch(Shown):
    """Two images, the cosines between their patches, and the parts of their score.

    >>> from vitrail import match, synthesize_image
    >>> picture = synthesize_image(1)
    >>> match(picture, picture)
    <ImageMatch: score 1.0000, 64 best buddies of 8×8 and 8×8 patches>
    """

    first: Seen
    second: Seen
    layouts: tuple[Layout, Layout]
    """The layouts of the tokens that are compared."""
    cosines: Tensor
    """(N, M): of every patch of the first image with every patch of the second."""
    buddies: Buddies
    likeness: Likeness

    def _summary(self) -> str:
        one, other = (times(layout.grid) for layout in self.layouts)
        return f"score {self.likeness.score:.4f}, {len(self.buddies.pairs)} best buddies of {one} and {other} patches"

    def _panel(self) -> Iterator[str]:
        alike = self.likeness
        yield facts(
            [
                ("score that the parts add up to", f"{alike.score:.4f}"),
                ("cosine of the vectors", f"{alike.vectors:.4f}"),
                *([("note", alike.approximation)] if alike.approximation else []),
                ("best buddies", len(self.buddies.pairs)),
            ]
        )


def match(
    first: Image,
    second: Image,
    weights: str | Path | Checkpoint = DEFAULT,
    *,
    image: Size | str | int | None = None,
    whole: bool = False,
    layer: int | None = None,
) -> ImageMatch:
    """Match the patches of two images, and split the cosine of the images over them.

    `image` is the model's input size (default: its own). With `whole`, each image keeps its shape instead of being
    cropped: its input has about as many pixels as `image`, in whole patches. Patches are compared by the tokens after
    `layer` (default: the model's features); the parts of the score are those of the features.

    >>> from vitrail import match, synthesize_image
    >>> found = match(synthesize_image(1), synthesize_image(2))
    >>> found.cosines.shape, abs(found.likeness.first.sum().item() - found.likeness.score) < 1e-6
    (torch.Size([64, 64]), True)
    """
    named = "the model" if isinstance(weights, Checkpoint) else short_name(weights)
    checkpoint = weights if isinstance(weights, Checkpoint) else load(weights)
    viewer = Viewer(checkpoint, named, image=None if image is None else Size.of(image), whole=whole)
    return match_seen(viewer.see(first), viewer.see(second), layer)


def match_seen(first: Seen, second: Seen, layer: int | None = None) -> ImageMatch:
    """Match two images that the same model has seen."""
    one, other = first.recording.after(layer), second.recording.after(layer)
    cosines = token_cosines(one, other)
    return ImageMatch(
        first=first,
        second=second,
        layouts=(one[1], other[1]),
        cosines=cosines,
        buddies=best_buddies(cosines),
        likeness=likeness(first.recording, second.recording),
    )


class Viewer:
    """A model that sees images one at a time, at one size or each in its own shape."""

    def __init__(self, checkpoint: Checkpoint, name: str, *, image: Size | None = None, whole: bool = False) -> None:
        self.checkpoint, self.name, self.whole = checkpoint, name, whole
        self.image = image or checkpoint.preprocessing.image
        self._models: dict[Size, ViT | PyramidViT | MobileViT] = {}

    def see(self, image: Image) -> Seen:
        """Run the model once on an image."""
        pixels = read_pixels(image, self.checkpoint.preprocessing)
        original = Size(*pixels.shape[:2])
        steps = self.steps(original)
        subject = subject_of(self._model(steps.image), pixels, steps, words=f"{self.name} at {steps.image}")
        part = steps.part_of(original)
        return Seen(subject=subject, recording=record(subject.model, subject.image), original=original, part=part)

    def steps(self, original: Size) -> Preprocessing:
        """Return how an image of this size is prepared."""
        steps, unit = self.checkpoint.preprocessing, self.checkpoint.config.unit
        if not self.whole:
            return steps.but(image=self.image)
        return steps.squashed(in_shape_of(original, self.image.area, unit))

    def _model(self, size: Size) -> ViT | PyramidViT | MobileViT:
        if size not in self._models:
            config = self.checkpoint.config
            patches = config.but(image=size).grid.area
            require(
                patches <= MOST_PATCHES,
                f"image {size} has {patches:,} patches, above {MOST_PATCHES:,}; use a smaller one",
            )
            adapted = self.checkpoint if size == config.image else adapt(self.checkpoint, {"image": str(size)})[0]
            self._models[size] = adapted.model(dtype=torch.float32)
        return self._models[size]
