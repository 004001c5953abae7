from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import load_file

from command import call
from vitrail import dense
from vitrail.geometry import Size
from vitrail.images.synthesize import synthesize_image


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("pictures")
    for seed, size in ((1, Size(60, 90)), (2, Size(80, 50))):
        Image.fromarray(synthesize_image(seed, size)).save(folder / f"{seed}.png")
    return [str(folder / "1.png"), str(folder / "2.png")]


def test_arrays_are_the_functions_and_json_says_where_tokens_are(pictures, tmp_path: Path, capsys):
    one, all_ = tmp_path / "one.npy", tmp_path / "all.safetensors"
    assert call("dense", pictures[0], "--stride", "2", "--save", str(one), "--json") == 0
    said = json.loads(capsys.readouterr().out)
    expected = dense(pictures[0], stride=2)
    np.testing.assert_allclose(np.load(one), expected.features.numpy(), atol=1e-5)
    (image,) = said["images"]
    assert image["grid"] == {"height": expected.cells.grid.height, "width": expected.cells.grid.width}
    assert (image["step"], image["corner"], image["passes"]) == ([2, 2], [1.0, 1.0], 4)
    assert image["original"] == {"height": 60, "width": 90}
    assert call("dense", *pictures, "--save", str(all_)) == 0
    assert [each.shape[0] for each in load_file(all_).values()] == [96, 96]
    assert set(load_file(all_)) == {"1.png", "2.png"}


def test_the_picture_has_colours_and_the_similarity_to_a_point(pictures, tmp_path: Path, capsys):
    out = tmp_path / "dense.png"
    assert call("dense", *pictures, "--point", "30,45", "--foreground", "--tile", "16", "--out", str(out)) == 0
    assert f"written: {out}" in capsys.readouterr().out
    with Image.open(out) as drawn:
        assert min(drawn.size) > 500


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--stride", "3"], "stride 3 does not divide the patch 4x4; use a divisor, such as 2"),
        (["--point", "here"], "point 'here' is not ROW,COLUMN in pixels; write 120,80"),
        (["--point", "99,1"], "point 99,1 is outside the image of 60x90"),
        (["--save", "features.txt"], "does not end in .npy, .safetensors"),
        (["--save", "features.npy"], "has room for one image, and 2 are given; use .safetensors"),
        (["--out", "dense.gif"], "does not end in .png, .svg, .pdf"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(pictures, arguments: list[str], words: str, capsys):
    assert call("dense", *pictures, *arguments) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
