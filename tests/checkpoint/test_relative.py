"""timm's ViTs with relative positions by an MLP, and its blocks with norms after the branches, read and written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from peer_models import relative_error, save_timm
from peers import timm
from vitrail.checkpoint.read import load
from vitrail.checkpoint.surgery.adapt import adapt
from vitrail.checkpoint.write import encode, save
from vitrail.config import ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.parts import Learned, RelativeMlp

SMALL: dict[str, Any] = {"depth": 2, "img_size": (48, 80), "num_classes": 7}
NAMES = {
    "vit_relpos_small_patch16_224": 6,
    "vit_relpos_medium_patch16_cls_224": 8,
    "vit_relpos_base_patch16_clsgap_224": 12,
    "vit_relpos_small_patch16_rpn_224": 6,
    "vit_srelpos_small_patch16_224": 6,
    "vit_base_patch16_rpn_224": 12,
    "eva02_enormous_patch14_clip_224": 16,
}


@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
def test_relative_positions_and_norms_after_the_branches_are_read_and_written_back(name: str, tmp_path: Path):
    image = (42, 70) if "patch14" in name else (48, 80)
    theirs = save_timm(tmp_path / "timm", name, **{**SMALL, "embed_dim": 8 * NAMES[name], "img_size": image})
    ours = load(tmp_path / "timm")
    assert isinstance(ours.config, ViTConfig)
    assert (ours.config.block_norm == "after") == ("rpn" in name or "enormous" in name)
    assert isinstance(ours.config.position, RelativeMlp) == ("relpos" in name)
    pixels = torch.randn(2, 3, *image, generator=torch.Generator().manual_seed(1))
    assert relative_error(ours.model()(pixels), theirs(pixels)) < 1e-5

    save(ours, tmp_path / "out", dialect="timm")
    again, expected = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True), theirs.state_dict()
    assert all(torch.equal(tensor, expected[key]) for key, tensor in again.state_dict().items())


@torch.no_grad()
@pytest.mark.parametrize("kind", ["mlp", "mlp_swin"])
def test_on_another_grid_offsets_are_computed_anew_as_timm_does(kind: str, tmp_path: Path):
    arguments = {**SMALL, "embed_dim": 48, "rel_pos_type": kind}
    before = save_timm(tmp_path / "timm", "vit_relpos_small_patch16_224", **arguments)
    theirs = timm.create_model("vit_relpos_small_patch16_224", **{**arguments, "img_size": (96, 64)}).eval()
    theirs.load_state_dict(before.state_dict())
    adapted, changes = adapt(load(tmp_path / "timm"), {"image": Size(96, 64)})
    pixels = torch.randn(2, 3, 96, 64, generator=torch.Generator().manual_seed(1))
    assert relative_error(adapted.model()(pixels), theirs(pixels)) < 1e-5
    assert "recomputed: " in changes.notes[0]


def test_norms_after_the_branches_are_refused_where_a_library_has_them_before(tmp_path: Path):
    save_timm(tmp_path / "timm", "vit_base_patch16_rpn_224", **SMALL, embed_dim=96, class_token=True)
    checkpoint = load(tmp_path / "timm")
    assert isinstance(checkpoint.config, ViTConfig)
    assert isinstance(checkpoint.config.position, Learned)
    with pytest.raises(VitrailError, match="block_norm is before, this model's after"):
        encode(checkpoint, "huggingface")
