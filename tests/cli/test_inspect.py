"""What `inspect` says, held to the presets and to PyTorch's own counts."""

import json

import pytest
import torch

from command import call
from vitrail.checkpoint.assess.describe import describe, few
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.checkpoint.write import save
from vitrail.config import Config, MobileConfig, MobileStage, PyramidConfig, PyramidStage, ViTConfig
from vitrail.geometry import Size
from vitrail.nn.build import build
from vitrail.parts import (
    AttentionPool,
    LinearAttention,
    MeanPool,
    Mlp,
    Prefix,
    RelativeBias,
    Rotary,
    Stem,
    WindowedAttention,
)
from vitrail.presets import PRESETS

SMALL = ViTConfig(image=Size(32, 48), width=24, depth=2, num_heads=3, mlp=Mlp(width=40), classes=6)
SWIN = PyramidConfig(
    image=Size(64, 96),
    stages=(PyramidStage(width=12, depth=2, num_heads=3), PyramidStage(width=24, depth=4, num_heads=6)),
    attention=WindowedAttention(window=Size(4, 2)),
)
MOBILE = MobileConfig(
    image=Size(32, 48),
    stages=(MobileStage(width=8, depth=3), MobileStage(width=10, stride=2, transformer_width=16, transformer_depth=2)),
    classes=0,
)


def made(config: Config, **changes) -> Checkpoint:
    tensors = build(config).state_dict()
    return Checkpoint(config=config, tensors=tensors, preprocessing=Preprocessing(image=config.image)).but(**changes)


def empty(config: Config) -> Checkpoint:
    """At full size, of zeros that take no room."""
    with torch.device("meta"):
        tensors = build(config).state_dict()
    zeros = {name: torch.zeros(()).expand(tensor.shape) for name, tensor in tensors.items()}
    return Checkpoint(config=config, tensors=zeros, preprocessing=Preprocessing(image=config.image))


@pytest.fixture
def said(tmp_path, capsys):
    """A config's file, inspected: as text without the table's spacing, and as JSON."""

    def inspected(checkpoint: Checkpoint) -> tuple[str, dict]:
        path = tmp_path / "a[b].safetensors"
        save(checkpoint, path, dialect="vitrail")
        assert call("inspect", str(path)) == 0
        text = " ".join(capsys.readouterr().out.split())
        assert text.replace(" ", "").startswith(str(path))  # a long name is wrapped
        assert call("inspect", str(path), "--json") == 0
        return text, json.loads(capsys.readouterr().out)

    return inspected


def test_a_pyramid_is_described_stage_by_stage(said):
    text, data = said(made(SWIN))
    assert "size 2 stages stage 1 grid 16x24, width 12, depth 2, heads 3" in text
    assert "stage 2 grid 8x12, width 24, depth 4, heads 6" in text
    assert "positions RelativeBias within windows of 4x2 on another grid kept: they count offsets" in text
    assert "vitrail names same shape as" in text  # the table of names is no architecture
    assert [data[name] for name in ("width", "depth", "num_heads")] == [None, None, None]
    stage = {"grid": {"height": 8, "width": 12}, "width": 24, "depth": 4, "num_heads": 6}
    assert data["stages"][1] == {**stage, "transformer_width": None, "transformer_depth": None}


def test_a_mobile_network_is_described_stage_by_stage_and_statistics_are_no_parameters(said):
    text, data = said(made(MOBILE))
    assert "stage 1 grid 16x24, width 8, 3 inverted residuals" in text
    assert "stage 2 grid 8x12, width 10, 1 inverted residual, then a transformer of width 16, depth 2, heads 4" in text
    assert "positions NoPosition on another grid nothing to do" in text
    assert "head none: the model gives its pooled vector" in text
    expected = sum(parameter.numel() for parameter in build(MOBILE).parameters())
    assert data["parameters"] == expected < sum(data["dtypes"].values())
    assert f"parameters {expected:,}; stored values: float32" in text
    assert [stage["num_heads"] for stage in data["stages"]] == [None, 4]


