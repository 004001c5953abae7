"""From one dialect to another: lossless where the architectures coincide, refused with the reason where they do not."""

from __future__ import annotations

import contextlib
import importlib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from peer_models import randomise, relative_error, save_timm, save_transformers
from peers import timm, transformers
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.checkpoint.read import load
from vitrail.checkpoint.surgery.adapt import adapt
from vitrail.checkpoint.write import encode, save
from vitrail.config import Config, MobileConfig, MobileStage, PyramidConfig, PyramidStage, ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.nn.build import build
from vitrail.parts import (
    Adaptive,
    Learned,
    LinearAttention,
    MeanPool,
    Mlp,
    NoPosition,
    Patches,
    Prefix,
    RelativeBias,
    SinCos2d,
    SwiGLU,
)
from vitrail.presets import PRESETS

torchvision = importlib.import_module("torchvision.models.vision_transformer")

SMALL = {"embed_dim": 48, "depth": 2, "num_heads": 3}
SIZES = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "image_size": 32, "patch_size": 8}


def made_here(config: Config) -> Checkpoint:
    tensors = dict(randomise(build(config)).state_dict())
    return Checkpoint(config=config, tensors=tensors, preprocessing=Preprocessing(image=config.image))


def pixels(*image: int) -> torch.Tensor:
    return torch.randn(2, 3, *image, generator=torch.Generator().manual_seed(1))


def test_timm_to_huggingface_to_google_to_torchvision_to_timm_loses_nothing(tmp_path: Path):
    arguments = {**SMALL, "img_size": 64, "num_classes": 7}
    start = save_timm(tmp_path / "timm", "vit_base_patch16_224", **arguments)
    save(load(tmp_path / "timm"), tmp_path / "hf", dialect="huggingface")
    save(load(tmp_path / "hf"), tmp_path / "google.npz", dialect="google")
    save(load(tmp_path / "google.npz", from_image="64"), tmp_path / "vision.pth", dialect="torchvision")
    save(load(tmp_path / "vision.pth", from_image="64", num_heads=3), tmp_path / "end.safetensors", dialect="timm")
    end = load_file(tmp_path / "end.safetensors")
    assert end.keys() == start.state_dict().keys()
    for name, tensor in start.state_dict().items():
        assert torch.equal(end[name], tensor), name


def test_what_timm_wrote_huggingface_loads_and_computes_the_same(tmp_path: Path):
    arguments = {**SMALL, "img_size": (64, 96), "num_classes": 7}
    theirs = save_timm(tmp_path / "timm", "vit_base_patch16_224", **arguments)
    save(load(tmp_path / "timm"), tmp_path / "hf", dialect="huggingface")
    model = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "hf").eval()
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "hf")
    image = torch.zeros(3, 30, 50, dtype=torch.uint8)
    assert processor(image, return_tensors="pt")["pixel_values"].shape == (1, 3, 64, 96)
    with torch.no_grad():
        assert relative_error(model(pixels(64, 96)).logits, theirs(pixels(64, 96))) < 1e-5


def test_a_processor_travels_both_ways(tmp_path: Path):
    save_transformers(tmp_path / "hf", "CLIPVisionModel", "CLIPVisionConfig", **SIZES, intermediate_size=96)
    transformers.CLIPImageProcessor(size={"shortest_edge": 40}, crop_size=32, resample=2).save_pretrained(
        tmp_path / "hf"
    )
    checkpoint = load(tmp_path / "hf")
    steps = checkpoint.preprocessing
    assert (steps.resize, steps.crop_share, steps.interpolation) == ("crop", 0.8, "bilinear")
    assert steps.mean == (0.48145466, 0.4578275, 0.40821073)
    save(checkpoint, tmp_path / "back")
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "back")
    assert (processor.size["shortest_edge"], processor.crop_size["height"], processor.resample) == (40, 32, 2)


