"""Every model of the peers that calls itself a ViT, small and with random weights, with what it gives for an image."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from peer_models import randomise
from peers import open_clip, timm, transformers
from vitrail.checkpoint.dialects.timm_architectures import architecture_named
from vitrail.checkpoint.formats.file import Stored

__all__ = ["Case", "cases"]

TIMM = ("vit", "deit", "beit", "eva", "swin", "cait", "xcit", "pit_", "aimv2", "sam", "hiera")
"""Parts of timm's names; others that only share a part are there to be refused."""
LIKE_VIT = (
    "vit",
    "deit",
    "dino",
    "beit",
    "clip",
    "siglip",
    "jepa",
    "data2vec-vision",
    "swin",
    "mae",
    "pvt",
    "ijepa",
    "sam_vision",
    "sam2_vision",
    "hiera",
)
"""Parts of transformers' model types."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model that writes itself into a directory, and answers for images of one size."""

    library: str
    name: str
    save: Callable[[Path], Callable[[Tensor], Tensor]]
    """Write weights and config; give the function from images to outputs."""
    image: tuple[int, int]
    outline: Callable[[], Stored] | None = None
    """For models that have no small form: names, shapes and config without values, to be refused at no cost."""


def cases() -> Iterator[Case]:
    yield from _timm_cases()
    yield from _transformers_cases()
    yield from _openclip_cases()


# ── timm ────────────────────────────────────────────────────────────────────────────────────────────────────────


def timm_names() -> list[str]:
    return [name for name in timm.list_models() if any(part in name for part in TIMM)]


def _timm_cases() -> Iterator[Case]:
    for name in timm_names():
        arguments, image = _small(name)
        yield Case(
            library="timm",
            name=name,
            save=partial(_save_timm, name, arguments),
            image=image,
            outline=None if arguments else partial(_outline_timm, name),
        )


def _small(name: str) -> tuple[dict[str, Any], tuple[int, int]]:
    """Few blocks and values per head, the architecture's own heads; a remainder of the native image stays."""
    native = timm.models.get_pretrained_cfg(name).input_size[1:]
    try:
        known = architecture_named(name)
    except ValueError:
        return {}, native
    if known.kind.startswith("Swin"):
        return _small_swin(known.arguments)
    if known.kind.startswith("Hiera"):  # its depths stay, and windows that do not divide the third grid
        small: dict[str, Any] = {"embed_dim": 16 * known.arguments.get("num_heads", 1)}
        det = {"window_spec": (8, 4, 6, 4)} if known.kind == "HieraDet" else {"img_size": (64, 96)}
        return {**small, **det}, (128, 160) if known.kind == "HieraDet" else (64, 96)
    if known.arguments.get("embed_layer", "").startswith("HybridEmbed"):  # MobileCLIP's stem has a width of its own
        width = {"embed_dim": 16 * known.arguments.get("num_heads", 12)} if "_mci_" not in name else {}
        return {**width, "depth": 2, "img_size": (64, 96)}, (64, 96)
    patch = known.arguments.get("patch_size", 16)
    extra = known.image.height % patch
    image = (3 * patch + extra, 5 * patch + extra)
    heads, pool_heads = known.arguments.get("num_heads", 12), known.arguments.get("attn_pool_num_heads", 1)
    width = 16 * heads if (16 * heads) % pool_heads == 0 else 16 * heads * pool_heads
    arguments = {"embed_dim": width, "depth": 2, "img_size": image}
    if known.kind == "VisionTransformerSAM":  # windows that do not divide the grid
        return {**arguments, "window_size": 2, "global_attn_indexes": (1,)}, image
    kv_heads = known.arguments.get("num_kv_heads")
    return {**arguments, **({"num_kv_heads": kv_heads[:2]} if isinstance(kv_heads, list) else {})}, image


def _small_swin(given: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[int, int]]:
    """Three stages, the first of 2×4 windows, or of 4×8 where they have odd sides, which do not halve twice."""
    windows, heads = given.get("window_size", 7), given.get("num_heads", [3, 6, 12])[:3]
    side = windows[0] if isinstance(windows, list) else windows
    image = (8 * side, 16 * side) if side % 2 == 0 else (16 * side, 32 * side)
    arguments = {"embed_dim": 8 * heads[0], "depths": [2, 2, 2], "num_heads": heads, "img_size": image}
    cut = {key: given[key][:3] for key in ("window_size", "pretrained_window_sizes") if type(given.get(key)) is list}
    return {**arguments, **cut}, image


def _outline_timm(name: str) -> Stored:
    with torch.device("meta"):
        tensors = timm.create_model(name).state_dict()
    return Stored(path=Path("it"), format="memory", tensors=tensors, config={"architecture": name})


