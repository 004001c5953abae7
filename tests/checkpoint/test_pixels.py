from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import skimage
from PIL import Image

from bad_images import CORPUS
from peers import timm, transformers
from vitrail.checkpoint.pixels import MEAN_TOLERANCE, prepare
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.images.decode import ImageError

PHOTOS = Path(skimage.__file__).parent / "data"
JPEGS = ("retina.jpg", "hubble_deep_field.jpg", "rocket.jpg")


def jpeg(image: Image.Image, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=90, **options)
    return buffer.getvalue()


def photo(name: str) -> Image.Image:
    return Image.open(PHOTOS / name).convert("RGB")


def textured(size: Size) -> Image.Image:
    """A real photograph, stretched: rounding of sides shows where they are odd."""
    return photo("retina.jpg").resize((size.width, size.height))


def difference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.abs(a.astype(int) - b.astype(int))


@pytest.mark.parametrize("size", [Size(427, 641), Size(533, 300), Size(95, 64), Size(224, 224)])
@pytest.mark.parametrize("image", [Size(64, 64), Size(48, 80)])
@pytest.mark.parametrize("crop_share", [0.9, 1.0])
def test_exact_pixels_are_timms_to_the_bit(size: Size, image: Size, crop_share: float):
    # whatever it is told, timm resizes to what is not square with bilinear weights
    interpolation = "bicubic" if image.height == image.width else "bilinear"
    steps = Preprocessing(image=image, crop_share=crop_share, interpolation=interpolation)
    picture = textured(size)
    theirs = timm.data.create_transform(
        (3, *image), interpolation=interpolation, crop_pct=crop_share, mean=(0, 0, 0), std=(1, 1, 1)
    )(picture)
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    ours = prepare(buffer.getvalue(), steps, exact=True)
    assert ours.original == size
    np.testing.assert_array_equal(ours.pixels, (theirs.permute(1, 2, 0) * 255).round().byte().numpy())


@pytest.mark.parametrize("size", [Size(427, 641), Size(533, 300), Size(95, 67)])
def test_exact_pixels_are_transformers_to_the_bit(size: Size):
    """The longer side and the crop's corner as transformers' own functions give them; Pillow resizes in between."""
    steps = Preprocessing(image=Size(56, 56), crop_share=56 / 64, half_pixel="down")
    picture = textured(size)
    whole = transformers.image_transforms.get_resize_output_image_size(
        np.asarray(picture), size=64, default_to_square=False
    )
    resized = np.asarray(picture.resize(whole[::-1], Image.Resampling.BICUBIC))
    theirs = transformers.image_transforms.center_crop(resized, (56, 56))
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    np.testing.assert_array_equal(prepare(buffer.getvalue(), steps, exact=True).pixels, theirs)


@pytest.mark.parametrize("crop_share", [0.9, 1.0])
def test_squashed_pixels_are_timms_to_the_bit(crop_share: float):
    steps = Preprocessing(image=Size(40, 64), resize="squash", crop_share=crop_share)
    theirs = timm.data.create_transform(
        (3, 40, 64), interpolation="bicubic", crop_pct=crop_share, crop_mode="squash", mean=(0, 0, 0), std=(1, 1, 1)
    )(photo("rocket.jpg"))
    ours = prepare(PHOTOS / "rocket.jpg", steps, exact=True).pixels
    np.testing.assert_array_equal(ours, (theirs.permute(1, 2, 0) * 255).round().byte().numpy())


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("side", [64, 224])
@pytest.mark.parametrize("name", JPEGS)
def test_fast_pixels_of_photographs_are_within_the_stated_tolerance(name: str, side: int, interpolation):
    steps = Preprocessing(image=Size(side, side), crop_share=0.9, interpolation=interpolation)
    fast, exact = (prepare(PHOTOS / name, steps, exact=exact) for exact in (False, True))
    assert fast.original == exact.original
    assert difference(fast.pixels, exact.pixels).mean() <= MEAN_TOLERANCE


def test_fast_pixels_of_what_cannot_shrink_differ_by_one_level_at_most():
    """torch's bytes and Pillow's round their weights to different integers."""
    steps = Preprocessing(image=Size(96, 96), crop_share=0.9)
    fast, exact = (prepare(PHOTOS / "astronaut.png", steps, exact=exact) for exact in (False, True))
    assert difference(fast.pixels, exact.pixels).max() <= 1


@pytest.mark.parametrize("size", [Size(1023, 1279), Size(1022, 1278), Size(1021, 1277)])
def test_a_jpeg_shrunk_to_a_rounded_up_side_keeps_the_geometry(size: Size):
    """Half a pixel of shift at the far edge would be several levels."""
    data = jpeg(textured(size))
    steps = Preprocessing(image=Size(224, 224), crop_share=0.9)
    fast, exact = (prepare(data, steps, exact=exact).pixels for exact in (False, True))
    assert difference(fast, exact)[:, -40:].mean() <= MEAN_TOLERANCE


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_turned_jpeg_is_shrunk_upright(orientation: int):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = jpeg(textured(Size(600, 900)), exif=exif)
    steps = Preprocessing(image=Size(64, 48), crop_share=0.9)
    fast, exact = (prepare(data, steps, exact=exact) for exact in (False, True))
    assert fast.original == exact.original == (Size(900, 600) if orientation >= 5 else Size(600, 900))
    assert difference(fast.pixels, exact.pixels).mean() <= MEAN_TOLERANCE


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_awkward_image_gives_pixels_or_a_reason(exact: bool, channels):
    steps = Preprocessing(image=Size(24, 32), mean=(0.5,) * channels, std=(0.5,) * channels)
    for case in CORPUS:
        if case.error:
            with pytest.raises(ImageError, match=case.error):
                prepare(case.data, steps, exact=exact)
        else:
            ready = prepare(case.data, steps, exact=exact)
            assert ready.pixels.shape == (24, 32, channels), case.name
            assert tuple(ready.original) == case.size, case.name


