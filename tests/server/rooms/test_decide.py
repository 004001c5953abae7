"""Room 9: its answers are vitrail advise's; and in a real browser."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from client import client
from PIL import Image
from playwright.sync_api import Page, expect

from command import call
from vitrail.geometry import Size
from vitrail.images.folder import image_files
from vitrail.images.synthesize import synthesize_image
from vitrail.server.folders import MOST_IMAGES


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


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Images of other sizes than the bundled one, in two subfolders, and a file that is no image."""
    place = tmp_path_factory.mktemp("photos")
    for number, size in enumerate([Size(300, 420), Size(260, 380), Size(500, 340), Size(340, 500), Size(290, 410)]):
        path = place / f"{number % 2}" / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(synthesize_image(number, size)).save(path)
    (place / "0" / "broken.jpg").write_bytes(b"no image")
    return place


def test_a_dropped_folder_is_measured_as_vitrail_advise_does(folder, capsys):
    asking = client()
    begun = asking.post("/api/folders").json()
    sent = [asking.post(f"/api/folders/{begun['folder']}", content=path.read_bytes()) for path in image_files(folder)]
    assert (sent[-1].json()["images"], sent[-1].json()["most"]) == (6, MOST_IMAGES)
    said = ask(folder=begun["folder"], data_size=6000)
    assert call("advise", "--images", str(folder), "--data-size", "6000", "--gpu", "rtx-4090", "--json") == 0
    expected = json.loads(capsys.readouterr().out)
    number, reason = said["survey"].pop("failed")[0]
    (path, told_reason) = expected["survey"].pop("failed")[0]
    assert image_files(folder)[int(number)] == Path(path)
    assert reason.split(":")[-1] == told_reason.split(":")[-1]
    assert said["survey"] == expected["survey"]
    assert said["decisions"] == expected["decisions"]


def test_a_folder_that_is_gone_full_or_empty_is_one_line():
    asking = client()
    name = asking.post("/api/folders").json()["folder"]
    for _ in range(MOST_IMAGES):
        assert asking.post(f"/api/folders/{name}", content=b"x").status_code == 200
    lines = {
        "a folder takes 60 images": asking.post(f"/api/folders/{name}", content=b"x"),
        "none of 60 images could be read": asking.get("/api/decide", params={"folder": name}),
        "is no longer stored; drop it on the page again": asking.get("/api/decide", params={"folder": "../etc"}),
        "the folder has no images": asking.get(
            "/api/decide", params={"folder": asking.post("/api/folders").json()["folder"]}
        ),
    }
    for words, answer in lines.items():
        assert answer.status_code == 400
        assert words in answer.json()["error"]


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


def test_a_chosen_folder_is_sent_measured_and_forgotten(page: Page, folder):
    page.goto("/?room=decide")
    page.get_by_label("Measure a folder of images").set_input_files(folder)
    expect(page.get_by_text("photos0: 6 of 6 images")).to_be_visible()
    detail = page.get_by_role("region", name="Detail in 5 of your images")
    expect(detail).to_contain_text("median 300 × 420")
    expect(detail).to_contain_text("photos0/0/broken.jpg was left out")
    expect(page.get_by_label("Training images, exact")).to_have_value("100")
    page.get_by_role("button", name="Forget it").click()
    expect(detail).to_have_count(0)
