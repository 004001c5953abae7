"""Room 4: its maps are the library's, its counts those of real modules, and pointing at a patch shows its map."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch
from client import client
from frames import read_frame
from loaded import OWN, SMALL, studio_with
from playwright.sync_api import Page, expect

from vitrail.config import PyramidConfig, PyramidStage
from vitrail.geometry import Size
from vitrail.look.positions import position_similarity
from vitrail.nn.build import build
from vitrail.parts import RelativeBias, WindowedAttention
from vitrail.presets import preset
from vitrail.server.rooms.positions.position_kinds import POSITIONS
from vitrail.training.experiments.structure import position_structure


def ask(path: str = "positions", asker=None, **parameters):
    answer = (asker or client()).get(f"/api/{path}", params=parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    return studio_with(SMALL, tmp_path_factory.mktemp("weights"))


@pytest.mark.parametrize("grid", [Size(5, 7), Size(6, 4)])
def test_the_model_s_own_map_is_the_library_s_on_any_grid(loaded, grid):
    session, asker = loaded
    said = ask(asker=asker, weights=OWN, grid_rows=grid.height, grid_columns=grid.width, cell_row=3, cell_column=2)
    found = position_similarity(session.checkpoint(OWN).model(), grid=grid).values
    own = said["sides"][0]
    assert (own["grid"], own["cell"], said["own_grid"]) == ([*grid], [3, 2], [5, 7])
    torch.testing.assert_close(torch.tensor(own["map"]), found[3, 2].float())
    assert said["token"] == 4 + 3 * grid.width + 2  # CLS and three registers come first


def test_a_model_opens_on_its_own_grid(loaded):
    _, asker = loaded
    assert ask(asker=asker, weights=OWN)["sides"][0]["grid"] == [5, 7]
    assert ask(asker=asker, weights=OWN, grid_columns=4)["sides"][0]["grid"] == [5, 4]


def test_equal_measures_are_compared_on_one_scale(loaded):
    _, asker = loaded

    def scales(**parameters):
        content = asker.get("/api/positions/maps", params={"weights": OWN, **parameters}).content
        planes = json.loads(content[4 : 4 + int.from_bytes(content[:4], "little")])["arrays"]
        return {plane["name"]: (plane["low"], plane["high"]) for plane in planes}

    alike = scales(other_kind="2d_sines")
    assert alike["first"] == alike["second"]
    assert alike["first_offsets"] == alike["second_offsets"]
    other = scales(other_kind="rotary_by_index")  # a mean of rotations, not a cosine of rows
    assert other["first"] != other["second"]


def test_the_maps_that_are_hovered_over_are_the_same_in_bytes(loaded):
    session, asker = loaded
    asked = {"weights": OWN, "grid_rows": 5, "grid_columns": 7, "other_kind": "rotary_by_index"}
    _, arrays = read_frame(asker.get("/api/positions/maps", params=asked).content)
    found = position_similarity(session.checkpoint(OWN).model()).values.numpy()
    assert arrays["first"].shape == (5, 7, 5, 7) == arrays["second"].shape
    assert arrays["first_offsets"].shape == (9, 13)
    low, high = found.min(), found.max()
    # a byte is a 255th of the range, and rounding half of that
    np.testing.assert_allclose(low + (high - low) * arrays["first"] / 255, found, atol=(high - low) / 500)


def test_correlation_with_distance_is_what_training_reports(loaded):
    session, asker = loaded
    said = ask(asker=asker, weights=OWN, grid_rows=5, grid_columns=7)
    table = session.checkpoint(OWN).tensors["position.table"][-35:]
    assert said["sides"][0]["curve"]["correlation"] == pytest.approx(position_structure(table, Size(5, 7)), abs=1e-6)


@pytest.mark.parametrize("kind", POSITIONS)
def test_parameters_are_those_of_a_real_model(loaded, kind):
    _, asker = loaded
    said = ask(asker=asker, weights=OWN, kind=kind, grid_rows=3, grid_columns=5)["sides"][0]
    model = build(SMALL.but(image=Size(3 * 5, 5 * 7), position=POSITIONS[kind]))
    counted = sum(tensor.numel() for name, tensor in model.named_parameters() if "position" in name)
    assert said["parameters"] == counted
    assert said["parameters_formula"]["numbers"].endswith(f"= {counted:,}")


def test_every_kind_is_in_the_table_with_what_it_measures_by_itself(loaded):
    _, asker = loaded
    rows = {row["kind"]: row for row in ask("positions/kinds", asker, weights=OWN, grid_rows=3, grid_columns=5)}
    assert list(rows) == ["own", *POSITIONS]
    for kind in ("own", "1d_sines", "rotary_mixed"):
        alone = ask(asker=asker, weights=OWN, kind=kind, grid_rows=3, grid_columns=5)["sides"][0]
        assert rows[kind]["correlation"] == alone["curve"]["correlation"]
        assert rows[kind]["offset_share"] == alone["offset_share"]
    assert rows["none"]["correlation"] == 0


def test_without_positions_every_place_is_like_every_other():
    side = ask(kind="none", grid_rows=2, grid_columns=3)["sides"][0]
    assert side["map"] == [[1.0] * 3] * 2


def test_a_relative_bias_is_counted_by_offsets_and_not_by_tokens(loaded):
    _, asker = loaded
    said = ask(asker=asker, weights=OWN, grid_rows=5, grid_columns=7)
    shown = next(formula for formula in said["formulas"] if formula["name"] == "relative bias, per head")
    assert shown["numbers"] == "9 · 13 = 117"
    assert shown["folklore"].startswith("Often claimed: parameters of a relative position bias, 2·N·D.")


def test_a_relative_bias_shows_the_layer_and_head_that_are_asked_for(tmp_path):
    session, asker = studio_with(SMALL.but(position=RelativeBias()), tmp_path)
    asked = {"weights": OWN, "grid_rows": 5, "grid_columns": 7, "position_layer": 1, "position_head": 2}
    side = ask(asker=asker, **asked)["sides"][0]
    found = position_similarity(session.checkpoint(OWN).model(), layer=1, head=2)
    assert (side["by_layer"], side["measure"]) == (True, "bias, logits")
    torch.testing.assert_close(torch.tensor(side["map"]), found.values[2, 3].float())


def test_a_pyramid_shows_its_window_beside_a_grid(tmp_path):
    stages = tuple(PyramidStage(width=12 * 2**i, depth=1, num_heads=3) for i in range(2))
    config = PyramidConfig(image=Size(48, 48), stages=stages, attention=WindowedAttention(window=Size(3, 3)), classes=0)
    _, asker = studio_with(config, tmp_path)
    said = ask(asker=asker, weights=OWN, grid_rows=4, grid_columns=6)
    assert [side["grid"] for side in said["sides"]] == [[3, 3], [4, 6]]


def test_a_pyramid_with_a_table_shows_it_on_its_first_grid(tmp_path):
    _, asker = studio_with(preset("pit-Ti-distilled", image=Size(48, 80)), tmp_path)
    said = ask(asker=asker, weights=OWN, cell_row=1, cell_column=2)
    assert (said["own_grid"], said["token"]) == ([5, 9], 2 + 1 * 9 + 2)
    assert (said["sides"][0]["by_layer"], said["sides"][0]["parameters"]) == (False, 5 * 9 * 64)


@pytest.mark.parametrize(
    ("asked", "status", "words"),
    [
        ({"kind": "relative_bias", "position_head": 9}, 400, "head 9"),
        ({"grid_rows": 40, "grid_columns": 40}, 400, "1,600 patches"),
        ({"grid_rows": 41}, 422, "grid_rows"),
        ({"kind": "clock"}, 422, "kind"),
        ({"weights": "elsewhere"}, 400, "elsewhere"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(asked, status, words):
    answer = client().get("/api/positions", params=asked)
    said = answer.json()
    assert (answer.status_code, said["status"], set(said)) == (status, status, {"error", "status"})
    assert words in said["error"]


def test_a_mobile_model_says_why_it_has_no_positions_and_others_are_still_shown(tmp_path):
    _, asker = studio_with(preset("mobilevit-XXS", image=Size(64, 64)), tmp_path)
    answer = asker.get("/api/positions", params={"weights": OWN})
    assert answer.status_code == 400
    assert "no positions" in answer.json()["error"]
    assert ask(asker=asker, weights=OWN, kind="1d_sines")["sides"][0]["kind"] == "1d_sines"
    assert "own" not in {row["kind"] for row in ask("positions/kinds", asker, weights=OWN)}


# ── in the browser ──────────────────────────────────────────────────────────────────────────────────────────────


def open_room(page: Page, query: str = "") -> None:
    page.goto(f"/?room=positions{query}")
    expect(page.get_by_text("Row 2, column 3")).to_have_count(2)
    expect(page.get_by_role("slider", name="Small map to enlarge, 2D sines")).to_be_visible()
    expect(page.get_by_role("button", name="Rotary, mixed, untrained")).to_be_visible()


def test_pointing_at_a_small_map_shows_it_large_on_both_sides(page: Page):
    open_room(page)
    small = page.get_by_role("slider", name="Small map to enlarge, 2D sines")
    small.scroll_into_view_if_needed()
    box = small.bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] * 6.5 / 8, box["y"] + box["height"] * 1.5 / 8)
    expect(page.get_by_text("Row 1, column 6")).to_have_count(2)
    page.mouse.move(5, 5)
    expect(page.get_by_text("Row 2, column 3")).to_have_count(2)


def test_arrow_keys_walk_over_the_grid_and_enter_keeps_the_patch(page: Page):
    open_room(page)
    large = page.get_by_role("slider", name="Chosen patch, 2D sines")
    large.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    expect(page.get_by_text("Row 3, column 4")).to_have_count(2)
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("cell_row=3&cell_column=4"))
    expect(page.get_by_text(f"token {1 + 3 * 8 + 4}")).to_have_count(2)
    page.go_back()
    expect(page.get_by_text("Row 2, column 3")).to_have_count(2)


def test_a_link_leads_to_two_kinds_on_a_grid_and_the_grid_can_be_dragged(page: Page):
    open_room(page, "&kind=1d_sines&grid_rows=5&grid_columns=7")
    rows = page.get_by_role("slider", name="Rows")
    expect(rows).to_have_value("5")
    expect(page.get_by_role("region", name="1D sines", exact=True)).to_be_visible()
    rows.focus()
    page.keyboard.press("ArrowRight")
    expect(page).to_have_url(re.compile("grid_rows=6"))
    page.get_by_role("button", name="Restore the model's grid").click()
    expect(rows).to_have_value("8")


def test_a_map_is_saved_as_exact_numbers(page: Page):
    open_room(page)
    panel = page.get_by_role("region", name="2D sines", exact=True)
    panel.get_by_text("Export").click()
    with page.expect_download() as saved:
        panel.get_by_role("button", name="CSV").click()
    lines = saved.value.path().read_text().splitlines()
    assert lines[0] == "row,column,similarity"
    assert len(lines) == 65
