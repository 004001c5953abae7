"""Room 11: the page's bytes are the library's cosines, its parts add up, and hovering asks nothing."""

from __future__ import annotations

import csv
import io
import re

import numpy as np
import pytest
import torch
from browser import settled
from client import HOST, client
from frames import read_frame
from PIL import Image
from playwright.sync_api import Page, Request, expect

from vitrail import parts, synthesize_image
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.checkpoint.write import save
from vitrail.config import Config, PyramidConfig, PyramidStage, ViTConfig
from vitrail.geometry import Size
from vitrail.look import best_buddies, likeness, token_cosines
from vitrail.nn.build import build
from vitrail.nn.vit import ViT
from vitrail.server.app import create_app
from vitrail.server.session import Session

PLAIN = ViTConfig(
    image=Size(20, 28),
    embedding=parts.Patches(patch=Size(4, 4)),
    prefix=parts.Prefix(registers=2),
    width=24,
    depth=2,
    num_heads=3,
    mlp=parts.Mlp(width=32),
    pool=parts.MeanPool(),
    classes=0,
)
CONFIGS: dict[str, Config] = {
    "plain": PLAIN,
    "cls": PLAIN.but(pool=parts.ClsPool()),
    "adaptive": PLAIN.but(
        image=Size(24, 32), embedding=parts.Adaptive(patches=(Size(4, 4), Size(8, 8)), threshold=1.0)
    ),
    "pyramid": PyramidConfig(
        image=Size(24, 40),
        stages=(PyramidStage(width=12, depth=1, num_heads=3), PyramidStage(width=24, depth=1, num_heads=4)),
        attention=parts.WindowedAttention(window=Size(2, 3)),
        classes=0,
    ),
}


@pytest.fixture(scope="module")
def session(tmp_path_factory) -> Session:
    folder = tmp_path_factory.mktemp("weights")
    for name, config in CONFIGS.items():
        torch.manual_seed(3)
        made = Checkpoint(
            config=config, tensors=build(config).state_dict(), preprocessing=Preprocessing(image=config.image)
        )
        save(made, folder / f"{name}.safetensors")
    return Session([folder / f"{name}.safetensors" for name in CONFIGS])


@pytest.fixture
def ask(session, monkeypatch):
    # the test models are coarse on purpose: without this they would be shown larger images
    monkeypatch.setattr("vitrail.server.rooms.match.default_size", lambda asked, here: asked.seen)
    asking = client(create_app(session, hosts=frozenset({HOST})))

    def get(weights: str = "plain", **asked):
        return asking.get("/api/match/maps", params={"weights": f"{weights}.safetensors", **asked})

    return get


@pytest.mark.parametrize("shape", ["crop", "whole"])
def test_bytes_are_the_librarys_cosines_and_parts_add_up(ask, session, shape):
    whole = shape == "whole"
    file = io.BytesIO()
    Image.fromarray(synthesize_image(5, Size(96, 60))).save(file, "PNG")
    tall = session.add_image(file.getvalue())
    facts, arrays = read_frame(ask(match_shape=shape, layer=0, second=tall).content)
    (_, first), (_, second) = (session.recording(image, "plain.safetensors", whole=whole) for image in ("cat", tall))
    cosines = token_cosines(first.after(0), second.after(0)).numpy()
    own = token_cosines(first.after(0), first.after(0)).numpy()
    low = min(each.min() for each in (cosines, own, token_cosines(second.after(0), second.after(0)).numpy()))
    for name, expected in (("cross", cosines), ("own0", own)):
        assert np.abs(low + arrays[name] / 255 * (1 - low) - expected).max() < 0.6 * (1 - low) / 255
    assert facts["first"]["grid"] == [5, 7]
    assert facts["second"]["grid"] == ([7, 5] if whole else [5, 7])
    assert facts["first"]["nearest"] == cosines.argmax(axis=1).tolist()
    assert facts["second"]["nearest"] == cosines.argmax(axis=0).tolist()
    assert facts["buddies"] == best_buddies(torch.from_numpy(cosines)).pairs.tolist()
    alike = likeness(first, second)
    assert facts["score"] == pytest.approx(alike.vectors, abs=1e-6)
    for side in ("first", "second"):
        assert sum(facts[side]["parts"]) == pytest.approx(facts["score"], abs=1e-6)


def test_a_model_with_a_cls_vector_says_that_its_parts_are_an_approximation(ask):
    facts, _ = read_frame(ask("cls").content)
    assert "CLS token, which is no sum over patches" in facts["approximation"]
    assert sum(facts["first"]["parts"]) == pytest.approx(facts["score"], abs=1e-6)
    assert abs(facts["score"] - facts["vectors"]) > 1e-3


@pytest.mark.parametrize("weights", ["adaptive", "pyramid"])
def test_cells_of_adaptive_patches_and_of_coarser_stages_add_up_too(ask, weights):
    facts, arrays = read_frame(ask(weights, layer=0).content)
    rows, columns = facts["first"]["grid"]
    assert arrays["cross"].shape[0] == rows * columns == len(facts["first"]["nearest"])
    assert len(facts["first"]["parts"]) == np.prod(facts["first"]["parts_grid"])
    for side in ("first", "second"):
        assert sum(facts[side]["parts"]) == pytest.approx(facts["score"], abs=1e-6)


