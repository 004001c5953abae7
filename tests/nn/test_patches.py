from __future__ import annotations

import math

import pytest
import torch

from vitrail.errors import VitrailError
from vitrail.geometry import Size, fit
from vitrail.nn.patches import (
    BytePatchEmbed,
    ConvStem,
    PatchEmbed,
    cut_patches,
    embed_by_convolution,
    embed_by_matmul,
    embed_by_unfold,
)
from vitrail.parts import Stem

CUTS = [
    (Size(20, 42), Size(4, 6), None),
    (Size(20, 42), Size(4, 6), Size(2, 3)),  # overlapping
    (Size(21, 35), Size(7, 5), None),
    (Size(16, 16), Size(16, 16), None),
]


@pytest.mark.parametrize("channels", [1, 3, 5])
@pytest.mark.parametrize(("image", "patch", "stride"), CUTS)
def test_three_spellings_of_the_projection_agree(image: Size, patch: Size, stride: Size | None, channels: int):
    torch.manual_seed(0)
    pixels = torch.randn(2, channels, *image, dtype=torch.float64)
    weight, bias = torch.randn(11, channels, *patch, dtype=torch.float64), torch.randn(11, dtype=torch.float64)
    for offset in (bias, None):
        tokens = embed_by_matmul(pixels, weight, offset, stride)
        assert tokens.shape == (2, fit(image, patch, stride=stride).grid.area, 11)
        for spelling in (embed_by_unfold, embed_by_convolution):
            torch.testing.assert_close(spelling(pixels, weight, offset, stride), tokens, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("image", "patch", "stride"), CUTS)
def test_a_cut_patch_is_that_part_of_the_image(image: Size, patch: Size, stride: Size | None):
    pixels = torch.arange(2 * 3 * image.area).view(2, 3, *image)
    grid, step = fit(image, patch, stride=stride).grid, stride or patch
    patches = cut_patches(pixels, patch, stride)
    for i in range(grid.height):
        for j in range(grid.width):
            top, left = i * step.height, j * step.width
            part = pixels[:, :, top : top + patch.height, left : left + patch.width]
            assert torch.equal(patches[:, i * grid.width + j], part.flatten(1))


def test_the_projection_of_b_16_has_590592_parameters():
    embed = PatchEmbed(Size(16, 16), 768)
    assert sum(parameter.numel() for parameter in embed.parameters()) == 768 * (16 * 16 * 3 + 1) == 590_592


def test_a_projection_before_something_linear_starts_xavier_uniform():
    torch.manual_seed(0)
    weight = PatchEmbed(Size(8, 8), 300).weight
    bound = math.sqrt(6 / (8 * 8 * 3 + 300))
    assert weight.abs().max() <= bound
    # A uniform's deviation is bound/√3; 57,600 samples put the estimate within 1 %.
    assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.01)


def test_a_convolution_before_a_rectifier_starts_he_normal():
    torch.manual_seed(0)
    weight = ConvStem(Stem(patch=Size(4, 4), widths=(64, 128)), 32).layers[1].conv.weight  # type: ignore[union-attr]
    assert weight.std().item() == pytest.approx(math.sqrt(2 / (64 * 9)), rel=0.01)  # type: ignore[union-attr]


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize(("image", "patch"), [(Size(32, 48), Size(8, 16)), (Size(21, 35), Size(7, 5))])
def test_bytes_give_what_normalising_first_gives(image: Size, patch: Size, channels: int):
    torch.manual_seed(0)
    mean, std = [0.4, 0.5, 0.3, 0.2][:channels], [0.2, 0.25, 0.3, 0.5][:channels]
    pixels = torch.randint(0, 256, (2, *image, channels), dtype=torch.uint8)
    normalised = (pixels.double() / 255 - torch.tensor(mean).double()) / torch.tensor(std).double()
    # The mean and std of the test are float32 constants there and float64 here: that is the 1e-6.
    for dtype, tolerance in ((torch.float64, 1e-6), (torch.float32, 1e-5)):
        embed = PatchEmbed(patch, 13, channels=channels).to(dtype)
        torch.nn.init.normal_(embed.bias)  # type: ignore[arg-type]
        expected, layout = embed(normalised.permute(0, 3, 1, 2).to(dtype))
        tokens, found = embed.from_bytes(mean, std)(pixels)
        assert found.grid == layout.grid
        torch.testing.assert_close(tokens, expected, rtol=tolerance, atol=tolerance)


def test_bytes_in_chunks_are_the_same_as_at_once(monkeypatch: pytest.MonkeyPatch):
    torch.manual_seed(0)
    embed = PatchEmbed(Size(4, 4), 8).double().from_bytes([0.5] * 3, [0.5] * 3)
    pixels = torch.randint(0, 256, (5, 12, 20, 3), dtype=torch.uint8)
    whole, _ = embed(pixels)
    monkeypatch.setattr(BytePatchEmbed, "CHUNK_BYTES", 1)
    parts, _ = embed(pixels)
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("mean", "std", "message"),
    [
        ([0.5], [0.5], "mean has 1 and std 1 values for 3 channels"),
        ([0.5] * 3, [0.5, 0.0, 0.5], "has a value of 0 or below"),
    ],
)
def test_a_normalisation_that_cannot_be_folded_is_refused(mean: list[float], std: list[float], message: str):
    with pytest.raises(VitrailError, match=message):
        PatchEmbed(Size(4, 4), 8).from_bytes(mean, std)


def test_floats_are_not_taken_for_bytes():
    embed = PatchEmbed(Size(4, 4), 8).from_bytes([0.5] * 3, [0.5] * 3)
    with pytest.raises(VitrailError, match=r"image is torch.float32 with 4 dimensions; give uint8"):
        embed(torch.zeros(1, 8, 8, 3))


def test_overlapping_patches_cannot_be_cut_from_bytes():
    with pytest.raises(VitrailError, match="makes patches overlap, and these cannot be cut from uint8"):
        PatchEmbed(Size(4, 4), 8, stride=Size(2, 2)).from_bytes([0.5] * 3, [0.5] * 3)


def test_a_stem_reduces_by_its_patch():
    stem = ConvStem(Stem(patch=Size(8, 8), widths=(6, 10, 12)), 24, channels=2).eval()
    tokens, layout = stem(torch.randn(2, 2, 40, 56))
    assert tokens.shape == (2, 35, 24)
    assert layout.grid == Size(5, 7)
