"""A model's tokens after any layer, and their norms.

Shapes: B images, C channels, H×W pixels, T tokens of which the last N are patches, D width.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from vitrail.errors import require
from vitrail.nn.block import Block
from vitrail.nn.intermediates import layer_index
from vitrail.nn.layout import Layout
from vitrail.nn.mobile import MobileViT
from vitrail.nn.pyramid import PyramidViT
from vitrail.nn.vit import ViT

__all__ = ["block_outputs", "blocks_of", "norm_outliers", "token_norms", "tokens_after"]

OUTLIER_DEVIATIONS = 8.0


@torch.no_grad()
def tokens_after(model: ViT | PyramidViT | MobileViT, image: Tensor, layer: int | None = None) -> tuple[Tensor, Layout]:
    """(B, C, H, W) → the tokens (B, T, D) after a block, and their layout; by default, the model's features.

    >>> import torch
    >>> from vitrail import load
    >>> from vitrail.look import tokens_after
    >>> model = load("default").model()
    >>> tokens_after(model, torch.zeros(1, 3, 32, 32), layer=2)[0].shape
    torch.Size([1, 65, 96])
    """
    if layer is None:
        return model.features(image)
    blocks = blocks_of(model, layer)
    with block_outputs(blocks[layer_index(layer, len(blocks))]) as outputs:
        model.features(image)
    return outputs[0]


def blocks_of(model: nn.Module, layer: int) -> list[Block]:
    """Return the blocks that `layer` counts."""
    require(
        not isinstance(model, MobileViT),
        f"layer {layer} of a mobile model has no tokens on one grid; leave layer out to use its last feature map",
    )
    return [module for module in model.modules() if isinstance(module, Block)]


@contextmanager
def block_outputs(within: nn.Module) -> Iterator[list[tuple[Tensor, Layout]]]:
    """Collect the tokens after each block of a module, or after the block that it is, and their layout."""
    outputs: list[tuple[Tensor, Layout]] = []

    def observe(_: nn.Module, arguments: tuple, output: Tensor) -> None:
        outputs.append((output, arguments[1]))

    hooks = [module.register_forward_hook(observe) for module in within.modules() if isinstance(module, Block)]
    try:
        yield outputs
    finally:
        for hook in hooks:
            hook.remove()


def token_norms(tokens: Tensor, layout: Layout) -> Tensor:
    """(B, T, D) → (B, N): the L2 norm of every patch token; zero for padding.

    A few norms far above the rest are artefacts: tokens that a large model without registers uses as scratch space
    (arXiv 2309.16588).

    >>> import torch
    >>> from vitrail import load
    >>> from vitrail.look import token_norms
    >>> model = load("default").model()
    >>> tokens, layout = model.features(torch.randn(1, 3, 32, 32))
    >>> token_norms(tokens, layout).shape
    torch.Size([1, 64])
    """
    norms = tokens[:, layout.prefix :].norm(dim=-1)
    return norms if layout.patch_mask is None else norms * layout.patch_mask


def norm_outliers(norms: Tensor, layout: Layout, deviations: float = OUTLIER_DEVIATIONS) -> Tensor:
    """Return (B, N), true for norms above the image's median by more than `deviations` robust std (1.4826 MAD).

    >>> import torch
    >>> from vitrail import load
    >>> from vitrail.look import norm_outliers, token_norms
    >>> model = load("default").model()
    >>> tokens, layout = model.features(torch.randn(1, 3, 32, 32))
    >>> norm_outliers(token_norms(tokens, layout), layout).shape
    torch.Size([1, 64])
    """
    real = norms if layout.patch_mask is None else norms.masked_fill(~layout.patch_mask, torch.nan)
    centre = real.nanmedian(dim=1, keepdim=True).values
    spread = 1.4826 * (real - centre).abs().nanmedian(dim=1, keepdim=True).values
    return real > centre + deviations * spread