@pytest.mark.parametrize("size", [Size(1, 20_000), Size(20_000, 1)])
@pytest.mark.parametrize("exact", [False, True])
def test_a_thread_of_an_image_is_cropped_before_it_grows(size: Size, exact: bool):
    """Resized whole it would be 224 × 4,480,000. The middle of a ramp is its middle value."""
    ramp = np.linspace(0, 255, 20_000).astype(np.uint8).reshape(*size)
    buffer = io.BytesIO()
    Image.fromarray(ramp).save(buffer, "PNG")
    ready = prepare(buffer.getvalue(), Preprocessing(image=Size(224, 224)), exact=exact)
    assert ready.pixels.shape == (224, 224, 3)
    assert difference(ready.pixels, np.full(1, 127)).max() <= 1


def test_a_part_resized_alone_equals_the_part_of_the_whole(monkeypatch: pytest.MonkeyPatch):
    """Pillow reads the box in single precision: a level here and there."""
    steps = Preprocessing(image=Size(48, 48), crop_share=0.9)
    whole = prepare(PHOTOS / "rocket.jpg", steps, exact=True).pixels
    monkeypatch.setattr("vitrail.checkpoint.pixels.MOST_PIXELS", 1)
    assert difference(prepare(PHOTOS / "rocket.jpg", steps, exact=True).pixels, whole).max() <= 1


def test_the_shorter_side_is_given_back_by_a_share_computed_from_two_sides():
    for short in range(225, 400):
        steps = Preprocessing(image=Size(224, 224), crop_share=224 / short)
        assert steps.resized_size(Size(640, 640)) == Size(short, short)


@pytest.mark.parametrize("channels", [1, 3])
def test_a_call_gives_what_timm_gives_a_model(channels: int):
    mean, std = (0.2, 0.4, 0.6)[:channels], (0.5, 0.25, 0.2)[:channels]
    steps = Preprocessing(image=Size(48, 48), crop_share=0.9, mean=mean, std=std)
    picture = textured(Size(95, 64)).convert("L" if channels == 1 else "RGB")
    theirs = timm.data.create_transform((channels, 48, 48), interpolation="bicubic", crop_pct=0.9, mean=mean, std=std)
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    pixels = np.asarray(picture).reshape(95, 64, channels)
    ours = steps(buffer.getvalue(), pixels)  # a file's bytes and decoded pixels are prepared alike
    assert ours.shape == (2, channels, 48, 48)
    for each in ours:
        np.testing.assert_allclose(each, theirs(picture), atol=1e-6)


def test_decoded_pixels_become_grey_as_the_decoder_makes_them():
    grey = Preprocessing(image=Size(24, 32), mean=(0.5,), std=(0.5,))
    colour = np.asarray(textured(Size(60, 70)))
    buffer = io.BytesIO()
    Image.fromarray(colour).save(buffer, "PNG")
    np.testing.assert_array_equal(
        grey.pixels(colour, exact=True).pixels, grey.pixels(buffer.getvalue(), exact=True).pixels
    )


@pytest.mark.parametrize("resize", ["crop", "squash"])
@pytest.mark.parametrize("original", [Size(95, 641), Size(533, 300), Size(24, 32)])
def test_the_part_that_is_seen_shows_the_same_pixels(resize, original: Size):
    steps = Preprocessing(image=Size(24, 32), crop_share=0.8, resize=resize)
    picture = np.asarray(textured(original))
    top, left, height, width = steps.part_of(original)
    box = (left, top, left + width, top + height)
    part = np.asarray(Image.fromarray(picture).resize((32, 24), Image.Resampling.BICUBIC, box=box))
    # at its edges a part knows nothing of what lies beyond
    inside = (slice(2, -2), slice(2, -2))
    assert difference(part[inside], steps.pixels(picture, exact=True).pixels[inside]).max() <= 1


@pytest.mark.parametrize(
    ("pixels", "words"),
    [
        (np.zeros((4, 4), np.uint8), "shape"),
        (np.zeros((4, 4, 3)), "float64"),
        (np.zeros((4, 4, 2), np.uint8), "1 or 3"),
    ],
)
def test_an_array_that_is_no_image_is_refused(pixels: np.ndarray, words: str):
    with pytest.raises(VitrailError, match=words):
        Preprocessing(image=Size(4, 4)).pixels(pixels)


def test_pixels_of_many_channels_are_refused():
    with pytest.raises(VitrailError, match="4 channels cannot be decoded from pictures"):
        Preprocessing(image=Size(4, 4), mean=(0.5,) * 4, std=(0.5,) * 4)(PHOTOS / "rocket.jpg")
