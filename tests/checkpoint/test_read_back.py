"""What a dialect writes is what its reader finds; where its files cannot say something, the writer does."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.formats.file import Stored
from vitrail.checkpoint.preprocessing import IMAGENET, Preprocessing
from vitrail.checkpoint.read import load, read_stored
from vitrail.checkpoint.surgery.adapt import adapt
from vitrail.checkpoint.write import encode, save
from vitrail.config import ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.nn.build import build
from vitrail.parts import AttentionPool, Learned, MeanPool, Mlp, Patches, Prefix, RelativeBias, Rotary, SwiGLU

PLAIN = ViTConfig(
    image=Size(32, 32),
    embedding=Patches(patch=Size(8, 8)),
    width=48,
    depth=1,
    num_heads=3,
    mlp=Mlp(width=192),
    classes=5,
)
TRANSFORMERS = PLAIN.but(norm_eps=1e-12, position=Learned(convention="huggingface"))
DINOV2 = PLAIN.but(position=Learned(prefix="cls", convention="dinov2"), layer_scale=1.0, classes=0)
DINOV3 = PLAIN.but(
    position=Rotary(coordinates="normalised"),
    prefix=Prefix(registers=4),
    layer_scale=1.0,
    qkv_bias="no_key",
    norm_eps=1e-5,
    classes=0,
)
CLIP = PLAIN.but(
    embedding=Patches(patch=Size(8, 8), bias=False),
    embedding_norm=True,
    norm_eps=1e-5,
    head_bias=False,
    mlp=Mlp(width=192, activation="quick_gelu"),
)
BEIT = PLAIN.but(
    position=RelativeBias(), qkv_bias="no_key", layer_scale=0.1, pool=MeanPool(), final_norm="pooled", norm_eps=1e-12
)
ARGUMENTS = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 1, "num_heads": 3}
TOWER = {"image_size": 32, "patch_size": 8, "width": 48, "layers": 1, "head_width": 16, "mlp_ratio": 4.0}
CONFIGS: dict[str, dict[str, Any]] = {
    "timm": {"architecture": "vit_base_patch16_224", "num_classes": 5, "model_args": ARGUMENTS},
    "openclip": {"model_cfg": {"embed_dim": 5, "quick_gelu": True, "vision_cfg": TOWER}},
}
"""What such files come with; the others write their own."""
HOMES: list[tuple[str, ViTConfig]] = [
    ("timm", PLAIN),
    ("timm", PLAIN.but(prefix=Prefix(distillation=True))),
    ("timm", BEIT.but(norm_eps=1e-6)),
    ("timm", DINOV3),
    ("timm", PLAIN.but(prefix=Prefix(cls=False), pool=AttentionPool(num_heads=3, mlp_width=192, activation="gelu"))),
    ("huggingface", TRANSFORMERS),
    ("huggingface", TRANSFORMERS.but(prefix=Prefix(distillation=True))),
    ("huggingface", BEIT),
    ("huggingface", CLIP.but(position=Learned(convention="huggingface"))),
    ("huggingface", DINOV2.but(prefix=Prefix(registers=4), position=Learned(prefix="cls"))),
    ("huggingface", DINOV3.but(mlp=SwiGLU(width=96))),
    ("torchvision", PLAIN.but(position=Learned(convention="torchvision"))),
    ("google", PLAIN.but(position=Learned(convention="big_vision"))),
    ("dino", PLAIN.but(position=Learned(convention="huggingface"), classes=0)),
    ("dinov2", DINOV2),
    ("dinov3", DINOV3),
    ("openclip", CLIP.but(mlp=Mlp(width=192))),
    ("timm, with its config", PLAIN),
    ("openclip, with its config", CLIP),
]
TARGETS: list[dict[str, Any]] = [
    {},
    {"image": 64},
    {"patch": 4},
    {"channels": 1},
    {"prefix": "cls"},
    {"prefix": "cls,registers=2"},
    {"prefix": "none", "pool": "mean"},
    {"pool": "mean"},
    {"pool": "mean", "final_norm": "pooled"},
    {"pool": "max"},
    {"pool": "attention", "final_norm": "tokens"},
    {"classes": 0},
    {"classes": 3},
    {"remainder": "pad"},
    {"norm_eps": 1e-3},
    {"final_norm": "none"},
    {"position": Learned(convention="torchvision")},
]
UNSEEN = ("dropout", "attention_dropout", "drop_path", "layer_scale")
"""Fields that leave the model's function alone."""
WORDS = {
    "pool": "pooled",
    "position": "on another grid",
    "remainder": "remainder",
    "norm_eps": "eps",
    "mlp": "activation",
}


def made(config: ViTConfig, **changes: Any) -> Checkpoint:
    generator = torch.Generator().manual_seed(5)
    tensors = {
        name: torch.randn(value.shape, generator=generator) for name, value in build(config).state_dict().items()
    }
    return Checkpoint(config=config, tensors=tensors, preprocessing=Preprocessing(image=config.image)).but(**changes)