def test_the_room_uses_the_pass_of_the_attention_room_and_runs_no_image_twice(ask, session):
    count = 0

    def counting(module, *_):
        nonlocal count
        count += isinstance(module, ViT)

    session.recording("cat", "plain.safetensors", 24)
    hook = torch.nn.modules.module.register_module_forward_hook(counting)
    try:
        assert ask(seen=24).status_code == 200
        assert count == 1  # the second image
        for asked in ({"layer": 0}, {"image": "turned", "second": "cat"}):
            assert ask(seen=24, **asked).status_code == 200
        assert count == 1
    finally:
        hook.remove()


def test_a_second_image_that_is_gone_is_one_line(ask):
    answer = ask(second="0123456789abcdef")
    assert answer.status_code == 400
    assert "image '0123456789abcdef' is no longer stored" in answer.json()["error"]


def ready(page: Page, query: str = "") -> None:
    page.goto(f"/?room=match{query}")
    expect(page.get_by_role("slider", name="A patch of the first image")).to_be_visible()
    settled(page)


def test_hovering_a_patch_shows_its_kin_and_asks_nothing(page: Page):
    ready(page)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if isinstance(request, Request) else None)
    first, second = (page.get_by_role("slider", name=f"A patch of the {each} image") for each in ("first", "second"))
    before = second.get_attribute("aria-valuenow")
    first.hover(position={"x": 12, "y": 12})
    expect(first).to_have_attribute("aria-valuenow", "0")
    kin = page.evaluate(
        "fetch('./api/match/maps').then((answer) => answer.arrayBuffer()).then((b) => [...new Uint8Array(b)])"
    )
    facts, _ = read_frame(bytes(kin))
    expect(second).to_have_attribute("aria-valuenow", str(facts["first"]["nearest"][0]))
    second.hover(position={"x": 12, "y": 12})
    expect(page.get_by_text("query: patch (0, 0)")).to_be_visible()
    expect(first).to_have_attribute("aria-valuenow", str(facts["second"]["nearest"][0]))
    page.mouse.move(0, 0)
    expect(second).to_have_attribute("aria-valuenow", before or "")
    assert [url for url in asked if "match" in url and "api/match/maps" not in url] == []
    assert len([url for url in asked if "api/match/maps" in url]) == 1  # the test's own


def test_a_click_is_kept_in_the_address_and_a_link_brings_it_back(page: Page):
    ready(page)
    page.get_by_role("slider", name="A patch of the second image").click(position={"x": 12, "y": 12})
    expect(page).to_have_url(re.compile("match_side=second&match_patch=0"))
    page.reload()
    settled(page)
    expect(page.get_by_text("query: patch (0, 0)")).to_be_visible()
    page.get_by_role("slider", name="A patch of the second image").press("ArrowRight")
    expect(page.get_by_text("query: patch (0, 1)")).to_be_visible()
    page.go_back()
    expect(page).not_to_have_url(re.compile("match_patch"))


def test_a_second_image_is_uploaded_swapped_and_pinned(page: Page):
    ready(page)
    picture = io.BytesIO()
    Image.new("RGB", (90, 60), (20, 160, 90)).save(picture, "PNG")
    file = {"name": "green.png", "mimeType": "image/png", "buffer": picture.getvalue()}
    score = page.locator(".figure", has=page.locator("dt:text-is('score')")).locator(".value")
    before = score.inner_text()
    page.get_by_role("button", name="Pin to compare").click()
    page.get_by_label("Upload the second image").set_input_files(file)  # type: ignore[arg-type]
    expect(page).to_have_url(re.compile("second=[0-9a-f]{16}"))
    expect(score).not_to_have_text(before)
    expect(page.get_by_text(f"pinned {before}")).to_be_visible()
    page.get_by_role("button", name="Swap the images").click()
    expect(page).to_have_url(re.compile("image=[0-9a-f]{16}&second=cat"))
    settled(page)
    page.get_by_label("Upload the second image").set_input_files(
        {"name": "bad.png", "mimeType": "image/png", "buffer": b"no image"}  # type: ignore[arg-type]
    )
    expect(page.get_by_role("alert")).to_contain_text("not a readable image")


def test_parts_are_exported_whole_and_add_up(page: Page):
    ready(page)
    panel = page.locator("[data-panel=match-parts]")
    panel.locator("summary").first.click()
    with page.expect_download() as download:
        panel.get_by_role("button", name="CSV", exact=True).click()
    table = list(csv.DictReader(io.StringIO(download.value.path().read_text())))
    score = float(page.locator(".figure", has=page.locator("dt:text-is('score')")).locator(".value").inner_text())
    for image in ("first", "second"):
        assert sum(float(row["part"]) for row in table if row["image"] == image) == pytest.approx(score, abs=6e-5)
    panel.get_by_role("slider", name="Parts of the first image").hover(position={"x": 12, "y": 12})
    part = re.sub("−", "-", panel.get_by_text("This patch adds").inner_text())
    assert float(re.findall(r"-?\d\.\d{6}", part)[0]) == pytest.approx(float(table[0]["part"]), abs=6e-7)