def _save_timm(name: str, arguments: dict[str, Any], directory: Path) -> Callable[[Tensor], Tensor]:
    model = randomise(timm.create_model(name, num_classes=7, **arguments))
    plain = {key: list(value) if isinstance(value, tuple) else value for key, value in arguments.items()}
    timm.models.save_for_hf(model, directory, model_args=plain, safe_serialization=True)
    return model


# ── transformers ────────────────────────────────────────────────────────────────────────────────────────────────

SMALL = {
    **{"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 96},
    **{"image_size": 32, "patch_size": 8, "num_patches": 16, "num_register_tokens": 2},
}
VARIATIONS: tuple[dict[str, Any], ...] = (
    *({"hidden_act": name} for name in ("gelu", "gelu_new", "quick_gelu", "silu", "relu", "gelu_fast", "tanh")),
    *({key: False} for key in ("qkv_bias", "query_bias", "value_bias", "proj_bias", "mlp_bias", "use_mean_pooling")),
    *({key: True} for key in ("key_bias", "use_swiglu_ffn", "use_gated_mlp", "use_mask_token")),
    *({f"use_{key}": True} for key in ("absolute_position_embeddings", "relative_position_bias")),
    *({"use_shared_relative_position_bias": True}, {"use_gated_mlp": True, "hidden_act": "silu"}),
    *({"layer_norm_eps": 1e-2}, {"rope_theta": 30.0}, {"layer_scale_init_value": 0.0}, {"layerscale_value": 0.3}),
    *({"image_size": [16, 40]}, {"mlp_ratio": 2}, {"num_channels": 4}, {"pruned_heads": {0: [1]}}),
)
KNOWN = ("vit", "vit_mae", "vit_msn", "deit", "dinov2", "dinov2_with_registers", "dinov3_vit", "beit")
KNOWN = (*KNOWN, "data2vec-vision", "clip_vision_model", "siglip_vision_model", "siglip2_vision_model", "ijepa")


TOWERS = ("clip", "siglip", "siglip2", "altclip", "chinese_clip", "metaclip_2", "owlvit", "owlv2", "clipseg")
"""Image and text: the vision tower is inside."""
TEXT = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 99}
OWN_SIZE = ("swin", "swinv2", "donut-swin", "mobilevit", "mobilevitv2")
"""Known by the shape of a preset alone."""
CLIPS: dict[str, dict[str, Any]] = {
    "videomae": {"num_frames": 4},
    "vivit": {"num_frames": 4, "tubelet_size": [2, 8, 8]},
    "vjepa2": {"crop_size": 32, "frames_per_clip": 4, "pred_hidden_size": 12, "pred_num_attention_heads": 2},
}
"""Models of clips, and how small they are."""
HIERA: dict[str, Any] = {"embed_dim": 16, "depths": [1, 2, 2, 1], "image_size": [64, 96]}
HIERA_DET: dict[str, Any] = {
    **{"model_type": "sam2_hiera_det_model", "hidden_size": 32, "embed_dim_per_stage": [32, 64, 128, 256]},
    **{"window_size_per_stage": [8, 4, 6, 4], "image_size": [128, 128]},
}
WINDOWS: dict[str, dict[str, Any]] = {
    "sam_vision_model": {"window_size": 3, "global_attn_indexes": [1], "output_channels": 16},
    "sam2_vision_model": {
        "backbone_config": HIERA_DET,
        **{"backbone_channel_list": [256, 128, 64, 32], "fpn_hidden_size": 16},
    },
    "sam2_hiera_det_model": HIERA_DET,
}
"""Windows that do not divide the small grid, and full blocks."""


def _transformers_cases() -> Iterator[Case]:
    for kind, config in sorted(transformers.CONFIG_MAPPING.items()):
        if not any(part in kind for part in LIKE_VIT):
            continue
        fields = config().to_dict()
        small = (
            {key: value for key, value in SMALL.items() if key in fields} | CLIPS.get(kind, {}) | WINDOWS.get(kind, {})
        )
        if kind == "hiera":
            small = HIERA
        if kind in TOWERS:
            inside = fields["vision_config"]
            tower = {key: value for key, value in SMALL.items() if key in inside}
            project = {"project_dim": 16} if "project_dim" in fields["text_config"] else {}
            small = {"vision_config": tower, "text_config": {**TEXT, **project}}
        if kind in OWN_SIZE:
            small = {}
        for model in _models(config):
            variations = [{}, *VARIATIONS] if kind in KNOWN else [{}]
            for change in variations:
                if change.keys() <= fields.keys() or "pruned_heads" in change:
                    arguments = {**small, **change}
                    yield Case(
                        library="transformers",
                        name=f"{model.__name__} {json.dumps(change) if change else ''}".strip(),
                        save=partial(_save_transformers, model, config, arguments),
                        image=_sides(_image_size(kind, fields, arguments)),
                        outline=None
                        if kind in (*KNOWN, *TOWERS, *OWN_SIZE, *CLIPS, *WINDOWS, "hiera")
                        else partial(_outline_transformers, model, config),
                    )


