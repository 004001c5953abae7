"""A region of an image: its tokens, which have seen the whole image, or the region as an image of its own.

Shapes: T tokens of which the last N are patches.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from vitrail.checkpoint.pixels import Image, read_pixels
from vitrail.config import MobileConfig
from vitrail.errors import require
from vitrail.geometry import Size
from vitrail.images.boxes import Box
from vitrail.look.match import Seen, Viewer
from vitrail.look.record import Recording
from vitrail.parts import AttentionPool, MaxPool, MeanPool

__all__ = ["see_region"]

IN_PLACE = "the tokens in the box, pooled"
ALONE = "the box as an image of its own, as the model's vector is no pool of patches"


def see_region(viewer: Viewer, image: Image, box: Box) -> tuple[Recording, str]:
    """Run the model for a region; return the pass, whose patches outside the region are masked, and what it shows.

    The vector of a CLS token belongs to a whole image, so that such a model sees the region as an image of its own.
    """
    pixels = read_pixels(image, viewer.checkpoint.preprocessing)
    box.check_inside(Size(*pixels.shape[:2]))
    config = viewer.checkpoint.config
    pool = MeanPool() if isinstance(config, MobileConfig) else config.pool
    if isinstance(pool, MeanPool | MaxPool) or (isinstance(pool, AttentionPool) and not pool.prefix):
        return _masked(viewer.see(pixels), box), IN_PLACE
    cut = pixels[box.top : box.top + box.height, box.left : box.left + box.width]
    return viewer.see(cut).recording, ALONE


def _masked(seen: Seen, box: Box) -> Recording:
    """Keep the patches whose centres are in the box."""
    tokens, layout = seen.recording.features
    inside = torch.ones(1, tokens.shape[1], dtype=torch.bool) if layout.mask is None else layout.mask.clone()
    for patch in range(tokens.shape[1] - layout.prefix):
        inside[0, layout.prefix + patch] &= box.holds(*seen.place(layout, patch))
    require(
        bool(inside[0, layout.prefix :].any()),
        f"box {box} has the centre of no patch that the model sees; give a larger one",
    )
    return replace(seen.recording, features=(tokens, replace(layout, mask=inside)))
