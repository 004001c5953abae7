"""transformers' DPT: its ViT, plain or behind a ResNet, read with equal outputs from either model and written back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from peer_models import relative_error, save_timm, save_transformers
from peers import transformers
from vitrail.checkpoint.read import load
from vitrail.checkpoint.surgery.adapt import adapt
from vitrail.checkpoint.write import save
from vitrail.errors import VitrailError
from vitrail.parts import ResNetStem

HEAD = {"backbone_out_indices": [0, 1, 2, 3], "neck_hidden_sizes": [8, 8, 8, 8], "fusion_hidden_size": 8}
PLAIN = {"hidden_size": 48, "num_hidden_layers": 4, "num_attention_heads": 3, "intermediate_size": 96}
PLAIN |= {"image_size": 32, "patch_size": 8, "layer_norm_eps": 1e-6, **HEAD}
BIT = {"model_type": "bit", "layer_type": "bottleneck", "global_padding": "same", "embedding_dynamic_padding": True}
BIT |= {"depths": [1, 1, 2], "hidden_sizes": [32, 64, 128], "embedding_size": 8, "num_groups": 4}
HYBRID = {**PLAIN, "image_size": 64, "patch_size": 16, "is_hybrid": True, "backbone_featmap_shape": [1, 128, 4, 4]}
HYBRID |= {"backbone_config": {**BIT, "out_features": ["stage1", "stage2", "stage3"]}}


def pixels(side: int) -> Tensor:
    return torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
@pytest.mark.parametrize("kind", ["DPTModel", "DPTForDepthEstimation"])
@pytest.mark.parametrize("arguments", [PLAIN, HYBRID], ids=["plain", "hybrid"])
def test_outputs_and_tensors(arguments: dict[str, Any], kind: str, tmp_path: Path):
    theirs = save_transformers(tmp_path / "hf", kind, "DPTConfig", **arguments)
    ours, images = load(tmp_path / "hf"), pixels(arguments["image_size"])
    expected = (theirs.dpt if kind != "DPTModel" else theirs)(images).last_hidden_state
    assert relative_error(ours.model().features(images)[0], expected) < 1e-5

    save(ours, tmp_path / "back")
    again = type(theirs).from_pretrained(tmp_path / "back")
    assert all(torch.equal(tensor, theirs.state_dict()[name]) for name, tensor in again.state_dict().items())


@torch.no_grad()
def test_a_hybrid_of_timms_becomes_a_dpts_tower(tmp_path: Path):
    arguments = {"embed_dim": 48, "depth": 2, "num_heads": 3, "img_size": (64, 64), "num_classes": 0}
    theirs = save_timm(tmp_path / "timm", "vit_base_r50_s16_224", **arguments)
    save(load(tmp_path / "timm"), tmp_path / "hf", dialect="huggingface")
    converted = transformers.DPTModel.from_pretrained(tmp_path / "hf").eval()
    assert relative_error(converted(pixels(64)).last_hidden_state, theirs.forward_features(pixels(64))) < 1e-5
    assert load(tmp_path / "hf").config.embedding == ResNetStem(depths=(3, 4, 9))  # type: ignore[union-attr]


@torch.no_grad()
def test_an_adapted_hybrid_is_the_dpt_at_another_size(tmp_path: Path):
    theirs = save_transformers(tmp_path / "hf", "DPTModel", "DPTConfig", **HYBRID)
    larger, _ = adapt(load(tmp_path / "hf"), {"image": 96}, method="bilinear")
    theirs.embeddings.image_size = (96, 96)
    expected = theirs(pixels(96)).last_hidden_state
    assert relative_error(larger.model().features(pixels(96))[0], expected) < 1e-5


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"layer_type": "preactivation"}, "has layer_type 'preactivation', and vitrail's ResNetStem has 'bottleneck'"),
        ({"width_factor": 2}, "has width_factor '2'"),
        ({"global_padding": None}, "has global_padding None, and vitrail's ResNetStem has 'SAME'"),
        ({"num_groups": 3}, "width 8 of the ResNet has no 3 equal groups"),
        ({"hidden_sizes": [32, 64, 96]}, "a ResNet of widths .32, 64, 96., and vitrail's ResNetStem has"),
    ],
)
def test_another_resnet_is_refused(changes: dict[str, Any], why: str, tmp_path: Path):
    save_transformers(tmp_path / "hf", "DPTModel", "DPTConfig", **HYBRID)
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    config["backbone_config"] |= changes
    (tmp_path / "hf" / "config.json").write_text(json.dumps(config))
    with pytest.raises(VitrailError, match=why):
        load(tmp_path / "hf")
