"""timm: one naming for ViT, DeiT, DINOv2, CLIP, SigLIP, FlexiViT …; others for distilled DeiT, BEiT, EVA/DINOv3, and
models in stages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

from torch import Tensor

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.dialects.dialect import Dialect, Family, Written, without
from vitrail.checkpoint.dialects.evidence import Known
from vitrail.checkpoint.dialects.json_config import JsonConfig
from vitrail.checkpoint.dialects.table import Sizes
from vitrail.checkpoint.dialects.timm_architectures import Architecture, architecture_named, architectures_of
from vitrail.checkpoint.dialects.timm_arguments import NO_EFFECT, POOLS, fields_of
from vitrail.checkpoint.dialects.timm_names import (
    BEIT_ROWS,
    DISTILLED_ROWS,
    EVA_PACKED_ROWS,
    EVA_ROWS,
    EVA_SPLIT_ROWS,
    NAFLEX_ROWS,
    VIT_GATED_ROWS,
    VIT_ROWS,
)
from vitrail.checkpoint.dialects.timm_stages import MOBILE_ROWS, PIT_DISTILLED_ROWS, PIT_ROWS, SWIN_ROWS, settle_stages
from vitrail.checkpoint.formats.file import Stored
from vitrail.checkpoint.preprocessing import HALF, IMAGENET, OPENAI_CLIP, Interpolation, Preprocessing, Statistics
from vitrail.config import Config, PyramidConfig, ViTConfig
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size, fit
from vitrail.parts import AttentionPool, Learned, Mlp, Patches, SwiGLU

__all__ = ["TIMM"]


ARGUMENTS = frozenset({"norm_eps", "activation"})
"""What timm takes as arguments of the model, so that a file need not agree."""
SIZES = {"embed_dim": 768, "depth": 12, "in_chans": 3, "patch_size": 16}
"""Defaults of timm's ViT, BEiT and EVA classes."""
STAGES_SHOWN = frozenset({"patch_size", "embed_dim", "depths", "num_heads", "window_size", "mlp_ratio", "qkv_bias"})
"""Arguments of a model in stages that leave tensors of their own shape."""
PIT_SHOWN = frozenset({"img_size", "num_classes", "in_chans", "patch_size", "depth", "mlp_ratio", "distilled"})
"""PiT's; its base_dims, heads and stride show less, and are read from presets alone."""


def _known(stored: Stored, prefix: str) -> Known:
    said = JsonConfig(stored.config)
    names = frozenset(name.removeprefix(prefix) for name in stored.tensors if name.startswith(prefix))
    tower = said.part("model_cfg").part("vision_cfg")  # OpenCLIP's models may have a tower of timm's
    name = said.text("architecture") or tower.text("timm_model_name")
    if not name:
        return _known_by_shape(stored, prefix, names)
    architecture = architecture_named(name)
    # at the root timm notes the pooling of the model that was saved; all else there has no effect on the outputs
    pool = said.text("global_pool") or tower.text("timm_pool")
    given = {**({"global_pool": pool} if pool else {}), **said.part("model_args").values}
    arguments = _settings(architecture, given)
    return Known(
        source=f"config.json (timm's {architecture.name})",
        fields=fields_of(architecture.kind, arguments, names),
        image=_image(said) or tower.size("image_size"),
        stated=JsonConfig({**SIZES, **arguments.values}, arguments.where).stated(
            width="embed_dim", depth="depth", channels="in_chans", patch="patch_size"
        ),
    )


def _settings(architecture: Architecture, given: Mapping[str, Any]) -> JsonConfig:
    return JsonConfig({**architecture.arguments, **given}, f"timm's {architecture.name}")


