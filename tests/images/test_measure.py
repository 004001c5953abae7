import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.images.decode import decode
from vitrail.images.measure import (
    ADAPTIVE,
    above_nyquist_share,
    adaptive_token_count,
    fill,
    lost_by_resizing,
    luma,
    survey,
    within_patch_share,
)
from vitrail.nn.adaptive import AdaptiveEmbed
from vitrail.parts import Adaptive

PATCH = Size(4, 8)


def wave(period: float, height: int = 96, width: int = 160) -> np.ndarray:
    columns = np.arange(width) + 0.5
    return 128 + 100 * np.cos(2 * np.pi * columns / period) * np.ones((height, 1))


def test_detail_inside_patches_is_all_or_nothing_at_the_extremes():
    blocks = np.random.default_rng(0).uniform(0, 255, (5, 7)).repeat(4, 0).repeat(8, 1)
    assert within_patch_share(blocks, PATCH) == pytest.approx(0, abs=1e-12)  # float64 rounding
    assert within_patch_share(wave(8), PATCH) == pytest.approx(1, abs=1e-12)


def test_white_noise_has_one_minus_one_over_p2_of_its_variance_inside_patches():
    noise = np.random.default_rng(1).normal(size=(512, 512))
    # the means of 8,192 patches of 32 pixels: a standard error of √(2/8192)/32 ≈ 0.0005
    assert within_patch_share(noise, PATCH) == pytest.approx(1 - 1 / 32, abs=0.002)


def test_nyquist_is_two_patches_a_period():
    assert above_nyquist_share(wave(20), Size(8, 8)) < 0.01  # the window leaks a little
    assert above_nyquist_share(wave(12), Size(8, 8)) > 0.99
    assert above_nyquist_share(wave(12), Size(8, 4)) < 0.01


def test_a_uniform_image_has_no_detail():
    flat = np.full((33, 47), 77.0)
    assert within_patch_share(flat, PATCH) == above_nyquist_share(flat, PATCH) == 0
    assert lost_by_resizing(np.full((33, 47, 3), 77, np.uint8), Size(8, 8)) == 0


def test_filling_its_own_size_changes_nothing():
    pixels = np.random.default_rng(2).integers(0, 256, (21, 34, 3), np.uint8)
    np.testing.assert_array_equal(fill(pixels, Size(21, 34)), pixels)
    np.testing.assert_array_equal(fill(pixels[..., :1], Size(21, 34)), pixels[..., :1])


def test_a_thin_image_is_cropped_before_it_is_resized():
    assert fill(np.zeros((1, 20_000, 3), np.uint8), Size(224, 160)).shape == (224, 160, 3)


def test_fine_detail_goes_when_the_image_shrinks_and_coarse_stays():
    fine, coarse = (np.repeat(wave(period)[..., None], 3, 2).astype(np.uint8) for period in (3, 80))
    target = Size(24, 40)
    assert lost_by_resizing(fine, target) > 0.95
    assert lost_by_resizing(coarse, target) < 0.05
    assert lost_by_resizing(fine, Size(96, 160)) == 0


def test_luma_is_pillow_s():
    pixels = np.random.default_rng(3).integers(0, 256, (5, 7, 3), np.uint8)
    # Pillow rounds to whole levels with 16-bit weights
    assert np.abs(luma(pixels) - np.asarray(Image.fromarray(pixels).convert("L"))).max() <= 0.51


@pytest.mark.parametrize("selector", ["detail", "local"])
@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.8, float("inf")])
def test_adaptive_tokens_are_those_of_the_model(threshold, selector):
    pixels = np.random.default_rng(4).integers(0, 256, (64, 96, 3), np.uint8)
    pixels[:32] //= 8
    pixels[:, :32] = 90
    spec = Adaptive(threshold=threshold, selector=selector)
    with torch.no_grad():
        tokens, _ = AdaptiveEmbed(spec, 12)(torch.from_numpy(pixels).permute(2, 0, 1)[None].float())
    assert adaptive_token_count(pixels, spec) == tokens.shape[1]


def test_a_selector_with_weights_is_not_counted_from_pixels():
    with pytest.raises(VitrailError, match="'learned' is not computed from pixels alone; use 'detail' or 'local'"):
        adaptive_token_count(np.zeros((32, 32, 3), np.uint8), Adaptive(selector="learned"))


def test_a_survey_counts_what_it_read_and_lists_what_it_could_not(tmp_path):
    rng = np.random.default_rng(5)
    for index, (height, width) in enumerate(((40, 60), (80, 60), (120, 200))):
        Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8)).save(tmp_path / f"{index}.png")
    (tmp_path / "bad.png").write_bytes(b"nothing")
    found = survey(sorted(tmp_path.iterdir()), image=Size(64, 96))
    assert found.images == 3
    assert [path for path, _ in found.failed] == [str(tmp_path / "bad.png")]
    assert (found.smallest, found.median, found.largest) == (Size(40, 60), Size(80, 60), Size(120, 200))
    assert found.aspect_low < found.aspect_median < found.aspect_high
    shares = [detail.within_share for detail in found.details]
    assert shares == sorted(shares)
    assert [detail.patch.height for detail in found.details] == [4, 8, 14, 16, 32]
    expected = [adaptive_token_count(fill(decode(tmp_path / f"{i}.png"), Size(64, 96)), ADAPTIVE) for i in range(3)]
    assert found.adaptive_tokens == round(sum(expected) / 3)


def test_a_survey_of_nothing_readable_is_refused(tmp_path):
    (tmp_path / "bad.png").write_bytes(b"nothing")
    with pytest.raises(VitrailError, match="none of 1 images"):
        survey([tmp_path / "bad.png"], image=Size(64, 64))
