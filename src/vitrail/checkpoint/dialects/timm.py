"""timm: one naming for ViT, DeiT, DINOv2, CLIP, SigLIP, FlexiViT …; others for distilled DeiT, BEiT and EVA/DINOv3."""

from __future__ import annotations

import re
from typing import Any, get_args

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.dialects.dialect import Dialect, Family, Written
from vitrail.checkpoint.dialects.timm_names import BEIT_ROWS, DISTILLED_ROWS, EVA_ROWS, VIT_ROWS
from vitrail.checkpoint.dialects.timm_stages import MOBILE_ROWS, SWIN_ROWS, settle_stages
from vitrail.checkpoint.evidence import Known
from vitrail.checkpoint.file import Stored
from vitrail.checkpoint.preprocessing import HALF, IMAGENET, OPENAI_CLIP, Interpolation, Preprocessing, Statistics
from vitrail.checkpoint.said import Said
from vitrail.config import Config, ViTConfig
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size
from vitrail.nn.mlp import ACTIVATIONS
from vitrail.parts import ClsPool, Learned, MaxPool, MeanPool, Mlp, Patches, RelativeBias, Rotary

__all__ = ["TIMM"]


HEADS = {
    "tiny": 3, "xsmall": 4, "small": 6, "small_plus": 6, "medium": 8, "mediumd": 8, "betwixt": 10, "base": 12,
    "large": 16, "so400m": 16, "huge": 16, "huge_plus": 20, "giant": 16, "giantopt": 16, "gigantic": 16, "7b": 32,
}  # fmt: skip
"""By the size in a model's name, where its arguments do not say."""
UNUSUAL_HEADS = {"vit_base_patch16_gap_224": 16, "vit_giant_patch14_dinov2": 24, "vit_giant_patch14_reg4_dinov2": 24}
TANH = r"patch32_siglip|large_patch16_siglip\w*_512|so400m_patch16_siglip|giantopt"
"""SigLIP models that timm gives the tanh form of GELU."""
ARGUMENTS = frozenset({"norm_eps", "activation"})
"""What timm takes as arguments of the model, so that a file need not agree."""
POOLS = {"token": ClsPool(), "avg": MeanPool(), "max": MaxPool()}


def _known(stored: Stored, prefix: str) -> Known:
    said = Said(stored.config)
    name, arguments = said.text("architecture"), said.part("model_args")
    activation = arguments.text("act_layer") or _activation(name)
    require(
        activation in ACTIVATIONS,
        f"config.json has act_layer {activation!r}, which vitrail's models do not have; "
        f"they have {', '.join(ACTIVATIONS)}",
    )
    fields: dict[str, Any] = {
        "norm_eps": 1e-5 if re.search(r"_clip_|dinov3", name) else 1e-6,
        "activation": activation,
        "position": _position(stored, prefix, name),
    }
    if not name:
        fields["norm_eps"] = 1e-5 if f"{prefix}norm_pre.weight" in stored.tensors else 1e-6
    if f"{prefix}fc_norm.weight" in stored.tensors:
        fields |= {"final_norm": "pooled", "pool": MeanPool()}
    heads = arguments.whole("num_heads", UNUSUAL_HEADS.get(name) or HEADS.get(_size_in(name), 0))
    if heads:
        fields["num_heads"] = heads
    pool = arguments.text("global_pool") or said.text("global_pool")
    if pool in POOLS:
        fields["pool"] = POOLS[pool]
    if "init_values" in arguments and _any(stored, prefix, ("blocks.0.ls1.gamma", "blocks.0.gamma_1")):
        fields["layer_scale"] = arguments.number("init_values", 1e-5)
    source = f"config.json (timm's {name})" if name else "names and shapes, as timm's models have them"
    return Known(source=source, fields=fields, image=_image(said))


def _known_stages(stored: Stored, prefix: str) -> Known:
    said = Said(stored.config)
    name = said.text("architecture")
    source = f"config.json (timm's {name})" if name else "names and shapes"
    return Known(source=source, image=_image(said))


def _any(stored: Stored, prefix: str, names: tuple[str, ...]) -> bool:
    return any(prefix + name in stored.tensors for name in names)


def _size_in(name: str) -> str:
    found = re.match(r"(?:vit|beit|beitv2|deit|deit3|flexivit)_([a-z0-9_]+?)(?:_distilled)?(?:_patch.*|$)", name)
    return found[1] if found else ""


def _activation(name: str) -> str:
    if "quickgelu" in name:
        return "quick_gelu"
    return "gelu_tanh" if re.search(TANH, name) else "gelu"


