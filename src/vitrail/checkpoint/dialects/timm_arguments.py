"""timm's arguments of a model → the fields of ours that its tensors do not show; what is not understood is refused.

An argument is read here, or shown by the tensors' names and shapes, or without effect on the outputs, or allowed to
have one value only. Any other argument, and any other value, is another model's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, get_args

from vitrail.checkpoint.dialects.json_config import JsonConfig
from vitrail.checkpoint.dialects.timm_architectures import Architecture
from vitrail.errors import VitrailError, require
from vitrail.parts import (
    Activation,
    ClsPool,
    Convention,
    Learned,
    MaxPool,
    MeanPool,
    Pool,
    Position,
    RelativeBias,
    RelativeMlp,
    Rotary,
    RotaryMixed,
)

__all__ = ["NO_EFFECT", "POOLS", "fields_of", "settings"]

NO_EFFECT = frozenset(
    {
        *("drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate"),
        *("weight_init", "fix_init", "head_init_scale", "dynamic_img_size", "dynamic_img_pad", "strict_img_size"),
        *("rope_shift_coords", "rope_jitter_coords", "rope_rescale_coords", "device", "dtype"),
    }
)
"""Arguments of training, of initialisation, and of which images are accepted."""
SHOWN = frozenset(
    {
        *("img_size", "patch_size", "in_chans", "num_classes", "embed_dim", "depth", "mlp_ratio", "qkv_bias"),
        *("qk_norm", "init_values", "class_token", "no_embed_class", "reg_tokens", "num_reg_tokens", "pre_norm"),
        *("final_norm", "fc_norm", "use_fc_norm", "use_post_transformer_norm", "swiglu_mlp", "swiglu_align_to"),
        *("proj_bias", "scale_attn_norm", "scale_mlp_norm", "scale_mlp", "scale_attn_inner", "qkv_fused"),
        *("scale_attn_inner_norm", "pos_embed_grid_size"),
        *("use_rel_pos_bias", "use_shared_rel_pos_bias", "use_pre_transformer_norm", "attn_pool_mlp_ratio"),
        "shared_rel_pos",
    }
)
"""Arguments that leave tensors of their own name or shape."""
READ = frozenset(
    {
        *("num_heads", "norm_layer", "embed_norm_layer", "act_layer", "global_pool", "pool_include_prefix"),
        *("use_abs_pos_emb", "use_rot_pos_emb", "attn_pool_num_heads", "pos_embed_interp_mode", "rel_pos_dim"),
    }
)
POST_NORM = ("ResPostBlock", "ResPostRelPosBlock")
ONLY: Mapping[str, tuple[Any, ...]] = {
    "block_fn": ("Block", "RelPosBlock", *POST_NORM),
    "rel_pos_type": ("mlp", "mlp_swin"),
    "embed_layer": ("PatchEmbed",),
    "attn_layer": ("Attention", "attention", ""),
    "mlp_layer": ("Mlp", "SwiGLUPacked", "SwiGLU"),
    "pos_embed": ("learn",),
    "attn_only_layer_scale": (False,),
    "use_post_norm": (False, True),
    "pos_embed_ar_preserving": (False,),
    "embed_proj_type": ("linear",),
    "attn_type": ("eva", "rope"),
}
ROTARY = frozenset(
    {
        *("rope_type", "rope_temperature", "rope_rotate_half", "rope_grid_offset", "rope_grid_indexing"),
        "ref_feat_shape",
    }
)
"""Without rotary positions these have no effect."""
ACTIVATIONS: Mapping[str, Activation] = {
    **{name: name for name in get_args(Activation)},
    **{"GELU": "gelu", "GELUTanh": "gelu_tanh", "QuickGELU": "quick_gelu", "SiLU": "silu", "swish": "silu"},
    **{"ReLU": "relu", "Tanh": "tanh"},
}
POOLS: Mapping[str, Pool] = {"token": ClsPool(), "avg": MeanPool(), "max": MaxPool()}


CONVENTIONS: Mapping[str, Convention] = {"bicubic": "timm", "bilinear": "siglip2"}
"""How a table is resized, with antialiasing."""
USUAL_POOLS = {"VisionTransformer": "token", "VisionTransformerDistilled": "token", "NaFlexVit": "map"}


def settings(architecture: Architecture, given: Mapping[str, Any]) -> JsonConfig:
    """Return an architecture's arguments, with those that a file gives in their place."""
    return JsonConfig({**architecture.arguments, **given}, f"timm's {architecture.name}")


