"""Room 3: the sequence is the model's own, and the ways to cut cost what the planner says."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from client import client
from frames import read_frame
from loaded import OWN, studio_with
from playwright.sync_api import Page, expect

from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.config import MobileConfig, PyramidConfig, PyramidStage, ViTConfig
from vitrail.geometry import Size, position_id
from vitrail.nn.adaptive import AdaptiveEmbed
from vitrail.nn.patches import cut_patches
from vitrail.parts import Adaptive, Hierarchical, Learned, Mlp, Patches, Prefix, Rotary, WindowedAttention
from vitrail.plan.ledger import ledger
from vitrail.plan.workload import Workload
from vitrail.presets import preset
from vitrail.server.session import Session

REGISTERS = ViTConfig(
    image=Size(70, 126),
    embedding=Patches(patch=Size(5, 7)),
    prefix=Prefix(registers=3),
    position=Learned(prefix="cls"),
    width=24,
    depth=1,
    num_heads=3,
    mlp=Mlp(width=40),
    classes=0,
)
OTHERS = {
    "rotary": REGISTERS.but(position=Rotary(), prefix=Prefix(), width=36),
    "overlapping": REGISTERS.but(image=Size(64, 96), embedding=Patches(patch=Size(6, 8), stride=Size(2, 4))),
    "adaptive": REGISTERS.but(image=Size(128, 192), embedding=Adaptive(patches=(Size(8, 8), Size(16, 16)))),
    "pyramid": PyramidConfig(
        image=Size(64, 96),
        stages=(PyramidStage(width=12, depth=1, num_heads=3), PyramidStage(width=24, depth=1, num_heads=3)),
        attention=WindowedAttention(window=Size(4, 4)),
    ),
    "pooling pyramid": preset("pit-Ti", image=Size(64, 96)),
}


def ask(path: str = "tokens", **parameters):
    answer = client().get(f"/api/{path}", params=parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()


def frame(path: str, **parameters):
    answer = client().get(f"/api/{path}", params=parameters)
    assert answer.status_code == 200, answer.text
    return read_frame(answer.content)


def test_a_token_is_its_patch_projected_plus_its_position(tmp_path):
    session, asker = studio_with(REGISTERS, tmp_path)
    facts, arrays = read_frame(asker.get("/api/tokens/sequence", params={"weights": OWN}).content)
    assert facts["prefix"] == ["CLS", "register 0", "register 1", "register 2"]
    assert (facts["grid"], facts["count"]) == ([14, 18], 4 + 14 * 18)
    subject = session.subject("default", OWN, 0)
    np.testing.assert_array_equal(arrays["pixels"], subject.pixels)
    with torch.no_grad():
        tokens = subject.model.embed(subject.image)[0][0]  # type: ignore[operator]
        projected = subject.model.embedding(subject.image)[0][0]  # type: ignore[operator]
    patches = cut_patches(subject.image, Size(5, 7))[0]
    row, column = 9, 4
    number = position_id(row, column, Size(14, 18), prefix=4)
    said = asker.get("/api/tokens/one", params={"weights": OWN, "token": number}).json()
    assert (said["token"], said["row"], said["column"]) == (number, row, column)
    assert said["place"] == f"4 + 9 · 18 + 4 = {number}"
    close = 1e-5  # rounded to five digits on the way
    assert said["values"] == pytest.approx(patches[number - 4].tolist(), abs=close)
    assert said["projected"] == pytest.approx(projected[number - 4].tolist(), abs=close)
    assert said["vector"] == pytest.approx(tokens[number].tolist(), abs=close)
    assert said["position"] == pytest.approx((tokens[number] - projected[number - 4]).tolist(), abs=close)
    assert facts["boxes"][number - 4] == [45, 28, 5, 7]


def test_prefix_tokens_have_no_pixels_and_a_register_no_position(tmp_path):
    _, asker = studio_with(REGISTERS, tmp_path)
    cls, register = (asker.get("/api/tokens/one", params={"weights": OWN, "token": token}).json() for token in (0, 2))
    assert (cls["values"], cls["row"]) == ([], None)
    assert cls["place"].startswith("CLS is not a patch")
    assert any(cls["position"])
    assert register["place"].startswith("register 1 is not a patch")
    assert not any(register["position"])


@pytest.mark.parametrize("name", OTHERS)
def test_every_patch_of_any_model_owns_its_cells(name, tmp_path):
    _, asker = studio_with(OTHERS[name], tmp_path)
    facts, _ = read_frame(asker.get("/api/tokens/sequence", params={"weights": OWN}).content)
    first, rows, columns = len(facts["prefix"]), *facts["grid"]
    assert len(facts["owner"]) == rows * columns
    assert sorted(set(facts["owner"])) == list(range(first, facts["count"]))
    for token in (first, facts["count"] - 1):
        top, left, height, width = facts["boxes"][token - first]
        assert 0 <= top <= facts["image"][0] - height
        assert 0 <= left <= facts["image"][1] - width
        said = asker.get("/api/tokens/one", params={"weights": OWN, "token": token}).json()
        assert len(said["values"]) == 3 * height * width
        assert (said["position"] is None) == (facts["no_position"] != "")


def test_a_mobile_model_says_that_it_has_no_patches(tmp_path):
    _, asker = studio_with(MobileConfig(image=Size(64, 128)), tmp_path)
    refused = asker.get("/api/tokens/sequence", params={"weights": OWN})
    assert refused.status_code == 400
    assert "does not begin with patches" in refused.json()["error"]


def test_the_ways_to_cut_cost_what_the_planner_says():
    config = preset("S/16", image=Size(192, 320))
    said = {kind["name"]: kind for kind in ask(model="S/16", height=192, width=320, stride=4)["kinds"]}
    embeddings = {
        "regular": Patches(patch=Size(16, 16)),
        "overlapping": Patches(patch=Size(16, 16), stride=Size(4, 4)),
        "hierarchical": Hierarchical(finest=Size(4, 4), widths=(48, 96, 192)),
    }
    for name, embedding in embeddings.items():
        cut = config.but(embedding=embedding)
        assert isinstance(cut, ViTConfig)
        assert said[name]["patches"] == cut.grid.area
        assert said[name]["flops_forward"] == ledger(cut).flops_forward
        assert said[name]["attention_elements"] == cut.tokens**2
    assert said["overlapping"]["patches"] == 45 * 77
    assert [level["tokens"] for level in said["hierarchical"]["levels"]] == [3840, 960, 240, 60]
    assert said["stem"]["patches"] == said["regular"]["patches"] == 240


@pytest.mark.parametrize("threshold", [0, 0.3, 0.8])
def test_the_quadtree_is_the_embedding_s_own(threshold):
    facts, arrays = frame("tokens/adaptive", threshold=threshold, height=192, width=320, image="window")
    spec = Adaptive(patches=(Size(8, 8), Size(16, 16), Size(32, 32)), threshold=threshold)
    steps = Preprocessing(image=Size(192, 320))
    pixels = steps.pixels(Session().image("window"), exact=True).pixels
    values = torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None].float()
    layout = AdaptiveEmbed(spec, 1)(values)[1]
    assert layout.rectangles is not None
    leaves = layout.rectangles[0].tolist()
    assert facts["kept"] == len(leaves) == sum(facts["counts"])
    assert facts["saved"] == pytest.approx(1 - len(leaves) / 960)
    for top, left, height, width in leaves:
        part = arrays["levels"][top : top + height, left : left + width]
        assert (part == int(np.log2(height))).all()
        mean = pixels[8 * top : 8 * (top + height), 8 * left : 8 * (left + width)].mean(axis=(0, 1))
        np.testing.assert_allclose(arrays["dense"][top, left], mean, atol=0.51)  # rounded to a byte
    config = preset("B/16", image=Size(192, 320), embedding=spec)
    assert facts["kind"]["flops_forward"] == ledger(config, Workload(adaptive_tokens=len(leaves))).flops_forward


def test_a_model_that_cannot_be_cut_so_says_why():
    facts, _ = frame("tokens/adaptive", model="beit-B/16")
    assert "needs a regular grid" in facts["kind"]["refused"]


def test_an_image_that_the_coarsest_patch_does_not_divide_is_resized():
    facts, arrays = frame("tokens/adaptive", height=200, width=310, patch_height=10, patch_width=10)
    assert facts["patches"] == [[5, 5], [10, 10], [20, 20]]
    assert facts["image"] == [200, 300]
    assert arrays["levels"].shape == (40, 60)


@pytest.mark.parametrize(
    ("path", "parameters", "status"),
    [
        ("tokens/one", {"token": 4000}, 400),
        ("tokens", {"stride": 0}, 422),
        ("tokens/adaptive", {"threshold": -1}, 422),
        ("tokens/adaptive", {"height": 2048, "width": 2048, "patch_height": 2, "patch_width": 2}, 400),
    ],
)
def test_what_cannot_be_asked_is_refused_in_a_line(path, parameters, status):
    answer = client().get(f"/api/{path}", params=parameters)
    assert answer.status_code == status
    assert set(answer.json()) == {"error", "status"}


# ── in the browser ──────────────────────────────────────────────────────────────────────────────────────────────


def status(page: Page):
    return page.get_by_role("region", name="From image to sequence").get_by_role("status")


def test_a_hovered_patch_shows_its_token_and_a_click_keeps_it(page: Page):
    page.goto("/?room=tokens")
    expect(status(page)).to_contain_text("Token 137")  # 1 + 8 · 16 + 8: the middle
    box = page.get_by_role("slider", name="Patches of your image").bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] * 5.5 / 16, box["y"] + box["height"] * 3.5 / 16)
    expect(status(page)).to_contain_text("1 + 3 · 16 + 5 = 54")
    page.mouse.down()
    page.mouse.up()
    page.mouse.move(5, 5)
    expect(status(page)).to_contain_text("Token 54")
    expect(page).to_have_url(re.compile("token=54"))


def test_the_sequence_and_the_image_move_together_by_key(page: Page):
    page.goto("/?room=tokens&token=54")
    expect(status(page)).to_contain_text("row 3, column 5")
    page.get_by_role("slider", name="The whole sequence").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("slider", name="Patches of your image")).to_have_attribute("aria-valuenow", "54")
    page.get_by_role("slider", name="Patches of your image").focus()
    page.keyboard.press("ArrowDown")
    expect(status(page)).to_contain_text("row 4, column 5")
    page.keyboard.press("Home")
    expect(status(page)).to_contain_text("Token 1")
    page.get_by_role("button", name="0: CLS").focus()
    expect(status(page)).to_contain_text("CLS is not a patch")


def test_dragging_the_threshold_redraws_the_tree(page: Page):
    page.goto("/?room=tokens&threshold=0")
    region = page.get_by_role("region", name="Adaptive patches")
    expect(region).to_contain_text("784 of 8 × 8")
    page.get_by_role("slider", name="Threshold").fill("3")
    expect(region).to_contain_text("49 of 32 × 32")
    expect(region).to_contain_text("94 %")
    expect(page).to_have_url(re.compile("threshold=3"))
    page.go_back()
    expect(region).to_contain_text("784 of 8 × 8")


def test_the_ways_to_cut_are_exported(page: Page):
    page.goto("/?room=tokens&model=S/16&height=192&width=320&patch_height=16&patch_width=16")
    region = page.get_by_role("region", name="Other kinds of patch embedding")
    expect(region.get_by_role("row", name="regular")).to_contain_text("240")
    expect(status(page)).to_contain_text("Token 137")
    region.get_by_text("Export").click()
    with page.expect_download() as download:
        region.get_by_role("button", name="CSV").click()
    rows = download.value.path().read_text().splitlines()
    assert rows[1].startswith("regular,192x320,240,16x16,58081,")
