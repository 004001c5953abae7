from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg

from vitrail import parts
from vitrail.charts.sheet import Sheet
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.config import Config, MobileConfig, MobileStage, PyramidConfig, PyramidStage, ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.images.synthesize import synthesize_image
from vitrail.look import views
from vitrail.look.cells import Cells
from vitrail.look.draw import upsample
from vitrail.look.subject import Subject, subject_of
from vitrail.nn.build import build

SMALL = ViTConfig(
    image=Size(20, 28),
    embedding=parts.Patches(patch=Size(4, 4)),
    prefix=parts.Prefix(registers=2),
    width=24,
    depth=2,
    num_heads=3,
    mlp=parts.Mlp(width=32),
    classes=5,
)
STAGES = (PyramidStage(width=12, depth=2, num_heads=3), PyramidStage(width=24, depth=2, num_heads=4))
MOBILE = (
    MobileStage(width=12, stride=2, transformer_width=24, transformer_depth=2),
    MobileStage(width=12, stride=2, transformer_width=24, transformer_depth=1),
)
PYRAMID = PyramidConfig(image=Size(24, 40), stages=STAGES, attention=parts.WindowedAttention(window=Size(2, 3)))


def subject(config: Config = SMALL, pixels: np.ndarray | None = None) -> Subject:
    torch.manual_seed(0)
    half = (0.5,) * config.channels
    given = synthesize_image(0, Size(60, 90))[:, :, : config.channels] if pixels is None else pixels
    preprocessing = Preprocessing(image=config.image, mean=half, std=half)
    return subject_of(build(config).eval(), given, preprocessing, words="a model")


def size_of(sheet: Sheet) -> tuple[int, int]:
    """Draw it, coarsely, for a test's time is mostly drawing; its height and width in pixels."""
    sheet.figure.set_dpi(40)
    canvas = FigureCanvasAgg(sheet.figure)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())
    assert pixels[:, :, :3].std() > 1  # not a blank page
    return pixels.shape[0], pixels.shape[1]


@pytest.mark.parametrize(
    "view",
    [
        lambda s: views.view_attention(s),
        lambda s: views.view_attention(s, layer=1),
        lambda s: views.view_attention(s, head=2),
        lambda s: views.view_attention(s, layer=-1, head=0, query=(4, 6), smooth=True),
        lambda s: views.view_rollout(s),
        lambda s: views.view_rollout(s, query=(0, 0)),
        lambda s: views.view_distance(s),
        lambda s: views.view_positions(s),
        lambda s: views.view_filters(s),
        lambda s: views.view_pca(s),
        lambda s: views.view_pca(s, layer=0, foreground=True, smooth=True),
        lambda s: views.view_patches(s),
    ],
)
def test_every_view_fits_its_page(view):
    """Every word lies on the page, none runs off it."""
    sheet = view(subject())
    height, width = size_of(sheet)
    assert (height, width) == (int(sheet.height * 40), int(sheet.width * 40))
    words = [*sheet.figure.texts, *(text for axes in sheet.figure.axes for text in axes.texts)]
    for axis in (axis for axes in sheet.figure.axes for axis in (axes.xaxis, axes.yaxis)):
        low, high = sorted(axis.get_view_interval())
        words += [axis.label, *(t.label1 for t in axis.get_major_ticks() if low <= t.get_loc() <= high)]
    for text in words:
        if text.get_text() and text.get_visible():
            box = text.get_window_extent()
            assert box.x0 >= 0, text
            assert box.x1 <= width + 1, text
            assert box.y0 >= 0, text
            assert box.y1 <= height + 1, text


@pytest.mark.parametrize(
    "config", [PYRAMID, MobileConfig(image=Size(64, 64), stages=MOBILE)], ids=["pyramid", "mobile"]
)
def test_other_models_are_drawn_or_say_why_not(config: Config):
    it = subject(config)
    for view in (views.view_attention, views.view_distance, views.view_filters, views.view_pca):
        assert view(it).figure.axes
    with pytest.raises(VitrailError, match="rollout needs the same grid in every layer"):
        views.view_rollout(it)
    if isinstance(config, MobileConfig):
        for view in (views.view_positions, views.view_patches):
            with pytest.raises(VitrailError, match="mobile model has no"):
                view(it)
    else:
        assert views.view_positions(it, layer=1, head=1).figure.axes
        assert views.view_patches(it).figure.axes


@pytest.mark.parametrize("selector", ["detail", "learned"])
def test_the_quadtree_is_the_models_own(selector):
    spec = parts.Adaptive(patches=(Size(4, 4), Size(8, 8)), selector=selector)
    it = subject(SMALL.but(image=Size(24, 32), embedding=spec))
    sheet = views.view_patches(it)  # of adaptive patches, the tree
    with torch.no_grad():
        _, layout = it.model.embedding(it.image)  # type: ignore[operator]
    assert sheet.figure.texts[0].get_text().startswith(f"Adaptive patches: {layout.rectangles.shape[1]} of 48 tokens")
    size_of(sheet)
    assert views.view_attention(it, layer=0, head=1, query=(3, 3)).figure.axes
    assert views.view_rollout(it).figure.axes


