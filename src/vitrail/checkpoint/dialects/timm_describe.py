"""timm's config.json of a model that is written: its architecture's name, or the arguments that build it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.dialects.dialect import Written, without
from vitrail.checkpoint.dialects.timm_architectures import architectures_of
from vitrail.checkpoint.dialects.timm_arguments import POOLS, fields_of, settings
from vitrail.checkpoint.dialects.timm_hybrid import architecture_with, patch_argument
from vitrail.checkpoint.dialects.timm_swin import swin_arguments
from vitrail.config import Config, PyramidConfig, ViTConfig
from vitrail.errors import VitrailError
from vitrail.parts import AttentionPool, Learned, Mlp, SwiGLU, WindowedAttention

__all__ = ["config_json", "describe"]


def describe(checkpoint: Checkpoint, tensors: Mapping[str, Tensor]) -> Written:
    """Return timm's config.json: the file's own, or one for the matching architecture."""
    config, origin = checkpoint.config, checkpoint.origin if checkpoint.dialect == "timm" else {}
    arguments = {**(origin.get("model_args") or {}), **_changeable(config, checkpoint.family)}
    if origin:
        arguments |= {"in_chans": config.channels, "num_classes": config.classes}
        if isinstance(config, ViTConfig) and checkpoint.family.startswith("vit"):
            arguments |= _pooling(config)
        pretrained = {**(origin.get("pretrained_cfg") or {}), **_pretrained(checkpoint), "num_classes": config.classes}
        changed = {"num_classes": config.classes, "model_args": arguments, "pretrained_cfg": pretrained}
        return Written(config={**origin, **changed})
    if isinstance(config, PyramidConfig) and isinstance(config.attention, WindowedAttention):
        name, arguments = swin_arguments(checkpoint)
        notes = (f"in timm it is create_model({name!r}, {_call({**arguments, 'num_classes': config.classes})})",)
        return Written(config=config_json(checkpoint, name, arguments), notes=notes)
    if not isinstance(config, ViTConfig):
        return Written()
    name = _architecture_of(config, {name: tuple(tensor.shape) for name, tensor in tensors.items()})
    if name is None:
        notes, arguments = _arguments(config, tensors), _plain_arguments(config, tensors)
        if not arguments:
            return Written(notes=notes)
    else:
        notes = (f"in timm it is create_model({name!r}, {_call({**arguments, 'num_classes': config.classes})})",)
    return Written(
        config=config_json(checkpoint, name or architecture_with(config.embedding) or PLAIN, arguments), notes=notes
    )


def config_json(checkpoint: Checkpoint, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    config = checkpoint.config
    return {
        "architecture": name,
        "num_classes": config.classes,
        "num_features": config.stages[-1].width if isinstance(config, PyramidConfig) else config.vector_width,
        "model_args": arguments,
        "pretrained_cfg": _pretrained(checkpoint),
    }


def _call(arguments: Mapping[str, Any]) -> str:
    """Write arguments as Python literals."""
    return ", ".join(f"{key}={tuple(v) if isinstance(v, list) else v}" for key, v in arguments.items())


def _architecture_of(config: ViTConfig, shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    """Return the architecture with these names and shapes that also agrees in fields that shapes do not show."""
    ours: dict[str, Any] = {
        **{"num_heads": config.num_heads, "norm_eps": config.norm_eps, "pool": config.pool},
        "block_norm": config.block_norm,
    }
    if isinstance(config.mlp, Mlp):
        ours["activation"] = config.mlp.activation
    if isinstance(config.pool, AttentionPool):
        ours |= {"pool_prefix": config.pool.prefix, "pool_heads": config.pool.num_heads}
    for candidate in architectures_of(shapes):
        try:
            fields = fields_of(candidate.kind, settings(candidate, {}), frozenset(shapes))
        except VitrailError:
            continue
        if "pool_heads" in fields:
            fields["pool_heads"] = fields["pool_heads"] or fields["num_heads"]
        alike = getattr(fields["position"], "inside", None) == config.position.inside
        if alike and all(fields[key] == value for key, value in ours.items() if key in fields):
            return candidate.name
    return None


def _pretrained(checkpoint: Checkpoint) -> dict[str, Any]:
    steps = checkpoint.preprocessing
    return {
        "input_size": [checkpoint.config.channels, *checkpoint.config.image],
        "mean": list(steps.mean),
        "std": list(steps.std),
        "interpolation": steps.interpolation,
        "crop_pct": steps.crop_share,
        "crop_mode": "squash" if steps.resize == "squash" else "center",
    }


def _changeable(config: Config, family: str) -> dict[str, Any]:
    """Return the arguments that surgery may have changed."""
    if not isinstance(config, ViTConfig):
        return {"img_size": list(config.image)} if isinstance(config, PyramidConfig) else {}
    patch = patch_argument(config.embedding)
    found: dict[str, Any] = {
        "img_size": list(config.image),
        "patch_size": patch.height if patch.height == patch.width else list(patch),
    }
    if config.channels != 3:
        found["in_chans"] = config.channels
    if family.startswith("vit") and isinstance(config.position, Learned):
        found |= {
            "class_token": config.prefix.cls,
            "reg_tokens": config.prefix.registers,
            "no_embed_class": config.position.prefix == "none" and config.prefix.count > 0,
        }
    return found


def _pooling(config: ViTConfig) -> dict[str, Any]:
    """Return VisionTransformer's arguments for pooling and for the place of the final norm."""
    pool = next((name for name, pool in POOLS.items() if pool == config.pool), "map")
    sees_prefix = isinstance(config.pool, AttentionPool) and config.pool.prefix
    return {
        "global_pool": pool,
        "fc_norm": config.final_norm == "pooled",
        "final_norm": config.final_norm != "none",
        **({"pool_include_prefix": True} if sees_prefix else {}),
    }