def test_a_processor_resizes_to_what_timm_resizes_to(tmp_path: Path):
    """timm rounds 32 / 0.9 down, and so must the processor that goes with its weights."""
    config = ViTConfig(image=Size(32, 32), width=48, depth=1, num_heads=3, mlp=Mlp(width=96), classes=7)
    steps = Preprocessing(image=Size(32, 32), crop_share=0.9)
    save(made_here(config).but(preprocessing=steps), tmp_path / "hf", dialect="huggingface")
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path / "hf")
    resize = timm.data.create_transform((3, 32, 32), crop_pct=0.9).transforms[0]
    assert processor.size["shortest_edge"] == resize.size == 35


def test_google_npz_is_what_timm_reads(tmp_path: Path):
    """timm has a reader of its own for Google's files."""
    config = ViTConfig(image=Size(64, 64), width=48, depth=2, num_heads=3, mlp=Mlp(width=96), classes=7)
    checkpoint = made_here(config)
    save(checkpoint, tmp_path / "google.npz", dialect="google")
    model = timm.create_model("vit_base_patch16_224", **SMALL, mlp_ratio=2, img_size=64, num_classes=7).eval()
    model.load_pretrained(str(tmp_path / "google.npz"))
    with torch.no_grad():
        assert torch.equal(model(pixels(64, 64)), checkpoint.model()(pixels(64, 64)))
    again = load(tmp_path / "google.npz", from_image=Size(64, 64))
    assert again.config.but(position=Learned()) == config
    assert_same(again, checkpoint)


def test_the_original_google_files_have_a_pre_logits_layer_that_is_kept_aside(tmp_path: Path):
    checkpoint = made_here(ViTConfig(image=Size(64, 32), width=48, depth=1, num_heads=3, mlp=Mlp(width=96), classes=5))
    extra = {"pre_logits/kernel": torch.randn(48, 48), "pre_logits/bias": torch.randn(48)}
    encoded = encode(checkpoint, "google")
    arrays: Any = {name: tensor.numpy() for name, tensor in {**encoded.tensors, **extra}.items()}
    np.savez(tmp_path / "original.npz", **arrays)
    again = load(tmp_path / "original.npz", from_image="64x32")
    assert set(again.extra) == set(extra)
    save(again, tmp_path / "back.npz")
    with np.load(tmp_path / "original.npz") as before, np.load(tmp_path / "back.npz") as after:
        assert set(before) == set(after)
        assert all(np.array_equal(before[name], after[name]) for name in before)


def test_torchvision_outputs_and_tensors(tmp_path: Path):
    theirs = randomise(
        torchvision.VisionTransformer(
            image_size=48, patch_size=8, num_layers=2, num_heads=3, hidden_dim=48, mlp_dim=96, num_classes=5
        )
    )
    torch.save(theirs.state_dict(), tmp_path / "theirs.pth")
    ours = load(tmp_path / "theirs.pth", from_image="48", num_heads=3)
    with torch.no_grad():
        assert relative_error(ours.model()(pixels(48, 48)), theirs(pixels(48, 48))) < 1e-5
        exact = theirs.double()(pixels(48, 48).double())
        assert relative_error(ours.model(dtype=torch.float64)(pixels(48, 48).double()), exact) < 1e-10
    save(ours, tmp_path / "back.pth")
    back = torch.load(tmp_path / "back.pth", weights_only=True)
    assert back.keys() == theirs.state_dict().keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in theirs.float().state_dict().items())


def small_dinov2(registers: int, **changes: Any) -> ViTConfig:
    return ViTConfig(
        **{
            "image": Size(28, 56),
            "embedding": Patches(patch=Size(14, 14)),
            "prefix": Prefix(registers=registers),
            "position": Learned(prefix="cls", convention="timm" if registers else "dinov2"),
            "width": 48,
            "depth": 2,
            "num_heads": 3,
            "mlp": Mlp(width=192),
            "layer_scale": 1e-5,
            "classes": 0,
            **changes,
        }
    )


