"""Where an adaptation says nothing, the vectors are the old ones; and every target can be written and read again."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.checkpoint.read import load
from vitrail.checkpoint.surgery.adapt import adapt
from vitrail.checkpoint.write import save
from vitrail.config import Config, MobileConfig, MobileStage, PyramidConfig, PyramidStage, ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.nn.build import build
from vitrail.parts import (
    Adaptive,
    AttentionPool,
    ClsPool,
    DecomposedBias,
    FullAttention,
    GridPooling,
    Hierarchical,
    Learned,
    LinearAttention,
    LinearMerger,
    MaxPool,
    MeanPool,
    Mlp,
    Neck,
    Patches,
    PatchMerging,
    Prefix,
    RelativeBias,
    RelativeMlp,
    Rotary,
    RotaryMixed,
    SinCos1d,
    SinCos2d,
    SparseAttention,
    Stem,
    Tubelets,
    WindowedAttention,
)

SMALL = ViTConfig(
    image=Size(16, 24),
    embedding=Patches(patch=Size(4, 4)),
    width=24,
    depth=2,
    num_heads=3,
    mlp=Mlp(width=20),
    classes=5,
)
WINDOWS = WindowedAttention(window=Size(2, 3))
FAMILIES: dict[str, Config] = {
    "learned": SMALL,
    "clip": SMALL.but(embedding=Tubelets(patch=Size(4, 4), frames=4)),
    "registers": SMALL.but(prefix=Prefix(registers=2), position=Learned(prefix="cls"), classes=0),
    "distilled": SMALL.but(prefix=Prefix(distillation=True)),
    "mean": SMALL.but(prefix=Prefix(cls=False, registers=1), pool=MeanPool(), final_norm="pooled"),
    "attention pool": SMALL.but(prefix=Prefix(cls=False), pool=AttentionPool(num_heads=3, mlp_width=20)),
    "relative": SMALL.but(position=RelativeBias()),
    "shared relative": SMALL.but(position=RelativeBias(shared=True)),
    "windows": SMALL.but(position=RelativeBias(prefix=False), attention=WINDOWS),
    "relative mlp": SMALL.but(position=RelativeMlp(width=8), block_norm="after", cosine_attention=True),
    "mlp in windows": SMALL.but(position=RelativeMlp(width=8), attention=WINDOWS),
    "necked": SMALL.but(
        prefix=Prefix(cls=False),
        position=Learned(relative=DecomposedBias()),
        attention=WindowedAttention(window=Size(2, 3), shift=False, window_padding="zeros", full=(1,)),
        final_norm="none",
        neck=Neck(width=16),
        pool=MeanPool(),
    ),
    "rotary": SMALL.but(position=Rotary(), prefix=Prefix(registers=1), pool=MaxPool(), final_norm="none"),
    "mixed": SMALL.but(position=RotaryMixed(), head_bias=False),
    "sines": SMALL.but(position=SinCos2d(), remainder="crop", image=Size(18, 25)),
    "sines of indices": SMALL.but(position=SinCos1d()),
    "overlap": SMALL.but(embedding=Patches(patch=Size(8, 8), stride=Size(4, 4), bias=False)),
    "stem": SMALL.but(embedding=Stem(patch=Size(4, 4), widths=(5, 7))),
    "levels": SMALL.but(embedding=Hierarchical(finest=Size(2, 2), widths=(6,))),
    "adaptive": SMALL.but(embedding=Adaptive(patches=(Size(4, 4), Size(8, 8)))),
    "pyramid": PyramidConfig(
        image=Size(16, 24),
        stages=(PyramidStage(width=8, depth=2, num_heads=2), PyramidStage(width=16, depth=1, num_heads=4)),
        attention=WindowedAttention(window=Size(2, 3)),
        classes=5,
    ),
    "second pyramid": PyramidConfig(
        image=Size(16, 24),
        position=RelativeMlp(width=8),
        stages=(PyramidStage(width=8, depth=2, num_heads=2), PyramidStage(width=16, depth=1, num_heads=4)),
        attention=WindowedAttention(window=Size(2, 3), window_padding="zeros"),
        qkv_bias="no_key",
        cosine_attention=True,
        merging=PatchMerging(norm="after"),
        block_norm="after",
        classes=5,
    ),
    "pooling pyramid": PyramidConfig(
        image=Size(16, 24),
        embedding=Patches(patch=Size(8, 8), stride=Size(4, 4)),
        prefix=Prefix(registers=1),
        position=Learned(prefix="cls"),
        embedding_norm=False,
        stages=(PyramidStage(width=8, depth=2, num_heads=2), PyramidStage(width=16, depth=1, num_heads=4)),
        attention=FullAttention(),
        merging=GridPooling(),
        pool=ClsPool(),
        classes=5,
    ),
    "mobile": MobileConfig(
        image=Size(16, 24),
        stages=(MobileStage(width=8), MobileStage(width=8, stride=2, transformer_width=16, transformer_depth=1)),
        last_width=12,
        classes=5,
    ),
}
VALUES: dict[str, list[Any]] = {
    "image": ["24x40", 32, (48, 16)],
    "patch": ["8x8", 2, Size(4, 8)],
    "channels": [1, 4],
    "embedding": [
        Patches(patch=Size(4, 4), bias=False),
        Patches(patch=Size(8, 8), stride=Size(4, 8)),
        Patches(patch=Size(5, 8), stride=Size(4, 4)),
        Hierarchical(finest=Size(4, 4), widths=(6,)),
        Tubelets(patch=Size(4, 4), frames=2),
        Tubelets(patch=Size(2, 4), frames=6, tubelet=3, bias=False),
        Adaptive(patches=(Size(4, 4), Size(8, 8)), threshold=0.1),
        Adaptive(patches=(Size(2, 2), Size(4, 4), Size(8, 8))),
    ],
    "remainder": ["error", "resize", "crop", "floor", "pad"],
    "prefix": ["none", "cls", "cls,registers=1", "registers=3", "cls,distillation", Prefix(registers=4)],
    "position": [
        *(Learned(prefix=prefix, convention="dinov2") for prefix in ("all", "cls", "none")),
        *(RelativeBias(shared=shared, prefix=prefix) for shared in (True, False) for prefix in (True, False)),
        *(RelativeMlp(width=8, reference=(Size(3, 2),)), RelativeMlp(width=8, coordinates="index")),
        *(Rotary(coordinates="normalised"), Rotary(temperature=50.0), RotaryMixed(temperature=20.0)),
        *(SinCos2d(layout="mae"), SinCos1d(temperature=100.0)),
        *(DecomposedBias(), Learned(relative=DecomposedBias())),
    ],
    "attention": [
        *(FullAttention(fused=False), WINDOWS, SparseAttention(), LinearAttention()),
        *(WindowedAttention(window=Size(2, 3), window_padding=padding) for padding in ("masked", "zeros")),
    ],
    "merging": [PatchMerging(), PatchMerging(norm="after"), GridPooling()],
    "cosine_attention": [True, False],
    "block_norm": ["before", "after"],
    "residual": ["basic"],
    "stem_stride": [1],
    "norm_eps": [1e-2],
    "final_norm_eps": [1e-2],
    "neck": [Neck(width=8), None],
    "merger": [LinearMerger(width=8), None],
    "dropout": [0.1],
    "attention_dropout": [0.1],
    "drop_path": [0.1],
    "final_norm": ["tokens", "pooled", "none"],
    "pool": ["cls", "mean", "max", "cls_mean", "attention", AttentionPool(num_heads=2, mlp_width=20), MeanPool()],
    "classes": [0, 3, 5],
    "head_bias": [True, False],
    **{name: [48] for name in ("width", "depth", "num_heads", "mlp_ratio", "stem_width", "expansion", "last_width")},
    "embedding_norm": [True, False],
    "qkv_bias": ["none"],
    "qk_norm": [True],
    "attention_norm": [True],
    "out_bias": [False],
    "norm": ["rms"],
    "patch_norm": [True],
    "mlp": [Mlp(width=20, activation="silu")],
    "layer_scale": [0.1],
    "stages": [(PyramidStage(width=8, depth=1, num_heads=1),), (MobileStage(width=8),)],
}
COMBINED: list[dict[str, Any]] = [
    {"prefix": "none", "pool": "mean"},
    {"prefix": "registers=2", "pool": "attention", "final_norm": "tokens"},
    {"pool": "cls", "prefix": "cls"},
    {"pool": "mean", "final_norm": "pooled"},
    {"attention": FullAttention(), "position": RelativeBias(prefix=False)},
]
WRONG = [3.5, "nonsense", None, object(), -1, [], (), {"kind": "mean_pool"}, "cls,,", ["cls"]]


def made(config: Config) -> Checkpoint:
    generator = torch.Generator().manual_seed(7)
    tensors = dict(build(config).state_dict())
    for name, value in tensors.items():
        if value.is_floating_point():
            noise = torch.randn(value.shape, generator=generator)
            tensors[name] = noise.abs() + 0.5 if name.endswith("running_var") else 0.5 * noise
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
    return Checkpoint(
        config=config, tensors=tensors, preprocessing=Preprocessing(image=config.image, mean=mean, std=std)
    )


@torch.no_grad()
def vector(checkpoint: Checkpoint) -> torch.Tensor:
    config = checkpoint.config
    pixels = torch.randn(2, *config.input_shape, generator=torch.Generator().manual_seed(3))
    pixels *= torch.linspace(0, 2, config.image.width)  # flat on the left, busy on the right
    return checkpoint.model().vector(pixels)


def same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return found.shape == expected.shape and torch.allclose(found, expected, atol=1e-5)


def targets(config: Config) -> list[dict[str, Any]]:
    fields = {field.name for field in dataclasses.fields(config)} | {"patch"}
    assert fields <= VALUES.keys()  # a new field has to be named here
    single = [{name: value} for name in VALUES if name in fields for value in VALUES[name]]
    return [*single, *(each for each in COMBINED if each.keys() <= fields)]


def essence(checkpoint: Checkpoint) -> tuple[Any, ...]:
    return checkpoint.config, checkpoint.preprocessing, checkpoint.labels, sorted(checkpoint.tensors)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_silent_changes_no_vector_and_every_target_is_read_back(family: str, tmp_path: Path):
    checkpoint = made(FAMILIES[family])
    before, silent = vector(checkpoint), 0
    for number, target in enumerate(targets(checkpoint.config)):
        try:
            adapted, changes = adapt(checkpoint, target)
        except VitrailError:
            continue
        said = [note for note in changes.notes if not note.startswith("the head")]
        silent += not said
        assert same(vector(adapted), before) == (not said), (target, changes.notes)
        assert all("\n" not in note for note in changes.notes)
        path = tmp_path / f"{number}.safetensors"
        save(adapted, path, dialect="vitrail")
        again = load(path)
        assert essence(again) == essence(adapted), target
        assert all(torch.equal(again.tensors[name], tensor) for name, tensor in adapted.tensors.items())
    assert silent > 1


@pytest.mark.parametrize("family", ["learned", "pyramid", "pooling pyramid", "mobile"])
def test_a_value_of_the_wrong_kind_is_refused_in_one_line_with_what_is_allowed(family: str, tmp_path: Path):
    checkpoint = made(FAMILIES[family])
    for name in [field.name for field in dataclasses.fields(checkpoint.config)] + ["patch"]:
        refusals = [refusal(checkpoint, {name: value}, tmp_path) for value in WRONG]
        assert sum(line is not None for line in refusals) >= len(WRONG) - 2  # 3.5 and -1 are numbers
        for line, value in zip(refusals, WRONG, strict=True):
            if line is not None:
                assert "\n" not in line
                assert name.split("_")[0] in line.lower() or repr(value) in line, (name, value, line)


def refusal(checkpoint: Checkpoint, target: dict[str, Any], folder: Path) -> str | None:
    """Why a target is refused; what is not refused is written and read again."""
    try:
        adapted, _ = adapt(checkpoint, target)
    except VitrailError as error:
        return str(error)
    save(adapted, folder / "own.safetensors", dialect="vitrail")
    assert load(folder / "own.safetensors").config == adapted.config, target
    return None
