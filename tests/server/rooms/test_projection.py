"""Room 2: its numbers are the library's, its pictures the loaded model's."""

from __future__ import annotations

import re

import pytest
import torch
from client import client
from frames import read_frame
from loaded import OWN, studio_with
from loaded import SMALL as BASE
from playwright.sync_api import Page, expect

from vitrail.config import MobileConfig, ViTConfig
from vitrail.geometry import Size
from vitrail.images.decode import decode
from vitrail.images.synthesize import synthesize_image
from vitrail.look.filters import filter_responses, projection_filters
from vitrail.nn.vit import ViT
from vitrail.parts import Stem
from vitrail.plan.ledger import ledger
from vitrail.presets import preset
from vitrail.server.session import png
from vitrail.studies.vocabulary import collect, compare, draw_words

SMALL = BASE.but(image=Size(70, 126))


def ask(path: str = "projection", **parameters):
    answer = client().get(f"/api/{path}", params=parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.parametrize("name", ["B/16", "clip-B/16", "S/8", "L/14"])
def test_parameters_are_those_of_the_ledger(name):
    config = preset(name)
    assert isinstance(config, ViTConfig)
    said = ask(model=name, patch_height=config.patch.height, patch_width=config.patch.width)
    rows = [row for row in ledger(config).rows if row.path == "embedding"]
    assert said["params"] == sum(row.params for row in rows)
    assert said["inputs"] == config.patch.area * 3
    assert said["lost_directions"] == max(0, said["inputs"] - config.width)
    assert said["lookup_params"] == 50_000 * config.width


def test_it_compresses_above_the_even_side_and_expands_below():
    said = ask(model="B/16")
    assert (said["even_side"], said["compression"], said["params"]) == (16.0, 1.0, 590_592)
    for side, inputs in zip(said["curve"]["patch"], said["curve"]["inputs"], strict=True):
        assert (inputs > said["width"]) == (side > said["even_side"])


def test_formulas_end_in_the_numbers_beside_them():
    said = ask(model="S/16", patch_height=8, patch_width=12)
    shown = {formula["name"]: formula["numbers"] for formula in said["formulas"]}
    assert shown["parameters"] == f"384 · (8 · 12 · 3 + 1) = {said['params']:,}"
    assert shown["lookup table of a text model"] == "50,000 · 384 = 19,200,000"


def test_filters_and_answers_are_the_model_s_own(tmp_path):
    session, asker = studio_with(SMALL, tmp_path)
    facts, arrays = read_frame(asker.get("/api/projection/filters", params={"weights": OWN}).content)
    subject = session.subject("default", OWN, 0)
    maps = filter_responses(subject.model, subject.image)[0]
    assert facts["grid"] == [14, 18] == list(maps.shape[1:])
    assert arrays["filters"].shape == (24, 5, 7, 3)
    flat = maps.flatten(1)
    for number in (0, 11, 23):
        assert facts["filters"]["high"][number][0] == int(flat[number].argmax())
        assert facts["filters"]["low_values"][number][0] == pytest.approx(float(flat[number].min()))
        drawn = torch.from_numpy(arrays["filter_responses"][number].astype("float32")) / 127.5 - 1
        # a byte is 1 / 127.5 of the largest answer, and rounding half of that
        torch.testing.assert_close(
            drawn * flat[number].abs().max(), maps[number], rtol=0, atol=float(flat.abs().max()) / 250
        )
    found = projection_filters(subject.model)
    assert facts["effective_rank"] == pytest.approx(found.effective_rank)
    assert facts["filters"]["orders"]["norm"] == found.filters.flatten(1).norm(dim=1).argsort(descending=True).tolist()
    assert facts["filters"]["spread"] == pytest.approx(flat.double().std(dim=1, correction=0).tolist(), rel=1e-4)


def test_the_likeness_of_patches_is_that_of_the_study_for_an_image_and_for_a_folder(tmp_path):
    session, asker = studio_with(SMALL, tmp_path)
    model = session.subject("cat", OWN, 0).model
    assert isinstance(model, ViT)
    folder = asker.post("/api/folders").json()["folder"]
    drawn = [synthesize_image(seed, Size(90, 140)) for seed in range(3)]
    for pixels in drawn:
        asker.post(f"/api/folders/{folder}", content=png(pixels, 2**10))
    steps = session.checkpoint(OWN).preprocessing
    shuffled = [decode(path) for path in session.folders.images(folder)]
    for parameters, images, per_image in (({}, [session.image("cat")], 1024), ({"folder": folder}, shuffled, 16)):
        answer = asker.get("/api/projection/vocabulary", params={"weights": OWN, **parameters})
        facts, arrays = read_frame(answer.content)
        words = collect(model, steps, images, per_image=per_image)
        expected = compare(words)
        assert (facts["images"], facts["patches"]) == (len(images), len(words.pixels))
        for layer, place in ((0, 0), (1, -1)):
            assert facts["layers"][layer]["correlation"] == pytest.approx(expected[place][0], abs=1e-6)
            assert facts["layers"][layer]["shared"] == pytest.approx(expected[place][1], abs=1e-6)
        assert (arrays["words0"] == draw_words(words, 0)).all()
    few, none = read_frame(asker.get("/api/projection/vocabulary", params={"weights": OWN, "seen": 6}).content)
    assert (few["patches"], few["layers"], none) == (1, [], {})
    refused = asker.get("/api/projection/vocabulary", params={"weights": OWN, "folder": "gone"})
    assert "no longer stored" in refused.json()["error"]


def test_three_implementations_differ_by_rounding_alone():
    said = ask("projection/measured")
    assert [entry["name"] for entry in said["implementations"]] == [
        "explicit patches",
        "unfold + linear",
        "strided convolution",
    ]
    for entry in said["implementations"]:
        assert entry["milliseconds"] > 0
        # sums of a few dozen products in float32: some units in the last place of the largest
        assert max(entry["from_explicit"], entry["from_float64"]) < 1e-5 * said["largest"]


def test_fresh_weights_deviate_as_their_rules_say():
    said = ask("projection/measured")
    fresh = {entry["name"]: entry for entry in said["initialisations"]}
    inputs, width = said["inputs"], said["width"]
    # thousands of draws: the sample's deviation is within a few percent of the law's
    assert fresh["Xavier uniform"]["weight_deviation"] == pytest.approx((2 / (inputs + width)) ** 0.5, rel=0.05)
    assert fresh["He normal"]["weight_deviation"] == pytest.approx((2 / inputs) ** 0.5, rel=0.05)


@pytest.mark.parametrize(
    ("config", "count"),
    [
        (
            ViTConfig(
                image=Size(48, 64), embedding=Stem(patch=Size(8, 8), widths=(6, 12, 24)), width=24, depth=1, num_heads=3
            ),
            6,
        ),
        (MobileConfig(image=Size(64, 128)), 16),
    ],
    ids=["stem", "mobile"],
)
def test_a_stem_shows_its_first_convolution_and_is_not_spelled_three_ways(config, count, tmp_path):
    _, asker = studio_with(config, tmp_path)
    facts, _ = read_frame(asker.get("/api/projection/filters", params={"weights": OWN}).content)
    assert (facts["count"], facts["patch"]) == (count, [3, 3])
    rows, columns = facts["grid"]
    assert len(facts["corners"]) == rows * columns
    assert (facts["corners"][0], facts["corners"][columns + 2]) == ([-1, -1], [1, 3])  # a padding of 1, a stride of 2
    refused = asker.get("/api/projection/measured", params={"weights": OWN})
    assert refused.status_code == 400
    assert "not one projection" in refused.json()["error"]


@pytest.mark.parametrize(
    ("parameters", "status"),
    [({"filter": -2}, 422), ({"order": "size"}, 422), ({"weights": "none"}, 400), ({"seen": 10_000}, 422)],
)
def test_what_cannot_be_asked_is_refused_in_a_line(parameters, status):
    answer = client().get("/api/projection/filters", params=parameters)
    assert answer.status_code == status
    assert set(answer.json()) == {"error", "status"}


# ── in the browser ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_hovered_filter_shows_where_it_answers_and_a_click_keeps_it(page: Page):
    page.goto("/?room=projection&order=index")
    gallery = page.get_by_role("slider", name="Filters")
    expect(gallery).to_have_attribute("aria-valuenow", "0")
    box = gallery.bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] * 2.5 / 16, box["y"] + 4)
    expect(page.get_by_role("heading", name="filter 2", exact=True)).to_be_visible()
    expect(page.get_by_role("img", name="Responses of filter 2 on 16 × 16 patches")).to_be_visible()
    page.mouse.down()
    page.mouse.up()
    page.mouse.move(5, 5)
    expect(page.get_by_role("heading", name="filter 2", exact=True)).to_be_visible()
    expect(page).to_have_url(re.compile("filter=2"))
    page.go_back()
    expect(page.get_by_role("heading", name="filter 0", exact=True)).to_be_visible()


