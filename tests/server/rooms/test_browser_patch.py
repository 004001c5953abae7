"""Room 1 in a real browser."""

from __future__ import annotations

import json
import re

from playwright.sync_api import Page, expect

from vitrail.config import config_from_json


def figure(page: Page, label: str):
    return page.locator(".figure", has=page.locator(f"dt:text-is('{label}')")).locator(".value")


def save(page: Page, panel: str, kind: str) -> bytes:
    section = page.get_by_role("region", name=panel)
    section.get_by_text("Export").click()
    with page.expect_download() as download:
        section.get_by_role("button", name=kind, exact=True).click()
    return download.value.path().read_bytes()


def test_dragging_the_patch_moves_every_figure_and_back_undoes_the_whole_drag(page: Page):
    page.goto("/?room=patch")
    expect(figure(page, "tokens")).to_have_text("197")
    box = page.get_by_role("slider", name="Patch side").bounding_box()
    assert box
    middle = box["y"] + box["height"] / 2
    place = box["x"] + 8 + (box["width"] - 16) * (16 - 2) / 62
    page.mouse.move(place, middle)
    page.mouse.down()
    for step in range(1, 25):
        page.mouse.move(place + (box["width"] - 16) * (step / 24) * 16 / 62, middle)
    page.mouse.up()
    expect(figure(page, "tokens")).to_have_text("50")
    expect(figure(page, "forward")).to_have_text("8.82 GFLOP")
    expect(page).to_have_url(re.compile("patch_height=32&patch_width=32"))
    page.go_back()
    expect(figure(page, "tokens")).to_have_text("197")


def test_every_key_number_is_beside_the_image_on_a_laptop(page: Page):
    page.set_viewport_size({"width": 1024, "height": 768})
    page.goto("/?room=patch")
    expect(figure(page, "tokens")).to_have_text("197")
    image = page.get_by_role("img", name="14 rows and 14 columns").bounding_box()
    assert image
    assert image["height"] > 300  # its place is kept while it loads
    for label in ("tokens", "attention elements", "forward", "peak memory"):
        box = figure(page, label).bounding_box()
        assert box
        assert box["x"] >= image["x"] + image["width"]
        assert box["y"] + box["height"] < 768


def test_a_deep_link_opens_on_its_numbers(page: Page):
    page.goto("/?room=patch&model=S/16&height=192&width=320&patch_height=8&patch_width=16")
    expect(figure(page, "tokens")).to_have_text("481")
    expect(page.get_by_role("img", name="24 rows and 20 columns")).to_be_visible()
    expect(page.get_by_role("slider", name="Patch height")).to_have_value("8")


def test_what_does_not_divide_is_shown_at_once(page: Page):
    page.goto("/?room=patch")
    page.get_by_label("Image side, exact").fill("225")
    page.keyboard.press("Enter")
    status = page.get_by_role("status").filter(has_text="divisible")
    expect(status).to_contain_text("225 × 225 is not divisible by 16 × 16")
    expect(figure(page, "tokens")).to_have_text("226")  # padded to 240
    status.get_by_text("crop", exact=True).first.click()
    expect(figure(page, "tokens")).to_have_text("197")
    expect(status.locator("tr.chosen")).to_contain_text("449 pixels lost")


def test_a_model_brings_its_own_image_and_patch(page: Page):
    page.goto("/?room=patch")
    page.get_by_label("Model", exact=True).select_option("dinov2-S/14")
    expect(figure(page, "tokens")).to_have_text("1,370")
    expect(page).to_have_url(re.compile("height=518"))


def test_formulas_hold_the_numbers(page: Page):
    page.goto("/?room=patch")
    page.get_by_text("Show the formulas").click()
    expect(page.get_by_text("(224 / 16) · (224 / 16) + 1 = 14 · 14 + 1 = 197")).to_be_visible()


def test_every_view_is_exported(page: Page):
    page.goto("/?room=patch&height=192&width=320")
    expect(figure(page, "tokens")).to_have_text("241")
    assert save(page, "Your image in patches", "PNG").startswith(b"\x89PNG")
    header, row = save(page, "Your image in patches", "CSV").decode().splitlines()
    assert dict(zip(header.split(","), row.split(","), strict=True))["tokens"] == "241"
    drawing = save(page, "When attention dominates", "SVG").decode()
    assert drawing.startswith("<svg")
    assert "var(" not in drawing
    assert save(page, "When attention dominates", "PNG").startswith(b"\x89PNG")
    config = config_from_json(save(page, "Half and double the patch size", "JSON config").decode())
    assert json.loads(config.to_json())["image"] == "192x320"


def test_a_deep_link_shows_how_a_vision_language_model_reads_the_image(page: Page):
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto("/?room=patch&reader=internvl3&photo_side=1200")
    panel = page.get_by_role("region", name="How a vision-language model reads your image")
    expect(figure(page, "visual tokens")).to_have_text("1,794")
    tiles = panel.get_by_role("img", name="tiles, 896 × 1344 pixels in 64 × 96 patches")
    expect(tiles.locator("canvas")).to_be_visible()
    expect(panel.get_by_role("img", name="a thumbnail: 256 tokens")).to_be_visible()
    middle = "canvas.getContext('2d').getImageData(canvas.width / 2, canvas.height / 2, 1, 1)"
    gold = f"canvas => String({middle}.data) === '{0xE9},{0xB4},{0x4C},255'"  # the line between two rows
    page.wait_for_function(gold, arg=tiles.locator("canvas").element_handle())  # it is painted a frame later
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    panel.get_by_role("button", name="Qwen2.5-VL-7B").click()
    expect(figure(page, "visual tokens")).to_have_text("1,247")
    expect(page).not_to_have_url(re.compile("reader="))  # the default
    rows = save(page, "How a vision-language model reads your image", "CSV").decode().splitlines()
    assert len(rows) == 1 + 7