def _position(stored: Stored, prefix: str, name: str) -> Any:
    if _any(stored, prefix, ("pos_embed",)):
        if "rope" in name or name.startswith("eva02"):
            raise VitrailError(f"timm's {name} has learned and rotary positions at once, and vitrail's models have one")
        return Learned(convention="timm")
    if _any(stored, prefix, ("rel_pos_bias.relative_position_bias_table",)):
        return RelativeBias(shared=True)
    if "dinov3" in name or (not name and _is_dinov3(stored, prefix)):
        return Rotary(coordinates="normalised", temperature=100.0)
    if "rope" in name:
        raise VitrailError(f"timm's {name} orders or scales its rotary positions in a way that vitrail's models do not")
    return None


def _is_dinov3(stored: Stored, prefix: str) -> bool:
    """CLS, four registers, no table: of the models without a config, only DINOv3's have these."""
    registers = stored.tensors.get(f"{prefix}reg_token")
    return _any(stored, prefix, ("cls_token",)) and registers is not None and registers.shape[1:2] == (4,)


def _image(said: Said) -> Size | None:
    return said.part("model_args").size("img_size") or said.part("pretrained_cfg").size("input_size")


def _has(*names: str) -> Any:
    return lambda stored, prefix: _any(stored, prefix, names)


def _describe(checkpoint: Checkpoint) -> Written:
    """timm's config.json, where the file came with one: the image may have changed since."""
    config, origin = checkpoint.config, checkpoint.origin if checkpoint.dialect == "timm" else {}
    if not isinstance(config, ViTConfig):
        return Written(config=origin)
    if origin:
        arguments = {**(origin.get("model_args") or {}), **_changeable(config, checkpoint.family)}
        return Written(config={**origin, "num_classes": config.classes, "model_args": arguments})
    return Written(notes=_arguments(config))


def _changeable(config: ViTConfig, family: str) -> dict[str, Any]:
    """The arguments that surgery may have changed."""
    patch = config.patch
    found: dict[str, Any] = {
        "img_size": list(config.image),
        "patch_size": patch.height if patch.height == patch.width else list(patch),
    }
    if config.channels != 3:
        found["in_chans"] = config.channels
    if family == "vit" and isinstance(config.position, Learned) and config.prefix.count:
        found |= {
            "class_token": config.prefix.cls,
            "reg_tokens": config.prefix.registers,
            "no_embed_class": config.position.prefix == "none",
        }
    return found


def _arguments(config: ViTConfig) -> tuple[str, ...]:
    """What to ask timm for, where the file itself cannot say it."""
    wanted = [f"img_size={tuple(config.image)}"]
    if isinstance(config.mlp, Mlp) and config.mlp.activation != "gelu":
        wanted.append(f"act_layer={config.mlp.activation!r}")
    if config.norm_eps != (1e-5 if config.embedding_norm else 1e-6):
        wanted.append(f"norm_layer=partial(timm.layers.LayerNorm, eps={config.norm_eps:g})")
    return (f"give timm's create_model {', '.join(wanted)}",)


def _refuse(config: Config) -> str | None:
    """What timm's VisionTransformer ties together."""
    if not isinstance(config, ViTConfig):
        return "it is a plain Vision Transformer"
    position, registers = config.position, config.prefix.registers
    if isinstance(position, Learned) and position.prefix == "cls" and registers:
        return "it gives positions to all prefix tokens or to none, and here CLS alone has one"
    if isinstance(config.embedding, Patches) and config.embedding.bias == config.embedding_norm:
        return "its patch projection has a bias exactly where no norm follows it"
    if not config.head_bias and config.classes:
        return "its head has a bias"
    return None


def _preprocessing(stored: Stored, family: Family, image: Size) -> Preprocessing:
    said = Said(stored.config)
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


TIMM = Dialect(
    name="timm",
    preprocessing=_preprocessing,
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
            spare=r"mask_token|.*relative_position_index|lm_head\..*|norm\..*",
            needs=("prefix.cls", "norm.weight"),
            statistics=HALF,
            write=_describe,
            loose=ARGUMENTS,
        ),
        Family(
            name="eva",
            rows=EVA_ROWS,
            anchor="patch_embed.proj.weight",
            signs=lambda stored, prefix: _any(
                stored, prefix, ("blocks.0.gamma_1", "blocks.0.attn.q_bias", "blocks.0.mlp.fc1_g.weight")
            ),
            known=_known,
            spare=r"mask_token|rope\.periods",
            needs=("blocks.0.scale1", "norm.weight"),
            statistics=IMAGENET,
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
        Family(
            name="vit",
            rows=VIT_ROWS,
            anchor="patch_embed.proj.weight",
            signs=_has("blocks.0.attn.qkv.weight"),
            known=_known,
            spare=r"mask_token|pre_logits\..*|decoder.*",
            write=_describe,
            loose=ARGUMENTS,
            refuse=_refuse,
        ),
    ),
)
