from __future__ import annotations

import numpy as np
import pytest
import torch

from vitrail import dense, parts, synthesize_image
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.config import ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.look.cells import Cells
from vitrail.look.dense_colours import dense_colours, point_similarity
from vitrail.look.refine import at_pixels, guided
from vitrail.nn.build import build

CONFIG = ViTConfig(
    image=Size(24, 36),
    embedding=parts.Patches(patch=Size(6, 6)),
    prefix=parts.Prefix(registers=1),
    width=24,
    depth=2,
    num_heads=3,
    mlp=parts.Mlp(width=32),
    classes=0,
)
EXACT = {"rtol": 0, "atol": 1e-5}  # float32 passes of other batch sizes


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    torch.manual_seed(3)
    return Checkpoint(
        config=CONFIG, tensors=build(CONFIG).state_dict(), preprocessing=Preprocessing(image=CONFIG.image)
    )


def alone(checkpoint: Checkpoint, pixels: np.ndarray, layer: int | None = None) -> torch.Tensor:
    """The tokens of an image that is seen as it is: (D, h, w)."""
    image = checkpoint.preprocessing.normalise(torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None])
    model = checkpoint.model()
    with torch.no_grad():
        tokens = model.features(image)[0] if layer is None else model.intermediates(image, layers=[layer])[0]  # type: ignore[index]
    tokens = tokens[0, 2:] if layer is None else tokens[0]
    return tokens.T.unflatten(1, (pixels.shape[0] // 6, pixels.shape[1] // 6))


@pytest.mark.parametrize("stride", [3, 2])
def test_shifted_passes_equal_truly_shifted_images(checkpoint: Checkpoint, stride: int):
    spare = 6 - stride
    picture = synthesize_image(4, Size(24 + spare, 36 + spare))
    found = dense(picture, checkpoint, stride=stride)
    np.testing.assert_array_equal(found.pixels, picture)  # the size that the windows need: nothing is resized
    apart = 6 // stride
    assert found.passes == apart**2
    assert found.features.shape == (24, 4 * apart, 6 * apart)
    for down in range(apart):
        for across in range(apart):
            top, left = down * stride, across * stride
            expected = alone(checkpoint, picture[top : top + 24, left : left + 36])
            torch.testing.assert_close(found.features[:, down::apart, across::apart], expected, **EXACT)


def test_one_pass_is_the_models_own_features_and_cells_are_its_patches(checkpoint: Checkpoint):
    picture = synthesize_image(4, CONFIG.image)
    found = dense(picture, checkpoint)
    torch.testing.assert_close(found.features, alone(checkpoint, picture), **EXACT)
    assert found.cells == Cells(grid=Size(4, 6), step=(6, 6))
    assert (found.passes, found.original) == (1, CONFIG.image)


def test_a_fine_cell_is_around_the_middle_of_its_patch(checkpoint: Checkpoint):
    found = dense(synthesize_image(4, Size(28, 40)), checkpoint, stride=2)
    top, left, height, width = found.cells.box(4, 1)  # the window moved by 8 and 2 pixels, which begins a patch there
    assert (top + height / 2, left + width / 2) == (4 * 2 + 3, 1 * 2 + 3)


def test_tiles_cover_a_large_image_and_a_lone_token_is_that_of_its_tile(checkpoint: Checkpoint):
    picture = synthesize_image(4, Size(48, 72))
    found = dense(picture, checkpoint, size="48x72", tile="24x36")
    assert found.features.shape == (24, 8, 12)
    assert found.passes == 9  # three tiles a side, so that neighbours overlap
    expected = alone(checkpoint, picture[:24, :36])
    torch.testing.assert_close(found.features[:, :2, :3], expected[:, :2, :3], **EXACT)  # before the next tile begins
    assert not torch.allclose(found.features[:, 2:4, 3:6], expected[:, 2:4, 3:6], atol=1e-3)


def test_where_two_tiles_say_the_same_so_does_their_blend(checkpoint: Checkpoint):
    flat = np.full((48, 36, 3), 90, np.uint8)
    without = CONFIG.but(position=parts.NoPosition())
    torch.manual_seed(3)
    plain = checkpoint.but(config=without, tensors=build(without).state_dict())
    found = dense(flat, plain, size="48x36", tile="24x36")
    torch.testing.assert_close(found.features, found.features[:, :1, :1].expand(-1, 8, 6), **EXACT)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stride": 4}, "stride 4 does not divide the patch 6x6; use a divisor, such as 3"),
        ({"size": 60_000, "stride": 1}, "GiB; use a larger stride or a smaller size"),
    ],
)
def test_what_cannot_be_computed_is_refused(checkpoint: Checkpoint, options, words: str, monkeypatch):
    monkeypatch.setattr("vitrail.look.dense.MOST_BYTES", 2**20)
    options = {**options, "size": 600} if "size" in options else options
    with pytest.raises(VitrailError, match=words):
        dense(synthesize_image(1, CONFIG.image), checkpoint, **options)


