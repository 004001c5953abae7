"""Room 12: the page's bytes are the library's colours and cosines, and no pass is run twice."""

from __future__ import annotations

import csv
import io
import json
import re

import numpy as np
import pytest
import torch
from browser import settled, violations
from client import HOST, client
from frames import read_frame
from PIL import Image
from playwright.sync_api import Page, expect

from vitrail import dense, parts, synthesize_image
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.checkpoint.write import save
from vitrail.config import ViTConfig
from vitrail.geometry import Size
from vitrail.look.dense import Dense
from vitrail.look.dense_colours import dense_colours, point_similarity
from vitrail.nn.build import build
from vitrail.server.app import create_app
from vitrail.server.jobs import StoppedError
from vitrail.server.rooms.dense.fine_grid import fine_grid
from vitrail.server.session import Session

PLAIN = ViTConfig(
    image=Size(24, 36),
    embedding=parts.Patches(patch=Size(6, 6)),
    prefix=parts.Prefix(registers=2),
    width=24,
    depth=2,
    num_heads=3,
    mlp=parts.Mlp(width=32),
    classes=0,
)
OVERLAPPING = PLAIN.but(embedding=parts.Patches(patch=Size(6, 6), stride=Size(3, 3)))
SIZES = {"wide": Size(60, 90), "tall": Size(120, 80)}


@pytest.fixture
def session(tmp_path, monkeypatch) -> Session:
    # the test models are coarse on purpose: without this they would be shown larger images
    monkeypatch.setattr("vitrail.server.rooms.dense.default_size", lambda asked, here: asked.seen)
    for name, config in {"plain": PLAIN, "overlapping": OVERLAPPING}.items():
        torch.manual_seed(3)
        tensors = build(config).state_dict()
        made = Checkpoint(config=config, tensors=tensors, preprocessing=Preprocessing(image=config.image))
        save(made, tmp_path / f"{name}.safetensors")
    return Session([tmp_path / f"{name}.safetensors" for name in ("plain", "overlapping")])


@pytest.fixture
def images(session) -> dict[str, str]:
    return {name: session.add_image(_png(synthesize_image(5, size))) for name, size in SIZES.items()}


@pytest.fixture
def ask(session, images):
    asking = client(create_app(session, hosts=frozenset({HOST})))

    def get(path: str, weights: str = "plain", **asked):
        known = {"image": images["wide"], "second": images["tall"], "weights": f"{weights}.safetensors"}
        return asking.get(f"/api/{path}", params={**known, **asked})

    return get