def test_a_network_without_transformers_says_so(said):
    stages = (MobileStage(width=8, depth=2), MobileStage(width=10, stride=2))
    text, _ = said(made(MOBILE.but(residual="basic", stages=stages, last_width=0)))
    assert "width 8, 2 basic residuals" in text
    assert "no transformers" in text


@pytest.mark.parametrize("name", ["swin-T", "mobilevit-XXS", "dinov3-S/16", "siglip-B/16"])
def test_a_preset_is_known_by_its_shape(name):
    config = PRESETS[name]
    found = describe(empty(config))
    assert name in found.variant
    if isinstance(config, ViTConfig):
        assert (found.width, found.depth, found.num_heads) == (config.width, config.depth, config.num_heads)
        assert found.stages == ()


def test_a_pool_with_weights_is_another_shape():
    assert "siglip" not in describe(made(SMALL)).variant
    siglip = PRESETS["siglip-B/16"]
    assert isinstance(siglip, ViTConfig)
    assert isinstance(siglip.pool, AttentionPool)
    assert "siglip-B/16" not in describe(empty(siglip.but(pool=MeanPool()))).variant


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"position": Rotary()}, "Rotary (index) on another grid recomputed: a larger grid has indices beyond those"),
        ({"position": Rotary(coordinates="normalised")}, "Rotary (normalised) on another grid recomputed: coord"),
        (
            {"position": RelativeBias(prefix=False), "attention": WindowedAttention(window=Size(2, 3))},
            "RelativeBias within windows of 2x3 on another grid kept",
        ),
        (
            {"position": RelativeBias()},
            "RelativeBias (huggingface) on another grid resampled: offsets are stretched with the grid",
        ),
        (
            {"attention": LinearAttention(), "mlp": Mlp(width=40, activation="silu")},
            "LinearAttention, MLP 40 wide (silu)",
        ),
        ({"embedding": Stem(widths=(3, 4, 5, 6)), "channels": 1}, "32x48, 1 channel, Stem of 16x16, grid 2x3"),
        ({"prefix": Prefix(registers=2)}, "prefix CLS, register 0, register 1"),
        ({"norm_eps": 1e-5}, "norms with eps 1e-05"),
    ],
)
def test_parts_are_named_as_they_are(said, changes, words):
    assert words in said(made(SMALL.but(**changes)))[0]


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_weights_in_eight_bits_are_inspected(said, dtype):
    name = str(dtype).removeprefix("torch.")
    tensors = {key: tensor.to(dtype) for key, tensor in build(SMALL).state_dict().items()}
    text, data = said(made(SMALL, tensors=tensors))
    assert f"stored values: {name}" in text
    assert data["dtypes"] == {name: data["parameters"]}
    assert data["checks"]["not_finite"] == []
    tensors["head.weight"] = torch.full((6, 24), float("nan")).to(dtype)
    assert said(made(SMALL, tensors=tensors))[1]["checks"]["not_finite"] == ["head.weight"]


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ({"crop_share": 0.9}, "bicubic, the shorter side to 35, the middle 32x32; mean 0.5 0.5 0.5, std 0.5 0.5 0.5"),
        ({"interpolation": "bilinear", "resize": "squash"}, "bilinear, resized to 32x32; mean"),
        ({"image": Size(32, 48)}, "bicubic, resized to cover 32x48, the middle 32x48; mean"),
    ],
)
def test_pixels_are_said_in_words(said, steps, words):
    steps = Preprocessing(**{"image": Size(32, 32), **steps})
    text, _ = said(made(SMALL.but(image=steps.image), preprocessing=steps))
    assert words in text


def test_a_list_that_is_cut_says_so():
    assert (few("abcd"), few("abcde"), few([])) == ("a, b, c, d", "a, b, c, d and 1 more", "")
