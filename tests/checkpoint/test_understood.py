"""A model is read only if every word of its config is understood; what is assumed is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from command import call
from peer_models import randomise, relative_error, save_timm, save_transformers
from peers import open_clip, timm, transformers
from survey import architectures
from vitrail.checkpoint.dialects.timm_architectures import architecture_named
from vitrail.checkpoint.formats.file import Stored
from vitrail.checkpoint.read import load, read_stored
from vitrail.checkpoint.write import save
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.parts import ClsPool, MeanPool

WIDE = (64, 96)
SIZES = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "image_size": 32, "patch_size": 8}


def outputs(path: Path, *image: int, **told: Any) -> torch.Tensor:
    with torch.no_grad():
        return load(path, **told).model()(pixels(*image))


def pixels(*image: int) -> torch.Tensor:
    return torch.randn(2, 3, *image, generator=torch.Generator().manual_seed(1))


def change(directory: Path, **keys: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))


# ── timm: a name stands for arguments ───────────────────────────────────────────────────────────────────────────


def test_the_table_of_architectures_is_what_timm_passes_to_its_classes():
    for name in timm.list_models():
        called = architectures.call(name)
        if called is not None:
            known = architecture_named(name)
            assert (known.kind, known.arguments) == (called[0].__name__, architectures.arguments_of(*called)), name


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "vit_small_patch16_dinov3", "beit_base_patch16_224"])
def test_the_table_knows_an_architecture_by_its_shapes(name: str):
    assert architecture_named(name).shapes == architectures.digest_of(name)


@pytest.mark.parametrize("name", ["vit_small_resnet26d_224", "vit_small_resnet50d_s16_224"])
def test_a_hybrid_for_which_timm_has_no_weights_is_refused_with_the_reason(name: str):
    with pytest.raises(VitrailError, match=f"timm's {name} has a ResNet-D with batch norms before its patches"):
        architecture_named(name)


def test_heads_are_the_architectures_and_not_guessed_from_a_word_in_its_name(tmp_path: Path):
    theirs = save_timm(tmp_path / "timm", "vit_giant_patch14_reg1_tipsv2", embed_dim=96, depth=2, img_size=(42, 70))
    assert load(tmp_path / "timm").config.num_heads == 24  # type: ignore[union-attr]
    with torch.no_grad():
        assert relative_error(outputs(tmp_path / "timm", 42, 70), theirs(pixels(42, 70))) < 1e-5


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        ("vit_dlittle_patch16_reg1_gap_256", {}, "attn_layer 'diff'"),
        ("vit_small_patch16_dinov3", {"rope_grid_indexing": "xy"}, "'rope_grid_indexing': 'xy'"),
        ("vit_small_patch16_rope_mixed_224", {"rope_grid_indexing": "ij"}, "'rope_grid_indexing': 'ij'"),
        ("vit_base_patch16_224", {"norm_layer": "layernorm2d"}, "norm_layer 'layernorm2d'"),
        ("vit_base_patch16_224", {"act_layer": "relu6"}, "act_layer 'relu6'"),
        ("vit_base_patch16_224", {"global_pool": "avgmax", "fc_norm": False}, "global_pool 'avgmax'"),
        (
            "vit_base_patch16_224",
            {"global_pool": "avg", "fc_norm": False, "pool_include_prefix": True},
            "pool_include_prefix",
        ),
    ],
)
def test_an_argument_that_is_not_understood_is_refused_by_its_name(
    name: str, arguments: dict[str, Any], reason: str, tmp_path: Path
):
    save_timm(tmp_path / "timm", name, embed_dim=96, depth=2, num_heads=3, img_size=WIDE, **arguments)
    with pytest.raises(VitrailError, match=reason) as refusal:
        load(tmp_path / "timm")
    assert "\n" not in str(refusal.value)


def test_an_argument_that_nobody_knows_is_refused(tmp_path: Path):
    save_timm(tmp_path / "timm", "vit_base_patch16_224", embed_dim=48, depth=2, num_heads=3, img_size=WIDE)
    config = json.loads((tmp_path / "timm" / "config.json").read_text())
    change(tmp_path / "timm", model_args={**config["model_args"], "rotate_patches": 3})
    with pytest.raises(VitrailError, match="rotate_patches '3', which vitrail does not know"):
        load(tmp_path / "timm")
    change(tmp_path / "timm", architecture="vit_basic_patch16_224")
    with pytest.raises(VitrailError, match=r"'vit_basic_patch16_224' is not one of .* 'vit_base_patch16_224'"):
        load(tmp_path / "timm")


def bare(path: Path, name: str) -> Path:
    with torch.device("meta"):
        model = timm.create_model(name)
    save_file({key: torch.ones(value.shape) for key, value in model.state_dict().items()}, path)
    return path


def test_weights_alone_that_two_architectures_share_are_asked_about(tmp_path: Path, capsys):
    path = bare(tmp_path / "w.safetensors", "vit_small_patch16_dinov3_qkvb")
    with pytest.raises(VitrailError, match="vit_small_patch16_dinov3_qkvb or its vit_small_patch16_lingbot"):
        load(path)
    for name, pool in (("vit_small_patch16_dinov3_qkvb", MeanPool()), ("vit_small_patch16_lingbot", ClsPool())):
        assert load(path, architecture=name).config.pool == pool  # type: ignore[union-attr]
    assert call("inspect", str(path)) == 2
    assert "--architecture" in capsys.readouterr().err
    assert call("inspect", str(path), "--architecture", "vit_small_patch16_lingbot") == 0


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("vit_dlittle_patch16_reg1_gap_256", "vit_dlittle_patch16_reg1_gap_256 has attn_layer 'diff'"),
        ("vit_large_patch14_clip_quickgelu_224", "vit_large_patch14_clip_224 or its vit_large_patch14_clip_quickgelu"),
    ],
)
def test_weights_alone_are_refused_where_their_shape_is_not_enough(name: str, reason: str):
    with torch.device("meta"):
        tensors = timm.create_model(name).state_dict()
    with pytest.raises(VitrailError, match=reason):
        read_stored(Stored(path=Path("it"), format="memory", tensors=tensors))


def test_what_weights_alone_do_not_show_is_assumed_aloud(tmp_path: Path, capsys):
    model = timm.create_model("vit_base_patch16_224", embed_dim=48, depth=2, num_heads=3, img_size=32)
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    arguments = {"from_image": "32", "num_heads": 3}
    assert load(tmp_path / "w.safetensors", **arguments).evidence.assumed == (
        *("activation gelu", "norm_eps 1e-06", "pool ClsPool", "position Learned", "block_norm before"),
    )
    assert call("inspect", str(tmp_path / "w.safetensors"), "--from-image", "32", "--num-heads", "3") == 0
    assert "activation gelu, norm_eps 1e-06, pool ClsPool" in capsys.readouterr().out.replace("\n", " ")


def test_what_a_known_shape_shows_is_not_an_assumption(tmp_path: Path):
    checkpoint = load(bare(tmp_path / "w.safetensors", "vit_tiny_patch16_384"))
    assert (checkpoint.config.image, checkpoint.evidence.assumed) == (Size(384, 384), ())


def test_a_conversion_to_timm_names_an_architecture_that_timm_builds(tmp_path: Path):
    theirs = randomise(timm.create_model("vit_tiny_patch16_224", num_classes=5))
    timm.models.save_for_hf(theirs, tmp_path / "tiny", safe_serialization=True)
    save(load(tmp_path / "tiny"), tmp_path / "own.safetensors", dialect="vitrail")
    save(load(tmp_path / "own.safetensors"), tmp_path / "back", dialect="timm")
    again = timm.create_model(f"local-dir:{tmp_path / 'back'}", pretrained=True).eval()
    image = pixels(224, 224)[:1]
    with torch.no_grad():
        assert torch.equal(again(image), theirs(image))


# ── an image that patches do not divide ─────────────────────────────────────────────────────────────────────────


def test_pixels_that_a_convolution_leaves_out_are_left_out_here(tmp_path: Path):
    theirs = save_timm(tmp_path / "timm", "vit_so400m_patch14_siglip_384", embed_dim=64, depth=2, img_size=(48, 62))
    assert load(tmp_path / "timm").config.grid == Size(3, 4)
    with torch.no_grad():
        assert relative_error(outputs(tmp_path / "timm", 48, 62), theirs(pixels(48, 62))) < 1e-5


# ── transformers ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("model", "config", "options", "reason"),
    [
        ("ViTModel", "ViTConfig", {"hidden_act": "relu6"}, "hidden_act 'relu6'"),
        ("ViTModel", "ViTConfig", {"qk_normalisation": True}, "qk_normalisation 'True', which vitrail does not know"),
        ("DINOv3ViTModel", "DINOv3ViTConfig", {"use_gated_mlp": True}, "hidden_act 'gelu' in a gated MLP"),
    ],
)
def test_a_key_of_transformers_that_is_not_understood_is_refused(
    model: str, config: str, options: dict[str, Any], reason: str, tmp_path: Path
):
    registers = {"num_register_tokens": 2} if model.startswith("DINOv3") else {}
    save_transformers(tmp_path / "hf", model, config, **SIZES, intermediate_size=96, **registers, **options)
    with pytest.raises(VitrailError, match=reason):
        load(tmp_path / "hf")


def test_a_model_type_that_is_not_read_is_named(tmp_path: Path):
    save_transformers(tmp_path / "hf", "ViTModel", "ViTConfig", **SIZES, intermediate_size=96)
    change(tmp_path / "hf", model_type="vit_hybrid")
    with pytest.raises(VitrailError, match=r"model_type 'vit_hybrid', and vitrail reads .*dinov2.*vit"):
        load(tmp_path / "hf")


def test_what_a_key_is_not_said_is_the_model_types_own_default(tmp_path: Path):
    save_transformers(tmp_path / "hf", "ViTMSNModel", "ViTMSNConfig", **SIZES, intermediate_size=96)
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    del config["layer_norm_eps"]
    (tmp_path / "hf" / "config.json").write_text(json.dumps(config))
    assert load(tmp_path / "hf").config.norm_eps == transformers.ViTMSNConfig().layer_norm_eps  # type: ignore[union-attr]


# ── OpenCLIP ────────────────────────────────────────────────────────────────────────────────────────────────────


def save_openclip(directory: Path, **vision: Any) -> Any:
    """A tower by OpenCLIP's own code."""
    cfg = {"layers": 2, "width": 128, "patch_size": 8, "image_size": 32, **vision}
    quick = cfg.pop("quick_gelu", False)
    tower = randomise(open_clip.model._build_vision_tower(24, cfg, quick))
    directory.mkdir()
    tensors = {f"visual.{name}": value.contiguous() for name, value in tower.state_dict().items()}
    save_file(tensors, directory / "open_clip_model.safetensors")
    model = {"embed_dim": 24, "vision_cfg": cfg, "text_cfg": {}, "quick_gelu": quick}
    preprocess = {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5], "resize_mode": "squash"}
    (directory / "open_clip_config.json").write_text(json.dumps({"model_cfg": model, "preprocess_cfg": preprocess}))
    return tower


