from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from command import call
from vitrail.geometry import Size
from vitrail.images.synthesize import synthesize_image


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("pictures")
    for seed, size in ((1, Size(90, 120)), (2, Size(80, 50))):
        Image.fromarray(synthesize_image(seed, size)).save(folder / f"{seed}.png")
    return [str(folder / "1.png"), str(folder / "2.png")]


def test_json_has_parts_that_add_up_and_pairs_with_their_pixels(pictures, capsys):
    assert call("match", *pictures, "--whole", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    for side in ("first", "second"):
        assert sum(found[side]["parts"]) + found["prefix"] == pytest.approx(found["score"], abs=1e-6)
        assert len(found[side]["parts"]) == found[side]["grid"]["height"] * found[side]["grid"]["width"]
    assert "CLS token, which is no sum over patches" in found["approximation"]
    assert [found[side]["image"] for side in ("first", "second")] == [
        {"height": 90, "width": 120},
        {"height": 80, "width": 50},
    ]
    best = found["buddies"][0]
    assert best["cosine"] == max(pair["cosine"] for pair in found["buddies"])
    assert 0 < best["second_pixel"][0] < 80
    assert 0 < best["second_pixel"][1] < 50


def test_the_table_names_pairs_and_the_picture_is_drawn(pictures, tmp_path: Path, capsys):
    out = tmp_path / "match.png"
    assert call("match", *pictures, "--lines", "5", "--layer", "2", "--out", str(out)) == 0
    said = capsys.readouterr().out
    assert "Best buddies of 1.png and 2.png" in said
    assert "what the parts of the patches add up to" in said
    assert f"written: {out}" in said
    with Image.open(out) as drawn:
        assert min(drawn.size) > 800
    assert call("match", *pictures, "--out", str(tmp_path / "match.svg")) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--lines", "0"], "--lines 0 is not positive"),
        (["--layer", "9"], "layer 9 is out of range for 6 layers"),
        (["--out", "match.gif"], "does not end in .png, .svg, .pdf"),
        (["--image", "33x32"], "image 33x32 is not divisible by patch 4x4"),
        (["--weights", "gone.safetensors"], "gone.safetensors"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(pictures, arguments: list[str], words: str, capsys):
    assert call("match", *pictures, *arguments) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_an_image_that_is_none_is_named(pictures, tmp_path: Path, capsys):
    (tmp_path / "notes.jpg").write_text("no image")
    assert call("match", pictures[0], str(tmp_path / "notes.jpg")) == 2
    assert "notes.jpg" in capsys.readouterr().err