@pytest.mark.parametrize("registers", [0, 4])
def test_dinov2_originals_are_what_timm_reads_and_come_back(registers: int, tmp_path: Path):
    checkpoint = made_here(small_dinov2(registers))
    save(checkpoint, tmp_path / "dinov2.pth", dialect="dinov2")
    again = load(tmp_path / "dinov2.pth", from_image="28x56", num_heads=3)
    assert (again.dialect, again.config) == ("dinov2", checkpoint.config)
    assert_same(again, checkpoint)
    name = "vit_small_patch14_reg4_dinov2" if registers else "vit_small_patch14_dinov2"
    model = timm.create_model(name, **SMALL, img_size=(28, 56)).eval()
    state = torch.load(tmp_path / "dinov2.pth", weights_only=True)
    model.load_state_dict(timm.models.vision_transformer.checkpoint_filter_fn(state, model))
    with torch.no_grad():
        assert relative_error(again.model()(pixels(28, 56)), model(pixels(28, 56))) < 1e-5
    # timm's form of it, where CLS has no position of its own: what timm's own conversion gives, to the bit
    encoded = encode(again, "timm")
    assert encoded.tensors.keys() == model.state_dict().keys()
    assert all(torch.equal(encoded.tensors[name], tensor) for name, tensor in model.state_dict().items())


def test_dinov3_originals_are_what_timm_reads_and_come_back(tmp_path: Path):
    save_timm(tmp_path / "timm", "vit_small_patch16_dinov3_qkvb", **SMALL, img_size=(64, 96), global_pool="token")
    checkpoint = load(tmp_path / "timm")
    save(checkpoint, tmp_path / "dinov3.pth", dialect="dinov3")
    state = torch.load(tmp_path / "dinov3.pth", weights_only=True)
    state["blocks.0.attn.qkv.bias"][48:96] = 3.0  # the keys' part, which is masked
    torch.save(state, tmp_path / "dinov3.pth")
    again = load(tmp_path / "dinov3.pth", from_image="64x96", num_heads=3)
    assert again.dialect == "dinov3"
    assert_same(again, checkpoint)
    model = timm.create_model("vit_small_patch16_dinov3_qkvb", **SMALL, img_size=(64, 96), global_pool="token").eval()
    model.load_state_dict(timm.models.eva.checkpoint_filter_fn(dict(state), model))
    with torch.no_grad():
        assert relative_error(again.model()(pixels(64, 96)), model(pixels(64, 96))) < 1e-5
    save(again, tmp_path / "back.pth")
    back = torch.load(tmp_path / "back.pth", weights_only=True)
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in state.items())


def test_a_dino_backbone_with_its_head_is_read_and_comes_back(tmp_path: Path):
    config = ViTConfig(image=Size(32, 48), width=48, depth=2, num_heads=3, mlp=Mlp(width=192), classes=0)
    encoded = encode(made_here(config), "dino")
    state = {f"module.backbone.{name}": tensor for name, tensor in encoded.tensors.items()}
    state["module.head.mlp.0.weight"] = torch.randn(5, 48)
    torch.save({"teacher": state}, tmp_path / "dino.pth")
    again = load(tmp_path / "dino.pth", from_image="32x48", num_heads=3)
    assert (again.dialect, again.extra.keys()) == ("dino", {"module.head.mlp.0.weight"})
    save(again, tmp_path / "back.pth")
    back = torch.load(tmp_path / "back.pth", weights_only=True)
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in state.items())


