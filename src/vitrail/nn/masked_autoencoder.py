"""Masked autoencoder (MAE, arXiv 2111.06377): images → the error of reconstructed patches.

Shapes: B images, C channels, H×W pixels, N patches of P pixels, of which n are visible, D width, E decoder's width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitrail.config import ViTConfig
from vitrail.geometry import Size
from vitrail.nn.attention import Attention, FullMix
from vitrail.nn.block import Block
from vitrail.nn.initialise import initialise_table
from vitrail.nn.layout import Layout
from vitrail.nn.mlp import FeedForward, linear
from vitrail.nn.positions import SinCosTable
from vitrail.nn.vit import ViT
from vitrail.parts import FullAttention, SinCos2d
from vitrail.pretraining import MaskedAutoencoder

__all__ = ["Reconstruction"]


class Decoder(nn.Module):
    """Visible tokens (B, p + n, D) and their places → pixels of all patches, (B, N, P·C)."""

    def __init__(self, config: ViTConfig, spec: MaskedAutoencoder) -> None:
        super().__init__()
        width, prefix = spec.decoder_width, config.prefix.count
        assert isinstance(config.attention, FullAttention)
        self.layout = Layout(grid=config.grid, frame=config.grid, prefix=prefix)
        self.into = linear(config.width, width)
        self.masked = nn.Parameter(torch.empty(1, width))
        initialise_table(self.masked.data)
        self.position = SinCosTable(config.grid, width, SinCos2d())
        self.blocks = nn.ModuleList(
            Block(
                width,
                attention=Attention(width, spec.decoder_heads, mix=FullMix(fused=config.attention.fused)),
                mlp=FeedForward(width, 4 * width),
                norm_eps=config.norm_eps,
            )
            for _ in range(spec.decoder_depth)
        )
        self.norm = nn.LayerNorm(width, eps=config.norm_eps)
        self.pixels = linear(width, config.channels * config.patch.area)

    def forward(self, tokens: Tensor, places: Tensor) -> Tensor:
        x = self.into(tokens)
        prefix, visible = x.split([self.layout.prefix, x.shape[1] - self.layout.prefix], dim=1)
        masked = self.masked.expand(len(x), places.shape[1] - visible.shape[1], -1)
        patches = torch.cat([visible, masked.to(x.dtype)], dim=1)  # in the order of the draw
        patches = patches.gather(1, places[..., None].expand(-1, -1, x.shape[2]))  # (B, N, E), in the grid's order
        x = self.position(torch.cat([prefix, patches], dim=1), self.layout)
        for block in self.blocks:
            x = block(x, self.layout)
        return self.pixels(self.norm(x)[:, self.layout.prefix :])


class Reconstruction(nn.Module):
    """(B, C, H, W) → the mean squared error of masked patches, each normalised by its own mean and deviation."""

    def __init__(self, config: ViTConfig, spec: MaskedAutoencoder) -> None:
        super().__init__()
        self.visible = spec.visible(config.grid.area)
        self.encoder = ViT(config)
        self.decoder = Decoder(config, spec)

    def forward(self, image: Tensor) -> Tensor:
        encoder = self.encoder
        tokens, layout = encoder.embed(image)  # (B, p + N, D)
        order = torch.rand(len(tokens), layout.grid.area, device=tokens.device).argsort(dim=1)
        kept = order[:, : self.visible, None].expand(-1, -1, tokens.shape[2])
        x = torch.cat([tokens[:, : layout.prefix], tokens[:, layout.prefix :].gather(1, kept)], dim=1)
        if encoder.embedding_norm is not None:
            x = encoder.embedding_norm(x)
        for block in encoder.blocks:
            x = block(x, layout)
        places = order.argsort(dim=1)
        predicted = self.decoder(encoder.normed(x, layout), places)
        error = (predicted - patches_of(image, encoder.config.patch)).square().mean(dim=-1)  # (B, N)
        masked = places >= self.visible
        return (error * masked).sum() / (masked.numel() - len(masked) * self.visible)

    def advance(self) -> None:
        """Nothing follows an optimizer step."""


@torch.no_grad()
def patches_of(image: Tensor, patch: Size) -> Tensor:
    """(B, C, H, W) → the pixels of each patch, normalised: (B, N, P·C)."""
    height, width = patch
    pixels = image.unfold(2, height, height).unfold(3, width, width)  # (B, C, h, w, height, width)
    pixels = pixels.permute(0, 2, 3, 4, 5, 1).flatten(3).flatten(1, 2)
    variance, mean = torch.var_mean(pixels, dim=-1, keepdim=True)
    return (pixels - mean) / (variance + 1e-6).sqrt()
