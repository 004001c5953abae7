"""The cost of the front end: image → tokens."""

from __future__ import annotations

from vitrail.config import ViTConfig
from vitrail.parts import Adaptive, Hierarchical, Patches, ResNetStem, Stem, Tubelets
from vitrail.plan import ops
from vitrail.plan.graph import Tensor
from vitrail.plan.model.adaptive import adaptive_embed
from vitrail.plan.model.layout import Sizes
from vitrail.plan.model.norm import norm
from vitrail.plan.model.patches import conv_stem, patch_embed, tubelet_embed
from vitrail.plan.model.positions import position
from vitrail.plan.model.prefix import prefix
from vitrail.plan.model.pyramid import pyramid_embed
from vitrail.plan.model.remainder import fit_pixels
from vitrail.plan.model.resnet_stem import resnet_embed
from vitrail.plan.tape import Tape

__all__ = ["embed"]


def embed(t: Tape, c: ViTConfig, n: Sizes, image: Tensor) -> Tensor:
    tokens = embedding(t, c, n, fit_pixels(t, c, image, n.batch))
    if c.patch_norm:
        tokens = norm(t, c.norm, "patch_norm", tokens, n.width)
    tokens = prefix(t, c.prefix, n, tokens)
    if c.position.acts_on == "tokens":
        tokens = position(t, c, n, tokens)
    return tokens


def embedding(t: Tape, c: ViTConfig, n: Sizes, image: Tensor) -> Tensor:
    match c.embedding:
        case Patches() as spec:
            values = c.channels * c.patch.area
            return patch_embed(t, "embedding", image, values, n.width, n.batch * n.patches, spec.bias)
        case Tubelets() as spec:
            values, places = spec.tubelet * c.channels * c.patch.area, n.batch * n.patches
            if c.steps == 1:
                return patch_embed(t, "embedding", image, values, n.width, places, spec.bias)
            return tubelet_embed(t, "embedding", image, values, n.width, places, spec.bias, _has_gaps(t, c, n))
        case Stem() as spec:
            return conv_stem(t, spec, image, c.fit(c.image).fitted, n.batch, c.channels, n.width)
        case ResNetStem() as spec:
            return resnet_embed(t, spec, image, c.fit(c.image).fitted, n.batch, c.channels, n.width)
        case Hierarchical() as spec:
            x = pyramid_embed(t, spec, image, n.patches, n.batch, c.channels, n.width)
            return ops.copied_back(t, x) if _has_gaps(t, c, n) else x
        case Adaptive() as spec:
            return adaptive_embed(t, spec, image, c.fit(c.image).fitted, n.patches, n.batch, c.channels, n.width)


def _has_gaps(t: Tape, c: ViTConfig, n: Sizes) -> bool:
    """Whether the gradient of the patches is a view with gaps: that of the sequence, without the prefix."""
    return c.prefix.count > 0 and n.batch > 1 and not t.amp and not c.patch_norm
