"""Make a step's batch as a pure function of the step, in any process, without the steps before it.

The data are an endless sequence of epochs; step s takes indices s·batch … (s + 1)·batch − 1. A damaged image is left
out of its batch and moves no other.

Shapes: B images, C channels, H×W pixels, K classes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from vitrail.checkpoint.pixels import resize, with_channels
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.data.source import Source
from vitrail.errors import require
from vitrail.geometry import Size
from vitrail.images.decode import ImageError, Pixels
from vitrail.training.augment import CROP_DRAWS, DRAWS, MOVE_DRAWS, crop_box, flip_and_shift, rand_augment
from vitrail.training.mix import draw_mixing, mix, soft_labels
from vitrail.training.random import generator, order, uniform
from vitrail.training.recipe import Recipe

__all__ = ["Batch", "Batches", "ahead", "in_order", "measured", "scale_at", "statistics"]

ENOUGH_PIXELS = 1 << 22


@dataclass(frozen=True)
class Batch:
    """A micro-batch: normalised images (B, C, H, W), and the errors of damaged images."""

    images: Tensor
    targets: Tensor
    """What the loss compares with: soft labels (B, K), or the same parts of the images as a teacher takes them."""
    damaged: tuple[str, ...] = ()


class Batches:
    """One process's part of every step's batch, as micro-batches.

    With `views`, the targets are the same parts of the images, prepared in this way.
    """

    def __init__(
        self,
        source: Source,
        recipe: Recipe,
        *,
        preprocessing: Preprocessing,
        classes: int,
        views: Preprocessing | None = None,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        require(
            recipe.batch % (recipe.accumulate * world) == 0,
            f"batch {recipe.batch} does not divide over {world} processes of {recipe.accumulate} micro-batches; "
            "use a multiple",
        )
        self.source, self.recipe, self.preprocessing, self.classes = source, recipe, preprocessing, classes
        self.views, self.rank, self.world = views, rank, world
        self.order = lru_cache(maxsize=2)(lambda epoch: order(recipe.seed, epoch, len(source)))

    def __call__(self, step: int) -> list[Batch]:
        recipe = self.recipe
        size = recipe.batch // (recipe.accumulate * self.world)
        image, _ = scale_at(recipe, step, self.preprocessing.image)
        steps = self.preprocessing.but(image=image)
        parts = []
        for micro in range(recipe.accumulate):
            first = (micro * self.world + self.rank) * size  # of the whole batch
            places = step * recipe.batch + first + np.arange(size)
            parts.append(self._part(step, places, first, steps))
        return parts

    def _part(self, step: int, places: np.ndarray, first: int, steps: Preprocessing) -> Batch:
        recipe, count = self.recipe, len(self.source)
        epochs = places // count
        indices = np.array([self.order(int(epoch))[place % count] for epoch, place in zip(epochs, places, strict=True)])
        draws = uniform(recipe.seed, epochs, indices, DRAWS)
        pixels, views, labels, kept, damaged = [], [], [], [], []
        for row, index in enumerate(indices):
            try:
                picture, label = self.source[int(index)]
            except ImageError as error:
                damaged.append(str(error))
                continue
            pixels.append(self._fitted(picture, steps, draws[row]))
            if self.views is not None:
                views.append(self._fitted(picture, self.views, draws[row]))
            labels.append(label)
            kept.append(row)
        require(len(kept) > 0, f"step {step + 1} has no image that can be read ({damaged[0] if damaged else ''})")
        images, own = torch.stack(pixels), torch.from_numpy(draws[kept])[:, CROP_DRAWS:]
        images = flip_and_shift(images, flip=recipe.flip, shift=recipe.shift, draws=own)
        if recipe.augment:
            images = rand_augment(
                images, operations=recipe.augment, magnitude=recipe.magnitude, draws=own[:, MOVE_DRAWS:]
            )
        values = steps.normalise(images)
        if self.views is not None:
            seen = flip_and_shift(torch.stack(views), flip=recipe.flip, shift=0, draws=own)
            return Batch(values, self.views.normalise(seen), tuple(damaged))
        targets = soft_labels(torch.tensor(labels), self.classes, recipe.label_smoothing)
        if recipe.mixup or recipe.cutmix:
            boxes, cut = draw_mixing(
                recipe.batch // 2, mixup=recipe.mixup, cutmix=recipe.cutmix, seed=recipe.seed, step=step
            )
            pairs = slice(first // 2, (first + len(places)) // 2)
            values, targets = mix(values, targets, (boxes[pairs], cut[pairs]))
        return Batch(values, targets, tuple(damaged))

    def _fitted(self, picture: Pixels, steps: Preprocessing, draws: np.ndarray) -> Tensor:
        if self.recipe.crop == 1 and self.views is None:
            return _channels_first(steps.pixels(picture).pixels)
        top, left, height, width = crop_box(Size(*picture.shape[:2]), self.recipe.crop, draws)
        part = resize(picture[top : top + height, left : left + width], steps.image)
        return _channels_first(with_channels(part, steps.channels))


def _channels_first(pixels: Pixels) -> Tensor:
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


def scale_at(recipe: Recipe, step: int, image: Size) -> tuple[Size, Size | None]:
    """Return the step's image size, and its patch size if that is random too."""
    random = generator("scale", recipe.seed, step)
    first, second = random.random(2)
    size = recipe.images[int(first * len(recipe.images))] if recipe.images else image
    return size, recipe.patches[int(second * len(recipe.patches))] if recipe.patches else None


