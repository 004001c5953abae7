from fractions import Fraction

import pytest

from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.plan.laws import (
    crossover,
    density,
    impact,
    laws,
    neighbouring_patches,
    pixels_as_tokens,
    projection,
    scaling,
)


def square(side: int) -> Size:
    return Size(side, side)


@pytest.mark.parametrize(("image", "patch", "patches"), [(224, 16, 196), (384, 16, 576), (32, 4, 64), (1024, 16, 4096)])
def test_patches_are_the_grid_s_area(image, patch, patches):
    found = impact(square(image), square(patch))
    assert found.patches == patches
    assert found.tokens == patches + 1


@pytest.mark.parametrize(("patch", "elements"), [(8, 16_777_216), (16, 1_048_576), (32, 65_536)])
def test_attention_elements_are_the_patches_squared(patch, elements):
    assert impact(square(512), square(patch)).attention_elements == elements


def test_patch_32_to_8_is_256_times_the_attention():
    found = scaling((square(512), square(32)), (square(512), square(8)))
    assert (found.tokens, found.attention) == (16, 256)


def test_halving_the_patch_and_doubling_the_image_cost_the_same():
    image, patch = Size(192, 320), Size(16, 8)
    halved = scaling((image, patch), (image, Size(8, 4)))
    doubled = scaling((image, patch), (Size(384, 640), patch))
    assert halved == doubled == laws(image, patch).twice_as_fine
    assert (halved.tokens, halved.attention) == (4, 16)


def test_density_of_a_non_square_patch():
    found = density(Size(96, 160), Size(8, 16), width=192)
    patches = 12 * 10
    assert found.pixels_per_token == 128
    assert found.summarised_share == Fraction(127, 128)
    assert found.effective_resolution == pytest.approx(patches**0.5, rel=1e-15)  # one square root of the same number
    assert found.attention_per_pixel == Fraction(patches**2 * 192, 96 * 160)


def test_attention_per_pixel_is_hwd_over_p4():
    assert density(Size(224, 320), square(16), width=768).attention_per_pixel == Fraction(224 * 320 * 768, 16**4)


def test_pixels_as_tokens_at_224():
    found = pixels_as_tokens(square(224), square(16))
    assert (found.pixels, found.values) == (50_176, 150_528)
    assert (found.attention_cut_from_pixels, found.attention_cut_from_values) == (65_536, 589_824)


def test_projection_of_vit_b_16():
    found = projection(square(16), 768)
    assert (found.params, found.inputs, found.compression, found.rank_bound) == (590_592, 768, 1, 768)
    assert found.lookup_params == 50_000 * 768


def test_projection_cannot_keep_more_directions_than_its_width():
    found = projection(Size(32, 16), 192)
    assert (found.inputs, found.rank_bound, found.lost_directions) == (1536, 192, 1344)
    assert found.compression == 8


def test_crossover_equates_flops():
    width, mlp_width = 96, 352
    found = crossover(width, mlp_width)
    for tokens, others in (
        (found.mlp_tokens, 4 * found.mlp_tokens * width * mlp_width),
        (found.linear_tokens, 2 * found.linear_tokens * (4 * width**2 + 2 * width * mlp_width)),
    ):
        assert 4 * tokens**2 * width == others


def test_attention_share_of_vit_b_16():
    tokens, width = 197, 768
    attention, linear = 4 * tokens**2 * width, 2 * tokens * 12 * width**2
    assert laws(square(224), square(16)).attention_share == Fraction(attention, attention + linear)


def test_neighbours_divide_the_image():
    assert neighbouring_patches(square(224), square(16)) == tuple(map(square, (4, 8, 16, 32)))
    assert neighbouring_patches(Size(14, 28), Size(7, 14)) == (Size(7, 14), Size(14, 28))


def test_a_patch_that_does_not_divide_is_refused():
    with pytest.raises(VitrailError, match="512x512 is not divisible by patch 15x15"):
        laws(square(512), square(15))