def test_a_regular_model_shows_what_detail_alone_would_choose():
    it = subject(SMALL.but(image=Size(72, 100)))  # whole cells of 32: 64×96
    sheet = views.view_adaptive(it, threshold=0.0)
    assert sheet.figure.texts[0].get_text() == "Adaptive patches: 96 of 96 tokens, 0% saved"
    assert "regular grid" in sheet.figure.texts[1].get_text()


def test_a_view_of_one_head_names_where_the_row_went():
    sheet = views.view_attention(subject(), layer=0, head=1)
    (line,) = [text.get_text() for text in sheet.figure.texts if text.get_text().startswith("share of the row")]
    shares = [float(share) for share in re.findall(r"([\d.]+) %", line)]
    assert re.findall(r"CLS|register \d|patches", line) == ["CLS", "register 0", "register 1", "patches"]
    assert sum(shares) == pytest.approx(100, abs=0.21)  # four numbers rounded to 0.1


def test_pictures_say_how_they_are_upsampled():
    texts = [views.view_attention(subject(), smooth=smooth).figure.texts[1].get_text() for smooth in (False, True)]
    assert "one square per token" in texts[0]
    assert "smooth (bilinear)" in texts[1]


# ── upsampling ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_nearest_upsampling_repeats_every_cell():
    values = torch.rand(5, 7)
    cells = Cells(grid=Size(5, 7), step=(4.0, 3.0))
    found = upsample(values, cells, Size(20, 21), Size(40, 42), smooth=False)
    expected = values.repeat_interleave(8, dim=0).repeat_interleave(6, dim=1).numpy()
    np.testing.assert_array_equal(found, expected)


def test_smooth_upsampling_keeps_constants_and_bounds():
    cells = Cells(grid=Size(5, 7), step=(4.0, 4.0))
    constant = upsample(torch.full((5, 7), 0.25), cells, Size(20, 28), Size(40, 56), smooth=True)
    np.testing.assert_allclose(constant, 0.25, atol=1e-6)
    values = torch.rand(5, 7)
    found = upsample(values, cells, Size(20, 28), Size(40, 56), smooth=True)
    assert float(values.min()) - 1e-6 <= found.min()
    assert found.max() <= float(values.max()) + 1e-6


def test_a_grid_that_starts_inside_the_image_is_drawn_where_it_lies():
    values = torch.arange(6.0).view(2, 3)
    cells = Cells(grid=Size(2, 3), step=(8.0, 8.0), top=4.0, left=4.0)
    found = upsample(values, cells, Size(24, 32), Size(24, 32), smooth=False)
    assert found[4:12, 4:12].tolist() == [[0.0] * 8] * 8
    assert found[12:20, 20:28].tolist() == [[5.0] * 8] * 8


# ── what the model sees ─────────────────────────────────────────────────────────────────────────────────────────


def test_the_model_gets_the_middle_of_the_photograph_normalised():
    pixels = np.zeros((40, 90, 3), dtype=np.uint8)
    pixels[:, 8:82] = 200  # the middle 56 of 90 are seen, as wide as 40×56 is, resized with what lies around them
    it = subject(pixels=pixels)
    assert it.image.shape == (1, 3, 20, 28)
    torch.testing.assert_close(it.image, torch.full_like(it.image, 200 / 127.5 - 1))
    assert it.photo.pixels.shape == (40, 56, 3)


def test_a_squashed_model_gets_the_whole():
    pixels = synthesize_image(1, Size(40, 100))
    torch.manual_seed(0)
    preprocessing = Preprocessing(image=SMALL.image, resize="squash")
    it = subject_of(build(SMALL).eval(), pixels, preprocessing, words="")
    assert it.photo.pixels.shape == (40, 100, 3)
    assert it.photo.seen == SMALL.image


@pytest.mark.parametrize("remainder", ["pad", "crop", "resize"])
def test_what_does_not_divide_is_shown_as_the_patches_cut_it(remainder):
    config = SMALL.but(image=Size(22, 29), remainder=remainder)
    it = subject(config)
    assert it.photo.seen == config.fit(config.image).fitted
    assert it.pixels.shape[:2] == tuple(it.photo.seen)
    assert views.view_attention(it).figure.axes
    size_of(views.view_patches(it))


def test_grey_images_are_shown_grey():
    it = subject(SMALL.but(channels=1))
    assert it.image.shape == (1, 1, 20, 28)
    assert it.photo.pixels.shape[2] == 3
    size_of(views.view_filters(it))
