"""`vitrail.embed`: the command's job as a function, with any kind of image and a table for an answer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from embedding import drawn, photos, read_rows, save_weights
from vitrail import VitrailError, embed, load
from vitrail.geometry import Size
from vitrail.images.synthesize import synthesize_image
from vitrail.vectors.engines.engine import build_engine


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_weights(tmp_path_factory.mktemp("weights") / "w.safetensors")


def vectors(table) -> np.ndarray:
    return np.array(table.column("vector").to_pylist(), np.float32)


def test_files_bytes_pillow_images_and_arrays_of_the_same_pixels_have_one_vector(weights: Path, tmp_path: Path):
    pixels = synthesize_image(3, Size(20, 28))
    path = tmp_path / "a.png"
    Image.fromarray(pixels).save(path)
    table = embed([path, str(path), path.read_bytes(), Image.open(path), pixels], weights, exact=True, workers=0)
    assert table.column("id").to_pylist() == [str(path), str(path), "2", "3", "4"]
    assert table.column("height").to_pylist() == [20] * 5
    assert table.column("width").to_pylist() == [28] * 5
    found = vectors(table)
    assert np.array_equal(found, found[[0]].repeat(5, axis=0))
    checkpoint = load(weights)
    wanted = build_engine(checkpoint).vectors(
        torch.from_numpy(checkpoint.preprocessing.pixels(pixels, exact=True).pixels)[None]
    )
    assert np.allclose(found[0], wanted[0].numpy(), atol=1e-6)


def test_one_array_of_many_images_is_a_row_for_each(weights: Path):
    pixels = np.stack([synthesize_image(seed, Size(12, 16)) for seed in range(5)])
    apart = embed(list(pixels), weights, workers=0)
    assert embed(pixels, weights, workers=0).equals(apart)


def test_the_rows_are_those_of_the_command(weights: Path, tmp_path: Path):
    from command import call

    source = photos(tmp_path / "photos", 7)
    (source / "broken.png").write_bytes(b"not an image")
    assert call("embed", str(source), "--weights", str(weights), "--out", str(tmp_path / "out"), "--workers", "1") == 1
    table = embed(source, weights, workers=0)
    assert table.to_pylist() == read_rows(tmp_path / "out")
    kept = embed(source, weights, out=tmp_path / "out", workers=0)  # the same call reads what is there
    assert kept.to_pylist() == table.to_pylist()


def test_an_image_that_cannot_be_read_is_a_row_with_its_reason(weights: Path, tmp_path: Path):
    table = embed([tmp_path / "gone.jpg", b"text", drawn(0)], weights, workers=0)
    assert table.column("status").to_pylist() == ["failed", "failed", "ok"]
    gone, text, fine = table.column("error").to_pylist()
    assert "cannot be read" in gone
    assert "not a readable image" in text
    assert fine is None


@pytest.mark.parametrize(
    ("images", "said"),
    [
        ([], "images is empty"),
        (synthesize_image(0, Size(8, 12)), "images is one image"),
        (Image.new("RGB", (8, 8)), "images is one image"),
        ([np.zeros((8, 12, 3), np.float32)], r"an array of shape \(8, 12, 3\) and type float32 is not an image"),
        ([3], "a value of type int is not an image"),
    ],
)
def test_what_is_no_list_of_images_is_refused(images, said: str, weights: Path):
    with pytest.raises(VitrailError, match=said):
        embed(images, weights, workers=0)


def test_a_kept_job_needs_images_that_stay(weights: Path, tmp_path: Path):
    with pytest.raises(VitrailError, match="whose images must stay"):
        embed([drawn(0)], weights, out=tmp_path / "out", workers=0)
    assert not (tmp_path / "out").exists()


def test_a_script_without_a_main_guard_runs_once(weights: Path, tmp_path: Path):
    source = photos(tmp_path / "photos", 2)
    script = tmp_path / "script.py"
    script.write_text(
        f"print('begun')\nimport vitrail\nprint(vitrail.embed({str(source)!r}, {str(weights)!r}, workers=1).num_rows)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "begun\n2\n", "")
