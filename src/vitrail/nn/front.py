"""The front end: image → the token sequence that an encoder reads.

Shapes: B images, C channels, H×W pixels, T tokens, D width; clips of F frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor, nn

from vitrail import parts
from vitrail.config import ViTConfig
from vitrail.errors import require
from vitrail.geometry import Size
from vitrail.nn.adaptive import AdaptiveEmbed
from vitrail.nn.image import check_image, check_tensor
from vitrail.nn.layout import Layout
from vitrail.nn.norm import build_norm
from vitrail.nn.patches import BytePatchEmbed, ConvStem, PatchEmbed, TubeletEmbed
from vitrail.nn.positions import (
    AddedPosition,
    AttentionPosition,
    LearnedTable,
    PositionModule,
    SinCos1dTable,
    SinCosTable,
)
from vitrail.nn.prefix import Prefix
from vitrail.nn.pyramid import PyramidEmbed
from vitrail.nn.query_bias import OffsetVectors
from vitrail.nn.relative import OffsetMlp, RelativeTable
from vitrail.nn.remainder import fit_pixels, inside_of
from vitrail.nn.resnet_stem import ResNetEmbed
from vitrail.nn.rotary import AxialRotation, ClipRotation, MixedRotation, RotatedTable

__all__ = ["VisionFrontEnd", "build_inside", "build_position"]


class VisionFrontEnd(nn.Module):
    """Patches, prefix and positions: (B, C, H, W) → (B, T, D). A ViT is a front end followed by an encoder.

    A model with `Tubelets` takes clips, (B, F, C, H, W).

    >>> import torch
    >>> VisionFrontEnd(ViTConfig())(torch.zeros(1, 3, 224, 224)).shape
    torch.Size([1, 197, 768])
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = build_embedding(config)
        self.patch_norm = build_norm(config.norm, config.width, config.norm_eps) if config.patch_norm else None
        self.prefix = Prefix(config.prefix, config.width)
        self.position = build_position(config)

    def forward(self, image: Tensor, sizes: Sequence[Size] | None = None) -> Tensor:
        tokens, _ = self.embed(image, sizes)
        return tokens

    def embed(self, image: Tensor, sizes: Sequence[Size] | None = None) -> tuple[Tensor, Layout]:
        """Return the tokens and their layout. `sizes` are the image sizes of a batch made by `pad_batch`."""
        tokens, layout = self.patches(*self._fit(image, sizes))
        if self.config.remainder == "pad":
            layout = replace(layout, frame=self.config.grid)
        return self.placed(tokens, layout)

    def placed(self, patches: Tensor, layout: Layout) -> tuple[Tensor, Layout]:
        """Put the prefix before the patches, and add positions."""
        tokens, layout = self.prefix(patches, layout)
        return self.position(tokens, layout) if isinstance(self.position, AddedPosition) else tokens, layout

    def patches(self, image: Tensor, inside: Tensor | None = None) -> tuple[Tensor, Layout]:
        """Pixels as the patches need them → projected patches, normalised if the model does so."""
        tokens, layout = self.embedding(image, inside)
        return tokens if self.patch_norm is None else self.patch_norm(tokens), layout

    def _fit(self, image: Tensor, sizes: Sequence[Size] | None) -> tuple[Tensor, Tensor | None]:
        """Return the pixels as the patches need them and, for padded images, which grid cells belong to each."""
        config = self.config
        if isinstance(self.embedding, BytePatchEmbed):
            self._check_bytes(image, sizes)
            return image, None
        check_image(image, config.channels, config.frames)
        if config.frames > 1:  # the frames of a clip are fitted as channels of one image
            image, inside = self._fit_image(image.flatten(1, 2), sizes)
            return image.unflatten(1, (config.frames, config.channels)), inside
        return self._fit_image(image, sizes)

    def _fit_image(self, image: Tensor, sizes: Sequence[Size] | None) -> tuple[Tensor, Tensor | None]:
        config, size = self.config, Size(*image.shape[2:])
        fit = config.fit(size)
        if config.remainder != "pad":
            require(
                sizes is None, f"sizes needs remainder 'pad', and this model has {config.remainder!r}; leave sizes out"
            )
            return fit_pixels(image, fit), None
        require(
            fit.grid.height <= config.grid.height and fit.grid.width <= config.grid.width,
            f"image {size} is larger than the config's image {config.image}, which it is padded to; "
            "use a config with a larger image",
        )
        if sizes is None:
            return fit_pixels(image, fit), None
        require(
            len(sizes) == image.shape[0] and all(a.height <= size.height and a.width <= size.width for a in sizes),
            f"{len(sizes)} sizes for {image.shape[0]} images of {size}; give each image's own size, at most {size}",
        )
        image = image.where(inside_of(sizes, size, image.device)[:, None], 0)
        grids = [config.fit(each).grid for each in sizes]
        return fit_pixels(image, fit), inside_of(grids, fit.grid, image.device)

    def _check_bytes(self, image: Tensor, sizes: Sequence[Size] | None) -> None:
        check_tensor(image)
        channels = self.config.channels
        require(
            image.ndim == 4 and image.shape[-1] == channels,
            f"image has shape {tuple(image.shape)}; give uint8 (batch, height, width, {channels})",
        )
        require(sizes is None, "sizes needs float pixels, and the image is uint8; normalise and pad the images first")


