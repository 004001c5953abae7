"""Room 5: its numbers are those of `vitrail simulate` and `vitrail adapt`, its pictures those of the library."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
import torch
from client import client
from frames import read_frame
from loaded import OWN, studio_with
from loaded import SMALL as BASE
from PIL import Image
from playwright.sync_api import Page, expect

from command import call
from vitrail.checkpoint.surgery.projection import resize_projection
from vitrail.checkpoint.surgery.resample import resample_table
from vitrail.geometry import Size
from vitrail.parts import Adaptive, Patches, RelativeBias, Rotary

SMALL = BASE.but(image=Size(30, 56), embedding=Patches(patch=Size(6, 8)))


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    return *studio_with(SMALL, folder), folder / OWN


def ask(path: str = "transfer", asker=None, **parameters) -> Any:
    answer = (asker or client()).get(f"/api/{path}", params=parameters)
    assert answer.status_code == 200, answer.text
    return answer.json() if answer.headers["content-type"] == "application/json" else read_frame(answer.content)


def command(capsys, *arguments: str):
    assert call(*arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


def same_methods(said, printed) -> None:
    assert len(said["methods"]) == len(printed["methods"]) == 9
    for ours, theirs in zip(said["methods"], printed["methods"], strict=True):
        assert ours["method"] == theirs["method"]
        for name in ("error", "round_trip"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-9, abs=1e-12)
        assert ours["bands"] == [pytest.approx(band, rel=1e-9, abs=1e-12) for band in theirs["bands"]]


def test_a_known_table_s_errors_are_those_of_vitrail_simulate(capsys):
    asked = {"transfer_table": "known", "old_rows": 5, "old_columns": 7, "new_rows": 8, "new_columns": 6, "bands": 3}
    said = ask(**asked)
    printed = command(capsys, "simulate", "--from-grid", "5x7", "--to-grid", "8x6", "--bands", "3")
    same_methods(said, printed)
    assert said["kinds"] == printed["kinds"]
    assert not said["trained"]


def test_trained_weights_errors_are_those_of_vitrail_simulate(loaded, capsys):
    _, asker, path = loaded
    said = ask(asker=asker, weights=OWN, new_rows=4, new_columns=11)
    printed = command(capsys, "simulate", "--weights", str(path), "--to-grid", "4x11")
    same_methods(said, printed)
    assert (said["old"], said["new"], said["trained"]) == ([5, 7], [4, 11], True)
    assert said["kinds"][1:] == printed["kinds"]
    first = command(capsys, "simulate", "--weights", str(path), "--to-grid", "4x11", "--method", "timm")
    assert said["kinds"][:1] == first["trained"]


def test_drift_is_that_of_vitrail_adapt_on_the_same_image(loaded, capsys, tmp_path):
    session, asker, path = loaded
    (tmp_path / "images").mkdir()
    Image.fromarray(session.image("default")).save(tmp_path / "images" / "image.png")
    facts, arrays = ask("transfer/drift", asker, weights=OWN, new_rows=7, new_columns=6, resampling="dinov2")
    assert facts["image"] == [42, 48]
    assert arrays["places"].shape == (5, 6)
    for method in ("dinov2", "exact"):
        printed = command(
            capsys, "adapt", str(path), str(tmp_path / f"{method}.safetensors"), "--image", "42x48",
            "--method", method, "--images", str(tmp_path / "images"),
        )  # fmt: skip
        assert facts["cosines"][method] == pytest.approx(printed["drift"]["mean"], abs=1e-6)


def test_what_the_projection_loses_is_what_vitrail_adapt_reports(loaded, capsys, tmp_path):
    _, asker, path = loaded
    said = ask("transfer/projection", asker, weights=OWN, resized_patch=3, filter_resize="natural")
    printed = command(
        capsys, "adapt", str(path), str(tmp_path / "small.safetensors"), "--image", "15x28", "--patch", "3x4",
        "--projection", "natural",
    )  # fmt: skip
    assert said["chosen"] == {name: pytest.approx(value) for name, value in printed["projection"].items()}
    assert (said["patch"], said["new_patch"]) == ([6, 8], [3, 4])
    at = said["sides"].index(3)
    assert said["curves"]["natural"][at] == pytest.approx(said["chosen"]["natural"])
    assert said["curves"]["noise"][at] > said["curves"]["pinv"][at]


def test_a_larger_patch_loses_nothing_and_the_curves_say_so(loaded):
    _, asker, _ = loaded
    said = ask("transfer/projection", asker, weights=OWN, resized_patch=9)
    assert said["chosen"]["natural"] < 1e-9
    assert all(loss < 1e-9 for side, loss in zip(said["sides"], said["curves"]["pinv"], strict=True) if side >= 6)


def test_a_channel_s_picture_is_the_channel_resampled(loaded):
    session, asker, _ = loaded
    asked = {"weights": OWN, "new_rows": 9, "new_columns": 6, "table_view": "channel", "table_index": 13}
    facts, arrays = ask("transfer/maps", asker, **asked, resampling="torchvision")
    table = session.checkpoint(OWN).tensors["position.table"][-35:].double()
    after, exact = (
        resample_table(table, old=Size(5, 7), new=Size(9, 6), method=method)[:, 13].view(9, 6).numpy()
        for method in ("torchvision", "exact")
    )
    low, high, reach = facts["low"], facts["high"], facts["reach"]
    assert (low, high) == (pytest.approx(table[:, 13].min().item()), pytest.approx(table[:, 13].max().item()))
    step = (high - low) / 255
    np.testing.assert_allclose(low + step * arrays["after"], after.clip(low, high), atol=0.51 * step)
    seen = -reach + 2 * reach * arrays["difference"] / 255
    np.testing.assert_allclose(seen, after - exact, atol=1.01 * reach / 255)


def test_colours_are_the_three_strongest_components_and_the_same_grid_differs_nowhere(loaded):
    _, asker, _ = loaded
    facts, arrays = ask("transfer/maps", asker, weights=OWN, new_rows=5, new_columns=7)
    assert arrays["before"].shape == (5, 7, 3)
    assert (arrays["before"] == arrays["after"]).all()
    assert facts["high"] < 1e-6
    assert 3 / 24 < facts["share"] < 1


def test_conventions_differ_by_what_their_tables_do(loaded):
    session, asker, _ = loaded
    said = ask(asker=asker, weights=OWN, new_rows=9, new_columns=6)
    table = session.checkpoint(OWN).tensors["position.table"][-35:].double()
    timm, hugging = (
        resample_table(table, old=Size(5, 7), new=Size(9, 6), method=method) for method in ("timm", "huggingface")
    )
    assert said["conventions"][:2] == ["timm", "huggingface"]
    assert said["disagreement"][1][0] == pytest.approx(float((hugging - timm).norm() / timm.norm()))
    assert [said["disagreement"][i][i] for i in range(5)] == [0] * 5


def test_filters_come_back_changed(loaded):
    session, asker, _ = loaded
    facts, arrays = ask("transfer/filters", asker, weights=OWN, resized_patch=3)
    assert (arrays["before"].shape, arrays["after"].shape) == ((8, 6, 8, 3), (8, 3, 4, 3))
    weight = session.checkpoint(OWN).tensors["embedding.weight"]
    strongest = facts["numbers"][0]
    assert strongest == int(weight.flatten(1).norm(dim=1).argmax())
    small = resize_projection(weight[[strongest]].double(), Size(3, 4))[0]
    drawn = torch.from_numpy(arrays["after"][0] / 127.5 - 1).permute(2, 0, 1) * small.abs().max()
    torch.testing.assert_close(drawn, small, rtol=0, atol=small.abs().max().item() / 250)
    assert (arrays["before"] != arrays["back"]).mean() > 0.5


@pytest.mark.parametrize("position", [Rotary(), RelativeBias()])
def test_models_without_a_table_say_so_and_still_show_their_drift(tmp_path, position):
    _, asker = studio_with(SMALL.but(position=position), tmp_path)
    said = ask(asker=asker, weights=OWN, new_rows=6, new_columns=9)
    assert type(position).__name__ in said["note"]
    assert said["kinds"][0]["kind"].startswith(type(position).__name__)
    facts, _ = ask("transfer/drift", asker, weights=OWN, new_rows=6, new_columns=9)
    assert len(facts["cosines"]) == (9 if isinstance(position, RelativeBias) else 1)


@pytest.mark.parametrize(
    ("path", "asked", "status", "words"),
    [
        ("transfer", {"new_rows": 1}, 422, "new_rows"),
        ("transfer", {"resampling": "geometric"}, 422, "resampling"),
        ("transfer/maps", {"table_view": "channel", "table_index": 4000}, 400, "4000"),
        ("transfer/drift", {"weights": "elsewhere"}, 400, "elsewhere"),
        ("transfer/drift", {"image": "gone"}, 400, "gone"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(path, asked, status, words):
    answer = client().get(f"/api/{path}", params=asked)
    said = answer.json()
    assert (answer.status_code, said["status"], set(said)) == (status, status, {"error", "status"})
    assert words in said["error"]


def test_adaptive_patches_say_why_they_cannot_be_compared(tmp_path):
    adaptive = Adaptive(patches=(Size(4, 4), Size(8, 8)))
    _, asker = studio_with(SMALL.but(image=Size(32, 48), embedding=adaptive), tmp_path)
    for path in ("transfer/drift", "transfer/projection", "transfer/filters"):
        answer = asker.get(f"/api/{path}", params={"weights": OWN})
        assert (answer.status_code, "\n" in answer.json()["error"]) == (400, False)


# ── in the browser ──────────────────────────────────────────────────────────────────────────────────────────────


def open_room(page: Page, query: str = "") -> None:
    page.goto(f"/?room=transfer{query}")
    expect(page.get_by_role("img", name=re.compile("^Error by frequency"))).to_be_visible()
    expect(page.get_by_text("Fine-tune the model before use")).to_be_visible()
    expect(page.get_by_text("Each token, by")).to_be_visible()


def test_dragging_the_new_grid_carries_the_table_there(page: Page):
    open_room(page)
    expect(page.get_by_role("heading", name="8 × 8 → 14 × 20")).to_be_visible()
    rows = page.get_by_role("slider", name="To rows")
    box = rows.bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] * 12 / 38, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + box["height"] / 2, steps=3)
    page.mouse.up()
    expect(page.get_by_role("heading", name="8 × 8 → 21 × 20")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("heading", name="8 × 8 → 14 × 20")).to_be_visible()


def test_a_method_is_chosen_in_the_table_and_lives_in_the_link(page: Page):
    open_room(page, "&transfer_table=known&old_rows=5&old_columns=7&new_rows=9&new_columns=6")
    expect(page.get_by_role("heading", name="5 × 7 → 9 × 6")).to_be_visible()
    page.get_by_role("button", name="torchvision", exact=True).click()
    expect(page).to_have_url(re.compile("resampling=torchvision"))
    expect(page.get_by_text("after, by torchvision")).to_be_visible()


def test_errors_are_saved_as_they_are_shown(page: Page):
    open_room(page)
    panel = page.get_by_role("region", name="Error by frequency", exact=True)
    panel.get_by_text("Export").click()
    with page.expect_download() as saved:
        panel.get_by_role("button", name="CSV").click()
    lines = saved.value.path().read_text().splitlines()
    assert lines[0] == "method,error,round_trip,0-0.25,0.25-0.5,0.5-0.75,0.75-1"
    assert lines[1].startswith("exact,")
    assert len(lines) == 10