def test_arrow_keys_walk_through_the_vocabulary(page: Page):
    page.goto("/?room=projection&shown=principal&filter=3")
    gallery = page.get_by_role("slider", name="Filters")
    expect(gallery).to_have_attribute("aria-valuenow", "3")
    gallery.focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("heading", name="principal filter 4", exact=True)).to_be_visible()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("filter=4"))


def test_the_patch_moves_the_projection_s_figures_and_a_pin_stays_beside_them(page: Page):
    page.goto("/?room=projection")
    expect(page.get_by_text("590,592 parameters")).to_be_visible()
    page.get_by_role("button", name="Pin to compare").click()
    page.get_by_label("Patch side, exact").fill("32")
    page.keyboard.press("Enter")
    expect(page.get_by_text("2,360,064 parameters")).to_be_visible()
    expect(page.locator(".note", has_text="compresses")).to_be_visible()
    expect(page.get_by_text("pinned 590,592")).to_be_visible()


def test_the_projection_is_exported(page: Page):
    page.goto("/?room=projection")
    expect(page.get_by_text("strided convolution")).to_be_visible()
    expect(page.get_by_role("img", name="Clusters of tokens after block 5, a row each")).to_be_visible()
    section = page.get_by_role("region", name="Filters of the projection")
    section.get_by_text("Export").click()
    with page.expect_download() as download:
        section.get_by_role("button", name="CSV").click()
    assert download.value.path().read_text().startswith("filter,norm,spread,most_at")
