"""A model of clips on the command line: planned, inflated, inspected, and refused by what takes still images."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from command import call
from vitrail.images.synthesize import synthesize_image


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("clips") / "clips.safetensors"
    assert call("adapt", "default", str(path), "--frames", "4") == 0
    return path


@pytest.fixture(scope="module")
def photo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("photo") / "photo.png"
    Image.fromarray(synthesize_image(1)).save(path)
    return path


def test_a_plan_counts_the_tokens_of_every_step(capsys):
    assert call("plan", "videomae-B", "--json") == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["frames"], plan["steps"], plan["tokens"]) == (16, 8, 8 * 14 * 14)
    assert call("plan", "videomae-B", "--frames", "32", "--tubelet", "4", "--json") == 0
    assert json.loads(capsys.readouterr().out)["tokens"] == 8 * 14 * 14
    assert call("plan", "videomae-B") == 0
    assert "1,568, 8 steps of grid 14x14" in capsys.readouterr().out


def test_an_inflated_model_says_what_it_takes(clips: Path, capsys):
    assert call("inspect", str(clips)) == 0
    assert "clips of 4 frames of 32x32, 3 channels, Tubelets of 2x4x4, 2 steps of grid 8x8" in capsys.readouterr().out


def test_equal_frames_of_one_step_move_no_vector(photo: Path, tmp_path: Path, capsys):
    out = tmp_path / "one.safetensors"
    assert call("adapt", "default", str(out), "--frames", "2", "--images", str(photo.parent), "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["drift"]["lowest"] == pytest.approx(1, abs=1e-6)
    assert report["notes"][0].startswith("frames 1 → 2: a clip of equal frames gives the still image's features;")


@pytest.mark.parametrize(
    "command",
    [
        "classify {photo} --weights {clips}",
        "look {photo} --weights {clips} --out look.png",
        "look --model videomae-B --out look.png",
        "dense {photo} --weights {clips} --out dense.png",
        "match {photo} {photo} --weights {clips}",
        "evaluate {clips} --data shapes",
        "probe {clips} --data shapes",
        "train --data shapes --model vivit-B --out run",
        "export {clips} model.onnx",
        "bench {clips}",
        "simulate --weights {clips}",
        "serve --weights {clips} --port 0",
        "studio --weights {clips} --no-open",
        "adapt {clips} healed.safetensors --image 40 --heal {folder}",
    ],
)
def test_what_takes_still_images_refuses_a_model_of_clips_in_one_line(
    command: str, clips: Path, photo: Path, tmp_path: Path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    words = command.format(clips=clips, photo=photo, folder=photo.parent).split()
    assert call(*words) == 2
    said = capsys.readouterr().err.strip()
    assert "takes still images, and this model clips of" in said
    assert said.endswith("adapt it to still images with vitrail adapt --frames 1")
    assert "\n" not in said
    assert list(tmp_path.iterdir()) == []
