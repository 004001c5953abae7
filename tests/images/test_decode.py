import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from bad_images import CORPUS, Case, upright_picture
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.images.decode import ImageError, decode, peek

GOOD = [case for case in CORPUS if not case.error]
BAD = [case for case in CORPUS if case.error]


def by_name(case: Case) -> str:
    return case.name


@pytest.mark.parametrize("case", GOOD, ids=by_name)
def test_an_awkward_image_gives_its_picture(case):
    pixels = decode(case.data)
    assert pixels.dtype == np.uint8
    assert pixels.shape == (*case.size, 3)
    assert peek(case.data) == Size(*case.size)
    middle = pixels[pixels.shape[0] // 4, pixels.shape[1] // 4].astype(int)
    # lossless formats are exact; JPEG at quality 100 rounds by a level or two
    assert np.abs(middle - case.pixel).max() <= (2 if case.name.endswith(".jpg") else 0)


@pytest.mark.parametrize("case", BAD, ids=by_name)
def test_a_bad_image_gives_one_line_that_says_why(case, tmp_path):
    path = tmp_path / case.name
    path.write_bytes(case.data)
    with pytest.raises(ImageError) as caught:
        decode(path)
    message = str(caught.value)
    assert case.error in message
    assert str(path) in message
    assert ";" in message
    assert "\n" not in message


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_agrees_with_pillow(orientation, tmp_path):
    stored, exif = upright_picture(), Image.Exif()
    exif[0x0112] = orientation
    stored.save(tmp_path / "turned.png", exif=exif)
    with Image.open(tmp_path / "turned.png") as image:
        expected = np.asarray(ImageOps.exif_transpose(image))
    np.testing.assert_array_equal(decode(tmp_path / "turned.png"), expected)


def test_the_background_is_the_caller_s():
    clear = next(case for case in CORPUS if case.name == "clear.png")
    assert (decode(clear.data, background=(1, 2, 3)) == (1, 2, 3)).all()


def test_one_channel_is_the_luma():
    picture = next(case for case in CORPUS if case.name == "plain.png")
    gray = decode(picture.data, channels=1)
    assert gray.shape == (20, 28, 1)
    np.testing.assert_array_equal(gray[..., 0], np.asarray(upright_picture().convert("L")))


def test_wide_values_keep_their_order_when_scaled(tmp_path):
    ramp = np.linspace(0, 65535, 5 * 7).reshape(5, 7)
    for name, values, top in (
        ("16.png", ramp.astype(np.uint16), 65535),
        ("unit.tiff", (ramp / 65535).astype(np.float32), 1),
        ("signed.tiff", (ramp - 1000).astype(np.float32), None),
    ):
        Image.fromarray(values).save(tmp_path / name)
        low, high = (0, top) if top else (values.min(), values.max())
        expected = np.rint((values.astype(np.float64) - low) * 255 / (high - low))
        # the two sides round the same quotient, formed in a different order
        assert np.abs(decode(tmp_path / name)[..., 0] - expected).max() <= 1


def test_the_cap_is_checked_before_decoding():
    bomb = next(case for case in CORPUS if case.name == "no-data.png")
    with pytest.raises(ImageError, match="81 pixels, more than the limit of 80"):
        decode(bomb.data, max_pixels=80)


def test_what_is_not_a_file_is_refused(tmp_path):
    with pytest.raises(ImageError, match="not a file"):
        decode(tmp_path)
    with pytest.raises(ImageError, match="not a file"):
        decode("/dev/zero")
    with pytest.raises(ImageError, match="No such file"):
        decode(tmp_path / "nothing.png")
    with pytest.raises(VitrailError, match="channels 2"):
        decode(b"x", channels=2)  # type: ignore[arg-type]


@settings(max_examples=150, deadline=None)
@given(
    case=st.sampled_from([case for case in GOOD if len(case.data) < 20_000]),
    where=st.floats(0, 1, exclude_max=True),
    junk=st.binary(min_size=1, max_size=8),
)
def test_damage_anywhere_gives_a_picture_or_an_image_error(case, where, junk):
    at = int(where * len(case.data))
    damaged = case.data[:at] + junk + case.data[at + len(junk) :]
    try:
        pixels = decode(damaged)
    except ImageError:
        return
    assert pixels.dtype == np.uint8
    assert pixels.ndim == 3