def build_embedding(config: ViTConfig) -> nn.Module:
    width, channels = config.width, config.channels
    match config.embedding:
        case parts.Patches() as spec:
            return PatchEmbed(spec.patch, width, channels=channels, stride=spec.stride, bias=spec.bias)
        case parts.Tubelets() as spec:
            return TubeletEmbed(spec.patch, width, tubelet=spec.tubelet, channels=channels, bias=spec.bias)
        case parts.Stem() as spec:
            return ConvStem(spec, width, channels=channels)
        case parts.ResNetStem() as spec:
            return ResNetEmbed(spec, width, channels=channels)
        case parts.Hierarchical() as spec:
            return PyramidEmbed(spec, width, channels=channels)
        case parts.Adaptive() as spec:
            return AdaptiveEmbed(spec, width, channels=channels)


def build_position(config: ViTConfig) -> PositionModule | None:
    """Build the model's position module; None if it has none, or one in every block."""
    grid, width, steps = config.grid, config.width, config.steps
    match config.position:
        case parts.Learned() as spec:
            rows = spec.prefix_rows(config.prefix)
            table = {"prefix_rows": rows, "convention": spec.convention, "steps": steps}
            if isinstance(spec.rotary, parts.Rotary):
                return RotatedTable(grid, width, **table, rotation=AxialRotation(config.head_width, spec.rotary))
            return LearnedTable(grid, width, **table)
        case parts.SinCos1d() as spec:
            return SinCos1dTable(grid, width, spec, prefix=config.prefix.count, steps=steps)
        case parts.SinCos2d() | parts.SinCos3d() as spec:
            return SinCosTable(grid, width, spec, steps=steps)
        case spec:
            return None if spec.per_block else build_inside(config)


def build_inside(config: ViTConfig, block: int = 0) -> AttentionPosition | OffsetVectors | None:
    """Build a module of the position that acts inside attention: a block's, if `per_block` is true, or the model's."""
    match config.position.inside:
        case parts.Rotary() as spec:
            return AxialRotation(config.head_width, spec)
        case parts.Rotary3d() as spec:
            return ClipRotation(config.head_width, spec)
        case parts.RotaryMixed() as spec:
            return MixedRotation(config.num_heads, config.head_width, spec.temperature)
        case parts.RelativeBias() as spec:
            return RelativeTable(
                config.attention.span(config.grid),
                config.num_heads,
                prefix=spec.prefix,
                window_padding=_window_padding(config.attention),
                convention=spec.convention,
            )
        case parts.RelativeMlp() as spec:
            span, padding = config.attention.span(config.grid), _window_padding(config.attention)
            return OffsetMlp(spec, span, config.num_heads, window_padding=padding)
        case parts.DecomposedBias():
            kind, grid = config.attention.at(block), config.grid
            return OffsetVectors(grid, kind.span(grid), config.head_width, window_padding=_window_padding(kind))
    return None


def _window_padding(attention: parts.AttentionKind) -> parts.WindowPadding | None:
    return attention.window_padding if isinstance(attention, parts.WindowedAttention) else None
