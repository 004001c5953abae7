"""How a grid and the heads are known; never from a count."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from command import call
from peer_models import save_timm
from peers import timm
from vitrail.checkpoint.assess.describe import describe
from vitrail.checkpoint.read import load
from vitrail.errors import VitrailError
from vitrail.geometry import Size

SMALL = {"embed_dim": 48, "depth": 2, "num_heads": 3}


def bare(path: Path, name: str, **arguments: object) -> Path:
    """Weights alone, as most files are passed around."""
    with torch.device("meta"):
        model = timm.create_model(name, **arguments)
    save_file({key: torch.ones(value.shape) for key, value in model.state_dict().items()}, path)
    return path


def test_sixteen_positions_are_refused_and_the_message_tells_what_settles_it(tmp_path: Path):
    path = bare(tmp_path / "w.safetensors", "vit_base_patch16_224", **SMALL, img_size=(32, 128))
    with pytest.raises(VitrailError, match=r"as 2x8 or 4x4\?.*--from-image 32x128"):
        load(path, num_heads=3)
    assert load(path, from_image="32x128", num_heads=3).config.grid == Size(2, 8)
    assert load(path, from_image="64x64", num_heads=3).config.grid == Size(4, 4)


def test_a_wrong_image_is_refused_by_the_count(tmp_path: Path):
    path = bare(tmp_path / "w.safetensors", "vit_base_patch16_224", **SMALL, img_size=(32, 128))
    with pytest.raises(VitrailError, match="17 rows, and image 32x64 is a grid of 2x4"):
        load(path, from_image="32x64", num_heads=3)


def test_weights_of_a_known_shape_need_no_config(tmp_path: Path):
    checkpoint = load(bare(tmp_path / "w.safetensors", "vit_tiny_patch16_224"))
    assert (checkpoint.config.image, checkpoint.config.num_heads) == (Size(224, 224), 3)  # type: ignore[union-attr]
    known = "the exact names and shapes of timm's vit_tiny_patch16_224 and 1 more"
    assert checkpoint.evidence.grid == f"image 224x224 from {known}"
    assert checkpoint.evidence.config == known
    assert describe(checkpoint).variant.startswith("Ti/16")


def test_rows_that_no_known_image_gives_are_not_taken_for_a_square(tmp_path: Path):
    path = bare(tmp_path / "w.safetensors", "vit_tiny_patch16_224", img_size=(256, 400))
    with pytest.raises(VitrailError, match="401 rows of positions do not say"):
        load(path)
    assert load(path, from_image="256x400").config.grid == Size(16, 25)


def test_heads_that_nothing_shows_are_asked_for(tmp_path: Path):
    path = bare(tmp_path / "w.safetensors", "vit_base_patch16_224", **SMALL, img_size=(32, 128))
    with pytest.raises(VitrailError, match="do not show num_heads; give --num-heads"):
        load(path, from_image="32x128")


def test_a_config_beside_the_weights_is_the_evidence(tmp_path: Path):
    save_timm(tmp_path / "timm", "vit_base_patch16_224", **SMALL, img_size=(32, 128))
    for path in (tmp_path / "timm", tmp_path / "timm" / "model.safetensors"):
        checkpoint = load(path)
        assert checkpoint.config.grid == Size(2, 8)
        assert checkpoint.evidence.grid == "image 32x128 from config.json (timm's vit_base_patch16_224)"


def test_a_model_is_in_eval_mode_in_its_own_type_and_of_its_own(tmp_path: Path):
    path = bare(tmp_path / "w.safetensors", "vit_base_patch16_224", **SMALL, img_size=(32, 128))
    checkpoint = load(path, from_image="32x128", num_heads=3)
    before = path.read_bytes()
    model = checkpoint.model()
    assert not model.training
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert checkpoint.tensors["head.weight"].any()
    assert path.read_bytes() == before
    assert next(checkpoint.model(dtype=torch.bfloat16).parameters()).dtype == torch.bfloat16


def test_half_precision_weights_make_a_half_precision_model(tmp_path: Path):
    model = timm.create_model("vit_base_patch16_224", **SMALL, img_size=32).to(torch.bfloat16)
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    checkpoint = load(tmp_path / "w.safetensors", from_image="32", num_heads=3)
    assert describe(checkpoint).dtypes.keys() == {"bfloat16"}
    assert next(checkpoint.model().parameters()).dtype == torch.bfloat16


def test_inspect_says_what_a_file_is(tmp_path: Path, capsys):
    path = bare(tmp_path / "w.safetensors", "vit_tiny_patch16_224")
    assert call("inspect", str(path)) == 0
    shown = capsys.readouterr().out
    for expected in ("timm names (vit)", "Ti/16", "5,717,416", "grid 14x14", "timm's vit_tiny_patch16_224"):
        assert expected in shown


def test_inspect_as_json_has_everything(tmp_path: Path, capsys):
    save_timm(tmp_path / "timm", "vit_small_patch14_reg4_dinov2", **SMALL, img_size=(56, 84))
    assert call("inspect", str(tmp_path / "timm"), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["grid"] == {"height": 4, "width": 6}
    assert found["prefix"] == ["CLS", "register 0", "register 1", "register 2", "register 3"]
    assert found["config"]["position"] == {
        **{"kind": "learned", "prefix": "none", "convention": "timm"},
        "rotary": None,
        "relative": None,
    }
    assert found["checks"] == {"not_finite": [], "unused": []}
    assert found["preprocessing"]["mean"] == [0.485, 0.456, 0.406]


def test_inspect_asks_for_the_image_with_exit_2(tmp_path: Path, capsys):
    path = bare(tmp_path / "w.safetensors", "vit_base_patch16_224", **SMALL, img_size=(32, 128))
    assert call("inspect", str(path), "--num-heads", "3") == 2
    assert "--from-image 32x128" in capsys.readouterr().err
    assert call("inspect", str(path), "--num-heads", "3", "--from-image", "32x128") == 0
    assert "grid 2x8" in capsys.readouterr().out


def test_inspect_names_weights_that_are_not_finite(tmp_path: Path, capsys):
    model = timm.create_model("vit_base_patch16_224", **SMALL, img_size=32)
    model.norm.weight.data[3] = float("nan")
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    arguments = (str(tmp_path / "w.safetensors"), "--num-heads", "3", "--from-image", "32")
    assert call("inspect", *arguments, "--json") == 0
    assert json.loads(capsys.readouterr().out)["checks"]["not_finite"] == ["norm.weight"]
    assert call("convert", arguments[0], str(tmp_path / "out.safetensors"), "--to", "vitrail", *arguments[1:]) == 0
    assert "norm.weight: not all values are finite" in capsys.readouterr().out


def test_convert_writes_what_from_pretrained_loads(tmp_path: Path, capsys):
    save_timm(tmp_path / "timm", "vit_base_patch16_clip_224", **SMALL, img_size=32, num_classes=0)
    assert call("convert", str(tmp_path / "timm"), str(tmp_path / "hf"), "--to", "huggingface") == 0
    assert "39 tensors in huggingface's names (clip)" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "hf").iterdir()} == {
        "model.safetensors",
        "config.json",
        "preprocessor_config.json",
    }
    assert call("convert", str(tmp_path / "timm"), str(tmp_path / "hf"), "--to", "huggingface") == 2
    assert "exists, and a directory is not overwritten" in capsys.readouterr().err
    assert call("convert", str(tmp_path / "timm"), str(tmp_path / "x.npz"), "--to", "google") == 2
    assert "google cannot represent this model" in capsys.readouterr().err
    assert call("convert", str(tmp_path / "timm"), str(tmp_path / "x.npz"), "--to", "klingon") == 2
    assert "dialect 'klingon' is unknown" in capsys.readouterr().err