def _known_by_shape(stored: Stored, prefix: str, names: frozenset[str]) -> Known:
    """Return what all architectures of these shapes agree on; raise an error that asks the user where they differ."""
    shapes = {name: tuple(stored.tensors[prefix + name].shape) for name in names}
    alike = architectures_of(shapes)
    candidates = [each for each in alike if _has_rows(each, shapes)] or alike
    if not candidates:
        return Known(
            source="names and shapes, as timm's models have them",
            fields=_usual_fields(stored, prefix, names),
            assumed=("activation", "norm_eps", "pool", "position"),
        )
    found: dict[str, tuple[Architecture, dict[str, Any] | VitrailError]] = {}
    for candidate in candidates:
        try:
            fields: dict[str, Any] | VitrailError = fields_of(candidate.kind, _settings(candidate, {}), names)
        except VitrailError as error:
            fields = error
        found.setdefault(str(fields).replace(candidate.name, ""), (candidate, fields))
    (first, fields), *others = found.values()
    if others:
        raise VitrailError(
            f"{stored.path} may be timm's {first.name} or its {others[0][0].name}, which have the same names and "
            "shapes and different outputs; put its config.json beside it, or say which by --architecture"
        )
    if isinstance(fields, VitrailError):
        raise VitrailError(f"{stored.path} has the names and shapes of a model that vitrail does not read: {fields}")
    more = f" and {len(candidates) - 1} more" if len(candidates) > 1 else ""
    source = f"the exact names and shapes of timm's {first.name}{more}"
    images = {each.image for each in candidates}
    return Known(source=source, fields=fields, image=images.pop() if len(images) == 1 else None)