def test_openclip_is_what_timm_reads_and_its_text_tower_comes_back(tmp_path: Path):
    save_timm(tmp_path / "timm", "vit_base_patch16_clip_224", **SMALL, img_size=64, num_classes=0)
    checkpoint = load(tmp_path / "timm")
    tensors = {**checkpoint.tensors, "head.weight": torch.randn(24, 48)}
    config = checkpoint.config.but(classes=24, head_bias=False)
    encoded = encode(checkpoint.but(tensors=tensors, config=config), "openclip")
    text = {"token_embedding.weight": torch.randn(11, 24), "logit_scale": torch.tensor(4.6)}
    save_file({k: v.contiguous() for k, v in {**encoded.tensors, **text}.items()}, tmp_path / "clip.safetensors")
    again = load(tmp_path / "clip.safetensors", from_image="64", num_heads=3)
    assert (again.dialect, again.extra.keys()) == ("openclip", text.keys())
    model = timm.create_model("vit_base_patch16_clip_224", **SMALL, img_size=64, num_classes=24).eval()
    state = load_file(tmp_path / "clip.safetensors")
    model.load_state_dict(timm.models.vision_transformer.checkpoint_filter_fn(state, model))
    with torch.no_grad():
        assert relative_error(again.model()(pixels(64, 64)), model(pixels(64, 64))) < 1e-5
    save(again, tmp_path / "back.safetensors")
    back = load_file(tmp_path / "back.safetensors")
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], tensor) for name, tensor in state.items())
    # a head without bias, which timm's has: zeros are added, and said
    timms = encode(again, "timm")
    assert timms.notes[0] == "the head was given a bias of zeros"
    assert set(timms.dropped) == text.keys()
    model.load_state_dict(timms.tensors)


