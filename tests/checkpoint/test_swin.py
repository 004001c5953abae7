"""Swin and Swin v2 between timm, transformers and vitrail: windows padded timm's way, read, adapted and written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from peer_models import randomise, relative_error, save_timm
from peers import timm, transformers
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.checkpoint.read import load
from vitrail.checkpoint.surgery.adapt import adapt
from vitrail.checkpoint.write import save
from vitrail.config import PyramidConfig, PyramidStage
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.nn.build import build
from vitrail.parts import WindowedAttention
from vitrail.presets import PRESETS

NAME = "swin_tiny_patch4_window7_224"
SMALL: dict[str, Any] = {"embed_dim": 24, "depths": (2, 2), "num_heads": (3, 6), "num_classes": 7}
STAGES = (PyramidStage(width=24, depth=2, num_heads=3), PyramidStage(width=48, depth=2, num_heads=6))


@pytest.fixture
def small_swin(monkeypatch: pytest.MonkeyPatch) -> PyramidConfig:
    """A preset of whole windows at its own image, as the others are at 224."""
    config = PyramidConfig(image=Size(56, 112), stages=STAGES)
    monkeypatch.setitem(PRESETS, "a small swin", config)
    return config


@torch.no_grad()
def compare(theirs: nn.Module, ours: Checkpoint, image: tuple[int, int], tolerance: float) -> None:
    pixels = torch.randn(2, 3, *image, generator=torch.Generator().manual_seed(1))
    expected: Tensor = theirs(pixels)
    assert relative_error(ours.model()(pixels), expected) < 1e-5
    exact = theirs.double()(pixels.double())
    assert relative_error(ours.model(dtype=torch.float64)(pixels.double()), exact) < tolerance


@pytest.mark.parametrize("image", [(40, 72), (24, 112), (72, 16)])
def test_a_swin_read_from_timm_gives_timms_numbers_where_windows_do_not_divide_the_grid(
    image: tuple[int, int], tmp_path: Path, small_swin: PyramidConfig
):
    """Also where the grid is smaller than the window, and its tables with it."""
    theirs = save_timm(tmp_path / "timm", NAME, **SMALL, img_size=image)
    ours = load(tmp_path / "timm")
    assert isinstance(ours.config, PyramidConfig)
    assert (ours.config.image, ours.config.attention) == (Size(*image), WindowedAttention(window_padding="zeros"))
    compare(theirs, ours, image, 1e-10)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore::UserWarning")  # timm's own
@pytest.mark.parametrize("image", [(40, 72), (24, 120), (16, 16)])
def test_a_swin_adapted_to_another_image_equals_timms_loaded_for_it(
    image: tuple[int, int], tmp_path: Path, small_swin: PyramidConfig
):
    before = save_timm(tmp_path / "timm", NAME, **SMALL, img_size=(56, 112))
    theirs = timm.create_model(NAME, **SMALL, img_size=image).eval()
    theirs.load_state_dict(timm.models.swin_transformer.checkpoint_filter_fn(before.state_dict(), theirs))
    adapted, _ = adapt(load(tmp_path / "timm"), {"image": Size(*image)})
    compare(theirs, adapted, image, 1e-6)  # timm resamples tables in float32

    save(adapted, tmp_path / "out.safetensors", dialect="timm")
    again = timm.create_model(NAME, **SMALL, img_size=image).eval()
    timm.models.load_checkpoint(again, str(tmp_path / "out.safetensors"), strict=True)
    expected = theirs.float().state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in again.state_dict().items())


def test_weights_of_whole_windows_are_not_read_as_those_of_smaller_ones(tmp_path: Path, small_swin: PyramidConfig):
    theirs = save_timm(tmp_path / "timm", NAME, **SMALL, img_size=(56, 112))
    torch.save(theirs.state_dict(), tmp_path / "swin.pth")
    assert load(tmp_path / "swin.pth", from_image="112x168").config.image == Size(112, 168)
    with pytest.raises(VitrailError, match="has smaller windows at image 24x40 from the caller"):
        load(tmp_path / "swin.pth", from_image="24x40")


def test_timm_has_no_masked_windows(tmp_path: Path, small_swin: PyramidConfig):
    for image, words in ((Size(56, 112), None), (Size(40, 72), "its window_padding is zeros, this model's masked")):
        config = small_swin.but(image=image, attention=WindowedAttention())
        checkpoint = Checkpoint(
            config=config, tensors=build(config).state_dict(), preprocessing=Preprocessing(image=image)
        )
        if words is None:  # whole windows have nothing to mask
            save(checkpoint, tmp_path / "whole.safetensors", dialect="timm")
            continue
        with pytest.raises(VitrailError, match=words):
            save(checkpoint, tmp_path / "odd.safetensors", dialect="timm")


# ── Swin v2, and windows of several sizes ───────────────────────────────────────────────────────────────────────

THREE: dict[str, Any] = {**SMALL, "depths": (2, 2, 2), "num_heads": (3, 6, 12)}
SECOND: dict[str, Any] = {**SMALL, "depths": (2, 3), "pretrained_window_sizes": (6, 4)}


@pytest.mark.parametrize(
    ("name", "arguments", "image"),
    [
        ("swinv2_tiny_window8_256", SECOND, (64, 128)),
        ("swinv2_tiny_window8_256", SMALL, (32, 64)),  # the second grid is smaller than the window
        ("swinv2_tiny_window16_256", {**SMALL, "strict_img_size": False}, (72, 128)),  # zeros pad the windows
        ("swin_s3_tiny_224", {**THREE, "window_size": (7, 3, 7)}, (112, 112)),
    ],
)
def test_a_swin_of_any_kind_is_read_from_timm_and_written_back(
    name: str, arguments: dict[str, Any], image: tuple[int, int], tmp_path: Path
):
    theirs = save_timm(tmp_path / "timm", name, **arguments, img_size=image)
    ours = load(tmp_path / "timm")
    compare(theirs, ours, image, 1e-6)  # timm computes the offsets in float32

    for source in (ours, ours.but(dialect="vitrail", origin={})):  # with the file's own config, and with a new one
        out = tmp_path / f"out-{source.dialect}"
        save(source, out, dialect="timm")
        again = load(out)
        assert again.config == ours.config
        assert all(torch.equal(again.tensors[key], tensor) for key, tensor in ours.tensors.items())
        written = timm.create_model(f"local-dir:{out}", pretrained=True).eval()
        expected = theirs.float().state_dict()
        assert all(torch.equal(tensor, expected[key]) for key, tensor in written.state_dict().items())


def test_weights_of_a_swin_v2_alone_are_not_read_by_a_guess_at_the_windows(tmp_path: Path):
    theirs = save_timm(tmp_path / "timm", "swinv2_tiny_window8_256", **SMALL, img_size=(64, 128))
    torch.save(theirs.state_dict(), tmp_path / "swin.pth")
    with pytest.raises(VitrailError, match="do not show its windows; put its config"):
        load(tmp_path / "swin.pth")


@torch.no_grad()
@pytest.mark.parametrize("kind", ["Swin", "Swinv2", "DonutSwin"])
@pytest.mark.parametrize("classes", [0, 7])
def test_a_small_swin_is_read_from_transformers_and_written_back(kind: str, classes: int, tmp_path: Path):
    sizes = {"image_size": 48, "embed_dim": 24, "depths": [2, 2], "num_heads": [3, 6], "window_size": 6}
    more = {"pretrained_window_sizes": [4, 3]} if kind == "Swinv2" else {}
    config = getattr(transformers, f"{kind}Config")(**sizes, **more, num_labels=classes or 2)
    models = transformers.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING if classes else transformers.MODEL_MAPPING
    theirs = randomise(models[type(config)](config))
    theirs.save_pretrained(tmp_path / "hf")
    ours = load(tmp_path / "hf")
    pixels = torch.randn(2, 3, 48, 48, generator=torch.Generator().manual_seed(1))
    output = theirs(pixels)
    expected = output.logits if classes else output.pooler_output
    found = ours.model()(pixels) if classes else ours.model().vector(pixels)
    assert relative_error(found, expected) < 1e-5

    save(ours.but(dialect="vitrail", origin={}), tmp_path / "out", dialect="huggingface")
    again = type(theirs).from_pretrained(tmp_path / "out")
    assert all(torch.equal(tensor, theirs.state_dict()[name]) for name, tensor in again.state_dict().items())


def test_a_grid_that_transformers_would_not_shift_is_refused(tmp_path: Path):
    sizes = {"image_size": [48, 96], "embed_dim": 24, "depths": [2, 2], "num_heads": [3, 6], "window_size": 6}
    randomise(transformers.SwinModel(transformers.SwinConfig(**sizes))).save_pretrained(tmp_path / "hf")
    with pytest.raises(VitrailError, match="several windows of 6x6 along one side only"):
        load(tmp_path / "hf")