def _image_size(kind: str, fields: dict[str, Any], arguments: dict[str, Any]) -> Any:
    if "backbone_config" in arguments:
        return arguments["backbone_config"]["image_size"]
    return fields["image_size"] if kind in OWN_SIZE else arguments.get("image_size", 32)


def _sides(image: Any) -> tuple[int, int]:
    return tuple(image) if isinstance(image, list) else (image, image)


def _models(config: type) -> list[type]:
    """The bare model, and the one that classifies."""
    mappings = (transformers.MODEL_MAPPING, transformers.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING)
    found = [model for mapping in mappings if config in mapping for model in _each(mapping[config])]
    return list(dict.fromkeys(found))


def _each(models: Any) -> list[type]:
    return list(models) if isinstance(models, tuple | list) else [models]


def _outline_transformers(model: type, config: type) -> Stored:
    with torch.device("meta"):
        module = model(config())
    return Stored(path=Path("it"), format="memory", tensors=module.state_dict(), config=module.config.to_dict())


def _save_transformers(
    model: type, config: type, arguments: dict[str, Any], directory: Path
) -> Callable[[Tensor], Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = randomise(model(config(**arguments)))
    module.save_pretrained(directory)
    return partial(_answer, module)


def _answer(module: Any, images: Tensor) -> Tensor:
    """Logits, or the vector that vitrail takes for the model type's."""
    kind, options = module.config.model_type, {}
    if kind.startswith("siglip2"):
        images, options = _siglip2_patches(module, images)
    if kind.startswith("mobilevit"):
        images = images.flip(1)  # it reads blue before red
    if hasattr(module, "get_image_features"):
        found = module.get_image_features(images, **options)
        return found if isinstance(found, Tensor) else found.pooler_output
    if kind == "vit_mae":  # no patch is hidden
        module.config.mask_ratio = 0.0
        count = images.shape[2] * images.shape[3] // module.config.patch_size**2
        options["noise"] = torch.arange(count, dtype=torch.float32).expand(images.shape[0], -1)
    output = module(images, **options)
    if "logits" in output:
        return output.logits
    if kind in WINDOWS:  # SAM 2's maps have their channels last
        return output.last_hidden_state.mean((1, 2) if kind.startswith("sam2") else (2, 3))
    if kind.endswith("_vision_model") or kind in ("beit", "data2vec-vision", "hiera", *OWN_SIZE):
        return output.pooler_output
    if kind in ("ijepa", "videomae", "vjepa2"):
        return output.last_hidden_state.mean(1)
    if kind == "deit":
        return output.last_hidden_state[:, :2]
    return output.last_hidden_state[:, 0]


def _siglip2_patches(module: Any, images: Tensor) -> tuple[Tensor, dict[str, Any]]:
    """Its models take flat patches, (row, column, channel) in each, and the grid beside them."""
    side = getattr(module.config, "vision_config", module.config).patch_size
    rows, columns = images.shape[2] // side, images.shape[3] // side
    patches = images.unflatten(2, (rows, side)).unflatten(4, (columns, side)).permute(0, 2, 4, 3, 5, 1)
    mask = torch.ones(images.shape[0], rows * columns, dtype=torch.int32)
    shapes = torch.tensor([[rows, columns]] * images.shape[0])
    return patches.flatten(3).flatten(1, 2), {"pixel_attention_mask": mask, "spatial_shapes": shapes}


# ── OpenCLIP ────────────────────────────────────────────────────────────────────────────────────────────────────


def _openclip_cases() -> Iterator[Case]:
    for name in open_clip.list_models():
        config = open_clip.get_model_config(name)
        vision = config["vision_cfg"]
        if "timm_model_name" in vision or not isinstance(vision.get("layers", 12), int):
            continue
        small = {**vision, "layers": 2, "width": 2 * vision.get("head_width", 64)}
        side = 3 * small.get("patch_size", 16)
        small["image_size"] = side
        yield Case(
            library="open_clip",
            name=name,
            save=partial(_save_openclip, {**config, "vision_cfg": small}),
            image=(side, side),
        )


def _save_openclip(config: dict[str, Any], directory: Path) -> Callable[[Tensor], Tensor]:
    from safetensors.torch import save_file

    tower = open_clip.model._build_vision_tower(24, config["vision_cfg"], config.get("quick_gelu", False))
    tower = randomise(tower)
    directory.mkdir()
    save_file(
        {f"visual.{name}": value.contiguous() for name, value in tower.state_dict().items()},
        directory / "open_clip_model.safetensors",
    )
    (directory / "open_clip_config.json").write_text(json.dumps({"model_cfg": {**config, "embed_dim": 24}}))
    return lambda images: tower(images)[0] if tower.output_tokens else tower(images)
