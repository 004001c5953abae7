"""The cost of the neck."""

from __future__ import annotations

from dataclasses import replace

from vitrail.config import NormKind, ViTConfig
from vitrail.parts import Neck, Patches, ResNetStem, Stem, Tubelets
from vitrail.plan import ops
from vitrail.plan.graph import Tensor, module
from vitrail.plan.model.layout import Sizes
from vitrail.plan.model.norm import norm
from vitrail.plan.tape import Tape

__all__ = ["behind", "neck", "neck_at"]


def neck(t: Tape, c: ViTConfig, spec: Neck, n: Sizes, x: Tensor) -> Tensor:
    return neck_at(t, "neck", c, n, x, spec.width, c.norm)


@module
def neck_at(t: Tape, path: str, c: ViTConfig, n: Sizes, x: Tensor, width: int, kind: NormKind) -> Tensor:
    given = x
    if _in_image_order(c) and n.batch > 1 and n.patches > 1:
        given = t.cast(x, t.compute)
        x = ops.copy(t, given)
    x = ops.Linear(t, f"{path}.project", x, n.width, width, False)
    del given
    x = norm(t, kind, f"{path}.norm1", x, width)
    x = ops.Conv(t, f"{path}.conv", x, 9 * width * width, width, n.batch * n.patches, False)
    return norm(t, kind, f"{path}.norm2", x, width)


def _in_image_order(c: ViTConfig) -> bool:
    """Whether tokens are still stored as the patches' convolution gave them, channel by channel, so that a linear layer
    copies them: without a norm before the blocks, sums keep that order."""
    return isinstance(c.embedding, Patches | Stem | ResNetStem | Tubelets) and not c.patch_norm and not c.embedding_norm


def behind(c: ViTConfig, n: Sizes) -> Sizes:
    """Return the sizes of the tokens that pooling reads."""
    return replace(n, width=c.feature_width)