def mae_table(grid: int, width: int) -> torch.Tensor:
    """As its authors define it: sines and cosines of the column, then of the row; CLS has zeros."""
    waves = 10_000.0 ** -(np.arange(width // 4) / (width // 4))
    rows, columns = (place.reshape(-1, 1) * waves for place in np.indices((grid, grid)))
    table = np.concatenate([np.sin(columns), np.cos(columns), np.sin(rows), np.cos(rows)], axis=1)
    return torch.from_numpy(np.concatenate([np.zeros((1, width)), table])).float()[None]


def test_mae_keeps_its_sines_as_sines_and_writes_its_table_back(tmp_path: Path):
    theirs = transformers.ViTMAEForPreTraining(
        transformers.ViTMAEConfig(**SIZES, intermediate_size=96, mask_ratio=0.0, decoder_hidden_size=16,
                                  decoder_num_attention_heads=2, decoder_num_hidden_layers=1)
    )  # fmt: skip
    table = mae_table(grid=4, width=48)
    randomise(theirs)
    theirs.vit.embeddings.position_embeddings.data.copy_(table)
    theirs.save_pretrained(tmp_path / "hf")
    ours = load(tmp_path / "hf")
    assert ours.config.position == SinCos2d(layout="mae")  # type: ignore[union-attr]
    with torch.no_grad():  # masking nothing shuffles the patches, which CLS does not notice
        expected = theirs.vit(pixels(32, 32)).last_hidden_state[:, 0]
        assert relative_error(ours.model()(pixels(32, 32)), expected) < 1e-5
        expected = theirs.double().vit(pixels(32, 32).double()).last_hidden_state[:, 0]
        assert relative_error(ours.model(dtype=torch.float64)(pixels(32, 32).double()), expected) < 1e-10
    save(ours, tmp_path / "back")
    again = transformers.ViTMAEForPreTraining.from_pretrained(tmp_path / "back")
    for name, tensor in theirs.float().state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    timms = encode(ours, "timm")
    assert torch.equal(timms.tensors["pos_embed"], table)


def test_mae_with_a_trained_table_is_learned(tmp_path: Path):
    save_transformers(tmp_path / "hf", "ViTMAEModel", "ViTMAEConfig", **SIZES, intermediate_size=96, mask_ratio=0.0)
    assert load(tmp_path / "hf").config.position == Learned(convention="huggingface")  # type: ignore[union-attr]


def test_siglip2_reads_patches_pixels_last(tmp_path: Path):
    options = {k: v for k, v in SIZES.items() if k != "image_size"}
    theirs = save_transformers(
        tmp_path / "hf", "Siglip2VisionModel", "Siglip2VisionConfig", **options, intermediate_size=96, num_patches=16
    )
    ours = load(tmp_path / "hf")
    assert ours.config.image == Size(32, 32)
    image = pixels(32, 32)
    patches = image.unfold(2, 8, 8).unfold(3, 8, 8).permute(0, 2, 3, 4, 5, 1).flatten(3).flatten(1, 2)
    with torch.no_grad():
        expected = theirs(
            pixel_values=patches,
            pixel_attention_mask=torch.ones(2, 16, dtype=torch.int32),
            spatial_shapes=torch.tensor([[4, 4]] * 2),
        ).pooler_output
        assert relative_error(ours.model()(image), expected) < 1e-5
    save(ours, tmp_path / "back")
    again = transformers.Siglip2VisionModel.from_pretrained(tmp_path / "back")
    assert all(torch.equal(again.state_dict()[name], tensor) for name, tensor in theirs.state_dict().items())


def test_a_whole_clip_keeps_its_text_tower(tmp_path: Path):
    vision = {**SIZES, "intermediate_size": 96}
    text = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 48}
    text |= {"vocab_size": 50, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0}
    theirs = save_transformers(
        tmp_path / "hf", "CLIPModel", "CLIPConfig", vision_config=vision, text_config=text, projection_dim=24
    )
    ours = load(tmp_path / "hf")
    with torch.no_grad():
        expected = theirs.get_image_features(pixels(32, 32))
        expected = getattr(expected, "pooler_output", expected)
        assert relative_error(ours.model()(pixels(32, 32)), expected) < 1e-5
    save(ours, tmp_path / "back")
    again = transformers.CLIPModel.from_pretrained(tmp_path / "back")
    assert all(torch.equal(again.state_dict()[name], tensor) for name, tensor in theirs.state_dict().items())


def test_shards_are_read_as_one(tmp_path: Path):
    theirs = save_transformers(tmp_path / "hf", "ViTModel", "ViTConfig", **SIZES, intermediate_size=96)
    theirs.save_pretrained(tmp_path / "shards", max_shard_size="40KB")
    assert len(list((tmp_path / "shards").glob("model-*.safetensors"))) > 2
    ours = load(tmp_path / "shards")
    assert ours.format.startswith("safetensors, ")
    assert_same(ours, load(tmp_path / "hf"))


@pytest.mark.parametrize(
    "config",
    [
        ViTConfig(
            image=Size(32, 48), width=48, depth=2, num_heads=3, position=NoPosition(), attention=LinearAttention()
        ),
        ViTConfig(image=Size(64, 96), embedding=Adaptive(selector="learned"), width=48, depth=1, num_heads=3),
        PyramidConfig(image=Size(56, 112), stages=(PyramidStage(width=12, depth=2, num_heads=3),)),
        MobileConfig(
            image=Size(64, 96),
            stages=(MobileStage(width=8), MobileStage(width=8, stride=2, transformer_width=16, transformer_depth=1)),
        ),
    ],
)
def test_vitrails_own_dialect_takes_every_model(config: Config, tmp_path: Path):
    checkpoint = made_here(config)
    save(checkpoint, tmp_path / "own.safetensors", dialect="vitrail")
    again = load(tmp_path / "own.safetensors")
    assert (again.config, again.dialect) == (config, "vitrail")
    assert again.preprocessing == checkpoint.preprocessing
    assert_same(again, checkpoint)
    image = pixels(*config.image)
    with torch.no_grad():
        assert torch.equal(again.model()(image), checkpoint.model()(image))


@pytest.mark.parametrize(
    ("changes", "dialect", "reason"),
    [
        ({"prefix": Prefix(registers=2)}, "torchvision", "no place for prefix.registers"),
        ({"norm_eps": 1e-5}, "torchvision", "its norm_eps is 1e-06, this model's 1e-05"),
        ({"image": Size(32, 64)}, "torchvision", "square images, and 32x64 is not"),
        ({"mlp": Mlp(width=96, activation="quick_gelu")}, "google", "its activation is gelu, this model's quick_gelu"),
        ({"layer_scale": 0.1}, "google", "no place for blocks.0.scale1"),
        ({"position": NoPosition()}, "google", "it always has position.table"),
        ({}, "openclip", "no place for embedding.bias, head.bias"),
        ({"classes": 0}, "openclip", "no place for embedding.bias"),
        ({"classes": 0}, "dinov2", "it always has blocks.0.scale1"),
        (
            {"attention": LinearAttention()},
            "huggingface",
            "its attention is FullAttention, this model's LinearAttention",
        ),
        ({"pool": MeanPool()}, "torchvision", "its pool is ClsPool"),
        ({"pool": MeanPool()}, "huggingface", "its pool is ClsPool"),
        ({"embedding": Patches(patch=Size(8, 16))}, "huggingface", "patch 8x16 is not square"),
        (
            {"position": RelativeBias(), "image": Size(32, 64), "layer_scale": 0.1, "qkv_bias": "no_key"},
            "huggingface",
            "its relative biases are for square grids, and 2x4 is not",
        ),
    ],
)
def test_what_a_dialect_cannot_say_is_refused_with_the_reason(changes: dict, dialect: str, reason: str):
    config = ViTConfig(
        **{"image": Size(32, 32), "width": 48, "depth": 1, "num_heads": 3, "mlp": Mlp(width=96), **changes}
    )
    with pytest.raises(VitrailError, match=reason) as refusal:
        encode(made_here(config), dialect)
    assert "\n" not in str(refusal.value)


HOMES = {
    "Ti/16": {"timm", "huggingface", "google", "torchvision"},
    "H/14": {"timm", "huggingface", "google", "torchvision"},
    "deit-B/16-distilled": {"timm", "huggingface"},
    "dino-S/8": {"timm", "huggingface", "google", "dino"},
    "dinov2-B/14": {"timm", "huggingface", "dinov2"},
    "dinov2-g/14-reg4": {"timm", "huggingface", "dinov2"},
    "dinov3-S+/16": {"timm", "huggingface", "dinov3"},
    "dinov3-7B/16": {"timm", "huggingface", "dinov3"},
    "clip-L/14-336": {"timm", "huggingface", "openclip"},
    "siglip2-So400m/16": {"timm", "huggingface"},
    "mae-L/16": {"timm", "huggingface", "google", "dino"},
    "beit-L/16": {"timm", "huggingface"},
    "flexivit-B/16": {"timm", "huggingface", "google", "torchvision"},
}


@pytest.mark.parametrize("name", HOMES)
def test_a_preset_is_written_where_it_is_at_home_and_refused_elsewhere(name: str):
    """At full size on the meta device, where it costs nothing."""
    config = PRESETS[name]
    with torch.device("meta"):
        tensors = build(config).state_dict()
    checkpoint = Checkpoint(config=config, tensors=tensors, preprocessing=Preprocessing(image=config.image))
    written = set()
    for dialect in ("timm", "huggingface", "google", "torchvision", "dino", "dinov2", "dinov3", "openclip"):
        with contextlib.suppress(VitrailError):
            encode(checkpoint, dialect)
            written.add(dialect)
    assert written == HOMES[name]


def assert_same(found: Checkpoint, expected: Checkpoint) -> None:
    assert found.tensors.keys() == expected.tensors.keys()
    for name, tensor in expected.tensors.items():
        assert torch.equal(found.tensors[name], tensor), name


# ── what the model does not use ─────────────────────────────────────────────────────────────────────────────────

MASKS = {
    "dinov2": ("mask_token", (1, 48)),
    "dinov3": ("mask_token", (1, 48)),
    "huggingface": ("embeddings.mask_token", None),
    "vitrail": ("+mask_token", (1, 1, 48)),
}


@pytest.mark.parametrize(
    ("name", "config", "shape", "route"),
    [
        ("Dinov2Model", "Dinov2Config", (1, 48), ("dinov2", "huggingface", "vitrail", "dinov2", "huggingface")),
        ("Dinov2WithRegistersModel", "Dinov2WithRegistersConfig", (1, 48), ("vitrail", "dinov2", "huggingface")),
        (
            "DINOv3ViTModel",
            "DINOv3ViTConfig",
            (1, 1, 48),
            ("dinov3", "vitrail", "huggingface", "dinov3", "huggingface"),
        ),
        ("BeitModel", "BeitConfig", (1, 1, 48), ("vitrail", "huggingface")),
    ],
)
def test_a_trained_mask_token_is_carried_wherever_there_is_a_place_for_it(name, config, shape, route, tmp_path: Path):
    options = {**SIZES, **({} if name.startswith("Dinov2") else {"intermediate_size": 96})}
    options |= {"num_register_tokens": 4} if name == "DINOv3ViTModel" else {}
    options |= {"use_mask_token": True, "use_relative_position_bias": True} if name == "BeitModel" else {}
    theirs = save_transformers(tmp_path / "start", name, config, **options)
    expected = theirs.state_dict()["embeddings.mask_token"]
    assert expected.any()
    assert expected.shape == shape
    checkpoint = load(tmp_path / "start")
    for number, dialect in enumerate(route):
        end = {"huggingface": "", "vitrail": ".safetensors"}.get(dialect, ".pth")
        encoded = save(checkpoint, tmp_path / f"{number}{end}", dialect=dialect)
        assert not any("mask_token" in note for note in encoded.notes)
        key, due = MASKS[dialect]
        assert encoded.tensors[key].shape == (due or shape)
        known = {"from_image": "32", "num_heads": 3} if end == ".pth" else {}
        checkpoint = load(tmp_path / f"{number}{end}", **known)
    assert torch.equal(
        load_file(tmp_path / f"{len(route) - 1}" / "model.safetensors")["embeddings.mask_token"], expected
    )


def test_a_mask_token_under_timms_names_goes_home_and_to_huggingface_and_not_into_other_timm_files(tmp_path: Path):
    """timm has no place for it, and takes a file that has one for DINOv2's."""
    save_timm(tmp_path / "timm", "beit_base_patch16_224", **SMALL, img_size=32, num_classes=5)
    tensors = load_file(tmp_path / "timm" / "model.safetensors")
    mask = torch.randn(1, 1, 48)
    save_file({**tensors, "mask_token": mask}, tmp_path / "timm" / "model.safetensors")
    checkpoint = load(tmp_path / "timm")
    assert torch.equal(encode(checkpoint, "timm").tensors["mask_token"], mask)
    save(checkpoint, tmp_path / "hf", dialect="huggingface")
    model = transformers.BeitForImageClassification.from_pretrained(tmp_path / "hf")
    assert torch.equal(model.beit.embeddings.mask_token, mask)
    back = encode(load(tmp_path / "hf"), "timm")
    assert "mask_token" not in back.tensors
    assert back.dropped == ("mask_token",)
    assert "without mask_token, which timm has no place for" in back.notes


def test_class_names_go_along_to_huggingface(tmp_path: Path):
    config = ViTConfig(image=Size(32, 32), width=48, depth=1, num_heads=3, mlp=Mlp(width=96), classes=3)
    save(made_here(config).but(labels=("ant", "bee", "cat")), tmp_path / "hf", dialect="huggingface")
    model = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "hf")
    assert model.config.id2label == {0: "ant", 1: "bee", 2: "cat"}
    assert model.config.label2id == {"ant": 0, "bee": 1, "cat": 2}