@pytest.mark.parametrize(("dialect", "config"), HOMES, ids=[f"{number} {home[0]}" for number, home in enumerate(HOMES)])
def test_an_adapted_model_is_read_back_whole_or_what_is_missing_is_said(dialect: str, config: ViTConfig):
    """From names, shapes and configs alone: without vitrail's own metadata."""
    dialect, _, comes_with = dialect.partition(",")
    start = encode(made(config), dialect)
    origin = CONFIGS[dialect] if comes_with else start.written.config
    checkpoint = made(config, dialect=dialect, family=start.family, origin=origin)
    written = 0
    for target in TARGETS:
        try:
            adapted, _ = adapt(checkpoint, target)
            encoded = encode(adapted, dialect)
        except VitrailError:
            continue
        written += 1
        files = Stored(path=Path("a"), format="b", tensors=encoded.tensors, config=encoded.written.config)
        told = {} if encoded.written.config else {"from_image": adapted.config.image, "num_heads": 3}
        again = read_stored(files, **told)
        assert isinstance(again.config, ViTConfig)
        assert isinstance(encoded.config, ViTConfig)
        for field in dataclasses.fields(encoded.config):
            ours, theirs = getattr(encoded.config, field.name), getattr(again.config, field.name)
            if ours == theirs or field.name in UNSEEN or (field.name == "head_bias" and not encoded.config.classes):
                continue
            words = (WORDS.get(field.name, field.name), "these names are also timm's")
            said = [note for note in encoded.notes if any(word in note for word in words)]
            assert said, (target, field.name, ours, theirs, encoded.notes)
        if encoded.config == adapted.config:
            assert again.tensors.keys() == adapted.tensors.keys()
            assert all(torch.equal(again.tensors[name], tensor) for name, tensor in adapted.tensors.items())
    assert written > 2


def test_pixels_that_a_dialect_would_prepare_otherwise_are_said(tmp_path: Path):
    mean, std = IMAGENET
    steps = Preprocessing(image=Size(32, 32), mean=mean, std=std, interpolation="bilinear", crop_share=0.875)
    note = "google's reader would not prepare pixels as the model expects: bilinear, the shorter side to 36, "
    note += "the middle 32x32; mean 0.485 0.456 0.406, std 0.229 0.224 0.225"
    assert note in save(made(PLAIN, preprocessing=steps), tmp_path / "a.npz", dialect="google").notes
    assert note not in save(made(PLAIN, preprocessing=steps), tmp_path / "b.pth", dialect="torchvision").notes
    assert load(tmp_path / "b.pth", from_image="32", num_heads=3).preprocessing == dataclasses.replace(
        steps, source="torchvision's IMAGENET1K_V1 transforms"
    )
    wide = PLAIN.but(image=Size(32, 64), norm_eps=1e-12)
    crop = made(wide, preprocessing=Preprocessing(image=wide.image))
    said = "huggingface's reader would not prepare pixels as the model expects: bicubic, resized to cover 32x64"
    assert any(note.startswith(said) for note in save(crop, tmp_path / "crop", dialect="huggingface").notes)
    squash = made(wide, preprocessing=Preprocessing(image=wide.image, resize="squash"))
    assert not any("pixels" in note for note in save(squash, tmp_path / "squash", dialect="huggingface").notes)


def test_class_names_that_a_file_has_no_place_for_are_said(tmp_path: Path):
    named = made(PLAIN, labels=("ant", "bee", "cat", "dog", "elk"))
    lost = "the names of its 5 classes have no place in a.pth"
    assert lost in save(named, tmp_path / "a.pth", dialect="timm").notes
    assert not any("the names of its" in note for note in save(named, tmp_path / "b.safetensors", dialect="timm").notes)
    assert load(tmp_path / "b.safetensors").labels == named.labels
    assert not any("the names of its" in note for note in save(made(PLAIN), tmp_path / "c.pth", dialect="timm").notes)


def test_a_config_that_a_single_file_has_no_room_for_is_said(tmp_path: Path):
    origin = encode(made(PLAIN), "timm").written.config or {"architecture": "vit_base_patch8_224"}
    arguments = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 1, "num_heads": 3}
    known = made(PLAIN, dialect="timm", family="vit", origin={**origin, "model_args": arguments, "num_classes": 5})
    note = f"without its config, which a single file cannot store; give {tmp_path / 'a'} to write both"
    assert note in save(known, tmp_path / "a.pth").notes
    assert note not in save(known, tmp_path / "a").notes
    assert load(tmp_path / "a").config == PLAIN


def test_an_openclip_folder_has_the_names_that_openclip_looks_for_and_follows_the_image(tmp_path: Path):
    checkpoint = made(CLIP, dialect="openclip", family="clip", name_prefix="visual.", origin=CONFIGS["openclip"])
    adapted, _ = adapt(checkpoint, {"image": 64, "patch": 16})
    save(adapted, tmp_path / "clip")
    assert {path.name for path in (tmp_path / "clip").iterdir()} == {
        "open_clip_model.safetensors",
        "open_clip_config.json",
    }
    vision = json.loads((tmp_path / "clip" / "open_clip_config.json").read_text())["model_cfg"]["vision_cfg"]
    assert (vision["image_size"], vision["patch_size"], vision["width"]) == (64, 16, 48)
    assert load(tmp_path / "clip").config == adapted.config
    for changes, reason in (({"channels": 1}, "it takes 3 channels"), ({"image": (32, 64)}, "it takes square images")):
        with pytest.raises(VitrailError, match=reason):
            encode(adapt(checkpoint, changes)[0], "openclip")
