from functools import cache
from typing import get_args

import pytest
import torch
import torch.nn.functional as F

from peers import timm
from vitrail.checkpoint.assess.projection_loss import predicted_loss
from vitrail.checkpoint.surgery.projection import Projection, change_channels, resize_projection
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.nn.patches import cut_patches, embed_by_matmul

OLD = Size(8, 6)
UP = [Size(16, 12), Size(8, 9), Size(11, 7)]
DOWN = [Size(4, 3), Size(7, 5), Size(8, 5)]


def filters(patch: Size = OLD, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(10, 3, *patch, generator=torch.Generator().manual_seed(3), dtype=dtype)


def resized(image: torch.Tensor, old: Size, new: Size) -> torch.Tensor:
    """Every patch of the image resized by itself, and the image put together again."""
    batch, channels, height, width = image.shape
    grid = Size(height // old.height, width // old.width)
    patches = cut_patches(image, old).reshape(-1, channels, *old)
    patches = F.interpolate(patches, size=tuple(new), mode="bicubic", antialias=True)
    patches = patches.view(batch, *grid, channels, *new).permute(0, 3, 1, 4, 2, 5)
    return patches.reshape(batch, channels, grid.height * new.height, grid.width * new.width)


@pytest.mark.parametrize("how", ["pinv", "natural", "interpolate"])
def test_the_same_patch_is_the_same_object(how):
    weight = filters()
    assert resize_projection(weight, OLD, how=how) is weight


@pytest.mark.parametrize("how", ["pinv", "natural"])
@pytest.mark.parametrize("new", UP, ids=str)
def test_upward_tokens_of_resized_patches_are_the_old_ones(new, how):
    image = torch.randn(2, 3, 5 * OLD.height, 7 * OLD.width, generator=torch.Generator().manual_seed(4))
    weight = filters()
    before = embed_by_matmul(image, weight, None)
    after = embed_by_matmul(resized(image, OLD, new), resize_projection(weight, new, how=how), None)
    assert (after - before).norm() / before.norm() < 1e-6


@pytest.mark.parametrize("new", UP + DOWN, ids=str)
def test_interpolate_is_the_filters_resized_as_pictures_by_area(new):
    """The ratio of areas keeps a flat patch's token, but for what antialiasing does at the edges."""
    weight = filters(dtype=torch.float64)
    expected = F.interpolate(weight, size=tuple(new), mode="bicubic", antialias=True) * (OLD.area / new.area)
    assert torch.allclose(resize_projection(weight, new, how="interpolate"), expected, atol=1e-12)


@pytest.mark.parametrize("new", UP + DOWN, ids=str)
def test_pinv_is_timms_pseudo_inverse_and_more_precise(new):
    """timm inverts in float32; ours is in float64, one matrix per axis."""
    weight = filters()
    expected = timm.layers.resample_patch_embed(weight, list(new))
    assert (resize_projection(weight, new) - expected).norm() / expected.norm() < 1e-5


@cache
def drawn(*, natural: bool) -> torch.Tensor:
    """20,000 patches of white noise, or of a blurred Markov field."""
    generator = torch.Generator().manual_seed(5)
    if not natural:
        return torch.randn(20_000, 3, *OLD, generator=generator, dtype=torch.float64)
    field = torch.randn(20_000, 3, OLD.height + 2, OLD.width + 2, generator=generator, dtype=torch.float64)
    rows, columns = (_root(0.96 ** (torch.arange(n)[:, None] - torch.arange(n)).abs().double()) for n in (10, 8))
    colour = _root(0.85 + 0.15 * torch.eye(3, dtype=torch.float64))
    field = torch.einsum("cd,ij,kl,bdjl->bcik", colour, rows, columns, field)
    taps = torch.tensor([0.15, 0.7, 0.15], dtype=torch.float64)
    return F.conv2d(field.flatten(0, 1)[:, None], torch.outer(taps, taps)[None, None]).view(20_000, 3, *OLD)


@pytest.mark.parametrize("how", ["pinv", "natural", "interpolate"])
@pytest.mark.parametrize("new", UP + DOWN, ids=str)
def test_predicted_loss_is_the_loss_on_patches_with_that_covariance(new, how):
    """Measured on drawn patches; 20,000 of them leave about a per cent of error."""
    weight = filters(dtype=torch.float64)
    predicted = predicted_loss(weight, new, how=how)
    for patches, value in ((drawn(natural=True), predicted.natural), (drawn(natural=False), predicted.white)):
        before = patches.flatten(1) @ weight.flatten(1).T
        after = resized(patches, OLD, new).flatten(1) @ resize_projection(weight, new, how=how).flatten(1).T
        measured = ((after - before).norm() / before.norm()).item()
        assert value == pytest.approx(measured, rel=0.03, abs=1e-6)


def _root(covariance: torch.Tensor) -> torch.Tensor:
    return torch.linalg.cholesky(covariance)


def test_upward_loses_nothing_and_downward_natural_loses_least():
    weight = filters(Size(16, 16))
    assert predicted_loss(weight, Size(32, 24)).natural < 1e-6
    for new in (Size(14, 14), Size(8, 8), Size(12, 10)):
        loss = {how: predicted_loss(weight, new, how=how).natural for how in get_args(Projection)}
        assert 0 < loss["natural"] <= loss["pinv"] < loss["interpolate"]
        assert predicted_loss(weight, new).least == loss["natural"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_projection_keeps_its_type(dtype):
    weight = filters().to(dtype)
    assert resize_projection(weight, Size(4, 3)).dtype == dtype
    assert change_channels(weight, 1).dtype == dtype


@pytest.mark.parametrize("channels", [1, 2, 4, 13])
def test_channels_follow_timms_rule_to_the_bit(channels):
    weight = filters()
    assert torch.equal(change_channels(weight, channels), timm.models.adapt_input_conv(channels, weight.clone()))


def test_channels_keep_grey_images_and_scale():
    weight = filters()
    assert change_channels(weight, 3) is weight
    grey = torch.randn(2, 1, *OLD)
    before = (grey.expand(-1, 3, -1, -1).flatten(1)) @ weight.flatten(1).T
    for channels in (1, 6):
        after = grey.expand(-1, channels, -1, -1).flatten(1) @ change_channels(weight, channels).flatten(1).T
        assert torch.allclose(after, before, atol=1e-4)


def test_mistakes_are_named():
    with pytest.raises(VitrailError, match="projection 'cubic' is unknown; use one of pinv, natural, interpolate"):
        resize_projection(filters(), Size(4, 4), how="cubic")  # type: ignore[arg-type]
    with pytest.raises(VitrailError, match="channels 0 is not positive"):
        change_channels(filters(), 0)
