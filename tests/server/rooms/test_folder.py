"""Room 13: the page has the library's map, searches by an image, and a folder's faults are one line each."""

from __future__ import annotations

import csv
import io
import re
import time
from pathlib import Path

import numpy as np
import pytest
from browser import settled
from client import HOST, client
from frames import read_frame
from PIL import Image
from playwright.sync_api import Page, Request, expect

from embedding import photos, png, save_weights
from vitrail import VitrailError, atlas
from vitrail.geometry import Size
from vitrail.server.app import create_app
from vitrail.server.session import Session


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITRAIL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("folder")
    save_weights(root / "w.safetensors")
    for name, count in (("cats", 5), ("dogs", 4)):
        photos(root / "photos" / name, count)
    (root / "photos/dogs/broken.png").write_bytes(b"not an image")
    return root


@pytest.fixture(scope="module")
def studio(place: Path):
    session = Session([place / "w.safetensors"], place / "photos")
    asking = client(create_app(session, hosts=frozenset({HOST})))
    yield lambda path="", **asked: asking.get(f"/api/folder{path}", params={"weights": "w.safetensors", **asked})
    session.close()


def mapped(studio) -> dict:
    """The answer once the map is there."""
    while True:
        answer = studio().json()
        if answer.get("error") or answer["map"] is not None:
            return answer
        assert answer["words"]
        time.sleep(0.05)


def test_the_map_is_the_librarys(studio, place):
    found, expected = mapped(studio), atlas(place / "photos", place / "w.safetensors", workers=1)
    shown = found["map"]
    assert (found["folder"], found["sample"], found["changed"]) == ("photos", False, False)
    assert shown["ids"] == list(expected.ids)
    np.testing.assert_allclose(shown["points"], expected.points, atol=1e-5)
    assert [[each["place"] for each in row] for row in shown["near"]] == expected.near.places.tolist()
    assert shown["doubts"] == [each.place for each in expected.doubts]
    assert expected.judged is not None
    assert shown["accuracy"] == expected.judged.accuracy
    assert [each[0] for each in shown["failed"]] == ["dogs/broken.png"]
    assert shown["sizes"][0] == [10, 14]


def test_duplicates_follow_the_threshold(studio):
    shown = mapped(studio)["map"]
    (first, *_) = studio("/duplicates", alike=0.9999).json()
    assert [shown["ids"][each["place"]] for each in first["images"]] == ["cats/00000.png", "dogs/00000.png"]
    assert len(studio("/duplicates", alike=0.5).json()) <= len(studio("/duplicates", alike=0.9999).json())


def test_thumbnails_are_the_images_and_one_image_is_shown_larger(studio):
    shown = mapped(studio)["map"]
    _, arrays = read_frame(studio("/sheet").content)
    sheet = np.asarray(Image.open(io.BytesIO(arrays["sheet"].tobytes())))
    original = np.asarray(Image.open(io.BytesIO(png(3))))
    column = shown["ids"].index("cats/00003.png")
    thumbnail = sheet[: original.shape[0], column * shown["side"] :][:, : original.shape[1]]
    assert np.corrcoef(thumbnail.ravel(), original.ravel())[0, 1] > 0.95  # it is a JPEG
    large = Image.open(io.BytesIO(studio("/picture", place=column).content))
    assert large.size == (14, 10)
    for path, asked, words in (
        ("/picture", {"place": 400}, "image 400 is beyond the folder's 9"),
        ("/sheet", {"number": 1}, "sheet 1 is beyond the folder's images"),
    ):
        assert words in studio(path, **asked).json()["error"]


def test_an_image_is_searched_for_and_seen_once(place, monkeypatch):
    session = Session([place / "w.safetensors"], place / "photos")
    asking = client(create_app(session, hosts=frozenset({HOST})))
    ask = lambda path="", **asked: asking.get(f"/api/folder{path}", params={"weights": "w.safetensors", **asked})  # noqa: E731
    assert "not ready yet" in ask("/nearest").json()["error"]
    shown = mapped(ask)["map"]
    image = session.add_image(png(2))
    found = ask("/nearest", image=image).json()
    near = [shown["ids"][each["place"]] for each in found["found"]]
    assert set(near[:2]) == set(found["itself"]) == {"cats/00002.png", "dogs/00002.png"}
    np.testing.assert_allclose(found["point"], shown["points"][found["found"][0]["place"]], atol=1e-3)
    monkeypatch.setattr("vitrail.vectors.search.embed_query", None)
    assert ask("/nearest", image=image).json() == found
    taken = asking.post("/api/folder/take", params={"weights": "w.safetensors", "place": 2}).json()["image"]
    assert session.image_size(taken) == Size(10, 14)
    session.close()


