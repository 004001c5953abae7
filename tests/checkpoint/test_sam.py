"""SAM's image encoder in timm's names, transformers' and its own: equal outputs, and the same tensors back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from peer_models import relative_error, save_timm, save_transformers
from vitrail.checkpoint.assess.report import assess
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.read import load
from vitrail.checkpoint.surgery.adapt import adapt
from vitrail.checkpoint.write import save
from vitrail.config import ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.look import record
from vitrail.nn.block import Block
from vitrail.nn.vit import ViT
from vitrail.parts import DecomposedBias, Learned, Neck, WindowedAttention

WINDOWS = {"img_size": (48, 80), "patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 3, "window_size": 4}
"""A grid of 6×10 in windows of 4: the last of every row and column are padded with zeros."""
SMALL = {
    **{"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 3, "image_size": 48, "patch_size": 8},
    **{"window_size": 4, "global_attn_indexes": [1], "mlp_dim": 40},
}
ROUNDING = 1e-5  # float32


@pytest.fixture(scope="module")
def timm_sam(tmp_path_factory: pytest.TempPathFactory):
    home = tmp_path_factory.mktemp("timm") / "model"
    model = save_timm(home, "samvit_base_patch16", **WINDOWS, global_attn_indexes=(1,), neck_chans=16, num_classes=7)
    return home, model, load(home)


def compare(checkpoint: Checkpoint, answer, size: tuple[int, int]) -> None:
    images = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert relative_error(checkpoint.model()(images), answer(images)) < ROUNDING


def same(first: Checkpoint, second: Checkpoint) -> None:
    assert first.tensors.keys() == second.tensors.keys()
    assert all(torch.equal(tensor, second.tensors[name]) for name, tensor in first.tensors.items())


@pytest.mark.parametrize("size", [(48, 80), (64, 40), (16, 24)], ids=["own grid", "another", "smaller than a window"])
@torch.no_grad()
def test_timms_encoder_gives_the_same_logits_at_any_size(timm_sam, size: tuple[int, int]):
    compare(timm_sam[2], timm_sam[1], size)


def test_timms_encoder_is_read_with_its_neck_and_goes_back(timm_sam, tmp_path: Path):
    home, _, checkpoint = timm_sam
    config = checkpoint.config
    assert isinstance(config, ViTConfig)
    assert config.attention == WindowedAttention(window=Size(4, 4), shift=False, window_padding="zeros", full=(1,))
    assert (config.position, config.neck) == (Learned(relative=DecomposedBias()), Neck(width=16))
    save(checkpoint, tmp_path / "again", dialect="timm")
    again = load(tmp_path / "again")
    assert again.config == config
    written, stored = (load_file(next(folder.glob("*.safetensors"))) for folder in (tmp_path / "again", home))
    assert written.keys() == stored.keys()
    assert all(torch.equal(written[name], stored[name]) for name in stored)


def test_weights_alone_show_windows_and_full_blocks(timm_sam, tmp_path: Path):
    home, _, checkpoint = timm_sam
    save_file(load_file(next(home.glob("*.safetensors"))), tmp_path / "alone.safetensors")
    alone = load(tmp_path / "alone.safetensors", num_heads=3)
    assert alone.config == checkpoint.config


def test_an_encoder_without_table_and_neck_is_read_too(tmp_path: Path):
    arguments = {**WINDOWS, "global_attn_indexes": (0,), "num_classes": 5, "global_pool": "max"}
    model = save_timm(tmp_path / "model", "samvit_base_patch16_224", **arguments)
    checkpoint = load(tmp_path / "model")
    compare(checkpoint, model, (48, 80))
    assert checkpoint.config.position == DecomposedBias()  # type: ignore[union-attr]
    save(checkpoint, tmp_path / "again", dialect="timm")
    same(load(tmp_path / "again"), checkpoint)


def test_transformers_encoder_gives_the_same_features_and_goes_through_every_dialect(tmp_path: Path):
    module = save_transformers(tmp_path / "model", "SamVisionModel", "SamVisionConfig", **SMALL, output_channels=16)
    checkpoint = load(tmp_path / "model")
    compare(checkpoint, lambda images: module(images).last_hidden_state.mean((2, 3)), (48, 48))
    with torch.no_grad():
        images = torch.randn(2, 3, 48, 48)
        tokens, _ = checkpoint.model().features(images)  # type: ignore[union-attr]
        assert relative_error(tokens, module(images).last_hidden_state.flatten(2).mT) < ROUNDING
    for dialect, path in (("huggingface", "again"), ("timm", "timm"), ("sam", "sam.safetensors")):
        save(checkpoint, tmp_path / path, dialect=dialect)
        again = load(tmp_path / path, num_heads=3)  # a file without a config does not show it
        same(again, checkpoint)
        assert again.dialect == dialect
        changed = {"norm_eps": 1e-6, "final_norm_eps": None} if dialect == "timm" else {}  # timm has its own epsilon
        assert again.config.but(**changed) == checkpoint.config


def test_the_encoder_inside_a_whole_sam_is_read_alone_and_the_rest_stays(tmp_path: Path):
    prompts = {"image_size": 48, "patch_size": 8, "hidden_size": 16}
    decoder = {"hidden_size": 16, "mlp_dim": 16, "num_attention_heads": 2, "iou_head_hidden_dim": 16}
    module = save_transformers(
        tmp_path / "model",
        "SamModel",
        "SamConfig",
        vision_config={**SMALL, "output_channels": 16, "num_pos_feats": 8},
        prompt_encoder_config=prompts,
        mask_decoder_config=decoder,
    )
    checkpoint = load(tmp_path / "model")
    compare(checkpoint, lambda images: module.get_image_embeddings(images).mean((2, 3)), (48, 48))
    assert any(name.startswith("mask_decoder.") for name in checkpoint.extra)
    save(checkpoint, tmp_path / "again", dialect="huggingface")
    before, after = (load_file(tmp_path / folder / "model.safetensors") for folder in ("model", "again"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_window_larger_than_the_grid_is_refused(tmp_path: Path):
    save_timm(tmp_path / "model", "samvit_base_patch16", **{**WINDOWS, "window_size": 7}, neck_chans=16)
    with pytest.raises(VitrailError, match=r"windows of 7 on a grid of 6x10.*give a larger image"):
        load(tmp_path / "model")


def test_adapting_resamples_the_vectors_of_full_blocks_as_the_model_does_when_it_runs(timm_sam):
    checkpoint = timm_sam[2]
    adapted, changes = adapt(checkpoint, {"image": "64x40"})
    moved = [name for name in changes.resampled if "position" in name]
    assert moved == ["position.table", *(f"blocks.1.attention.position.{axis}" for axis in ("rows", "columns"))]
    image = torch.randn(1, 3, 64, 40)
    with torch.no_grad():
        assert torch.allclose(adapted.model()(image), checkpoint.model()(image), atol=1e-5)
    judged = {table.name: table for table in assess(checkpoint, adapted, changes).tables}
    assert list(judged) == moved
    assert all(0 <= judged[name].round_trip < 1 for name in moved)


@torch.no_grad()
def test_recorded_attention_adds_up_to_what_the_blocks_mix(timm_sam):
    """Of windows that zeros pad, the rest of a row's weight is on the padding."""
    model = timm_sam[2].model()
    assert isinstance(model, ViT)
    recording = record(model, torch.randn(1, 3, 48, 80))
    for block, inputs, (x, _) in zip(model.blocks[1:], recording.attention[1:], recording.blocks[:-1], strict=True):
        assert isinstance(block, Block)
        _, _, v = block.attention.heads(block.norm1(x))
        weights = inputs.rows("all").weights
        mixed = weights @ v
        if inputs.padding is not None:
            mixed = mixed + (1 - weights.sum(-1, keepdim=True)) * inputs.padding[1]
        expected = block.attention.mixed(inputs.q, inputs.k, v, inputs.layout, inputs.bias, 0.0)
        assert torch.allclose(mixed, expected, atol=1e-5)