def fields_of(kind: str, said: JsonConfig, tensors: frozenset[str]) -> dict[str, Any]:
    """Return the fields of timm's class `kind` with these arguments; `tensors` are names without prefix."""
    rotary = said.flag("use_rot_pos_emb", False)
    only = {**ONLY, "rope_type": ("", "none")} if kind == "NaFlexVit" else ONLY
    if any(name.startswith("patch_embed.backbone.") for name in tensors):
        only = {**only, "embed_layer": ("HybridEmbed", "HybridEmbed(proj=False)")}
    said.understand((READ | SHOWN | NO_EFFECT | ROTARY) - only.keys(), only)
    fields: dict[str, Any] = {
        "num_heads": said.whole("num_heads", 12),
        "norm_eps": _epsilon(said),
        "activation": _activation(said),
        "position": _position(said, rotary, tensors),
        "block_norm": "after" if said.text("block_fn") in POST_NORM or said.flag("use_post_norm", False) else "before",
        **({"final_norm": "pooled"} if "fc_norm.weight" in tensors else {}),
    }
    pool = said.text("global_pool", USUAL_POOLS.get(kind, "avg"))
    if pool == "map":
        require("attn_pool.latent" in tensors, f"{said.where} has global_pool 'map', and the weights have no attn_pool")
        fields["pool_prefix"] = kind == "Eva" or said.flag("pool_include_prefix", False)
        fields["pool_heads"] = said.whole("attn_pool_num_heads", 0) or None  # None: as many as the blocks
    else:
        require(pool in POOLS, f"{said.where} has global_pool {pool!r}; vitrail reads {', '.join(POOLS)} and map")
        fields["pool"] = POOLS[pool]
        require(
            pool == "token" or not said.flag("pool_include_prefix", False),
            f"{said.where} has pool_include_prefix, and vitrail's pooling by {pool} leaves the prefix out",
        )
    return fields


def _epsilon(said: JsonConfig) -> float:
    name = said.text("norm_layer", "LayerNorm")
    found = re.fullmatch(r"(?:LayerNorm|layernorm|RmsNorm|rmsnorm)(?:\(eps=([0-9.e-]+)\))?", name)
    if found is None:
        raise VitrailError(f"{said.where} has norm_layer {name!r}, and vitrail's models have LayerNorm or RmsNorm")
    of_patches = said.text("embed_norm_layer", name)
    require(
        of_patches == name,
        f"{said.where} has norm_layer {name!r} and embed_norm_layer {of_patches!r}, and vitrail's models have one kind",
    )
    return float(found[1] or 1e-6)


def _activation(said: JsonConfig) -> Activation:
    name = said.text("act_layer", "gelu")
    require(name in ACTIVATIONS, f"{said.where} has act_layer {name!r}; vitrail's models have {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def _position(said: JsonConfig, rotary: bool, tensors: frozenset[str]) -> Position | None:
    rotation = _rotation(said) if rotary else None
    if "pos_embed" in tensors or "embeds.pos_embed" in tensors:
        mode = said.text("pos_embed_interp_mode", "bicubic")
        require(mode in CONVENTIONS, f"{said.where} has pos_embed_interp_mode {mode!r}; vitrail reads {CONVENTIONS}")
        return Learned(convention=CONVENTIONS[mode], rotary=rotation)
    if rotation is not None:
        return rotation
    shared = "shared_rel_pos.mlp.fc1.weight" in tensors
    if shared or "blocks.0.attn.rel_pos.mlp.fc1.weight" in tensors:
        kind = "normalised" if said.text("rel_pos_type") == "mlp_swin" else "index"
        return RelativeMlp(shared=shared, coordinates=kind, width=said.whole("rel_pos_dim", 128))
    biased = any(name.endswith("relative_position_bias_table") for name in tensors)
    return (
        RelativeBias(shared="rel_pos_bias.relative_position_bias_table" in tensors, convention="timm")
        if biased
        else None
    )


def _rotation(said: JsonConfig) -> Rotary | RotaryMixed:
    kind, indexing = said.text("rope_type", "cat"), said.text("rope_grid_indexing", "ij")
    temperature, offset = said.number("rope_temperature", 10_000.0), said.number("rope_grid_offset", 0.0)
    halves = said.flag("rope_rotate_half", False)
    form = {"rope_type": kind, "rope_grid_indexing": indexing, "rope_grid_offset": offset, "rope_rotate_half": halves}
    match kind, indexing:
        case "cat", "ij" | "xy":
            return Rotary(
                temperature=temperature,
                pairs="halves" if halves else None,
                first="columns" if indexing == "xy" else "rows",
                offset=offset,
                reference=said.size("ref_feat_shape"),
            )
        case "dinov3", "ij" if offset == 0:
            pairs = None if halves else "neighbours"
            return Rotary(coordinates="normalised", temperature=temperature, pairs=pairs)
        case "mixed", "xy" if not halves:
            return RotaryMixed(temperature=temperature)
    raise VitrailError(f"{said.where} has rotary positions of {form}, a form that vitrail's models do not have")