@pytest.mark.parametrize(
    "vision",
    [
        {},
        {"quick_gelu": True},
        {"no_ln_pre": True, "pool_type": "avg", "final_ln_after_pool": True},  # CLIPA
        {"pool_type": "avg"},
        {"final_ln_after_pool": True},
        {"head_width": 32, "ls_init_value": 0.1},
        {"act_kwargs": {"approximate": "tanh"}, "norm_kwargs": {"eps": 1e-2}},
    ],
    ids=str,
)
def test_an_openclip_tower_is_read_as_its_config_says(vision: dict[str, Any], tmp_path: Path):
    tower = save_openclip(tmp_path / "clip", **vision)
    ours = load(tmp_path / "clip")
    image = pixels(32, 32)
    with torch.no_grad():
        assert relative_error(ours.model()(image), tower(image)) < 1e-5
    assert (ours.preprocessing.mean, ours.preprocessing.resize) == ((0.5, 0.5, 0.5), "squash")
    save(ours, tmp_path / "back.safetensors")
    back, before = load_file(tmp_path / "back.safetensors"), tower.state_dict()
    assert {name.removeprefix("visual.") for name in back} == before.keys()
    assert all(torch.equal(back[f"visual.{name}"], tensor) for name, tensor in before.items())


@pytest.mark.parametrize(
    ("vision", "reason"),
    [
        ({"attentional_pool": True}, "attentional_pool 'True'"),
        ({"pool_type": "none"}, "pool_type 'none'"),
        ({"qk_norm": True}, "qk_norm 'True'"),
    ],
)
def test_an_openclip_tower_that_is_not_ours_is_refused(vision: dict[str, Any], reason: str, tmp_path: Path):
    save_openclip(tmp_path / "clip", **vision)
    with pytest.raises(VitrailError, match=reason):
        load(tmp_path / "clip")


