from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from vitrail import parts
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.config import MobileConfig, PyramidConfig, ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.nn.build import build
from vitrail.vectors.engines import export as exporting
from vitrail.vectors.engines.export import export, why_fixed

SMALL = ViTConfig(
    image=Size(40, 56),
    embedding=parts.Patches(patch=Size(8, 8)),
    width=48,
    depth=2,
    num_heads=3,
    mlp=parts.Mlp(width=80),
)


def checkpoint_of(config: ViTConfig) -> Checkpoint:
    torch.manual_seed(0)
    steps = Preprocessing(image=config.image)
    return Checkpoint(config=config, tensors=build(config).state_dict(), preprocessing=steps)


def images(count: int = 3) -> torch.Tensor:
    return torch.randint(0, 256, (count, 40, 56, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def test_a_dynamic_graph_gives_torchs_vectors_at_any_batch_and_size(tmp_path: Path):
    """Positions are resampled inside the graph, as timm does; rounding of float32 differs between runtimes."""
    checkpoint = checkpoint_of(SMALL.but(prefix=parts.Prefix(registers=1)))
    done = export(checkpoint, tmp_path / "small.onnx", images(), dynamic=True)
    assert done.sizes == (Size(40, 56), Size(24, 72))
    assert done.lowest_cosine > 0.99999
    assert [path.name for path in tmp_path.iterdir()] == ["small.onnx"]
    session = onnxruntime.InferenceSession(tmp_path / "small.onnx", providers=["CPUExecutionProvider"])
    model = checkpoint.model()
    for shape in ((1, 3, 40, 56), (5, 3, 64, 32)):
        pixels = torch.randn(shape)
        with torch.inference_mode():
            expected = model.vector(pixels)
        (found,) = session.run(None, {"image": pixels.numpy()})
        np.testing.assert_allclose(np.asarray(found), expected.numpy(), rtol=1e-4, atol=1e-4)
    notes = {each.key: each.value for each in onnx.load(tmp_path / "small.onnx").metadata_props}
    assert json.loads(notes["vitrail_preprocessing"])["image"] == "40x56"


def test_openvino_gets_two_files(tmp_path: Path):
    done = export(checkpoint_of(SMALL), tmp_path / "small.xml", images())
    assert done.lowest_cosine > 0.99999
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small.bin", "small.xml"]


def test_a_graph_that_differs_from_torch_is_refused_and_what_was_there_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "small.onnx").write_bytes(b"before")
    monkeypatch.setattr(exporting, "_onnxruntime", lambda path: lambda pixels: torch.randn(len(pixels), 48))
    with pytest.raises(VitrailError, match=r"small\.onnx was not written: its vectors' cosine to torch's is"):
        export(checkpoint_of(SMALL), tmp_path / "small.onnx", images())
    assert (tmp_path / "small.onnx").read_bytes() == b"before"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (SMALL, None),
        (SMALL.but(position=parts.NoPosition()), None),
        (SMALL.but(position=parts.Learned(convention="dinov2")), "as dinov2 does"),
        (SMALL.but(position=parts.Rotary()), "Rotary is computed for one grid"),
        (SMALL.but(attention=parts.LinearAttention()), "LinearAttention is computed for one grid"),
        (SMALL.but(remainder="pad"), "remainder 'pad'"),
        (PyramidConfig(), "PyramidConfig has windows"),
        (MobileConfig(), "MobileConfig has windows"),
    ],
)
def test_what_keeps_a_size_fixed_is_said(config, reason: str | None):
    found = why_fixed(config)
    assert found is None if reason is None else reason in (found or "")


@pytest.mark.parametrize(
    ("name", "line"), [("small.pt", "does not end in .onnx or .xml"), ("no/small.onnx", "does not exist")]
)
def test_a_bad_name_is_refused_before_any_work(name: str, line: str, tmp_path: Path):
    with pytest.raises(VitrailError, match=line):
        export(checkpoint_of(SMALL), tmp_path / name, images())
