"""Room 9: its answers are vitrail advise's; and in a real browser."""

from __future__ import annotations

import json

from client import client
from playwright.sync_api import Page, expect

from command import call


def ask(path: str = "decide", **parameters):
    answer = client().get(f"/api/{path}", params=parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_advice_is_that_of_vitrail_advise(capsys):
    asked = {"application": "medical", "object_side": 24, "data_size": 7000, "card": "a10", "images_per_second": 90}
    command = "advise --application medical --object 24 --data-size 7000 --gpu a10 --images-per-second 90 --json"
    assert call(*command.split()) == 0
    told = json.loads(capsys.readouterr().out)
    said = ask(**asked)
    assert {formula["name"]: formula["numbers"].split(" = ")[-1] for formula in said.pop("formulas")} == {
        "tokens": f"{told['tokens']:,}",
        "likely largest batch": f"{told['max_batch']:,}",
        "start with batch": str(told["batch"]),
    }
    assert said == {name: told[name] for name in said}
    assert [misfit["name"] for misfit in said["misfits"]][:2] == ["little data", "real time"]
    ranking = ask("decide/ranking", **asked)
    assert [(entry["model"], entry["score"]) for entry in ranking] == [
        (entry["model"], entry["score"]) for entry in told["ranking"]
    ]


def test_a_ranked_model_is_its_preset_at_its_image_and_patch():
    for entry in ask("decide/ranking", application="satellite")[:6]:
        (height, width), (down, across) = entry["image"], entry["patch"]
        sizes = {"height": height, "width": width, "patch_height": down, "patch_width": across}
        planned = ask("patch", model=entry["preset"], **sizes)
        assert (planned["tokens"], planned["flops_forward"]) == (entry["tokens"], entry["flops_forward"])


def test_a_given_input_is_kept():
    assert ask(input_side=320)["decisions"][0] == {"about": "image", "choice": "320x320", "why": "given"}


def test_measuring_takes_the_image_that_is_shown():
    said = ask(measure=True, image="window")
    assert said["survey"]["images"] == 1
    assert (said["survey"]["median"]["height"], said["survey"]["median"]["width"]) == (600, 800)
    assert "detail" in ask("decide/ranking", measure=True, image="window")[0]["factors"]


def test_nothing_that_trains_is_an_error_with_its_remedy():
    answer = client().get("/api/decide", params={"card": "1GiB", "input_side": 2048, "application": "medical"})
    assert answer.status_code == 400
    assert "use a smaller image or a larger card" in answer.json()["error"]


# ── in the browser ──────────────────────────────────────────────────────────────────────────────────────────────


def test_the_answer_leads_into_the_other_rooms_with_its_state(page: Page):
    page.goto("/?room=decide")
    best = page.locator(".best")
    expect(best).to_contain_text("B/16 at 224 × 224")
    page.get_by_label("Application", exact=True).select_option("mobile")
    expect(best).to_contain_text("S/32 at 224 × 224")
    expect(page.get_by_role("note")).to_contain_text("edge device")
    page.get_by_role("region", name="Recommendation").get_by_role("link", name="memory").click()
    expect(page.get_by_label("Patch side, exact")).to_have_value("32")
    expect(page.get_by_label("Model", exact=True)).to_have_value("S/16")
    page.go_back()
    expect(best).to_contain_text("S/32")


def test_data_decides_the_model_and_a_pin_remembers(page: Page):
    page.goto("/?room=decide")
    best = page.locator(".best")
    expect(best).to_contain_text("B/16")
    page.get_by_role("button", name="Pin to compare").click()
    slider = page.get_by_role("slider", name="Training images")
    slider.focus()
    for _ in range(4):
        page.keyboard.press("ArrowLeft")
    expect(best).to_contain_text("S/16")
    expect(best).to_contain_text("pinned: B/16")
    expect(page.get_by_role("region", name="What would change this recommendation")).to_contain_text("images")
