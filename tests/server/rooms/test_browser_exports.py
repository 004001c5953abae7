"""What a panel exports is what is seen in it, whole, with its title, its model and its settings."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from xml.etree import ElementTree

import pytest
from browser import opened, settled
from PIL import Image
from playwright.sync_api import Page, expect

from vitrail.checkpoint.read import load
from vitrail.config import config_from_json
from vitrail.geometry import Size
from vitrail.presets import preset

SVG = "{http://www.w3.org/2000/svg}"
CAPTION = 24
"""CSS pixels that a caption of one line needs at least."""


@pytest.fixture(scope="module")
def shared(opener: Page, address: str) -> Iterator[Page]:
    """One page for all: an export changes nothing."""
    with opened(opener, address) as page:
        yield page


def visit(page: Page, room: str) -> None:
    if f"room={room}" not in page.url:
        page.goto(f"/?room={room}")
    settled(page)


def panel(page: Page, name: str):
    found = page.locator(f"[data-panel={name}]")
    expect(found).to_be_visible()
    return found


def offers(page: Page, name: str) -> list[str]:
    menu = panel(page, name).locator("summary").first
    menu.click()
    texts = panel(page, name).locator(".menu button").all_inner_texts()
    menu.click()
    return texts


def save(page: Page, name: str, kind: str) -> bytes:
    panel(page, name).locator("summary").first.click()
    with page.expect_download() as download:
        panel(page, name).get_by_role("button", name=kind, exact=True).click()
    return download.value.path().read_bytes()


def texts(drawing: ElementTree.Element) -> str:
    return " ".join("".join(node.itertext()) for node in drawing.iter(f"{SVG}text")).replace("\u00a0", " ")


@pytest.mark.parametrize(
    ("room", "name"), [("walk", "walk-pixels"), ("transfer", "transfer-maps"), ("attention", "attention")]
)
def test_a_picture_is_the_whole_panel_twice_as_fine_with_a_caption(shared: Page, room, name):
    visit(shared, room)
    box = panel(shared, name).bounding_box()
    assert box
    picture = Image.open(io.BytesIO(save(shared, name, "PNG")))
    assert picture.width == pytest.approx(2 * box["width"], abs=2)
    assert picture.height > 2 * (box["height"] + CAPTION)


@pytest.mark.parametrize(
    ("room", "name", "words"),
    [
        ("walk", "walk-block", ["3 · Inside block 0", "model default (bundled), image 64 × 64 px", "Head: 0"]),
        (
            "transfer",
            "transfer-maps",
            ["8 × 8 → 14 × 20", "model default (bundled)", "the RMS norm of a row"],
        ),
        ("memory", "memory", ["One training step", "model B/16, image 224 × 224 px", "weights", "Batch: 32"]),
        ("attention", "attention", ["Every head at once", "% of the largest weight", "Image: cat"]),
    ],
)
def test_a_drawing_has_every_picture_and_every_word(shared: Page, room, name, words):
    visit(shared, room)
    canvases = panel(shared, name).locator(".body canvas:visible").count()
    text = save(shared, name, "SVG").decode()
    drawing = ElementTree.fromstring(text)
    assert len(list(drawing.iter(f"{SVG}image"))) == canvases
    assert all(each in texts(drawing) for each in words)
    # a setting without effect is not told: the table is the model's own, and one device shards nothing
    assert not any(each in texts(drawing) for each in ("From rows", "Devices", "Reshard after forward"))
    assert not re.search(r"var\(| class=| style=|color-mix|oklab", text)  # it needs no stylesheet, nor a browser


def test_the_texts_stand_where_they_are_seen(shared: Page):
    visit(shared, "memory")
    seen = panel(shared, "memory").locator("h2").bounding_box()
    box = panel(shared, "memory").bounding_box()
    assert seen
    assert box
    drawing = ElementTree.fromstring(save(shared, "memory", "SVG"))
    title = next(node for node in drawing.iter(f"{SVG}text") if node.text == "One training step")
    assert float(title.get("x", "")) == pytest.approx(seen["x"] - box["x"], abs=0.5)
    assert seen["y"] < float(title.get("y", "")) + box["y"] < seen["y"] + seen["height"]


@pytest.mark.parametrize(("name", "column"), [("memory", 88), ("memory-curve", 180)])
def test_a_paper_gets_its_width_its_font_and_text_that_can_be_read(shared: Page, name, column):
    visit(shared, "memory")
    shared.emulate_media(color_scheme="dark")
    drawing = ElementTree.fromstring(save(shared, name, f"Figure of {column} mm as an SVG"))
    shared.emulate_media(color_scheme="light")
    assert drawing.get("width") == f"{column}mm"
    points_per_unit = column / 25.4 * 72 / float(drawing.get("viewBox", "").split()[2])
    for text in drawing.iter(f"{SVG}text"):
        assert text.get("font-family", "").startswith("Helvetica")
        assert float(text.get("font-size", "").removesuffix("px")) * points_per_unit >= 5.9
    assert next(drawing.iter(f"{SVG}rect")).get("fill") == "#ffffff"
    assert "model B/16" in drawing.findtext(f"{SVG}desc", "")
    expect(shared.locator("[data-panel=memory] .body")).not_to_have_attribute("style", re.compile("width"))


def test_a_pdf_is_one_page_of_the_figures_size_with_its_fonts(shared: Page):
    visit(shared, "memory")
    shared.evaluate("window.print = () => {}")  # the dialog is the user's
    panel(shared, "memory").locator("summary").first.click()
    panel(shared, "memory").get_by_role("button", name="Figure of 88 mm as a PDF").click()
    shared.locator(".sheet").wait_for(state="attached")
    printed = shared.pdf(prefer_css_page_size=True)
    sizes = re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", printed)
    assert len(sizes) == 1
    assert float(sizes[0][0]) == pytest.approx(88 / 25.4 * 72, abs=0.75)
    assert b"/FontFile" in printed
    shared.evaluate("dispatchEvent(new Event('afterprint'))")
    expect(shared.locator(".sheet")).to_have_count(0)


def test_an_empty_table_is_not_offered(shared: Page):
    visit(shared, "memory")
    assert "CSV" in offers(shared, "memory")
    assert "CSV" not in offers(shared, "changes")  # nothing to change: it fits


def test_the_config_is_that_of_the_model_that_is_shown(shared: Page):
    visit(shared, "tokens")
    looked = load("default").config.but(image=Size(64, 64))
    assert config_from_json(save(shared, "sequence", "JSON config").decode()) == looked
    assert config_from_json(save(shared, "kinds", "JSON config").decode()) == preset("B/16")
    visit(shared, "attention")
    assert config_from_json(save(shared, "attention", "JSON config").decode()) == looked
    visit(shared, "decide")
    assert "JSON config" not in offers(shared, "ranking")  # many models