def test_a_distilled_model_without_its_token_is_another_model_of_the_library(tmp_path: Path):
    """What the old config said was of the old family."""
    options = {**SIZES, "intermediate_size": 96}
    save_transformers(tmp_path / "hf", "DeiTForImageClassificationWithTeacher", "DeiTConfig", **options)
    save_timm(tmp_path / "timm", "deit_tiny_distilled_patch16_224", **SMALL, img_size=64, num_classes=7)
    adapted, _ = adapt(load(tmp_path / "hf"), {"prefix": "cls"})
    save(adapted, tmp_path / "plain")
    model = transformers.AutoModelForImageClassification.from_pretrained(tmp_path / "plain").eval()
    assert type(model).__name__ == "ViTForImageClassification"
    with torch.no_grad():
        assert relative_error(model(pixels(32, 32)).logits, adapted.model()(pixels(32, 32))) < 1e-5
    adapted, _ = adapt(load(tmp_path / "timm"), {"prefix": "cls"})
    assert save(adapted, tmp_path / "vit").family == "vit"  # by arguments: no architecture of timm's has this shape
    model = timm.create_model(f"local-dir:{tmp_path / 'vit'}", pretrained=True).eval()
    with torch.no_grad():
        assert relative_error(model(pixels(64, 64)), adapted.model()(pixels(64, 64))) < 1e-5