def _has_rows(architecture: Architecture, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Return whether the position table has the rows of this architecture's own image size."""
    if "pos_embed" not in shapes:
        return True
    patch = Size(*shapes["patch_embed.proj.weight"][2:])
    tokens = [shapes[name][1] for name in ("cls_token", "dist_token", "reg_token") if name in shapes]
    rows = shapes["pos_embed"][1] - fit(architecture.image, patch, remainder="floor").grid.area
    return rows in (0, sum(tokens))


def _usual_fields(stored: Stored, prefix: str, names: frozenset[str]) -> dict[str, Any]:
    """Return the usual values of timm's models, for weights without a config and of unknown shape."""
    dinov3 = "pos_embed" not in names and _is_dinov3(stored, prefix)
    clip = "norm_pre.weight" in names
    arguments: dict[str, Any] = {"norm_layer": "LayerNorm(eps=1e-05)"} if dinov3 or clip else {}
    if dinov3:
        arguments |= {"use_rot_pos_emb": True, "rope_type": "dinov3", "rope_rotate_half": True, "rope_temperature": 100}
    kind = "Eva" if dinov3 or "fc_norm.weight" in names or "cls_token" not in names else "VisionTransformer"
    if "attn_pool.latent" in names:
        arguments["global_pool"] = "map"
    fields = fields_of(kind, JsonConfig(arguments), names)
    del fields["num_heads"]
    return fields


def _known_naflex(stored: Stored, prefix: str) -> Known:
    """The table has the shape of its grid, and patches are flat: their size follows from the channels."""
    found = _known(stored, prefix)
    table, weight = (stored.tensors[f"{prefix}embeds.{name}"] for name in ("pos_embed", "proj.weight"))
    channels = JsonConfig(stored.config).part("model_args").whole("in_chans", 3)
    side = math.isqrt(weight.shape[-1] // channels)
    require(
        table.ndim == 4 and side * side * channels == weight.shape[-1],
        f"{stored.path} has patches of {weight.shape[-1]} values, which are no squares of {channels} channels",
    )
    grid = Size(*table.shape[1:3])
    sizes = Sizes(patch=Size.of(side), channels=channels, grid=grid)
    return replace(found, image=Size(grid.height * side, grid.width * side), sizes=sizes)


def _known_stages(stored: Stored, prefix: str) -> Known:
    said = JsonConfig(stored.config)
    shown = {"img_size", "num_classes", "in_chans", *STAGES_SHOWN}
    said.part("model_args").understand(NO_EFFECT | shown, {"global_pool": ("avg",)})
    name = said.text("architecture")
    source = f"config.json (timm's {name})" if name else "names and shapes"
    return Known(source=source, image=_image(said))


def _known_pit(stored: Stored, prefix: str) -> Known:
    said = JsonConfig(stored.config)
    only = {"global_pool": ("token",), "stem_type": ("overlap",)}
    said.part("model_args").understand(NO_EFFECT | PIT_SHOWN | {"pos_drop_drate"}, only)
    name, table = said.text("architecture"), stored.tensors.get(f"{prefix}pos_embed")
    require(
        table is not None and table.ndim == 4,
        f"{stored.path} has no table of positions with the height and width of a grid, as PiT has; it is not whole",
    )
    assert table is not None
    return Known(
        source=f"config.json (timm's {name})" if name else "names and shapes",
        image=_image(said),
        sizes=Sizes(grid=Size(*table.shape[2:])),
    )


def _is_pit(tokens: int) -> Any:
    """Match PiT's names and this many tokens before the patches: CLS, or CLS and distillation."""

    def signs(stored: Stored, prefix: str) -> bool:
        cls = stored.tensors.get(f"{prefix}cls_token")
        there = _any(stored, prefix, ("transformers.0.blocks.0.norm1.weight",))
        return there and cls is not None and tuple(cls.shape[1:2]) == (tokens,)

    return signs


def _any(stored: Stored, prefix: str, names: tuple[str, ...]) -> bool:
    return any(prefix + name in stored.tensors for name in names)


def _all(stored: Stored, prefix: str, names: tuple[str, ...]) -> bool:
    return all(prefix + name in stored.tensors for name in names)


def _is_dinov3(stored: Stored, prefix: str) -> bool:
    """Match CLS, four registers and no table: among models without a config, only DINOv3 has these."""
    registers = stored.tensors.get(f"{prefix}reg_token")
    return _any(stored, prefix, ("cls_token",)) and registers is not None and registers.shape[1:2] == (4,)


def _is_packed(stored: Stored, prefix: str) -> bool:
    """Match a gated MLP whose gate and value are one layer."""
    fc1, fc2 = (stored.tensors.get(f"{prefix}blocks.0.mlp.{layer}.weight") for layer in ("fc1", "fc2"))
    return fc1 is not None and fc2 is not None and fc1.shape[0] == 2 * fc2.shape[-1]


def _is_eva(stored: Stored, prefix: str) -> bool:
    """Match timm's Eva class by tensors that no other has, by its architecture's name, or by its exact shapes."""
    own = ("blocks.0.gamma_1", "blocks.0.attn.q_bias", "rope.freqs")
    shapes = {
        name.removeprefix(prefix): tuple(each.shape) for name, each in stored.tensors.items() if name.startswith(prefix)
    }
    if "blocks.0.norm1.weight" not in shapes or _any(stored, prefix, own):
        return "blocks.0.norm1.weight" in shapes
    name = JsonConfig(stored.config).text("architecture")
    alike = [architecture_named(name)] if name else architectures_of(shapes)
    return bool(alike) and all(each.kind == "Eva" for each in alike)


def _image(said: JsonConfig) -> Size | None:
    return said.part("model_args").size("img_size") or said.part("pretrained_cfg").size("input_size")


def _has(*names: str) -> Any:
    return lambda stored, prefix: _any(stored, prefix, names)


def _describe(checkpoint: Checkpoint, tensors: Mapping[str, Tensor]) -> Written:
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
    if not isinstance(config, ViTConfig):
        return Written()
    name = _architecture_of(config, {name: tuple(tensor.shape) for name, tensor in tensors.items()})
    if name is None:
        notes, arguments = _arguments(config, tensors), _plain_arguments(config, tensors)
        if not arguments:
            return Written(notes=notes)
    else:
        notes = (f"in timm it is create_model({name!r}, {_call({**arguments, 'num_classes': config.classes})})",)
    written = {
        "architecture": name or PLAIN,
        "num_classes": config.classes,
        "num_features": config.width,
        "model_args": arguments,
        "pretrained_cfg": _pretrained(checkpoint),
    }
    return Written(config=written, notes=notes)


def _call(arguments: Mapping[str, Any]) -> str:
    """Write arguments as Python literals."""
    return ", ".join(f"{key}={tuple(v) if isinstance(v, list) else v}" for key, v in arguments.items())


def _architecture_of(config: ViTConfig, shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    """Return the architecture with these names and shapes that also agrees in fields that shapes do not show."""
    ours: dict[str, Any] = {"num_heads": config.num_heads, "norm_eps": config.norm_eps, "pool": config.pool}
    if isinstance(config.mlp, Mlp):
        ours["activation"] = config.mlp.activation
    if isinstance(config.pool, AttentionPool):
        ours |= {"pool_prefix": config.pool.prefix, "pool_heads": config.pool.num_heads}
    for candidate in architectures_of(shapes):
        try:
            fields = fields_of(candidate.kind, _settings(candidate, {}), frozenset(shapes))
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
    patch = config.patch
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
        "patch_size": tuple(config.patch),
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
    }
    told = {key: value for key, value in wanted.items() if key not in usual or usual[key] != value}
    return (f"timm has no architecture of this shape: build timm.models.VisionTransformer({_call(told)})",)


def _plain_arguments(config: ViTConfig, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the arguments that make this model of timm's plain ViT; empty if JSON cannot say them."""
    if not isinstance(config.mlp, Mlp) or config.norm_eps != 1e-6 or "pos_embed" not in tensors or without(config):
        return {}
    if config.patch_norm or config.attention_norm or config.mlp.norm or config.position.inside is not None:
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
OTHER_CLASSES = {"dist_token": "VisionTransformerDistilled", "blocks.0.gamma_1": "Beit or Eva"}
"""By a tensor that timm's VisionTransformer does not have."""


def _refuse(config: Config) -> str | None:
    """Refuse combinations that timm's VisionTransformer and Eva cannot express."""
    if not isinstance(config, ViTConfig):
        return "it is a plain Vision Transformer"
    position, registers = config.position, config.prefix.registers
    if isinstance(position, Learned) and position.prefix == "cls" and registers:
        return "it gives positions to all prefix tokens or to none, and here CLS alone has one"
    if isinstance(config.embedding, Patches) and config.embedding.bias == config.embedding_norm:
        return "its patch projection has a bias exactly where no norm follows it"
    if config.out_bias != config.mlp.bias:
        return "its attention and its MLP have biases, or neither has"
    if not config.head_bias and config.classes:
        return "its head has a bias"
    return None


def _preprocessing(stored: Stored, family: Family, image: Size) -> Preprocessing:
    said = JsonConfig(stored.config)
    stated = said.part("pretrained_cfg")
    mean, std = _statistics(said.text("architecture"), family)
    interpolation = stated.text("interpolation", "bicubic")
    return Preprocessing(
        image=image,
        mean=stated.numbers("mean", mean),
        std=stated.numbers("std", std),
        interpolation=interpolation if interpolation in get_args(Interpolation) else "bicubic",  # type: ignore[arg-type]
        resize="squash" if stated.text("crop_mode") == "squash" else "crop",
        crop_share=min(1.0, stated.number("crop_pct", 0.9)),
        source="config.json (pretrained_cfg)" if stated else "what most of the family was trained with",
    )


def _statistics(name: str, family: Family) -> Statistics:
    if "_clip_" in name:
        return OPENAI_CLIP
    return IMAGENET if "dino" in name else family.statistics


def _foreign(stored: Stored) -> str | None:
    name = JsonConfig(stored.config).text("architecture")
    return f"config.json names timm's {name!r}, which is not an architecture that vitrail knows" if name else None


TIMM = Dialect(
    name="timm",
    preprocessing=_preprocessing,
    foreign=_foreign,
    families=(
        Family(
            name="distilled",
            rows=DISTILLED_ROWS,
            anchor="patch_embed.proj.weight",
            signs=_has("dist_token"),
            needs=("prefix.cls", "prefix.distillation", "position.table", "norm.weight"),
            known=_known,
            statistics=IMAGENET,
            write=_describe,
            loose=ARGUMENTS,
        ),
        Family(
            name="beit",
            rows=BEIT_ROWS,
            anchor="patch_embed.proj.weight",
            signs=_has("blocks.0.attn.relative_position_bias_table", "rel_pos_bias.relative_position_bias_table"),
            known=_known,
            spare=r".*relative_position_index|lm_head\..*|norm\..*",
            needs=("prefix.cls", "norm.weight"),
            statistics=HALF,
            write=_describe,
            loose=ARGUMENTS,
        ),
        *(
            Family(
                name=name,
                rows=rows,
                anchor="patch_embed.proj.weight",
                signs=lambda stored, prefix, sign=sign: (
                    _all(stored, prefix, ("blocks.0.attn.qkv.weight", sign)) and not _is_eva(stored, prefix)
                ),
                known=_known,
                spare=r"pre_logits\..*|decoder.*",
                write=_describe,
                loose=ARGUMENTS,
                lacks=frozenset({"norm biases", "out biases", "mlp biases"}),
                refuse=_refuse,
            )
            for name, rows, sign in (
                ("vit", VIT_ROWS, "blocks.0.mlp.fc1.weight"),
                ("vit, gated", VIT_GATED_ROWS, "blocks.0.mlp.fc1_g.weight"),
            )
        ),
        *(
            Family(
                name=name,
                rows=rows,
                anchor="patch_embed.proj.weight",
                signs=signs,
                known=_known,
                spare=r"rope\.periods",
                statistics=IMAGENET,
                write=_describe,
                loose=ARGUMENTS,
                lacks=frozenset({"norm biases"}),
                refuse=_refuse,
            )
            for name, rows, signs in (
                ("eva, split", EVA_SPLIT_ROWS, _has("blocks.0.attn.q_proj.weight")),
                (
                    "eva, packed",
                    EVA_PACKED_ROWS,
                    lambda stored, prefix: _is_eva(stored, prefix) and _is_packed(stored, prefix),
                ),
                ("eva", EVA_ROWS, _is_eva),
            )
        ),
        Family(
            name="naflexvit",
            rows=NAFLEX_ROWS,
            anchor="embeds.proj.weight",
            signs=_has("embeds.pos_embed"),
            known=_known_naflex,
            needs=("position.table", "embedding.bias"),
            write=_describe,
            loose=ARGUMENTS,
        ),
        Family(
            name="swin",
            rows=SWIN_ROWS,
            anchor="patch_embed.proj.weight",
            signs=_has("layers.0.blocks.0.attn.relative_position_bias_table"),
            known=_known_stages,
            spare=r".*relative_position_index|.*attn_mask",
            statistics=IMAGENET,
            write=_describe,
            needs=("stages.0.blocks.0.norm1.weight",),
            settle=settle_stages,
        ),
        *(
            Family(
                name=name,
                rows=rows,
                anchor="patch_embed.conv.weight",
                signs=_is_pit(tokens),
                known=_known_pit,
                statistics=IMAGENET,
                write=_describe,
                needs=("stages.0.blocks.0.norm1.weight", "position.table", *needs),
                settle=settle_stages,
            )
            for name, rows, tokens, needs in (
                ("pit", PIT_ROWS, 1, ("prefix.cls",)),
                ("distilled pit", PIT_DISTILLED_ROWS, 2, ("prefix.cls", "prefix.distillation")),
            )
        ),
        Family(
            name="mobilevit",
            rows=MOBILE_ROWS,
            anchor="stem.conv.weight",
            signs=_has("stages.0.0.conv1_1x1.conv.weight"),
            known=_known_stages,
            statistics=((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
            write=_describe,
            needs=("stem.conv.weight",),
            settle=settle_stages,
        ),
    ),
)