def test_pools_are_what_the_config_says(tmp_path: Path):
    save_openclip(tmp_path / "avg", pool_type="avg")
    save_openclip(tmp_path / "tok")
    assert load(tmp_path / "avg").config.pool == MeanPool()  # type: ignore[union-attr]
    assert load(tmp_path / "tok").config.pool == ClsPool()  # type: ignore[union-attr]


# ── a config and weights that belong to two models ──────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("hidden_size", 96, "says width 96, and the weights have 48"),
        ("num_hidden_layers", 3, "says depth 3, and the weights have 2"),
        ("patch_size", 16, "says patch 16x16, and the weights have 8x8"),
        ("num_channels", 1, "says channels 1, and the weights have 3"),
        ("intermediate_size", 64, "says mlp_width 64, and the weights have 80"),
    ],
)
def test_a_config_that_contradicts_the_shapes_is_refused(tmp_path: Path, key: str, value: int, said: str):
    save_transformers(tmp_path, "ViTModel", "ViTConfig", **SIZES, intermediate_size=80)
    load(tmp_path)
    change(tmp_path, **{key: value})
    with pytest.raises(VitrailError, match=said):
        load(tmp_path)


def test_weights_are_not_another_architecture_of_timm_s(tmp_path: Path):
    save_timm(tmp_path, "vit_small_patch16_224", img_size=(48, 32), depth=2)
    change(tmp_path, architecture="vit_base_patch16_224")
    with pytest.raises(VitrailError, match="says width 768, and the weights have 384; one of them is another model's"):
        load(tmp_path)