def test_a_folder_that_changes_says_so_and_is_read_again(tmp_path, place):
    folder = photos(tmp_path / "photos", 3)
    session = Session([place / "w.safetensors"], folder)
    asking = client(create_app(session, hosts=frozenset({HOST})))
    ask = lambda path="", **asked: asking.get(f"/api/folder{path}", params={"weights": "w.safetensors", **asked})  # noqa: E731
    assert not mapped(ask)["changed"]
    (folder / "00000.png").unlink()
    (folder / "new.png").write_bytes(png(8))
    assert ask().json()["changed"]
    assert "gone" in ask("/picture", place=0).json()["error"]
    assert asking.post("/api/folder/read").json() == 1
    after = mapped(ask)
    assert not after["changed"]
    assert after["map"]["ids"] == ["00001.png", "00002.png", "new.png"]
    assert after["map"]["classes"] == []
    for path in folder.iterdir():
        path.unlink()
    asking.post("/api/folder/read")
    assert "has no images" in mapped(ask)["error"]
    session.close()


def test_a_folder_without_images_is_refused_at_the_start(tmp_path):
    with pytest.raises(VitrailError, match="has no images"):
        Session((), tmp_path).maps.check()
    with pytest.raises(VitrailError, match="is not a folder"):
        Session((), tmp_path / "nowhere").maps.check()


def ready(page: Page, query: str = "") -> None:
    page.goto(f"/?room=folder{query}")
    expect(page.get_by_role("slider", name="An image of the folder")).to_be_visible()
    settled(page)


def test_pointing_shows_an_image_with_its_neighbours_and_asks_nothing(page: Page):
    ready(page)
    shown = page.evaluate("fetch('./api/folder').then((answer) => answer.json())")["map"]
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if isinstance(request, Request) else None)
    slider, strip = page.get_by_role("slider", name="An image of the folder"), page.locator("[data-strip]")
    expect(strip.get_by_text("your image")).to_be_visible()
    slider.focus()
    slider.press("ArrowLeft")
    at = int(slider.get_attribute("aria-valuenow") or -1)
    expect(strip.get_by_text(shown["ids"][at]).first).to_be_visible()
    first = shown["near"][at][0]
    expect(strip.locator(".kin button").first).to_have_attribute(
        "aria-label", f"{shown['ids'][first['place']]}, {first['cosine']:.4f}"
    )
    assert asked == []
    slider.press("Enter")
    expect(page).to_have_url(re.compile(f"folder_image={at}(&|$)"))
    page.reload()
    expect(strip.get_by_text(shown["ids"][at]).first).to_be_visible()
    strip.locator(".kin button").first.click()
    expect(page).to_have_url(re.compile(f"folder_image={first['place']}(&|$)"))
    page.go_back()
    expect(page).to_have_url(re.compile(f"folder_image={at}(&|$)"))
    page.get_by_role("button", name="Use it in all rooms").click()
    expect(page).to_have_url(re.compile("image=[0-9a-f]{16}"))
    expect(strip.locator(".kin button").first).to_have_attribute("aria-label", re.compile(r"1\.0000$"))


def test_zooming_splits_cells_and_a_click_keeps_an_image(page: Page):
    ready(page)
    slider = page.get_by_role("slider", name="An image of the folder")
    zoom_out = page.get_by_role("button", name="Zoom out")
    expect(zoom_out).to_be_disabled()
    slider.focus()
    slider.press("+")
    expect(zoom_out).to_be_enabled()
    page.get_by_role("button", name="All", exact=True).click()
    expect(zoom_out).to_be_disabled()
    slider.press("ArrowLeft")
    slider.press("Enter")
    expect(page).to_have_url(re.compile("folder_image="))


def test_duplicates_doubts_and_the_whole_map_are_exported(page: Page):
    ready(page)
    shown = page.evaluate("fetch('./api/folder').then((answer) => answer.json())")["map"]
    groups = page.evaluate("fetch('./api/folder/duplicates').then((answer) => answer.json())")
    tables = {}
    for name in ("folder-map", "folder-duplicates", "folder-doubts"):
        panel = page.locator(f"[data-panel={name}]")
        panel.locator("summary").first.click()
        with page.expect_download() as download:
            panel.get_by_role("button", name="CSV", exact=True).click()
        tables[name] = list(csv.DictReader(io.StringIO(download.value.path().read_text())))
    assert [row["id"] for row in tables["folder-map"]] == shown["ids"]
    assert len(tables["folder-duplicates"]) == sum(len(group["images"]) for group in groups)
    assert [row["id"] for row in tables["folder-doubts"]] == [shown["ids"][place] for place in shown["doubts"]]
    assert len(shown["ids"]) == 122


def test_a_number_beyond_the_folder_is_said(page: Page):
    ready(page, "&folder_image=5000")
    expect(page.get_by_text("The folder has no image 5000; its last is 121.")).to_be_visible()
