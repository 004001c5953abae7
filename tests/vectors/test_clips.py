"""Clips to embed: a folder of frames is one row, frames are taken in order and evenly, and videos are refused."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.checkpoint.write import save
from vitrail.config import ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.nn.build import build
from vitrail.parts import Mlp, Tubelets
from vitrail.vectors.embed import embed
from vitrail.vectors.job.clips import chosen_frames, clip_inputs, frames_of
from vitrail.vectors.search import search

CONFIG = ViTConfig(
    image=Size(8, 12),
    embedding=Tubelets(patch=Size(4, 4), frames=4, tubelet=2),
    width=24,
    depth=1,
    num_heads=3,
    mlp=Mlp(width=20),
    classes=0,
)


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    torch.manual_seed(0)
    steps = Preprocessing(image=CONFIG.image, mean=(0.4,) * 3, std=(0.3,) * 3)
    return Checkpoint(config=CONFIG, tensors=build(CONFIG).state_dict(), preprocessing=steps)


@pytest.fixture(scope="module")
def weights(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "clip.safetensors"
    save(checkpoint, path)
    return path


def write_clip(folder: Path, frames: int, seed: int) -> list[Path]:
    folder.mkdir(parents=True)
    dice = np.random.default_rng(seed)
    paths = [folder / f"frame{number}.png" for number in range(frames)]
    for path in paths:
        Image.fromarray(dice.integers(0, 256, (8, 12, 3), np.uint8)).save(path)
    return paths


def test_every_folder_of_frames_is_a_clip_with_the_models_own_vector(
    checkpoint: Checkpoint, weights: Path, tmp_path: Path
):
    paths = write_clip(tmp_path / "in" / "walk", 12, seed=1)
    write_clip(tmp_path / "in" / "deep" / "run", 4, seed=2)
    write_clip(tmp_path / "in" / "short", 3, seed=3)
    rows = embed(tmp_path / "in", weights, out=tmp_path / "out", workers=0).to_pylist()
    assert [(row["id"], row["status"]) for row in rows] == [
        ("deep/run", "ok"),
        ("short", "failed"),
        ("walk", "ok"),
    ]
    assert "a clip of 3 frames, and the model takes 4" in rows[1]["error"]
    clip = checkpoint.transform(*(paths[number] for number in (1, 4, 7, 10)))[None]
    with torch.inference_mode():
        expected = checkpoint.model().vector(clip)[0]
    torch.testing.assert_close(torch.tensor(rows[2]["vector"]), expected, rtol=0, atol=1e-5)

    found = search(tmp_path / "out", tmp_path / "in" / "walk", with_itself=True)
    assert (found.matches[0].id, round(found.matches[0].score, 5)) == ("walk", 1.0)
    with pytest.raises(VitrailError, match="give a folder of frames, not an image"):
        search(tmp_path / "out", paths[0])


def test_a_clip_is_embedded_again_when_one_of_its_frames_changes(weights: Path, tmp_path: Path):
    paths = write_clip(tmp_path / "in" / "a", 4, seed=1)
    write_clip(tmp_path / "in" / "b", 4, seed=2)
    before = embed(tmp_path / "in", weights, out=tmp_path / "out", workers=0).to_pylist()
    Image.fromarray(np.zeros((8, 12, 3), np.uint8)).save(paths[2])
    os.utime(paths[2], ns=(2**62, 2**62))
    after = embed(tmp_path / "in", weights, out=tmp_path / "out", workers=0).to_pylist()
    assert [one["vector"] == other["vector"] for one, other in zip(before, after, strict=True)] == [False, True]


def test_frames_are_in_the_order_of_their_numbers(tmp_path: Path):
    for name in ("10.png", "9.jpg", "1.png", "frame2.png", "frame11.png", ".hidden.png", "notes.txt"):
        (tmp_path / name).touch()
    assert [path.name for path in frames_of(tmp_path)] == ["1.png", "9.jpg", "10.png", "frame2.png", "frame11.png"]


def test_frames_are_evenly_spaced_and_all_are_used_when_there_are_just_enough():
    frames = [Path(str(number)) for number in range(4)]
    assert chosen_frames(frames, 4) == frames
    assert chosen_frames(frames, 2) == [frames[1], frames[3]]


def test_videos_are_refused_with_the_command_that_writes_their_frames(weights: Path, tmp_path: Path):
    (tmp_path / "cat.MP4").touch()
    command = r"cat.MP4 is a video.*mkdir -p clips/cat && ffmpeg -i cat.MP4 clips/cat/%06d.png"
    with pytest.raises(VitrailError, match=command):
        list(clip_inputs(tmp_path))
    for model in (weights, "default"):
        with pytest.raises(VitrailError, match=command):
            embed(tmp_path / "cat.MP4", model, workers=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"native": True}, "the model takes clips of 4 frames; leave out --native"),
        ({"engine": "int8"}, "int8 cannot run this model: it takes clips of 4 frames"),
    ],
)
def test_what_is_for_still_images_is_refused(options, message, weights: Path, tmp_path: Path):
    write_clip(tmp_path / "in" / "a", 4, seed=1)
    with pytest.raises(VitrailError, match=message):
        embed(tmp_path / "in", weights, workers=0, **options)


def test_what_holds_no_clips_is_refused(weights: Path, tmp_path: Path):
    with pytest.raises(VitrailError, match="holds no clips"):
        embed(tmp_path, weights, workers=0)
    frame = write_clip(tmp_path / "a", 1, seed=1)[0]
    with pytest.raises(VitrailError, match="not a folder on this machine, and the model takes clips"):
        embed(frame, weights, workers=0)
