"""Models made and saved by timm and transformers: the same outputs here, and the same tensors when written back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from peer_models import relative_error, save_timm, save_transformers
from peers import timm
from vitrail.checkpoint.read import load
from vitrail.checkpoint.write import save
from vitrail.config import PyramidConfig, PyramidStage
from vitrail.geometry import Size
from vitrail.presets import PRESETS

SMALL = {"embed_dim": 48, "depth": 2, "num_heads": 3}
WIDE = (64, 96)
TIMM: dict[str, dict[str, Any]] = {
    "vit_base_patch16_224": {"img_size": WIDE, "num_classes": 7},
    "vit_small_patch32_224": {"img_size": (64, 128), "num_classes": 0},
    "vit_base_patch8_224": {"img_size": (16, 40)},
    "vit_base_patch16_224_miil": {"img_size": WIDE},
    "vit_base_patch16_gap_224": {"img_size": WIDE},
    "vit_medium_patch16_gap_240": {"img_size": WIDE},
    "vit_wee_patch16_reg1_gap_256": {"img_size": WIDE},
    "vit_base_patch16_reg4_gap_256": {"img_size": WIDE},
    "deit_tiny_patch16_224": {"img_size": WIDE},
    "deit_tiny_distilled_patch16_224": {"img_size": WIDE},
    "deit3_small_patch16_224": {"img_size": WIDE},
    "vit_small_patch14_dinov2": {"img_size": (56, 84)},
    "vit_small_patch14_reg4_dinov2": {"img_size": (56, 84)},
    "vit_giant_patch14_dinov2": {"img_size": (56, 84)},
    "vit_giant_patch14_reg4_dinov2": {"img_size": (56, 84)},
    "vit_base_patch16_clip_224": {"img_size": WIDE, "num_classes": 24},
    "vit_base_patch32_clip_quickgelu_224": {"img_size": (64, 128), "num_classes": 24},
    "vit_base_patch16_siglip_224": {"img_size": WIDE},
    "vit_base_patch32_siglip_256": {"img_size": (64, 128)},
    "vit_base_patch16_siglip_gap_224": {"img_size": WIDE},
    "flexivit_small": {"img_size": WIDE},
    "beit_base_patch16_224": {"img_size": WIDE},
    "beitv2_base_patch16_224": {"img_size": WIDE},
    "vit_small_patch16_dinov3": {"img_size": WIDE},
    "vit_small_patch16_dinov3_qkvb": {"img_size": WIDE, "global_pool": "token"},
    "vit_small_plus_patch16_dinov3": {"img_size": WIDE},
    "vit_large_patch16_dinov3_qkvb": {"img_size": WIDE},
    "eva02_tiny_patch14_224": {"img_size": (56, 84)},
    "vit_small_patch16_rope_224": {"img_size": WIDE},
    "vit_small_patch16_rope_mixed_ape_224": {"img_size": WIDE},
    "vit_medium_patch16_rope_reg1_gap_256": {"img_size": WIDE},
    "vit_pe_core_small_patch16_384": {"img_size": WIDE, "attn_pool_num_heads": 4},
    "eva02_base_patch16_clip_224": {"img_size": WIDE},
    "aimv2_large_patch14_224": {"img_size": (56, 84)},
    "beit3_base_patch16_224": {"img_size": WIDE},
    "test_vit4": {"img_size": WIDE},
    "naflexvit_base_patch16_siglip": {"img_size": (256, 256), "pos_embed_grid_size": (16, 16)},
    "vit_pe_lang_large_patch14_448": {"img_size": (56, 84), "class_token": True},
}


class Peer(NamedTuple):
    model: str
    config: str
    vector: Callable[[Any], Tensor]
    options: dict[str, Any]
    image: tuple[int, int] = (32, 32)


def logits(output: Any) -> Tensor:
    return output.logits


def cls(output: Any) -> Tensor:
    return output.last_hidden_state[:, 0]


def pooled(output: Any) -> Tensor:
    return output.pooler_output


def mean(output: Any) -> Tensor:
    return output.last_hidden_state.mean(1)


def patches(output: Any) -> Tensor:
    return output.last_hidden_state[:, 1:].mean(1)


SIZES = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "image_size": 32, "patch_size": 8}
WITH_MLP = {**SIZES, "intermediate_size": 96}
TOWER = {"vision_config": WITH_MLP, "text_config": {"hidden_size": 16, "num_hidden_layers": 1, "vocab_size": 9}}
INTERNVL = {**WITH_MLP, "image_size": (32, 32), "patch_size": (8, 8)}
OBLONG = {**WITH_MLP, "image_size": [16, 40]}
TRANSFORMERS: dict[str, Peer] = {
    "vit": Peer("ViTForImageClassification", "ViTConfig", logits, {**WITH_MLP, "layer_norm_eps": 1e-3}),
    "vit, not square": Peer("ViTForImageClassification", "ViTConfig", logits, OBLONG, (16, 40)),
    "vit, no head": Peer("ViTModel", "ViTConfig", cls, WITH_MLP),
    "vit, no qkv bias": Peer("ViTModel", "ViTConfig", cls, {**WITH_MLP, "qkv_bias": False}),
    "vit, tanh": Peer("ViTModel", "ViTConfig", cls, {**WITH_MLP, "hidden_act": "gelu_pytorch_tanh"}),
    "vit_msn": Peer("ViTMSNModel", "ViTMSNConfig", cls, WITH_MLP),
    "vit_msn, classifier": Peer("ViTMSNForImageClassification", "ViTMSNConfig", logits, WITH_MLP),
    "deit": Peer("DeiTForImageClassificationWithTeacher", "DeiTConfig", logits, WITH_MLP),
    "deit, not square": Peer("DeiTForImageClassificationWithTeacher", "DeiTConfig", logits, OBLONG, (16, 40)),
    "dinov2": Peer("Dinov2Model", "Dinov2Config", cls, SIZES),
    "dinov2, swiglu": Peer("Dinov2Model", "Dinov2Config", cls, {**SIZES, "use_swiglu_ffn": True}),
    "dinov2, registers": Peer("Dinov2WithRegistersModel", "Dinov2WithRegistersConfig", cls, SIZES),
    "dinov3": Peer("DINOv3ViTModel", "DINOv3ViTConfig", cls, {**WITH_MLP, "num_register_tokens": 4}, (24, 56)),
    "dinov3, gated": Peer(
        "DINOv3ViTModel",
        "DINOv3ViTConfig",
        cls,
        {**WITH_MLP, "num_register_tokens": 4, "use_gated_mlp": True, "hidden_act": "silu"},
        (24, 56),
    ),
    "dinov3, no bias": Peer(
        "DINOv3ViTModel",
        "DINOv3ViTConfig",
        cls,
        {**WITH_MLP, "num_register_tokens": 2, "query_bias": False, "value_bias": False},
        (24, 56),
    ),
    "dinov3, key bias": Peer(
        "DINOv3ViTModel",
        "DINOv3ViTConfig",
        cls,
        {**WITH_MLP, "num_register_tokens": 2, "key_bias": True},
        (24, 56),
    ),
    "dinov2, classifier": Peer("Dinov2ForImageClassification", "Dinov2Config", logits, {**SIZES, "num_labels": 5}),
    "dinov2, registers, classifier": Peer(
        "Dinov2WithRegistersForImageClassification", "Dinov2WithRegistersConfig", logits, {**SIZES, "num_labels": 5}
    ),
    "deit, classifier": Peer("DeiTForImageClassification", "DeiTConfig", logits, {**OBLONG, "num_labels": 5}, (16, 40)),
    "clip, classifier": Peer("CLIPForImageClassification", "CLIPConfig", logits, {**TOWER, "num_labels": 5}),
    "metaclip 2, classifier": Peer(
        "MetaClip2ForImageClassification", "MetaClip2Config", logits, {**TOWER, "num_labels": 5}
    ),
    "siglip, classifier": Peer("SiglipForImageClassification", "SiglipConfig", logits, {**TOWER, "num_labels": 5}),
    "clip": Peer("CLIPVisionModel", "CLIPVisionConfig", pooled, WITH_MLP),
    "clip, projection": Peer(
        "CLIPVisionModelWithProjection",
        "CLIPVisionConfig",
        lambda output: output.image_embeds,
        {**WITH_MLP, "projection_dim": 24, "hidden_act": "gelu"},
    ),
    "siglip": Peer("SiglipVisionModel", "SiglipVisionConfig", pooled, WITH_MLP),
    "beit": Peer("BeitForImageClassification", "BeitConfig", logits, {**WITH_MLP, "use_relative_position_bias": True}),
    "beit, no head": Peer("BeitModel", "BeitConfig", pooled, {**WITH_MLP, "use_relative_position_bias": True}),
    "beit, shared": Peer(
        "BeitModel",
        "BeitConfig",
        pooled,
        {**WITH_MLP, "use_shared_relative_position_bias": True, "use_mask_token": True, "use_mean_pooling": False},
    ),
    "beit, learned": Peer("BeitModel", "BeitConfig", pooled, {**WITH_MLP, "use_absolute_position_embeddings": True}),
    "aimv2": Peer("Aimv2VisionModel", "Aimv2VisionConfig", mean, {**WITH_MLP, "use_head": False}),
    "blip 2": Peer("Blip2VisionModel", "Blip2VisionConfig", cls, WITH_MLP),
    "internvl": Peer("InternVLVisionModel", "InternVLVisionConfig", patches, {**INTERNVL, "attention_bias": True}),
    "internvl, norm": Peer(
        "InternVLVisionModel", "InternVLVisionConfig", patches, {**INTERNVL, "use_mean_pooling": False}
    ),
    "dinov3, no biases": Peer(
        "DINOv3ViTModel",
        "DINOv3ViTConfig",
        cls,
        {**WITH_MLP, "num_register_tokens": 2, "proj_bias": False, "mlp_bias": False},
        (24, 56),
    ),
    "ijepa": Peer("IJepaModel", "IJepaConfig", mean, WITH_MLP),
    "ijepa, head": Peer("IJepaForImageClassification", "IJepaConfig", logits, WITH_MLP),
    "ijepa, not square": Peer("IJepaForImageClassification", "IJepaConfig", logits, OBLONG, (16, 40)),
}


def test_forty_models_and_more():
    assert len(TIMM) + len(TRANSFORMERS) >= 50


@torch.no_grad()
def compare(
    theirs: nn.Module, ours: Any, vector: Callable[[Any], Tensor], image: tuple[int, int], exact: float | None
) -> None:
    pixels = torch.randn(2, 3, *image, generator=torch.Generator().manual_seed(1))
    expected = vector(theirs(pixels))
    assert relative_error(ours.model()(pixels), expected) < 1e-5  # a float32 forward of either
    if exact is None:
        return
    expected = vector(theirs.double()(pixels.double()))
    assert relative_error(ours.model(dtype=torch.float64)(pixels.double()), expected) < exact
    theirs.float()


def tolerance(checkpoint: Any) -> float | None:
    """Rotary angles are float32 in every implementation, and each rounds them in its own order; timm's learned ones
    do not run in float64."""
    if type(checkpoint.config.position.inside).__name__ == "RotaryMixed":
        return None
    if checkpoint.dialect == "huggingface" and checkpoint.config.norm == "rms":
        return 1e-6  # transformers' RMS norms are in float32 too
    return 1e-7 if checkpoint.config.position.inside is not None else 1e-10


@pytest.mark.parametrize("name", TIMM)
def test_timm_outputs_and_tensors(name: str, tmp_path: Path):
    arguments = {**SMALL, **TIMM[name]}
    theirs = save_timm(tmp_path / "timm", name, **arguments)
    ours = load(tmp_path / "timm")
    assert (ours.dialect, tuple(ours.config.image)) == ("timm", arguments["img_size"])
    assert "config.json" in ours.evidence.grid
    compare(theirs, ours, lambda output: output, arguments["img_size"], tolerance(ours))

    save(ours, tmp_path / "back.safetensors")
    again = timm.create_model(name, **arguments)
    timm.models.load_checkpoint(again, str(tmp_path / "back.safetensors"), strict=True)
    assert_same_tensors(again, theirs)


SWIN = PyramidConfig(
    image=Size(56, 112),
    stages=(PyramidStage(width=24, depth=2, num_heads=3), PyramidStage(width=48, depth=2, num_heads=6)),
)
STAGES: dict[str, dict[str, Any]] = {
    "swin_tiny_patch4_window7_224": {"img_size": (56, 112), "embed_dim": 24, "depths": (2, 2), "num_heads": (3, 6)},
    "mobilevit_xxs": {},
    "mobilevitv2_050": {},
}


@pytest.mark.parametrize("name", STAGES)
def test_models_in_stages_are_known_by_their_presets_shape(name: str, tmp_path: Path, monkeypatch):
    monkeypatch.setitem(PRESETS, "a small swin", SWIN)
    arguments = {**STAGES[name], "num_classes": 7}
    theirs = save_timm(tmp_path / "timm", name, **arguments)
    ours = load(tmp_path / "timm")
    compare(theirs, ours, lambda output: output, arguments.get("img_size", (64, 128)), 1e-10)
    save(ours, tmp_path / "back.safetensors")
    again = timm.create_model(name, **arguments)
    timm.models.load_checkpoint(again, str(tmp_path / "back.safetensors"), strict=True)
    assert_same_tensors(again, theirs)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers_outputs_and_tensors(name: str, tmp_path: Path):
    peer = TRANSFORMERS[name]
    theirs = save_transformers(tmp_path / "hf", peer.model, peer.config, **peer.options)
    ours = load(tmp_path / "hf")
    assert ours.dialect == "huggingface"
    compare(theirs, ours, peer.vector, peer.image, tolerance(ours))

    save(ours, tmp_path / "back")
    again, info = type(theirs).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert_same_tensors(again, theirs)
    stated = again.config.to_dict()
    for key, value in peer.options.items():
        inside = isinstance(value, dict)
        assert (value.items() <= stated[key].items()) if inside else (getattr(again.config, key) == value)


@torch.no_grad()
@pytest.mark.parametrize("without", ["query_bias", "value_bias"])
def test_queries_or_values_alone_without_a_bias_are_given_one_of_zeros(without: str, tmp_path: Path):
    options = {**WITH_MLP, "num_register_tokens": 2, without: False}
    theirs = save_transformers(tmp_path / "hf", "DINOv3ViTModel", "DINOv3ViTConfig", **options)
    ours = load(tmp_path / "hf")
    compare(theirs, ours, cls, (24, 56), tolerance(ours))
    save(ours, tmp_path / "back")
    again = type(theirs).from_pretrained(tmp_path / "back")
    pixels = torch.randn(2, 3, 24, 56, generator=torch.Generator().manual_seed(1))
    assert torch.equal(again(pixels).last_hidden_state, theirs(pixels).last_hidden_state)


def assert_same_tensors(found: nn.Module, expected: nn.Module) -> None:
    tensors = found.state_dict()
    assert tensors.keys() == expected.state_dict().keys()
    for name, tensor in expected.state_dict().items():
        assert torch.equal(tensors[name], tensor), name