def _png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize("shifts", [1, 3])
@pytest.mark.parametrize("foreground", [False, True])
def test_bytes_are_the_librarys_colours_with_one_basis(ask, session, images, shifts, foreground):
    asked = {"shifts": shifts, "foreground": foreground, "with_second": True}
    facts, arrays = read_frame(ask("dense/colours", **asked).content)
    pictures = [session.image(images[name]) for name in SIZES]
    checkpoint = session.checkpoint("plain.safetensors")
    found = [dense(each, checkpoint, stride=6 // shifts).over(each, 640) for each in pictures]
    for way in ("nearest", "bilinear", "guided"):
        colours = dense_colours(found, foreground=foreground, upsampling=way)
        assert facts["shares"] == pytest.approx(colours.shares, abs=1e-5)
        for index, (rgb, each) in enumerate(zip(colours.rgb, found, strict=True)):
            assert facts["sides"][index]["grid"] == [*each.cells.grid]
            off = np.abs(arrays[f"{way}{index}"] - covered(rgb.numpy(), each) * 255).max(axis=2)
            assert (off < 0.6).mean() > 0.999  # a pixel at the threshold of the foreground may fall to either side
    assert facts["passes"] == 2 * shifts**2


def test_near_bytes_are_the_librarys_cosines_with_the_token_at_the_point(ask, session, images):
    asked = {"shifts": 2, "with_second": True, "point_down": 700, "point_across": 130}
    facts, arrays = read_frame(ask("dense/near", **asked).content)
    pictures = [session.image(images[name]) for name in SIZES]
    found = [dense(each, session.checkpoint("plain.safetensors"), stride=3).over(each, 640) for each in pictures]
    row, column = fine_grid(PLAIN, Size(24, 36), 2).pixel(700, 130, SIZES["wide"])
    expected = point_similarity(found, row, column)
    assert facts["cell"] == [5, 1]
    planes = {plane["name"]: plane for plane in _planes(ask("dense/near", **asked).content)}
    low, high = planes["near0"]["low"], planes["near0"]["high"]
    assert (planes["near1"]["low"], planes["cells0"]["high"]) == (low, high)
    for index, (near, each) in enumerate(zip(expected, found, strict=True)):
        off = low + arrays[f"near{index}"] / 255 * (high - low) - covered(near.numpy(), each)
        assert np.abs(off).max() < 0.6 * (high - low) / 255
    assert arrays["cells0"].shape == (8, 12)
    assert arrays["cells0"].max() == arrays["cells0"][5, 1]


def covered(pixels: np.ndarray, image: Dense) -> np.ndarray:
    """The part of a picture that the cells cover."""
    height, width = (int(step * count) for step, count in zip(image.cells.step, image.cells.grid, strict=True))
    top, left = round(image.cells.top), round(image.cells.left)
    return pixels[top : top + height, left : left + width]


def _planes(content: bytes) -> list[dict]:
    length = int.from_bytes(content[:4], "little")
    return json.loads(content[4 : 4 + length])["arrays"]


def test_a_model_runs_once_for_an_image_and_its_shifts(ask, session, images):
    passes = 0

    def counting(_, inputs, *__):
        nonlocal passes
        passes += len(inputs[0])

    hook = session.model("plain.safetensors", Size(24, 36)).embedding.register_forward_hook(counting)
    try:
        for asked in ({}, {"point_down": 20}, {"upsample": "nearest"}):
            assert ask("dense/near", shifts=2, **asked).status_code == 200
        for asked in ({}, {"foreground": True}):
            assert ask("dense/colours", shifts=2, **asked).status_code == 200
        assert passes == 4
        session.recording(images["wide"], "plain.safetensors", whole=True)
        assert passes == 5
        assert ask("dense/colours", shifts=1).status_code == 200  # the pass that all rooms share
        assert passes == 5
    finally:
        hook.remove()


def test_costs_are_counted_without_a_pass_and_estimated_after_one(ask, session):
    before = ask("dense", shifts=2).json()
    assert [each["passes"] for each in before["costs"]] == [1, 4, 9, 36]
    assert before["chosen"] == {
        "shifts": 2, "passes": 4, "apart": [3, 3], "grid": [8, 12], "tokens": 96, "feature_bytes": 4 * 24 * 96,
        "seconds": None,
    }  # fmt: skip
    session.note_pass("plain.safetensors", Size(24, 36), 2.0)
    assert [each["seconds"] for each in ask("dense").json()["costs"]] == [2.0, 8.0, 18.0, 72.0]


def test_passes_stop_when_nobody_waits(ask, session, images, monkeypatch):
    runs = []

    def stop(*_):
        runs.append(1)
        if len(runs) == 3:
            raise StoppedError("the question was replaced by a newer one; ask again")

    session.model("plain.safetensors", Size(24, 36))
    monkeypatch.setattr("vitrail.server.session.proceed", stop)
    assert ask("dense/colours", shifts=6).status_code == 400
    assert len(runs) == 3
    assert ask("dense/colours", shifts=6).status_code == 200  # what was stopped is not kept


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"shifts": 4}, "4 shifts do not divide the patch 6x6; use one of 1, 2, 3, 6"),
        ({"weights": "overlapping"}, "dense features need a plain ViT with patches that do not overlap"),
        ({"second": "0123456789abcdef", "with_second": True}, "is no longer stored"),
    ],
)
def test_what_cannot_be_shown_is_one_line(ask, asked, words):
    answer = ask("dense/colours", **asked)
    assert answer.status_code == 400
    assert words in answer.json()["error"]