@pytest.mark.parametrize(
    "changes",
    [
        {"classes": 0, "mlp": Mlp(width=80, activation="quick_gelu")},
        {"prefix": Prefix(registers=2), "position": Learned(prefix="none", convention="timm"), "qk_norm": True},
        {"prefix": Prefix(cls=False), "pool": MeanPool(), "final_norm": "pooled", "layer_scale": 0.1},
        {"image": Size(32, 64), "channels": 1, "qkv_bias": "none"},
    ],
)
def test_timm_builds_a_shape_that_it_has_no_name_for_by_the_config_beside_the_weights(tmp_path: Path, changes: Any):
    plain = ViTConfig(image=Size(32, 32), width=48, depth=2, num_heads=3, mlp=Mlp(width=96), classes=5)
    made = made_here(plain.but(position=Learned(convention="timm")).but(**changes))
    save(made, tmp_path / "vit", dialect="timm")
    model = timm.create_model(f"local-dir:{tmp_path / 'vit'}", pretrained=True).eval()
    image = torch.randn(2, made.config.channels, *made.config.image, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert relative_error(model(image), made.model()(image)) < 1e-5
    assert load(tmp_path / "vit").config == made.config


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"image": Size(32, 64), "channels": 1, "classes": 0, "norm_eps": 1e-5},
        {"prefix": Prefix(registers=2), "position": Learned(prefix="none"), "layer_scale": 0.1, "qk_norm": True},
        {"prefix": Prefix(cls=False), "pool": MeanPool(), "final_norm": "pooled", "qkv_bias": "none"},
        {"mlp": SwiGLU(width=72), "embedding": Patches(patch=Size(8, 16))},
        {"mlp": Mlp(width=96, activation="quick_gelu"), "embedding_norm": True, "embedding": Patches(bias=False)},
    ],
)
def test_what_timm_is_said_to_need_builds_the_model(changes: dict[str, Any]):
    """The note is run as it is written."""
    config = ViTConfig(**{"image": Size(32, 32), "width": 48, "depth": 1, "num_heads": 3, "classes": 5, **changes})
    checkpoint = made_here(config)
    encoded = encode(checkpoint, "timm")
    note = next(note for note in encoded.notes if "build timm.models.VisionTransformer" in note)
    model = eval(note.partition("build ")[2], {"timm": timm, "torch": torch, "partial": partial}).eval()
    model.load_state_dict(encoded.tensors, strict=True)
    image = torch.randn(2, config.channels, *config.image, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert relative_error(model(image), checkpoint.model()(image)) < 1e-5


@pytest.mark.parametrize(
    "target",
    [
        {"image": "32x64", "patch": 8},
        {"prefix": "cls,registers=2"},
        {"prefix": "none", "pool": "mean"},
        {"prefix": "registers=1", "pool": "mean", "final_norm": "pooled"},
        {"pool": "mean"},
        {"pool": "max"},
        {"final_norm": "none"},
        {"channels": 1, "classes": 0},
    ],
)
def test_timm_builds_an_adapted_model_from_the_config_beside_it(target: dict[str, Any], tmp_path: Path):
    save_timm(tmp_path / "timm", "vit_base_patch16_224", **SMALL, img_size=64, num_classes=7)
    adapted, _ = adapt(load(tmp_path / "timm"), target)
    save(adapted, tmp_path / "adapted")
    model = timm.create_model(f"local-dir:{tmp_path / 'adapted'}", pretrained=True).eval()
    config = adapted.config
    image = torch.randn(2, config.channels, *config.image, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert relative_error(model(image), adapted.model()(image)) < 1e-5
    data = timm.data.resolve_model_data_config(model)
    assert tuple(data["input_size"]) == (config.channels, *config.image)
    assert tuple(data["mean"]) == adapted.preprocessing.mean
