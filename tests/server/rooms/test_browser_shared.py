"""The page in a real browser: what holds in every room."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator

import pytest
from browser import SIZE, opened, violations
from client import client
from PIL import Image
from playwright.sync_api import Page, expect

ROOMS = list(client().get("/api/controls").json()["rooms"])
STATES = ["attention&token=40", "tokens&model=S/16&height=192&width=320", "transfer&table_view=component"]
"""Places that show what their rooms do not show at first."""


def figure(page: Page, label: str):
    return page.locator(".figure", has=page.locator(f"dt:text-is('{label}')")).locator(".value")


def ready(page: Page, query: str = "") -> None:
    page.goto(f"/?{query}")
    expect(page.locator("main h1")).to_be_visible()


@pytest.fixture(scope="module", params=[*ROOMS, *STATES])
def place(request: pytest.FixtureRequest, opener: Page, address: str) -> Iterator[Page]:
    with opened(opener, address) as page:
        ready(page, f"room={request.param}")
        yield page


@pytest.mark.parametrize("width", [SIZE["width"], 390])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_anyone_can_use_every_room_at_a_desk_and_on_a_phone(place: Page, theme, width):
    place.emulate_media(color_scheme=theme)
    place.set_viewport_size({"width": width, "height": 800})
    expect(place.locator("html")).to_have_attribute("data-theme", theme)
    assert violations(place) == []
    assert place.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_rooms_are_links_and_back_returns(page: Page):
    ready(page)
    page.get_by_role("navigation").get_by_role("link", name="Memory").click()
    expect(page.locator("h1")).to_have_text("Memory")
    expect(page).to_have_url(re.compile("room=memory"))
    page.go_back()
    expect(page.locator("h1")).to_have_text("Patch size")
    page.go_forward()
    expect(page.locator("h1")).to_have_text("Memory")


def test_state_goes_along_from_room_to_room(page: Page):
    ready(page, "room=patch&height=384&width=384")
    expect(figure(page, "tokens")).to_have_text("577")
    page.get_by_role("navigation").get_by_role("link", name="Memory").click()
    expect(figure(page, "tokens")).to_have_text("577")


def test_the_keyboard_reaches_the_room_and_moves_a_slider(page: Page):
    ready(page)
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to the room")).to_be_focused()
    slider = page.get_by_role("slider", name="Image side")
    slider.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(figure(page, "tokens")).to_have_text("226")  # 240 × 240
    expect(page).to_have_url(re.compile("height=240"))
    page.go_back()
    page.go_back()
    expect(figure(page, "tokens")).to_have_text("197")


def test_a_choice_of_theme_is_remembered(page: Page):
    ready(page)
    page.get_by_role("button", name="Dark theme").click()
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


def test_an_uploaded_image_is_shown_and_stays_in_the_address(page: Page):
    ready(page)
    picture = io.BytesIO()
    Image.new("RGB", (64, 48), (20, 160, 90)).save(picture, "PNG")
    file = {"name": "mine.png", "mimeType": "image/png", "buffer": picture.getvalue()}
    page.get_by_label("Upload your image").set_input_files(file)  # type: ignore[arg-type]
    expect(page.get_by_alt_text("Your image")).to_be_visible()
    expect(page).to_have_url(re.compile("image="))
    page.get_by_role("button", name="window", exact=True).click()
    expect(page.get_by_alt_text("A stained-glass window")).to_be_visible()


def test_a_bad_file_is_told_in_a_line_and_the_image_stays(page: Page):
    ready(page)
    file = {"name": "mine.png", "mimeType": "image/png", "buffer": b"not an image"}
    page.get_by_label("Upload your image").set_input_files(file)  # type: ignore[arg-type]
    expect(page.get_by_role("alert")).to_contain_text("not a readable image")
    expect(page).not_to_have_url(re.compile("image="))


def test_a_pin_keeps_its_figures_beside_the_new_ones(page: Page):
    ready(page, "room=patch")
    page.get_by_role("button", name="Pin to compare").click()
    page.get_by_role("slider", name="Patch side").fill("8")
    expect(figure(page, "tokens")).to_have_text("785")
    expect(page.locator(".figure").first.locator(".pinned")).to_contain_text("pinned 197")
    page.reload()  # the pin is in the address
    expect(page.locator(".figure").first.locator(".pinned")).to_contain_text("pinned 197")
    page.get_by_role("button", name="Restore pinned").click()
    expect(figure(page, "tokens")).to_have_text("197")
    page.get_by_role("button", name="Unpin").click()
    expect(page.locator(".pinned")).to_have_count(0)
