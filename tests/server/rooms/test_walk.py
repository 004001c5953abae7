"""Room 10: every number on the way is the model's, and the formulas end in it."""

from __future__ import annotations

import csv
import io
import re

import numpy as np
import pytest
import torch
from client import HOST, client
from frames import read_frame
from playwright.sync_api import Page, expect

from vitrail import parts
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.checkpoint.write import save
from vitrail.config import ViTConfig
from vitrail.geometry import Size
from vitrail.nn.build import build
from vitrail.server.app import create_app
from vitrail.server.session import Session

CONFIG = ViTConfig(
    image=Size(20, 28),
    embedding=parts.Patches(patch=Size(4, 4)),
    prefix=parts.Prefix(registers=1),
    width=24,
    depth=2,
    num_heads=3,
    mlp=parts.Mlp(width=32),
    classes=5,
)
LABELS = ("ant", "bee", "cow", "dog", "eel")


@pytest.fixture(scope="module")
def session(tmp_path_factory) -> Session:
    torch.manual_seed(3)
    half, path = (0.5, 0.5, 0.5), tmp_path_factory.mktemp("weights") / "small.safetensors"
    preprocessing = Preprocessing(image=CONFIG.image, mean=half, std=half)
    tensors = build(CONFIG).state_dict()
    save(Checkpoint(config=CONFIG, tensors=tensors, preprocessing=preprocessing, labels=LABELS), path)
    return Session([path])


@pytest.fixture
def ask(session, monkeypatch):
    monkeypatch.setattr("vitrail.server.rooms.walk.default_size", lambda asked, here: asked.seen)
    asking = client(create_app(session, hosts=frozenset({HOST})))
    return lambda **asked: asking.get("/api/walk", params={"weights": "small.safetensors", **asked})


def test_the_walk_ends_where_the_model_does(ask, session):
    facts, arrays = read_frame(ask().content)
    subject = session.subject("cat", "small.safetensors")
    with torch.no_grad():
        logits = subject.model(subject.image)[0]
    chances = logits.softmax(dim=0)
    order = chances.argsort(descending=True).tolist()
    assert facts["prediction"]["names"] == [LABELS[index] for index in order]
    np.testing.assert_allclose(facts["prediction"]["logits"], logits[order], atol=6e-5)  # sent with four decimals
    np.testing.assert_allclose(facts["prediction"]["probabilities"], chances[order], rtol=1e-5)
    np.testing.assert_array_equal(arrays["pixels"], subject.pixels)
    assert facts["formulas"]["probability"]["numbers"].endswith(f"= {chances.max():.2%}")


def test_the_numbers_of_a_patch_are_its_pixels_and_their_products_sum_to_the_unit(ask, session):
    facts, _ = read_frame(ask(token=2 + 3 * 7 + 4, unit=5).content)
    subject = session.subject("cat", "small.safetensors")
    assert (facts["cell"], facts["query_name"], facts["place"]) == (25, "patch (3, 4)", [3, 4])
    np.testing.assert_allclose(facts["patch"], subject.image[0, :, 12:16, 16:20], atol=6e-5)
    np.testing.assert_array_equal(facts["colours"], subject.pixels[12:16, 16:20])
    weight = subject.model.embedding.weight[5].detach()  # type: ignore[union-attr,index]
    np.testing.assert_allclose(facts["weight"], weight, atol=6e-5)
    total = np.sum(facts["products"])  # no bias in a fresh model
    assert total == pytest.approx(facts["projected"][5], abs=48 * 6e-5)
    assert facts["formulas"]["project"]["numbers"].endswith(f"= {facts['projected'][5]:.3g}".replace("-", "−"))


def test_shapes_are_named_once_and_right(ask):
    facts, arrays = read_frame(ask().content)
    assert facts["shapes"] == {
        "C": 3, "H": 20, "W": 28, "P": 4, "Q": 4, "CPQ": 48, "N": 35, "T": 37, "D": 24, "h": 3, "d": 8, "m": 32, "L": 2,
        "classes": 5,
    }  # fmt: skip
    assert arrays["projected"].shape == (35, 24)
    assert arrays["leaving"].shape == (37, 24)
    assert [len(facts["block"][name]) for name in ("q", "weights", "hidden", "leaving")] == [8, 37, 32, 24]


def test_a_prefix_token_can_be_followed_too(ask):
    facts, _ = read_frame(ask(token=1).content)
    assert (facts["query_name"], facts["prefix"]) == ("register 0", ["CLS", "register 0"])
    assert sum(facts["block"]["weights"]) == pytest.approx(1, abs=37 * 6e-5)


def test_a_key_that_is_asked_for_is_the_one_that_is_met(ask):
    facts, _ = read_frame(ask(token=9, key=3, head=2, block=1).content)
    assert (facts["key"], facts["key_name"]) == (3, "patch (0, 1)")
    dot = sum(facts["block"]["products"]) / np.sqrt(8)
    assert dot == pytest.approx(facts["block"]["scores"][3], abs=1e-3)


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({"token": 37}, 400),
        ({"key": 37}, 400),
        ({"head": 3}, 400),
        ({"block": 2}, 400),
        ({"unit": 24}, 400),
        ({"unit": -1}, 422),
        ({"depth": 3}, 422),
    ],
)
def test_bad_questions_get_the_one_error_shape(ask, asked, status):
    answer = ask(**asked)
    assert answer.status_code == status
    assert set(answer.json()) == {"error", "status"}


# ── in the browser ────────────────────────────────────────────────────────────────────────────────────────────────


def opened(page: Page, more: str = "") -> None:
    page.goto(f"/?room=walk{more}")
    expect(page.get_by_role("heading", name="Probabilities")).to_be_visible()


def test_a_click_on_a_patch_follows_it_all_the_way_and_back_returns(page: Page):
    opened(page)
    expect(page.get_by_text("Current: patch (8, 8)")).to_be_visible()
    box = page.get_by_role("slider", name="The patch to follow").bounding_box()
    assert box
    page.mouse.click(box["x"] + box["width"] * 2.5 / 16, box["y"] + box["height"] * 1.5 / 16)
    expect(page.get_by_text("Current: patch (1, 2)")).to_be_visible()
    expect(page.get_by_role("slider", name="q of patch (1, 2)")).to_be_visible()
    expect(page).to_have_url(re.compile("token=19"))
    page.go_back()
    expect(page.get_by_text("Current: patch (8, 8)")).to_be_visible()


def test_an_address_opens_on_its_block_head_and_unit(page: Page):
    opened(page, "&block=2&head=1&unit=7")
    expect(page.get_by_role("heading", name="Inside block 2")).to_be_visible()
    expect(page.get_by_role("slider", name="× filter 7")).to_be_visible()
    expect(page.get_by_role("slider", name="output of head 1")).to_be_visible()


def test_a_unit_of_the_token_is_chosen_with_the_keyboard(page: Page):
    opened(page)
    page.get_by_role("slider", name="token", exact=True).focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(page.get_by_role("slider", name="× filter 3")).to_be_visible()
    expect(page).to_have_url(re.compile("unit=3"))


def test_the_prediction_is_exported_as_a_table(page: Page):
    opened(page)
    section = page.get_by_role("region", name="5 · Prediction")
    section.get_by_text("Export").click()
    with page.expect_download() as download:
        section.get_by_role("button", name="CSV").click()
    rows = list(csv.DictReader(io.StringIO(download.value.path().read_text())))
    assert len(rows) == 10
    assert sum(float(row["probability"]) for row in rows) == pytest.approx(1, abs=1e-5)
