"""The loaded model in the page: its ranges, its automatic size, what it says, and how another is loaded."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from browser import settled, violations
from playwright.sync_api import Page, Route, expect

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.checkpoint.write import save
from vitrail.config import ViTConfig
from vitrail.geometry import Size
from vitrail.nn.build import build
from vitrail.parts import Mlp, Patches


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    embedding = Patches(patch=Size(4, 4))
    config = ViTConfig(image=Size(20, 28), embedding=embedding, width=24, depth=2, num_heads=3, mlp=Mlp(width=32))
    torch.manual_seed(2)
    tensors, path = build(config).state_dict(), tmp_path_factory.mktemp("weights") / "small.safetensors"
    save(Checkpoint(config=config, tensors=tensors, preprocessing=Preprocessing(image=config.image)), path)
    return path


def test_ranges_follow_the_model_and_the_address_says_what_is_shown(page: Page):
    page.goto("/?room=walk&block=63&head=9&unit=4000")
    expect(page.get_by_role("heading", name="3 · Inside block 5")).to_be_visible()
    for label, last in (("Block", "5"), ("Head", "3"), ("Unit", "95")):
        slider = page.get_by_role("slider", name=label, exact=True)
        expect(slider).to_have_attribute("max", last)
        expect(slider).to_have_value(last)
    expect(page).to_have_url(re.compile(r"block=5&head=3&unit=95$|head=3&.*block=5&unit=95$"))
    expect(page.get_by_role("alert")).to_have_count(0)


@pytest.mark.parametrize("room", ["walk", "attention", "tokens", "projection"])
def test_the_automatic_size_is_said_in_pixels_and_one_in_all_rooms(page: Page, room):
    page.goto(f"/?room={room}")
    settled(page)
    slider = page.get_by_role("slider", name="Input size")
    expect(slider).to_have_attribute("aria-valuetext", "auto (64 px)")
    expect(slider).to_have_value("64")
    page.get_by_label("Input size, exact").fill("32")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("seen=32"))
    expect(slider).to_have_attribute("aria-valuetext", "32 px")
    page.get_by_role("button", name="auto", exact=True).click()
    expect(slider).to_have_attribute("aria-valuetext", "auto (64 px)")
    expect(page).not_to_have_url(re.compile("seen="))


def test_no_control_says_zero_for_what_is_not_a_quantity(page: Page):
    page.goto("/?room=decide")
    expect(page.get_by_role("slider", name="Objects")).to_have_attribute("aria-valuetext", "unknown")
    page.goto("/?room=models")
    expect(page.get_by_role("slider", name="Image side")).to_have_attribute("aria-valuetext", "each model's own")


@pytest.mark.parametrize("room", ["walk", "attention"])
def test_what_it_says_is_beside_the_image_with_what_says_it(page: Page, room):
    page.goto(f"/?room={room}")
    said = page.locator(".controls").get_by_text("It says cat")
    expect(said).to_be_visible()
    expect(said).to_contain_text("toy model, 10 classes, 32 px")


def test_a_dropped_model_is_added_and_chosen(page: Page, weights: Path):
    page.goto("/?room=walk&block=5")
    settled(page)
    page.get_by_label("Upload your image").set_input_files(weights)
    expect(page.get_by_role("status").filter(has_text="is now the loaded model")).to_be_visible()
    expect(page.get_by_role("combobox", name="Weights")).to_have_value(re.compile("^small.safetensors"))
    expect(page.get_by_role("heading", name="3 · Inside block 1")).to_be_visible()
    expect(page).to_have_url(re.compile("weights=small.safetensors.*block=1"))
    assert violations(page) == []


def test_a_file_that_is_no_model_is_told_in_a_line(page: Page):
    page.goto("/?room=walk")
    file = {"name": "mine.safetensors", "mimeType": "application/octet-stream", "buffer": b"x" * 20}
    page.get_by_label("Upload your image").set_input_files(file)  # type: ignore[arg-type]
    expect(page.get_by_role("alert")).to_contain_text("not safetensors")
    expect(page.get_by_role("combobox", name="Weights")).to_have_value("default")


def test_rooms_open_with_the_users_weights(page: Page, weights: Path, address: str):
    page.goto("/?room=walk")
    name = page.request.post(
        f"{address}/api/weights?name=first.safetensors",
        data=weights.read_bytes(),
        headers={"Content-Type": "application/octet-stream"},
    ).json()["value"]

    def first(route: Route) -> None:
        """As if the studio had been started with --weights."""
        catalogue = json.loads(route.fetch().text())
        catalogue["options"]["weights"].sort(key=lambda option: option["value"] != name)
        route.fulfill(json=catalogue)

    page.route("**/api/controls", first)
    page.goto("/?room=walk")
    expect(page.get_by_role("combobox", name="Weights")).to_have_value(name)
    expect(page.get_by_text("The model's input, 64 × 64 pixels")).to_be_visible()
    expect(page.get_by_role("slider", name="Head", exact=True)).to_have_attribute("max", "2")
    expect(page).not_to_have_url(re.compile("weights="))
    page.get_by_role("combobox", name="Weights").select_option("default")
    expect(page).to_have_url(re.compile("weights=default"))
    page.reload()
    expect(page.get_by_role("combobox", name="Weights")).to_have_value("default")
    expect(page.get_by_role("slider", name="Head", exact=True)).to_have_attribute("max", "3")
