from __future__ import annotations

import json
from pathlib import Path

import pytest
import skimage
import torch
from safetensors.torch import save_file

from command import call
from vitrail import parts
from vitrail.checkpoint.header import CONFIG_KEY
from vitrail.config import ViTConfig
from vitrail.geometry import Size
from vitrail.nn.build import build

SMALL = ViTConfig(
    image=Size(40, 56),
    embedding=parts.Patches(patch=Size(8, 8)),
    width=24,
    depth=1,
    num_heads=3,
    mlp=parts.Mlp(width=40),
)
PHOTO = Path(skimage.__file__).parent / "data" / "rocket.jpg"


def weights(folder: Path, config: ViTConfig) -> str:
    torch.manual_seed(0)
    path = folder / "small.safetensors"
    save_file(build(config).state_dict(), path, metadata={CONFIG_KEY: config.to_json()})
    return str(path)


def test_the_file_is_compared_on_a_photograph(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "small.onnx"
    assert call("export", weights(tmp_path, SMALL), str(out), "--images", str(PHOTO), "--json") == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["images"], done["dynamic"], done["opset"]) == (1, False, 18)
    assert done["bytes"] == out.stat().st_size
    assert done["lowest_cosine"] > 0.99999


def test_a_size_that_must_stay_fixed_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    source = weights(tmp_path, SMALL.but(position=parts.Rotary()))
    assert call("export", source, str(tmp_path / "small.onnx"), "--dynamic") == 2
    said = capsys.readouterr().err
    assert "the image's size must stay fixed: Rotary is computed for one grid; export without --dynamic" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(("name", "extra"), [("small.onnx", "onnx"), ("small.xml", "openvino")])
def test_the_extra_that_is_advised_is_enough_for_the_file(name: str, extra: str, tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr("vitrail.vectors.engines.export.find_spec", lambda module: None)
    assert call("export", weights(tmp_path, SMALL), str(tmp_path / name)) == 2
    assert f"pip install 'vitrail[{extra}]'" in capsys.readouterr().err
