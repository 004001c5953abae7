"""Hiera and SAM 2's backbone: read from timm and transformers with equal outputs, and written back to the bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from peer_models import randomise, relative_error, save_timm, save_transformers
from peers import timm, transformers
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.checkpoint.read import load
from vitrail.checkpoint.surgery.adapt import adapt
from vitrail.checkpoint.write import save
from vitrail.config import PyramidConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.look import capture
from vitrail.nn.build import build
from vitrail.parts import Learned, Patches, QueryPooling, TiledTable, WindowedAttention
from vitrail.presets import preset

SAM2 = {"embed_dim": 32, "window_spec": (8, 4, 6, 4), "global_att_blocks": (5, 7), "global_pos_size": (3, 5)}
TIMM: dict[str, tuple[dict[str, Any], tuple[int, int]]] = {
    "hiera_tiny_224": ({"embed_dim": 32, "num_heads": 2, "img_size": (64, 96), "num_classes": 7}, (64, 96)),
    "sam2_hiera_tiny": (SAM2, (128, 160)),  # windows of 6 do not divide the third grid
    "sam2_hiera_small": ({**SAM2, "num_heads": 2, "num_classes": 7}, (128, 160)),
}


def pixels(*image: int) -> Tensor:
    return torch.randn(2, 3, *image, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
@pytest.mark.parametrize("name", TIMM)
def test_timms_outputs_and_tensors(name: str, tmp_path: Path):
    arguments, image = TIMM[name]
    theirs = save_timm(tmp_path / "timm", name, **arguments)
    ours = load(tmp_path / "timm")
    found, expected = ours.model()(pixels(*image)), theirs(pixels(*image))
    assert relative_error(found, expected) < 1e-5
    assert not torch.allclose(found[0], found[1], atol=1e-3)
    exact = theirs.double()(pixels(*image).double())
    assert relative_error(ours.model(dtype=torch.float64)(pixels(*image).double()), exact) < 1e-10

    save(ours.but(dialect="vitrail", origin={}), tmp_path / "back", dialect="timm")
    again = load_file(tmp_path / "back" / "model.safetensors")
    state = theirs.float().state_dict()
    assert again.keys() == state.keys()
    assert all(torch.equal(again[key], value) for key, value in state.items())
    assert load(tmp_path / "back").config == ours.config


def sam2(whole: bool) -> Any:
    backbone = {"model_type": "sam2_hiera_det_model", "hidden_size": 32, "image_size": [128, 128]}
    backbone |= {"embed_dim_per_stage": [32, 64, 128, 256], "window_size_per_stage": [8, 4, 6, 4]}
    vision = transformers.Sam2VisionConfig(
        backbone_config=backbone, backbone_channel_list=[256, 128, 64, 32], fpn_hidden_size=16
    )
    if not whole:
        return randomise(transformers.Sam2VisionModel(vision))
    decoder = {"hidden_size": 16, "mlp_dim": 16, "num_attention_heads": 2, "iou_head_hidden_dim": 16}
    config = transformers.Sam2Config(
        vision_config=vision, prompt_encoder_config={"hidden_size": 16}, mask_decoder_config=decoder
    )
    return randomise(transformers.Sam2Model(config))


@torch.no_grad()
@pytest.mark.parametrize("whole", [False, True])
def test_transformers_backbone_alone_and_inside_a_whole_sam_2(whole: bool, tmp_path: Path):
    theirs = sam2(whole)
    theirs.save_pretrained(tmp_path / "sam2")
    encoder = theirs.vision_encoder if whole else theirs
    ours = load(tmp_path / "sam2")
    expected = encoder(pixels(128, 128)).last_hidden_state.flatten(1, 2)
    assert relative_error(ours.model().features(pixels(128, 128))[0], expected) < 1e-5

    save(ours, tmp_path / "back")
    again = type(theirs).from_pretrained(tmp_path / "back")
    assert all(torch.equal(tensor, theirs.state_dict()[name]) for name, tensor in again.state_dict().items())


SIZES = {"embed_dim": 16, "depths": [1, 2, 3, 1], "num_heads": [2, 4, 8, 8], "image_size": [64, 96], "num_labels": 7}
DECODER = {"decoder_hidden_size": 24, "decoder_depth": 1, "decoder_num_heads": 2}


@torch.no_grad()
@pytest.mark.parametrize("kind", ["Model", "ForImageClassification", "ForPreTraining"])
def test_transformers_hiera(kind: str, tmp_path: Path):
    options = {**SIZES, "layer_norm_eps": 1e-5, **(DECODER if kind == "ForPreTraining" else {})}
    theirs = save_transformers(tmp_path / "hf", f"Hiera{kind}", "HieraConfig", **options)
    ours = load(tmp_path / "hf")
    if kind == "ForPreTraining":  # it hides patches, unless the encoder is taken out
        encoder = transformers.HieraModel(theirs.config, add_pooling_layer=False).eval()
        encoder.load_state_dict(theirs.hiera.state_dict())
        expected = encoder(pixels(64, 96)).last_hidden_state
        assert relative_error(ours.model().features(pixels(64, 96))[0], expected) < 1e-5
    else:
        output = theirs(pixels(64, 96))
        found = ours.model()(pixels(64, 96))
        assert relative_error(found, output.pooler_output if kind == "Model" else output.logits) < 1e-5
        assert not torch.allclose(found[0], found[1], atol=1e-3)
        save(ours.but(dialect="vitrail", origin={}), tmp_path / "new", dialect="huggingface")
        assert load(tmp_path / "new").config == ours.config
        again = type(theirs).from_pretrained(tmp_path / "new")
        assert all(torch.equal(tensor, theirs.state_dict()[name]) for name, tensor in again.state_dict().items())

    save(ours, tmp_path / "back")
    again = type(theirs).from_pretrained(tmp_path / "back")
    assert all(torch.equal(tensor, theirs.state_dict()[name]) for name, tensor in again.state_dict().items())


@torch.no_grad()
def test_a_hiera_of_timms_in_transformers_names(tmp_path: Path):
    arguments, image = TIMM["hiera_tiny_224"]
    theirs = save_timm(tmp_path / "timm", "hiera_tiny_224", **arguments)
    save(load(tmp_path / "timm"), tmp_path / "hf", dialect="huggingface")
    converted = transformers.HieraForImageClassification.from_pretrained(tmp_path / "hf").eval()
    assert relative_error(converted(pixels(*image)).logits, theirs(pixels(*image))) < 1e-5


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"image_size": [64, 80]}, "image width 80 is not a multiple of 32, which a pyramid needs"),
        ({"masked_unit_attention": [True, False, False, False]}, "config.json has masked_unit_attention"),
        ({"hidden_act": "relu"}, "config.json has hidden_act 'relu'"),
    ],
)
def test_a_hiera_that_transformers_computes_otherwise_is_refused(changes: dict, why: str, tmp_path: Path):
    save_transformers(tmp_path / "hf", "HieraModel", "HieraConfig", **SIZES)
    config = tmp_path / "hf" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | changes))
    with pytest.raises(VitrailError, match=why):
        load(tmp_path / "hf")


@torch.no_grad()
def test_an_image_smaller_than_windows_is_padded_as_timm_pads_it(tmp_path: Path):
    theirs = save_timm(tmp_path / "timm", "sam2_hiera_tiny", embed_dim=32)
    assert relative_error(load(tmp_path / "timm").model()(pixels(128, 96)), theirs(pixels(128, 96))) < 1e-5


SMALL = PyramidConfig(
    image=Size(64, 96),
    embedding=Patches(patch=Size(7, 7), stride=Size(4, 4), padded=True),
    position=TiledTable(background=Size(3, 5)),
    embedding_norm=False,
    stages=preset("hiera-T", image=Size(64, 96)).stages[:2],
    attention=WindowedAttention(window=Size(8, 8), shift=False, window_padding="zeros"),
    merging=QueryPooling(),
    classes=0,
)


@torch.no_grad()
def test_a_model_adapted_to_another_image_is_the_old_one_run_at_that_size():
    tensors = dict(randomise(build(SMALL)).state_dict())
    checkpoint = Checkpoint(config=SMALL, tensors=tensors, preprocessing=Preprocessing(image=SMALL.image))
    adapted, changes = adapt(checkpoint, {"image": Size(96, 128)})
    assert any("grid" in note for note in changes.notes)
    assert torch.equal(adapted.model()(pixels(96, 128)), checkpoint.model()(pixels(96, 128)))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"attention": WindowedAttention(window=Size(8, 8), window_padding="zeros")}, "windows are not shifted"),
        ({"attention": SMALL.attention.but(window=Size(32, 8))}, "window 32x8 is larger than grid 16x24"),
        ({"attention": SMALL.attention.but(window=Size(1, 8)), "position": Learned()}, "has an odd side"),
        ({"image": Size(64, 80)}, "grid width 20 is not a multiple of 8"),
        ({"embedding": Patches(patch=Size(7, 7), stride=Size(4, 4))}, "image"),
    ],
)
def test_what_cannot_be_pooled_is_refused(change: dict[str, Any], reason: str):
    with pytest.raises(VitrailError, match=reason):
        SMALL.but(**change)


def test_maps_of_pooled_queries_are_refused_by_name():
    model = build(SMALL).eval()
    with pytest.raises(VitrailError, match="pools the queries"), capture(model):
        model(pixels(64, 96))


@pytest.mark.parametrize(
    ("name", "reason"), [("hieradet_small", "init_values"), ("hiera_small_abswin_256", "abs_win_pos_embed")]
)
def test_other_forms_are_refused_with_the_argument(name: str, reason: str, tmp_path: Path):
    save_timm(tmp_path / "timm", name, embed_dim=32)
    with pytest.raises(VitrailError, match=reason):
        load(tmp_path / "timm")


def test_weights_alone_are_known_only_by_their_exact_shapes(tmp_path: Path):
    save_timm(tmp_path / "timm", "sam2_hiera_tiny", embed_dim=32)
    (tmp_path / "timm" / "config.json").unlink()
    with pytest.raises(VitrailError, match="does not show the windows of its Hiera"):
        load(tmp_path / "timm" / "model.safetensors")
    with torch.device("meta"):
        assert timm.create_model("sam2_hiera_tiny").num_features == preset("sam2-hiera-T").stages[-1].width
