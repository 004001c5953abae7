"""Pictures of tokens as colours: the original's, the adapted model's and the healed one's, by the same components."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.healing.report import Colours
from vitrail.healing.score import Judge
from vitrail.look.pca import principal_scores, scaled_to_colours
from vitrail.nn.vit import ViT
from vitrail.training.feature_loss import features_of

__all__ = ["token_colours"]

SHOWN = 3
"""Images that are shown."""


@torch.inference_mode()
def token_colours(judge: Judge, before: Checkpoint, after: Checkpoint) -> tuple[Colours, ...]:
    """Colour the tokens of the first images to judge on; the same direction has the same colour in all pictures of an
    image."""
    images = torch.stack(judge.images[:SHOWN])
    views = judge.own.normalise(images)
    taught = torch.cat([part.patches for part in judge.taught])[: len(images)]
    grids = [taught, *(_patches(each, views) for each in (before, after))]  # (B, D, h, w) each
    return tuple(
        Colours(image=_picture(image), original=one, before=two, after=three)
        for image, *held in zip(images, *grids, strict=True)
        for one, two, three in (_coloured(held),)
    )


def _patches(checkpoint: Checkpoint, views: Tensor) -> Tensor:
    model = checkpoint.model(dtype=torch.float32, shared=True)
    assert isinstance(model, ViT)
    return features_of(model, views).patches


def _coloured(grids: list[Tensor]) -> list[np.ndarray]:
    """(D, h, w) per model → uint8 (h, w, 3) per model."""
    rows = [grid.flatten(1).T.double() for grid in grids]
    scores, _ = principal_scores(torch.cat(rows))
    found = scaled_to_colours(scores).split([len(each) for each in rows])
    return [
        (255 * each).round().byte().view(*grid.shape[1:], 3).numpy() for each, grid in zip(found, grids, strict=True)
    ]


def _picture(image: Tensor) -> np.ndarray:
    """uint8 (C, H, W) → (H, W, 3): grey for one channel, the first three of more."""
    shown = image.expand(3, -1, -1) if image.shape[0] == 1 else image[:3]
    return np.ascontiguousarray(shown.permute(1, 2, 0).numpy())
