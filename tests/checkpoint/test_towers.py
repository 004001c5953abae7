"""A vision tower inside a larger model of transformers' is found, read alone, and goes back into the whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from peer_models import randomise, relative_error
from peers import transformers
from vitrail.checkpoint.read import load
from vitrail.checkpoint.surgery.merger import with_merger
from vitrail.checkpoint.write import save
from vitrail.config import PyramidConfig, PyramidStage, ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.parts import LinearMerger, Merger, MlpMerger
from vitrail.presets import PRESETS

VISION = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "image_size": 32, "patch_size": 8}
TOWER = {**VISION, "intermediate_size": 96}
TEXT = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 99}
GEMMA = {**TEXT, "num_key_value_heads": 1, "head_dim": 8}
NECK = {"neck_hidden_sizes": [8], "reassemble_factors": [1], "fusion_hidden_size": 8}


def compared(model: Any, pixels: Tensor) -> Tensor:
    return model.get_image_features(pixels).pooler_output


def pooled(model: Any, pixels: Tensor) -> Tensor:
    return model.model.vision_tower(pixels).pooler_output


def mean(model: Any, pixels: Tensor) -> Tensor:
    return model.model.vision_tower(pixels).last_hidden_state.mean(1)


def first_token(model: Any, pixels: Tensor) -> Tensor:
    tower = model.image_encoder if hasattr(model, "image_encoder") else model.vision_model
    return tower(pixels).last_hidden_state[:, 0]


def patches(model: Any, pixels: Tensor) -> Tensor:
    return model.model.vision_tower(pixels).last_hidden_state[:, 1:].mean(1)


def last_tokens(model: Any, pixels: Tensor) -> Tensor:
    return model.backbone(pixels).feature_maps[-1][:, 0]


class Whole(NamedTuple):
    model: str
    options: dict[str, Any]
    answer: Callable[[Any, Tensor], Tensor]
    tower: str
    """The model_type of the tower."""


TWO_TOWERS = {"vision_config": TOWER, "text_config": {**TEXT, "project_dim": 16}}
WHOLE: dict[str, Whole] = {
    "altclip": Whole("AltCLIPModel", TWO_TOWERS, compared, "altclip_vision_model"),
    "chinese_clip": Whole(
        "ChineseCLIPModel", {**TWO_TOWERS, "text_config": TEXT}, compared, "chinese_clip_vision_model"
    ),
    "metaclip_2": Whole("MetaClip2Model", {**TWO_TOWERS, "text_config": TEXT}, compared, "metaclip_2_vision_model"),
    "owlvit": Whole("OwlViTModel", {**TWO_TOWERS, "text_config": TEXT}, compared, "owlvit_vision_model"),
    "owlv2": Whole("Owlv2Model", {**TWO_TOWERS, "text_config": TEXT}, compared, "owlv2_vision_model"),
    "clipseg": Whole("CLIPSegModel", {**TWO_TOWERS, "text_config": TEXT}, compared, "clipseg_vision_model"),
    "git": Whole("GitModel", {"vision_config": TOWER, **TEXT}, first_token, "git_vision_model"),
    "blip": Whole("BlipModel", {**TWO_TOWERS, "text_config": TEXT}, first_token, "blip_vision_model"),
    "llava": Whole(
        "LlavaForConditionalGeneration",
        {"vision_config": {"model_type": "clip_vision_model", **TOWER}, "text_config": {"model_type": "llama", **TEXT}},
        pooled,
        "clip_vision_model",
    ),
    "paligemma": Whole(
        "PaliGemmaForConditionalGeneration",
        {
            "vision_config": {"model_type": "siglip_vision_model", **TOWER},
            "text_config": {"model_type": "gemma", **GEMMA},
        },
        pooled,
        "siglip_vision_model",
    ),
    "internvl": Whole(
        "InternVLForConditionalGeneration",
        {"vision_config": TOWER, "text_config": {"model_type": "qwen2", **TEXT, "num_key_value_heads": 1}},
        patches,
        "internvl_vision",
    ),
    "gemma3": Whole(  # a tower without its pooling head
        "Gemma3ForConditionalGeneration",
        {"vision_config": {**TOWER, "vision_use_head": False}, "text_config": GEMMA},
        mean,
        "siglip_vision_model",
    ),
    "depth_anything": Whole(
        "DepthAnythingForDepthEstimation",
        {
            "backbone_config": {"model_type": "dinov2", **VISION, "out_indices": [2], "reshape_hidden_states": False},
            **NECK,
        },
        last_tokens,
        "dinov2",
    ),
}


@pytest.mark.parametrize("kind", WHOLE)
@torch.no_grad()
def test_the_tower_of_a_whole_model_is_read_alone_and_goes_back(kind: str, tmp_path: Path):
    whole = WHOLE[kind]
    theirs = randomise(getattr(transformers, whole.model)(transformers.CONFIG_MAPPING[kind](**whole.options)))
    theirs.save_pretrained(tmp_path / "whole", max_shard_size="60KB")
    assert len(list((tmp_path / "whole").glob("*.safetensors"))) > 1
    ours = load(tmp_path / "whole")
    assert ours.evidence.config == f"config.json ({whole.tower} inside {kind})"
    pixels = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    assert relative_error(ours.model()(pixels), whole.answer(theirs, pixels)) < 1e-5

    save(ours, tmp_path / "back")
    before, (again, info) = (
        type(theirs).from_pretrained(tmp_path / "whole"),
        type(theirs).from_pretrained(tmp_path / "back", output_loading_info=True),
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    for name, tensor in before.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


GELU = MlpMerger(width=16, mlp_width=16, norm_eps=1e-5)
MERGERS: dict[str, tuple[Merger, dict[str, Any]]] = {
    "internvl": (GELU.but(norm_merged=True), {}),
    "llava": (GELU.but(merge=1, norm="none"), {}),
    "paligemma": (LinearMerger(width=16), {"projection_dim": 16}),
    "gemma3": (LinearMerger(width=16, merge=2, norm="rms", bias=False), {"mm_tokens_per_image": 4}),
}


@pytest.mark.parametrize("kind", MERGERS)
@torch.no_grad()
def test_a_tower_with_its_merger_gives_what_the_language_model_receives(kind: str, tmp_path: Path):
    (merger, more), whole = MERGERS[kind], WHOLE[kind]
    options = {**whole.options, **more}
    theirs = randomise(getattr(transformers, whole.model)(transformers.CONFIG_MAPPING[kind](**options)))
    theirs.save_pretrained(tmp_path / "whole")
    ours = with_merger(load(tmp_path / "whole"))
    assert isinstance(ours.config, ViTConfig)
    assert ours.config.merger == merger
    assert ours.config.depth == (1 if kind == "llava" else 2)  # LLaVA reads the last block but one
    pixels = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    tokens = theirs.get_image_features(pixels).pooler_output
    assert relative_error(ours.model()(pixels), torch.stack(tuple(tokens))) < 1e-5

    save(ours, tmp_path / "ours.safetensors")
    again = load(tmp_path / "ours.safetensors")
    assert again.config == ours.config
    assert torch.equal(again.model()(pixels), ours.model()(pixels))
    with pytest.raises(VitrailError, match="merger"):  # other libraries' names have no place for a merger
        save(ours, tmp_path / "theirs.safetensors", dialect="timm")


def test_mergers_that_are_not_there_or_read_several_blocks_are_refused(tmp_path: Path):
    with pytest.raises(VitrailError, match="no merger is beside this tower; read the whole vision-language model"):
        with_merger(load("default"))
    options = {**WHOLE["llava"].options, "vision_feature_layer": [-2, -1]}
    config = transformers.CONFIG_MAPPING["llava"](**options)
    transformers.LlavaForConditionalGeneration(config).save_pretrained(tmp_path / "whole")
    with pytest.raises(VitrailError, match="vision_feature_layer"):
        with_merger(load(tmp_path / "whole"))


SWIN = PyramidConfig(
    image=Size(56, 56),
    stages=(PyramidStage(width=24, depth=2, num_heads=3), PyramidStage(width=48, depth=2, num_heads=6)),
)


@torch.no_grad()
def test_transformers_swin_is_known_by_its_presets_shape(tmp_path: Path, monkeypatch):
    monkeypatch.setitem(PRESETS, "a small swin", SWIN)
    options = {"embed_dim": 24, "depths": [2, 2], "num_heads": [3, 6], "num_labels": 5}
    theirs = randomise(transformers.SwinForImageClassification(transformers.SwinConfig(image_size=56, **options)))
    theirs.save_pretrained(tmp_path / "hf")
    ours = load(tmp_path / "hf")
    pixels = torch.randn(2, 3, 56, 56, generator=torch.Generator().manual_seed(1))
    assert relative_error(ours.model()(pixels), theirs(pixels).logits) < 1e-5
    save(ours, tmp_path / "back")
    again = type(theirs).from_pretrained(tmp_path / "back")
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    # windows of 7 are padded at 64 pixels, and transformers pads them before it shifts them
    with pytest.raises(VitrailError, match="windows of 7x7 do not divide grid 16x16"):
        load(tmp_path / "hf", from_image=Size(64, 64))


@torch.no_grad()
def test_tips_is_read_and_written_back(tmp_path: Path):
    theirs = randomise(transformers.Tipsv2VisionModel(transformers.Tipsv2VisionConfig(**VISION, mlp_ratio=2)))
    theirs.save_pretrained(tmp_path / "tips")
    ours, pixels = load(tmp_path / "tips"), torch.randn(2, 3, 40, 24, generator=torch.Generator().manual_seed(1))
    found, expected = ours.model().features(pixels)[0], theirs(pixels).last_hidden_state  # on another grid than its own
    assert relative_error(found, expected) < 1e-5

    save(ours, tmp_path / "back")
    again = transformers.Tipsv2VisionModel.from_pretrained(tmp_path / "back")
    assert all(torch.equal(tensor, theirs.state_dict()[name]) for name, tensor in again.state_dict().items())


@torch.no_grad()
@pytest.mark.parametrize("second", [False, True])
def test_mobilevit_reads_red_first_and_is_written_back_as_it_was(second: bool, tmp_path: Path):
    sizes = {"hidden_sizes": [64, 80, 96], "neck_hidden_sizes": [16, 16, 24, 48, 64, 80, 320], "expand_ratio": 2.0}
    name, sizes = ("MobileViTV2", {"width_multiplier": 0.5}) if second else ("MobileViT", sizes)
    config = getattr(transformers, f"{name}Config")(**sizes, image_size=64, num_labels=7)
    theirs = randomise(getattr(transformers, f"{name}ForImageClassification")(config))
    theirs.save_pretrained(tmp_path / "mobile")
    ours, pixels = load(tmp_path / "mobile"), torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    assert relative_error(ours.model()(pixels), theirs(pixels.flip(1)).logits) < 1e-5

    save(ours.but(dialect="vitrail", origin={}), tmp_path / "back", dialect="huggingface")
    again = type(theirs).from_pretrained(tmp_path / "back")
    assert all(torch.equal(tensor, theirs.state_dict()[name]) for name, tensor in again.state_dict().items())