def _arguments(config: ViTConfig, tensors: Mapping[str, Tensor]) -> tuple[str, ...]:
    """Return the class's arguments for a shape that none of its architectures has."""
    gated, prefix = isinstance(config.mlp, SwiGLU), config.prefix
    wanted: dict[str, Any] = {
        "img_size": tuple(config.image),
        "patch_size": tuple(patch_argument(config.embedding)),
        **({"in_chans": config.channels} if config.channels != 3 else {}),
        **{"num_classes": config.classes, "embed_dim": config.width, "depth": config.depth},
        **{"num_heads": config.num_heads, "mlp_ratio": config.mlp.width * (1 + gated) / config.width},
    }
    if not gated and config.mlp.activation != "gelu":  # type: ignore[union-attr]
        wanted["act_layer"] = repr(config.mlp.activation)  # type: ignore[union-attr]
    if config.norm_eps != 1e-6 or config.norm != "layer":
        kind = "LayerNorm" if config.norm == "layer" else "RmsNorm"
        wanted["norm_layer"] = f"partial(timm.layers.{kind}, eps={config.norm_eps:g})"
    other = next((kind for name, kind in OTHER_CLASSES.items() if name in tensors), None)
    if other is not None:
        return (f"timm has no architecture of this shape: build its {other}, with {_call(wanted)}",)
    pooling = _pooling(config)
    usual = {
        **{"class_token": True, "reg_tokens": 0, "no_embed_class": False, "qkv_bias": True, "qk_norm": False},
        **{"proj_bias": True, "scale_attn_norm": False, "scale_mlp_norm": False},
        **{"init_values": None, "pre_norm": False, "final_norm": True, "fc_norm": None, "global_pool": "'token'"},
    }
    wanted |= {
        **{"class_token": prefix.cls, "reg_tokens": prefix.registers, "qkv_bias": config.qkv_bias == "all"},
        "no_embed_class": isinstance(config.position, Learned)
        and config.position.prefix == "none"
        and prefix.count > 0,
        **{"qk_norm": config.qk_norm, "init_values": config.layer_scale, "pre_norm": config.embedding_norm},
        **{"proj_bias": config.out_bias, "scale_attn_norm": config.attention_norm, "scale_mlp_norm": config.mlp.norm},
        **{"final_norm": config.final_norm != "none", "global_pool": repr(pooling["global_pool"])},
        **({} if pooling["global_pool"] == "token" else {"fc_norm": pooling["fc_norm"]}),
        **({"mlp_layer": "timm.layers.SwiGLUPacked", "act_layer": "torch.nn.SiLU"} if gated else {}),
        **({"block_fn": "timm.models.vision_transformer.ResPostBlock"} if config.block_norm == "after" else {}),
    }
    if hybrid := architecture_with(config.embedding):
        return (f"timm has no architecture of this shape: build timm.create_model({hybrid!r}, {_call(wanted)})",)
    told = {key: value for key, value in wanted.items() if key not in usual or usual[key] != value}
    return (f"timm has no architecture of this shape: build timm.models.VisionTransformer({_call(told)})",)


def _plain_arguments(config: ViTConfig, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the arguments that make this model of timm's plain ViT; empty if JSON cannot say them."""
    if not isinstance(config.mlp, Mlp) or config.norm_eps != 1e-6 or "pos_embed" not in tensors or without(config):
        return {}
    if config.patch_norm or config.attention_norm or config.mlp.norm or config.position.inside is not None:
        return {}
    if config.block_norm == "after":
        return {}
    ratio = config.mlp.width / config.width
    if int(config.width * ratio) != config.mlp.width or any(name in tensors for name in OTHER_CLASSES):
        return {}
    return {
        **_changeable(config, "vit"),
        **{"embed_dim": config.width, "depth": config.depth, "num_heads": config.num_heads, "mlp_ratio": ratio},
        **{"qkv_bias": config.qkv_bias == "all", "qk_norm": config.qk_norm, "init_values": config.layer_scale},
        **{"pre_norm": config.embedding_norm, "act_layer": config.mlp.activation},
        **_pooling(config),
    }


PLAIN = "vit_base_patch16_224"
"""timm's architecture whose arguments are the defaults of its class."""
OTHER_CLASSES = {
    "dist_token": "VisionTransformerDistilled",
    "blocks.0.gamma_1": "Beit or Eva",
    "shared_rel_pos.mlp.fc1.weight": "VisionTransformerRelPos",
    "blocks.0.attn.rel_pos.mlp.fc1.weight": "VisionTransformerRelPos",
}
"""By a tensor that timm's VisionTransformer does not have."""