def test_features_that_are_too_large_are_refused_before_a_pass(ask, monkeypatch):
    monkeypatch.setattr("vitrail.server.rooms.dense.MOST_BYTES", 2**14)
    answer = ask("dense/colours", shifts=6)
    assert "choose fewer shifts or a smaller input" in answer.json()["error"]


def ready(page: Page, query: str = "") -> None:
    page.goto(f"/?room=dense{query}")
    expect(page.get_by_role("slider", name="The point, on the similarity")).to_be_visible()
    settled(page)


def pixels(page: Page, label: str) -> str:
    canvas = page.get_by_role("slider", name=label).locator("canvas")
    return canvas.evaluate("canvas => canvas.toDataURL()")


def test_a_point_is_followed_by_pointer_and_keyboard_and_kept_in_the_address(page: Page):
    ready(page)
    before = pixels(page, "The point, on the similarity")
    colours = page.get_by_role("slider", name="The point, on the colours")
    colours.hover(position={"x": 12, "y": 12})
    settled(page)
    assert pixels(page, "The point, on the similarity") != before
    page.mouse.move(0, 0)
    settled(page)
    assert pixels(page, "The point, on the similarity") == before
    colours.click(position={"x": 12, "y": 12})
    expect(page).to_have_url(re.compile("point_down=[0-9]+&point_across=[0-9]+"))
    kept = colours.get_attribute("aria-valuetext")
    page.get_by_label("Shifts", exact=True).press("ArrowRight")  # a finer grid: the place stays
    settled(page)
    expect(page.get_by_text("52 × 80 tokens")).to_be_visible()
    page.go_back()
    settled(page)
    expect(colours).to_have_attribute("aria-valuetext", kept or "")
    colours.press("ArrowRight")
    expect(colours).not_to_have_attribute("aria-valuetext", kept or "")
    colours.press("Enter")
    page.reload()
    settled(page)
    expect(colours).not_to_have_attribute("aria-valuetext", kept or "")


def test_shifts_take_only_divisors_of_the_patch_and_show_their_cost(page: Page):
    ready(page, "&shifts=3")
    told = page.locator("main").get_by_role("status").filter(has_text="is not one of")
    expect(told).to_contain_text("Shifts 3 is not one of 1, 2, 4, so 2 is shown.")
    page.get_by_role("button", name="Pin to compare").click()
    page.get_by_label("Shifts", exact=True).press("ArrowRight")
    expect(page.get_by_text("16 passes")).to_be_visible()
    figure = page.locator(".figure", has=page.locator("dt:text-is('passes')"))
    expect(figure).to_contain_text("pinned 4")
    page.locator("[data-panel=dense-cost]").get_by_role("button", name="1 × 1").click()
    expect(figure.locator(".value")).to_have_text("1")
    assert violations(page) == []


def test_a_second_image_shares_the_colours_and_tokens_are_exported_whole(page: Page):
    ready(page)
    page.get_by_role("checkbox", name="Second image").check()
    expect(page.get_by_role("img", name="Similarity in the second image")).to_be_visible()
    settled(page)
    panel = page.locator("[data-panel=dense]")
    panel.locator("summary").first.click()
    with page.expect_download() as download:
        panel.get_by_role("button", name="CSV", exact=True).click()
    table = list(csv.DictReader(io.StringIO(download.value.path().read_text())))
    tokens = page.locator(".figure", has=page.locator("dt:text-is('tokens')")).locator(".value").inner_text()
    assert sum(row["image"] == "first" for row in table) == int(tokens.replace(",", ""))
    assert {row["image"] for row in table} == {"first", "second"}
    cosines = [float(row["cosine"]) for row in table]
    assert max(cosines) == pytest.approx(1, abs=0.01)
    shown = page.get_by_role("button", name="plain")
    shown.click()
    expect(page).to_have_url(re.compile("upsample=nearest"))
