"""Bundled images: a photograph that may be shipped, and the drawn window."""

from __future__ import annotations

import io
import math
import re
from importlib.resources import files

import numpy as np
import pytest
import skimage.data
from client import client
from PIL import Image
from playwright.sync_api import Page, expect

from vitrail.server.pictures import PICTURES

FOLDER = files("vitrail.server.pictures")


def pixels(name: str) -> np.ndarray:
    answer = client().get(f"/api/images/{name}/pixels?side=2048")
    return np.asarray(Image.open(io.BytesIO(answer.content)))


def test_the_photograph_is_the_one_that_its_source_says():
    away = np.abs(PICTURES["cat"]().astype(int) - skimage.data.chelsea()[30:290, 60:450].astype(int))
    assert away.mean() < 2.5  # of 255: JPEG at quality 92
    assert len((FOLDER / "cat.jpg").read_bytes()) <= 60_000


def test_the_turned_photograph_shows_the_same_places_mirrored_and_turned():
    turn, whole = math.radians(12), skimage.data.chelsea().astype(float)
    turned = PICTURES["turned"]().astype(float)
    assert turned.shape == (240, 300, 3)
    for row, column in ((20, 30), (120, 150), (200, 260), (60, 240)):
        right, down = column - 150 + 0.5, row - 120 + 0.5
        across = 215 - right * math.cos(turn) + down * math.sin(turn)
        along = 150 + right * math.sin(turn) + down * math.cos(turn)
        near = whole[int(along) - 2 : int(along) + 3, int(across) - 2 : int(across) + 3].mean(axis=(0, 1))
        assert np.abs(turned[row - 2 : row + 3, column - 2 : column + 3].mean(axis=(0, 1)) - near).max() < 12


def test_source_and_terms_are_stated_beside_it():
    said = (FOLDER / "SOURCE.md").read_text()
    assert all(word in said for word in ("cat.jpg", "turned.jpg", "Stéfan van der Walt", "CC0", "skimage.data.chelsea"))


def test_the_cat_is_what_the_studio_opens_with_and_default_names_it_too():
    assert client().get("/api/controls").json()["controls"]["image"]["default"] == "cat"
    np.testing.assert_array_equal(pixels("cat"), PICTURES["cat"]())
    np.testing.assert_array_equal(pixels("default"), pixels("cat"))


def test_the_window_can_still_be_chosen():
    options = [option["value"] for option in client().get("/api/controls").json()["options"]["images"]]
    assert options == ["cat", "window", "turned"]
    shown = pixels("window")
    assert shown.shape != PICTURES["cat"]().shape
    assert shown.std() > 20


@pytest.mark.parametrize("name", ["Cat", "cat.jpg", "pictures", "window/"])
def test_no_other_name_is_a_picture(name):
    assert client().get(f"/api/images/{name}").status_code in (400, 404, 307)


def test_choosing_the_window_is_seen_at_once_and_can_be_undone(page: Page):
    page.goto("/?room=patch")
    expect(page.get_by_alt_text("A cat")).to_be_visible()
    page.get_by_role("button", name="window", exact=True).click()
    expect(page.get_by_alt_text("A stained-glass window")).to_be_visible()
    expect(page).to_have_url(re.compile("image=window"))
    expect(page.get_by_role("button", name="window", exact=True)).to_have_attribute("aria-pressed", "true")
    page.go_back()
    expect(page.get_by_alt_text("A cat")).to_be_visible()
    expect(page).not_to_have_url(re.compile("image="))
