"""Room 7: its numbers are the library's; and in a real browser."""

from __future__ import annotations

import json
import re

import pytest
from client import client
from playwright.sync_api import Page, expect

from command import call
from vitrail.plan.published import best
from vitrail.presets import PRESETS


def ask(path: str = "models", **parameters):
    answer = client().get(f"/api/{path}", params=parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_figures_are_those_of_vitrail_compare(capsys):
    said = {entry["model"]: entry for entry in ask(batch=7, precision="bf16", card="a100-40")["models"]}
    batches = ask("models/batch", batch=7, precision="bf16", card="a100-40")
    command = "compare Ti/16 B/32 G/14 --batch 7 --precision bf16 --gpu a100-40 --json"
    assert call(*command.split()) == 0
    for entry in json.loads(capsys.readouterr().out)["models"]:
        found = said[entry["model"]]
        for name in ("tokens", "params", "flops_forward", "flops_train", "infer_peak_bytes", "train_peak_bytes"):
            assert found[name] == entry[name]
        assert [{"model": entry["model"], **result} for result in found["published"]] == entry["published"]
        assert batches[entry["model"]] == entry["max_batch"]


def test_every_preset_of_still_images_belongs_to_a_family():
    together = ask(family="all")
    assert [entry["model"] for entry in together["models"]] == [n for n, each in PRESETS.items() if each.frames == 1]
    assert together["missing"] == []


@pytest.mark.parametrize("side", [224, 1000])
def test_all_at_one_side_is_the_nearest_that_each_patch_divides(side):
    for entry in ask(family="small", same_side=side)["models"]:
        assert abs(entry["image"][0] - side) <= 32
        config = PRESETS[entry["model"]]
        assert tuple(config.but(image=type(config.image)(*entry["image"])).grid) == tuple(entry["grid"])


def test_accuracy_is_the_best_that_is_published_with_its_source_and_how_it_was_checked():
    said = ask()
    found = {entry["model"]: entry for entry in said["models"]}
    for model, check in (("B/16", "read"), ("G/14", "quoted"), ("H/14", "unchecked")):
        top = best(model)
        assert top is not None
        assert (found[model]["accuracy"], found[model]["best"]["source"]) == (top.accuracy, top.source)
        assert found[model]["best"]["check"] == check
    assert any(line.startswith("unchecked") for line in said["doubts"])
    assert "84.15 % with JFT-300M" in said["folklore"][0]


# ── in the browser ──────────────────────────────────────────────────────────────────────────────────────────────


def test_axes_are_chosen_and_a_point_chooses_its_model(page: Page):
    page.goto("/?room=models")
    expect(page.get_by_role("region", name="Parameters against forward FLOPs")).to_be_visible()
    page.get_by_label("y axis", exact=True).select_option("accuracy")
    expect(page.get_by_role("region", name="Published top-1 against forward FLOPs")).to_be_visible()
    page.get_by_role("button", name="L/16: forward FLOPs").click()
    expect(page.locator("tr.chosen")).to_contain_text("L/16")
    expect(page).to_have_url(re.compile("model=L%2F16"))
    page.get_by_role("link", name="Memory of L/16").click()
    expect(page.get_by_label("Model", exact=True)).to_have_value("L/16")
    page.go_back()
    expect(page.locator("h1")).to_have_text("Models")


def test_a_figure_that_was_not_looked_up_says_so(page: Page):
    page.goto("/?room=models")
    expect(page.locator("tbody tr", has_text="H/14")).to_contain_text("JFT-300M, 384 px, unchecked")
    expect(page.get_by_text("unchecked: not looked up in the source")).to_be_visible()


def test_the_table_sorts_by_any_column(page: Page):
    page.goto("/?room=models")
    first = page.locator("tbody tr").first
    expect(first).to_contain_text("Ti/16")
    sort = page.get_by_role("columnheader", name="params").get_by_role("button", name="params", exact=True)
    sort.click()
    expect(first).to_contain_text("G/14")
    sort.press("Enter")
    expect(first).to_contain_text("Ti/16")


def test_the_table_is_exported(page: Page):
    page.goto("/?room=models&family=flexible")
    section = page.get_by_role("region", name="Comparison")
    expect(section).to_contain_text("flexivit-L/16")
    section.get_by_text("Export").click()
    with page.expect_download() as download:
        section.get_by_role("button", name="CSV").click()
    lines = download.value.path().read_text().splitlines()
    assert len(lines) == 4
    assert lines[3].startswith("flexivit-L/16,240x240,15x15,")
