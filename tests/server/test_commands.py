"""The command of every room runs, and computes what the room shows."""

from __future__ import annotations

import json
import shlex

import pytest
from client import client

from command import call

PLACES = [
    ("patch", {"height": 192, "width": 320, "patch_height": 16, "patch_width": 8}),
    ("patch", {"height": 225, "width": 310, "remainder": "crop", "model": "deit-S/16", "train": False}),
    ("projection", {"seen": 40}),
    ("tokens", {"threshold": 0.4, "seen": 32, "image": "window"}),
    ("positions", {}),
    ("transfer", {"new_rows": 5, "new_columns": 7, "bands": 3}),
    ("transfer", {"transfer_table": "known", "old_rows": 4, "old_columns": 6, "new_rows": 5, "new_columns": 7}),
    ("memory", {"batch": 7, "shard": "fsdp", "devices": 4, "checkpointing": True, "accumulate": 2}),
    ("memory", {"shard": "ddp", "devices": 2, "gradient_as_bucket_view": True, "offload": True}),
    ("memory", {"shard": "tensor", "devices": 4}),
    ("memory", {"train": False, "precision": "bf16", "card": "t4"}),
    ("models", {"family": "deit", "same_side": 192, "batch": 3}),
    ("attention", {"token": 9, "seen": 32}),
    ("decide", {"application": "medical", "input_side": 256, "object_side": 20, "images_per_second": 5}),
    ("walk", {"block": 2, "head": 1, "token": 9}),
    ("dense", {"seen": 40, "shifts": 2, "with_second": True, "foreground": True, "point_down": 900}),
    ("match", {"seen": 40, "match_shape": "whole", "layer": 3, "lines": 12}),
]


def lines(room: str, values: dict) -> list[list[str]]:
    response = client().get(f"/api/{room}/command", params=values)
    assert response.status_code == 200, response.text
    return [shlex.split(line) for line in response.json()]


@pytest.mark.parametrize(("room", "values"), PLACES)
def test_the_command_of_every_room_runs(room, values, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for program, *words in lines(room, values):
        assert program == "vitrail"
        assert call(*words) == 0, capsys.readouterr().err


def test_the_command_plans_the_bytes_that_the_room_shows(capsys):
    values = {"model": "S/16", "height": 192, "width": 320, "batch": 7, "optimizer": "sgd", "card": "t4"}
    shown = client().get("/api/memory", params=values).json()
    (_, *words), *_ = lines("memory", values)
    assert call(*words, "--json") == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["peak_bytes"] == shown["peak_bytes"]


def test_the_command_follows_the_patch_of_the_token():
    (_, *words), *_ = lines("attention", {"token": 1 + 2 * 8 + 3, "seen": 32})
    assert words[words.index("--query") + 1] == "2x3"


def test_the_sample_of_the_folder_room_has_a_place_to_fill_in():
    ((_, *words),) = lines("folder", {"map_method": "tsne", "alike": 0.9})
    assert words[:2] == ["atlas", "FOLDER-OF-YOUR-IMAGES"]
    assert words[words.index("--threshold") + 1] == "0.9"
    assert words[words.index("--reduction") + 1] == "tsne"


def test_an_uploaded_image_has_a_place_to_fill_in():
    (_, *words), *_ = lines("projection", {"image": "0123456789abcdef"})
    assert "YOUR-IMAGE" in words


def test_the_command_points_at_the_pixel_of_the_point(tmp_path, monkeypatch):
    """The middle of the last of 10 × 2 rows, in an image of 260 rows, seen as 40 rows and 2 beside the grid."""
    (_, *words), *_ = lines("dense", {"seen": 40, "shifts": 2, "point_down": 1000, "point_across": 0})
    row, column = map(float, words[words.index("--point") + 1].split(","))
    whole = client().get("/api/dense", params={"seen": 40}).json()["seen"]
    assert row == pytest.approx((whole[0] - 2 + 2) / (whole[0] + 2) * 260, abs=0.06)
    assert column == pytest.approx(2 / (whole[1] + 2) * 390, abs=0.06)
