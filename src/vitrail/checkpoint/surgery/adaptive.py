"""A trained model of one patch size, told to give flat parts of an image larger patches.

Nothing is trained: the projection of the larger patch reads from it what the trained one reads from the same patch at
half its size, and a larger patch takes the mean of the positions that it covers.
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
    """The config with patches of two sizes, its own and twice that; refused for models that cannot have them."""
    plain = isinstance(config, ViTConfig) and isinstance(config.embedding, Patches)
    kind = type(config.embedding if isinstance(config, ViTConfig) else config).__name__
    require(plain, f"adaptive patches are for a plain ViT's own, not for {kind}; leave them out")
    assert isinstance(config, ViTConfig)
    assert isinstance(config.embedding, Patches)
    fine, stride = config.patch, config.embedding.stride
    require(
        stride in (None, fine), f"adaptive patches tile an image, and these overlap (stride {stride}); leave them out"
    )
    coarse = Size(2 * fine.height, 2 * fine.width)
    try:
        return config.but(embedding=Adaptive(patches=(fine, coarse), threshold=threshold))
    except VitrailError as error:
        raise VitrailError(f"no adaptive patches of {fine} and {coarse}: {error}") from None


def with_adaptive_patches(checkpoint: Checkpoint, threshold: float) -> Checkpoint:
    """Patches of the trained size where a cell's detail reaches `threshold`, of twice that where it does not.

    0 gives the model as it was; see `vitrail.nn.adaptive.detail_scores` for what the threshold is compared with.
    """
    config = adaptive_config(checkpoint.config, threshold)
    assert isinstance(config.embedding, Adaptive)
    weight, bias = checkpoint.tensors["embedding.weight"], checkpoint.tensors.get("embedding.bias")
    tensors = {name: tensor for name, tensor in checkpoint.tensors.items() if not name.startswith("embedding.")}
    for level, patch in enumerate(config.embedding.patches):
        tensors[f"embedding.projections.{level}.weight"] = resize_projection(weight, patch)
        tensors[f"embedding.projections.{level}.bias"] = weight.new_zeros(len(weight)) if bias is None else bias
    return checkpoint.but(config=config, tensors=tensors)
