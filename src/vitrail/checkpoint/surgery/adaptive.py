"""Give a trained model of one patch size larger patches for the flat parts of an image, without training.

The larger projection gives a patch the token that the trained one gives the same patch at half its size; the position
of a larger patch is the mean of those that it covers.
"""

from __future__ import annotations

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.surgery.projection import resize_projection
from vitrail.config import Config, ViTConfig
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size
from vitrail.parts import Adaptive, Patches

__all__ = ["adaptive_config", "with_adaptive_patches"]


def adaptive_config(config: Config, threshold: float) -> ViTConfig:
    """Return the config with patches of its own size and of twice that; raise VitrailError if it cannot have them."""
    plain = isinstance(config, ViTConfig) and isinstance(config.embedding, Patches)
    kind = type(config.embedding if isinstance(config, ViTConfig) else config).__name__
    require(plain, f"adaptive patches need the plain patches of a ViT, not {kind}; leave them out")
    assert isinstance(config, ViTConfig)
    assert isinstance(config.embedding, Patches)
    fine, stride = config.patch, config.embedding.stride
    require(
        stride in (None, fine), f"adaptive patches tile an image, and these overlap (stride {stride}); leave them out"
    )
    coarse = Size(2 * fine.height, 2 * fine.width)
    try:
        return config.but(embedding=Adaptive(patches=(fine, coarse), threshold=threshold, selector="local"))
    except VitrailError as error:
        raise VitrailError(f"no adaptive patches of {fine} and {coarse}: {error}") from None


def with_adaptive_patches(checkpoint: Checkpoint, threshold: float) -> Checkpoint:
    """Use patches of the trained size where a cell's detail reaches `threshold`, and of twice that elsewhere.

    0 keeps the model unchanged; `vitrail.nn.adaptive.detail_scores` defines detail, which is local here.
    """
    config = adaptive_config(checkpoint.config, threshold)
    assert isinstance(config.embedding, Adaptive)
    weight, bias = checkpoint.tensors["embedding.weight"], checkpoint.tensors.get("embedding.bias")
    tensors = {name: tensor for name, tensor in checkpoint.tensors.items() if not name.startswith("embedding.")}
    for level, patch in enumerate(config.embedding.patches):
        tensors[f"embedding.projections.{level}.weight"] = resize_projection(weight, patch)
        tensors[f"embedding.projections.{level}.bias"] = weight.new_zeros(len(weight)) if bias is None else bias
    return checkpoint.but(config=config, tensors=tensors)
