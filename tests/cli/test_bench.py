from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from command import call
from vitrail import parts
from vitrail.checkpoint.header import CONFIG_KEY
from vitrail.config import ViTConfig
from vitrail.geometry import Size
from vitrail.nn.build import build
from vitrail.vectors.engines.profile import SECTIONS

SMALL = ViTConfig(
    image=Size(40, 56),
    embedding=parts.Patches(patch=Size(8, 8)),
    width=48,
    depth=2,
    num_heads=3,
    mlp=parts.Mlp(width=80),
)


@pytest.fixture
def weights(tmp_path: Path) -> str:
    torch.manual_seed(0)
    path = tmp_path / "small.safetensors"
    save_file(build(SMALL).state_dict(), path, metadata={CONFIG_KEY: SMALL.to_json()})
    return str(path)


def test_every_section_is_timed_at_every_batch(weights: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    chart = tmp_path / "bench.png"
    assert call("bench", weights, "--batch", "1,5", "--seconds", "0.01", "--json", "--chart", str(chart)) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(row["batch"], row["section"]) for row in found["rows"]] == [(b, s) for b in (1, 5) for s in SECTIONS]
    assert all(row["seconds_per_image"] > 0 for row in found["rows"])
    assert sum(row["share"] for row in found["rows"]) == pytest.approx(2)
    assert found["gemm_flops_per_second"] > 1e8
    with Image.open(chart) as picture:
        assert min(picture.size) > 300


def test_work_is_counted_by_hand(weights: str, capsys: pytest.CaptureFixture[str]):
    """36 tokens of width 48; the last of two blocks works for CLS only: 1 query, 1 output, 1 row of the MLP."""
    assert call("bench", weights, "--batch", "1", "--seconds", "0.01", "--json") == 0
    work = {row["section"]: row["flops_per_image"] for row in json.loads(capsys.readouterr().out)["rows"]}
    assert work["patches"] == 2 * 35 * (3 * 64) * 48
    first = 2 * 36 * 4 * 48 * 48 + 4 * 36 * 36 * 48
    last = 2 * (36 * 2 + 2) * 48 * 48 + 4 * 36 * 48
    assert work["attention"] == first + last
    assert work["mlp"] == 2 * (36 + 1) * 2 * 48 * 80
    assert work["decode"] == work["rest"] == 0


def test_the_table_is_for_people(weights: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    Image.new("RGB", (90, 60), (10, 200, 30)).save(tmp_path / "green.jpg")
    arguments = ("--images", str(tmp_path), "--engine", "int8", "--batch", "2", "--seconds", "0.01", "--threads", "1")
    assert call("bench", weights, *arguments) == 0
    said = capsys.readouterr().out
    assert "batch 2" in said
    assert "small.safetensors, int8, 1 thread; peak:" in said


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--batch", "0"], "are not all above 0"),
        (["--chart", "bench.txt"], "does not end in .png, .svg, .pdf"),
        (["--images", "nowhere.jpg"], "nowhere.jpg: cannot be read"),
    ],
)
def test_a_mistake_is_one_line(weights: str, arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]):
    assert call("bench", weights, "--seconds", "0.01", *arguments) == 2
    said = capsys.readouterr().err
    assert line in said
    assert said.count("\n") == 1
