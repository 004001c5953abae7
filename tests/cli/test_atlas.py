"""`vitrail atlas`: tables, JSON, pictures, and mistakes in one line."""

from __future__ import annotations

import base64
import io
import json
import re
from pathlib import Path

import pytest
from PIL import Image

from command import call
from embedding import photos, save_weights


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory):
    root = tmp_path_factory.mktemp("atlas")
    for name, count in (("cats", 4), ("dogs", 3)):
        photos(root / "photos" / name, count)
    (root / "photos/cats/broken.png").write_bytes(b"not an image")
    save_weights(root / "w.safetensors")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITRAIL_CACHE", str(root / "cache"))
        patch.chdir(root)
        yield root


def test_json_has_every_image_with_its_point_class_and_neighbours(place: Path, capsys):
    assert call("atlas", "photos", "--weights", "w.safetensors", "--vectors", "vectors", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["id"] for each in found["images"]] == [f"{name}/0000{index}.png" for name, index in (
        *(("cats", index) for index in range(4)), *(("dogs", index) for index in range(3)),
    )]  # fmt: skip
    assert {each["class"] for each in found["images"]} == {"cats", "dogs"}
    assert all(len(each["point"]) == 2 and len(each["nearest"]) == 6 for each in found["images"])
    assert [each["id"] for each in found["failed"]] == ["cats/broken.png"]
    assert len(found["probe"]["doubts"]) == found["probe"]["images"] == 7
    first, *_ = found["duplicates"]["groups"]  # the photos of both classes are the same pictures
    assert [each["id"] for each in first] == ["cats/00000.png", "dogs/00000.png"]


def test_tables_fit_80_columns_and_pictures_are_written(place: Path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    assert call("atlas", "vectors", "--out", "map.png", "--doubts", "doubts.png", "--top", "2") == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert "Images that the probe doubts" in shown
    assert "cats/broken.png" in shown
    for name in ("map.png", "doubts.png"):
        with Image.open(place / name) as picture:
            assert picture.width > 600


def test_a_map_as_html_has_everything_inside_and_no_name_ends_its_script(place: Path):
    photos(place / "odd", 3)
    (place / "odd/00000.png").rename(place / "odd/<script>.png")
    assert call("atlas", "odd", "--weights", "w.safetensors", "--out", "map.html") == 0
    page = (place / "map.html").read_text()
    assert "default-src 'none'" in page  # the browser asks nobody
    told = json.loads(re.findall(r'<script type="application/json" id="map">(.*?)</script>', page, re.DOTALL)[0])
    assert sorted(told["map"]["ids"]) == ["00001.png", "00002.png", "<script>.png"]
    (sheet,) = told["pictures"]
    with Image.open(io.BytesIO(base64.b64decode(sheet))) as picture:
        assert picture.format == "JPEG"
    assert page.count("</script>") == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "nowhere is not a folder; give a folder of images"),
        (["cache"], "cache has no images"),
        (["vectors", "--top", "0"], "--top 0 is not positive; give 1 or more"),
        (["vectors", "--threshold", "2"], "threshold 2 is not a cosine in (0, 1]"),
        (["vectors", "--out", "map.gif"], "does not end in .png, .html"),
        (
            ["photos/cats", "--weights", "w.safetensors", "--doubts", "d.png"],
            "--doubts needs a probe, and there is none",
        ),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(place: Path, arguments: list[str], words: str, capsys):
    (place / "cache").mkdir(exist_ok=True)
    assert call("atlas", *arguments) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
