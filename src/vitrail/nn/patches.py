"""Image → patch tokens: cut, flatten, project; also from uint8 images directly, without a float image.

Shapes: B images, C channels, H×W pixels, P×Q patch, h×w grid, N = h·w patches, D width; clips of F frames in s steps
of t frames each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.errors import VitrailError, require
from vitrail.geometry import Size, fit
from vitrail.nn.initialise import initialise
from vitrail.nn.layout import Layout
from vitrail.parts import Stem

__all__ = [
    "BytePatchEmbed",
    "ConvStem",
    "PatchEmbed",
    "TubeletEmbed",
    "cut_patches",
    "embed_by_convolution",
    "embed_by_matmul",
    "embed_by_unfold",
    "project_cells",
]


def cut_patches(image: Tensor, patch: Size, stride: Size | None = None) -> Tensor:
    """(B, C, H, W) → (B, N, C·P·Q): flattened patches, row by row over the grid."""
    stride = stride or patch
    windows = image.unfold(2, patch.height, stride.height).unfold(3, patch.width, stride.width)  # (B, C, h, w, P, Q)
    return windows.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)


def embed_by_matmul(image: Tensor, weight: Tensor, bias: Tensor | None, stride: Size | None = None) -> Tensor:
    """Embed by the definition, patches @ W + b: (B, C, H, W) → (B, N, D); the weight is (D, C, P, Q)."""
    tokens = cut_patches(image, Size(*weight.shape[2:]), stride) @ weight.flatten(1).T
    return tokens if bias is None else tokens + bias


def embed_by_unfold(image: Tensor, weight: Tensor, bias: Tensor | None, stride: Size | None = None) -> Tensor:
    """Embed by im2col and a linear layer; equal to `embed_by_matmul`."""
    columns = F.unfold(image, tuple(weight.shape[2:]), stride=tuple(stride or weight.shape[2:]))  # (B, C·P·Q, N)
    return F.linear(columns.mT, weight.flatten(1), bias)


def embed_by_convolution(
    image: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Size | None = None,
    padding: tuple[int, int] = (0, 0),
) -> Tensor:
    """Embed by a strided convolution; equal to `embed_by_matmul` without padding."""
    grid = F.conv2d(image, weight, bias, stride=tuple(stride or weight.shape[2:]), padding=padding)  # (B, D, h, w)
    return grid.flatten(2).mT


class PatchEmbed(nn.Module):
    """Cut patches, flatten them and project them linearly. A stride smaller than the patch makes patches overlap.

    >>> tokens, layout = PatchEmbed(Size(16, 16), width=768)(torch.zeros(2, 3, 224, 320))
    >>> tokens.shape, layout.grid
    (torch.Size([2, 280, 768]), Size(height=14, width=20))
    """

    def __init__(
        self,
        patch: Size,
        width: int,
        *,
        channels: int = 3,
        stride: Size | None = None,
        bias: bool = True,
        padding: tuple[int, int] = (0, 0),
    ) -> None:
        super().__init__()
        self.patch, self.stride, self.padding = patch, stride, padding
        self.weight = nn.Parameter(torch.empty(width, channels, *patch))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None
        initialise(self.weight.data, followed_by="linear")

    def forward(self, image: Tensor, inside: Tensor | None = None) -> tuple[Tensor, Layout]:
        sides = zip(image.shape[2:], self.padding, strict=True)
        whole = Size(*(side + 2 * zeros for side, zeros in sides))
        remainder = "floor" if any(self.padding) else "error"  # the last zeros may be left over
        grid = fit(whole, self.patch, stride=self.stride, remainder=remainder).grid
        tokens = embed_by_convolution(image, self.weight, self.bias, self.stride, self.padding)
        return tokens, Layout(grid=grid, frame=grid, mask=None if inside is None else inside.flatten(1))

    def from_bytes(self, mean: Sequence[float], std: Sequence[float]) -> BytePatchEmbed:
        """Return the same projection for uint8 images: `(x / 255 − mean) / std` is folded into weight and bias."""
        return BytePatchEmbed(self, mean, std)


class TubeletEmbed(PatchEmbed):
    """Clips (B, F, C, H, W) → tokens (B, s·N, D). The channels of a tubelet are those of its t frames in turn.

    >>> tokens, layout = TubeletEmbed(Size(16, 16), width=96, tubelet=2)(torch.zeros(1, 8, 3, 32, 48))
    >>> tokens.shape, layout.steps, layout.grid
    (torch.Size([1, 24, 96]), 4, Size(height=2, width=3))
    """

    def __init__(self, patch: Size, width: int, *, tubelet: int, channels: int = 3, bias: bool = True) -> None:
        super().__init__(patch, width, channels=tubelet * channels, bias=bias)
        self.tubelet = tubelet

    def forward(self, image: Tensor, inside: Tensor | None = None) -> tuple[Tensor, Layout]:
        batch, steps = image.shape[0], image.shape[1] // self.tubelet
        grids = image.unflatten(1, (steps, self.tubelet)).flatten(2, 3).flatten(0, 1)  # (B·s, t·C, H, W)
        tokens, layout = super().forward(grids)  # (B·s, N, D)
        mask = None if inside is None else inside.flatten(1).repeat(1, steps)
        return tokens.unflatten(0, (batch, steps)).flatten(1, 2), replace(layout, steps=steps, mask=mask)

    def from_bytes(self, mean: Sequence[float], std: Sequence[float]) -> BytePatchEmbed:
        raise VitrailError("tubelets are cut from clips of normalised frames, not from bytes; normalise first")


class BytePatchEmbed(nn.Module):
    """uint8 images (B, H, W, C) → tokens; equal to normalising and then embedding, with half the work.

    Normalising is linear per channel: W·((x/255 − mean)/std) + b = W'·x + b' with W' = W / (255·std) and
    b' = b − Σ W·mean/std. Patches are gathered with channels last, so the weight is stored in that order.
    """

    CHUNK_BYTES = 3 << 19
    """Bytes of float patches gathered at a time, so that they stay in a core's cache until the matrix product."""

    def __init__(self, embed: PatchEmbed, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        channels = embed.weight.shape[1]
        require(
            len(mean) == channels and len(std) == channels,
            f"mean has {len(mean)} and std {len(std)} values for {channels} channels; give one per channel",
        )
        require(all(value > 0 for value in std), f"std {tuple(std)} has a value of 0 or below; give positive values")
        require(
            embed.stride in (None, embed.patch),
            f"stride {embed.stride} makes patches overlap, and these cannot be cut from uint8; normalise first",
        )
        self.patch = embed.patch
        weight = embed.weight.detach().double()
        shift = torch.tensor(mean, dtype=torch.float64, device=weight.device).view(1, -1, 1, 1)
        scale = torch.tensor(std, dtype=torch.float64, device=weight.device).view(1, -1, 1, 1)
        bias = -(weight * shift / scale).sum(dim=(1, 2, 3))
        if embed.bias is not None:
            bias = bias + embed.bias.detach().double()
        folded = (weight / (255 * scale)).permute(0, 2, 3, 1).flatten(1)  # (D, P·Q·C)
        self.weight = nn.Parameter(folded.to(embed.weight.dtype).contiguous(), requires_grad=False)
        self.bias = nn.Parameter(bias.to(embed.weight.dtype), requires_grad=False)

    def forward(self, image: Tensor, inside: Tensor | None = None) -> tuple[Tensor, Layout]:
        require(
            image.dtype == torch.uint8 and image.ndim == 4,
            f"image is {image.dtype} with {image.ndim} dimensions; give uint8 (batch, height, width, channel)",
        )
        grid = fit(Size(*image.shape[1:3]), self.patch).grid
        batch, values = image.shape[0], self.weight.shape[1]
        rows = image.reshape(batch, grid.height, self.patch.height, grid.width, -1)
        windows = rows.transpose(2, 3)  # (B, h, w, P, Q·C)
        tokens = self.weight.new_empty(batch, grid.area, self.weight.shape[0])
        chunk = max(1, self.CHUNK_BYTES // (grid.area * values * self.weight.element_size()))
        for part, out in zip(windows.split(chunk), tokens.split(chunk), strict=True):
            # cut and convert in one pass over the bytes, and multiply while they are still in the cache
            patches = part.to(self.weight.dtype, memory_format=torch.contiguous_format).view(-1, values)
            torch.addmm(self.bias, patches, self.weight.T, out=out.view(-1, out.shape[-1]))
        return tokens, Layout(grid=grid, frame=grid, mask=None if inside is None else inside.flatten(1))


class ConvStem(nn.Module):
    """Convolutions with batch norm and an activation, then one to the width: with overlap, 3×3 of stride 2 and 1×1;
    without, each cuts its input into patches."""

    def __init__(self, spec: Stem, width: int, *, channels: int = 3) -> None:
        super().__init__()
        self.patch = spec.patch
        *strides, last = spec.strides
        self.layers = nn.ModuleList(
            _ConvNormActivation(before, after, stride, spec.overlap, spec.activation)
            for (before, after), stride in zip(pairwise((channels, *spec.widths)), strides, strict=True)
        )
        self.projection = project_cells(spec.widths[-1], width, last)

    def forward(self, image: Tensor, inside: Tensor | None = None) -> tuple[Tensor, Layout]:
        grid = fit(Size(*image.shape[2:]), self.patch).grid
        for layer in self.layers:
            image = layer(image)
            if inside is not None:  # beyond its edge, a padded image must have the same zeros as without padding
                image = image * F.interpolate(inside[:, None].to(image.dtype), size=image.shape[2:])
        tokens = self.projection(image).flatten(2).mT  # (B, D, h, w) → (B, N, D)
        return tokens, Layout(grid=grid, frame=grid, mask=None if inside is None else inside.flatten(1))


def project_cells(before: int, width: int, cells: Size) -> nn.Conv2d:
    """Return the projection of patches of a feature map."""
    sides = cells.height, cells.width
    projection = nn.Conv2d(before, width, sides, stride=sides)
    initialise(projection.weight.data, followed_by="linear")
    nn.init.zeros_(projection.bias)  # type: ignore[arg-type]
    return projection


class _ConvNormActivation(nn.Module):
    def __init__(self, before: int, after: int, stride: Size, overlap: bool, activation: str) -> None:
        super().__init__()
        sides = stride.height, stride.width
        kernel, padding = ((3, 3), 1) if overlap else (sides, 0)
        self.conv = nn.Conv2d(before, after, kernel, stride=sides, padding=padding, bias=False)
        self.norm = nn.BatchNorm2d(after)
        self.activate = F.relu if activation == "relu" else F.gelu
        initialise(self.conv.weight.data, followed_by="relu")

    def forward(self, x: Tensor) -> Tensor:
        return self.activate(self.norm(self.conv(x)))
