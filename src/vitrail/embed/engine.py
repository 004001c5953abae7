"""Engines: uint8 images → vectors, behind one small interface.

Shapes: B images, H×W pixels, C channels, T tokens, D width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.errors import require
from vitrail.nn.layout import Layout
from vitrail.nn.vit import ViT

__all__ = ["Agreement", "Engine", "EngineName", "agreement", "build_engine"]

EngineName = Literal["torch", "int8"]


class Engine(Protocol):
    """What runs a model. Images are uint8 (B, H, W, C), as `prepare` gives them."""

    name: str
    width: int
    """D, the length of a vector."""

    def vectors(self, images: Tensor) -> Tensor:
        """uint8 (B, H, W, C) → float32 (B, D), the pooled vectors, not normalised to unit length."""
        ...

    def tokens(self, images: Tensor) -> tuple[Tensor, Layout]:
        """uint8 (B, H, W, C) → float32 (B, T, D), the encoder's tokens after the final norm, and where they lie."""
        ...


def build_engine(
    checkpoint: Checkpoint,
    name: EngineName = "torch",
    *,
    threads: int | None = None,
    calibration: Tensor | None = None,
    compile: bool = False,  # noqa: A002 — torch's word
    merge: int = 0,
) -> Engine:
    """The engine of that name for these weights. `threads`: of torch in this process; as they are unless given.

    `calibration`: uint8 (B, H, W, C), some of the user's images, from which int8 learns its ranges.
    `compile`: by torch.compile, at the first batch. `merge`: tokens that every block merges away.
    """
    require(name == "torch", f"engine {name!r} is unknown; use torch")
    if threads is not None:
        torch.set_num_threads(threads)
    return PlainEngine(checkpoint)


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Cosines of one engine's vectors with another's, over some images."""

    images: int
    mean: float
    lowest: float


def agreement(engine: Engine, reference: Engine, images: Tensor) -> Agreement:
    """How near an engine comes to a reference on uint8 (B, H, W, C)."""
    ours, theirs = (each.vectors(images).double() for each in (engine, reference))
    cosines = F.cosine_similarity(ours, theirs, dim=1)
    return Agreement(images=len(images), mean=cosines.mean().item(), lowest=cosines.min().item())


class PlainEngine:
    """The model as it is: for every config."""

    name = "torch"

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.model = checkpoint.model(dtype=torch.float32)
        statistics = checkpoint.preprocessing.mean, checkpoint.preprocessing.std
        self.mean, self.std = (torch.tensor(values).view(1, -1, 1, 1) for values in statistics)
        channels = checkpoint.config.channels
        image = torch.zeros(1, *checkpoint.preprocessing.image, channels, dtype=torch.uint8)
        self.width = self.vectors(image).shape[1]

    @torch.inference_mode()
    def vectors(self, images: Tensor) -> Tensor:
        vector = self.model.vector(self._normalised(images))
        return vector.mean(dim=1) if vector.ndim == 3 else vector  # a distilled model's two, as its heads are averaged

    @torch.inference_mode()
    def tokens(self, images: Tensor) -> tuple[Tensor, Layout]:
        model = self.model
        require(isinstance(model, ViT), f"{type(model).__name__} has no tokens of one grid; ask for vectors only")
        assert isinstance(model, ViT)
        return model.features(self._normalised(images))

    def _normalised(self, images: Tensor) -> Tensor:
        return (images.permute(0, 3, 1, 2) / 255 - self.mean) / self.std