def ahead(batches: Batches, start: int, stop: int) -> Iterator[tuple[int, list[Batch]]]:
    """Yield the steps' batches in order, prefetching the next two."""
    with ThreadPoolExecutor(1) as pool:
        waiting: deque[Future[list[Batch]]] = deque()
        try:
            for step in range(start, stop + 2):
                if step < stop:
                    waiting.append(pool.submit(batches, step))
                if step >= start + 2 and waiting:
                    yield step - 2, waiting.popleft().result()
        finally:
            for each in waiting:
                each.cancel()


def in_order(source: Source, preprocessing: Preprocessing, batch: int) -> Iterator[tuple[Tensor, Tensor, list[str]]]:
    """Yield all images once, not augmented: uint8 (B, C, H, W), labels (B,), and the errors of damaged images."""
    for first in range(0, len(source), batch):
        pixels, labels, damaged = [], [], []
        for index in range(first, min(first + batch, len(source))):
            try:
                picture, label = source[index]
            except ImageError as error:
                damaged.append(str(error))
                continue
            pixels.append(_channels_first(preprocessing.pixels(picture).pixels))
            labels.append(label)
        if pixels:
            yield torch.stack(pixels), torch.tensor(labels), damaged


def measured(source: Source, image: Size, name: str = "the data") -> Preprocessing:
    """Return the preprocessing for a model that is trained from scratch on this source."""
    mean, std = statistics(source)
    return Preprocessing(image=image, mean=mean, std=std, source=f"measured on {name}")


def statistics(source: Source) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel, to four digits, of at most 256 images at even steps; fewer if large."""
    sums, squares, pixels, seen = np.zeros(source.channels), np.zeros(source.channels), 0, 0
    # bisecting the largest gap spreads the images evenly, wherever it stops
    for number in range(min(256, len(source))):
        place = int(f"{number:08b}"[::-1], 2) * len(source) // 256
        try:
            picture, _ = source[place]
        except ImageError:
            continue
        values = picture.reshape(-1, source.channels) / 255
        sums, squares, pixels = sums + values.sum(0), squares + (values**2).sum(0), pixels + len(values)
        seen += 1
        if seen >= 8 and pixels > ENOUGH_PIXELS:
            break
    require(pixels > 0, f"none of {min(256, len(source))} images could be read; check the data")
    mean = sums / pixels
    deviation = np.sqrt(np.maximum(squares / pixels - mean**2, 1e-4))
    return tuple(mean.round(4).tolist()), tuple(deviation.round(4).tolist())