def test_overlapping_patches_are_refused(checkpoint: Checkpoint):
    overlapping = CONFIG.but(embedding=parts.Patches(patch=Size(6, 6), stride=Size(3, 3)))
    with pytest.raises(VitrailError, match="patches that do not overlap"):
        dense(synthesize_image(1), checkpoint.but(config=overlapping))


def test_bilinear_values_are_exact_in_the_middles_of_cells():
    values = torch.randn(2, 5, 7)
    cells = Cells(grid=Size(5, 7), step=(3, 3), top=1.0, left=1.0)
    whole = at_pixels(values, cells, Size(17, 23))
    assert whole.shape == (2, 17, 23)
    torch.testing.assert_close(whole[:, 2::3, 2::3], values, **EXACT)
    linear = torch.arange(7.0).expand(1, 5, 7)
    between = at_pixels(linear, cells, Size(17, 23))[0, 9, 2:21]
    torch.testing.assert_close(between, torch.arange(19) / 3, **EXACT)


def test_plain_values_are_those_of_the_nearest_cell():
    values = torch.randn(2, 5, 7)
    cells = Cells(grid=Size(5, 7), step=(3, 3), top=1.0, left=1.0)
    whole = at_pixels(values, cells, Size(17, 23), "nearest")
    torch.testing.assert_close(whole[:, 1:16, 1:22], values.repeat_interleave(3, 1).repeat_interleave(3, 2))


def test_over_a_larger_photograph_every_cell_keeps_its_place(checkpoint: Checkpoint):
    photograph = synthesize_image(4, Size(300, 450))
    found = dense(photograph, checkpoint, stride=3)
    larger = found.over(photograph, 200)
    assert larger.pixels.shape == (5 * 27, 5 * 39, 3)  # the windows and half a patch beside them, five times as large
    assert larger.cells == Cells(grid=Size(8, 12), step=(15, 15), top=7.5, left=7.5)
    assert larger.features is found.features
    assert found.over(photograph, 60) is found
    small = larger.pixels.reshape(27, 5, 39, 5, 3).mean(axis=(1, 3))
    assert np.abs(small - found.pixels).mean() < 4  # levels of 255: the two are resized by different filters
    (near,), (also,) = (point_similarity([each], 200, 110, upsampling="nearest") for each in (found, larger))
    torch.testing.assert_close(also[14::15, 14::15][:8, :12], near[2::3, 2::3][:8, :12], **EXACT)  # inside each cell


def test_the_guided_filter_keeps_what_is_linear_in_the_colours_and_follows_an_edge():
    pixels = np.zeros((40, 56, 3), np.uint8)
    pixels[:, 30:] = 200  # an edge inside a cell of 8 pixels
    cells = Cells(grid=Size(5, 7), step=(8, 8))
    means = torch.from_numpy(pixels[..., 0]).float().unfold(0, 8, 8).unfold(1, 8, 8).mean(dim=(2, 3))[None] / 200
    sharp, soft = guided(means, cells, pixels, smooth=1e-4), at_pixels(means, cells, Size(40, 56))
    truth = torch.from_numpy(pixels[..., 0]).float() / 200
    # coefficients are averaged with those of flat neighbours, whose slope is zero
    assert (sharp[0] - truth).abs().max() < 0.1
    assert (soft[0] - truth).abs().max() > 0.3
    flat = torch.full((3, 5, 7), 0.7)
    torch.testing.assert_close(guided(flat, cells, pixels), torch.full((3, 40, 56), 0.7), rtol=0, atol=1e-5)


def test_colours_of_several_images_share_one_basis(checkpoint: Checkpoint):
    one, other = synthesize_image(4, Size(24, 36)), synthesize_image(5, Size(36, 24))
    images = [dense(each, checkpoint) for each in (one, other, one)]
    colours = dense_colours(images)
    assert [each.shape[:2] for each in colours.rgb] == [each.pixels.shape[:2] for each in images]
    torch.testing.assert_close(colours.rgb[0], colours.rgb[2])
    masked = dense_colours(images, foreground=True)
    black = [(each == 0).all(dim=2).float().mean().item() for each in masked.rgb]
    assert 0 < sum(black) < 3


def test_similarity_is_largest_at_the_point(checkpoint: Checkpoint):
    picture = synthesize_image(4, Size(24, 36))
    images = [dense(picture, checkpoint)]
    (near,) = point_similarity(images, 15, 27, upsampling="bilinear")
    assert near.shape == (24, 36)
    assert near[15, 27] > near.max() - 0.01 > 0.9  # half a pixel beside the middle of its patch
    with pytest.raises(VitrailError, match="point 30,2 is outside the image of 24x36"):
        point_similarity(images, 30, 2)
