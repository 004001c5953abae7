"""timm: one naming for ViT, DeiT, DINOv2, CLIP, SigLIP, FlexiViT …; others for distilled DeiT, BEiT, EVA/DINOv3, and
models in stages."""

from __future__ import annotations

from typing import get_args

from vitrail.checkpoint.dialects.dialect import Dialect, Family
from vitrail.checkpoint.dialects.hiera_timm import TIMM_HIERA
from vitrail.checkpoint.dialects.json_config import JsonConfig
from vitrail.checkpoint.dialects.sam_timm import TIMM_SAM
from vitrail.checkpoint.dialects.timm_describe import describe
from vitrail.checkpoint.dialects.timm_hybrid import (
    CONVOLUTION_ROWS,
    CONVOLUTIONS,
    PATCHES,
    RESNET_ROWS,
    STEMS,
    refuse_hybrid,
)
from vitrail.checkpoint.dialects.timm_known import known_naflex, known_pit, known_stages, known_vit
from vitrail.checkpoint.dialects.timm_names import (
    BEIT_ROWS,
    DISTILLED_ROWS,
    EVA_PACKED_ROWS,
    EVA_ROWS,
    EVA_SPLIT_ROWS,
    NAFLEX_ROWS,
    RELATIVE_ROWS,
    VIT_GATED_ROWS,
    VIT_ROWS,
)
from vitrail.checkpoint.dialects.timm_signs import all_of, has, is_eva, is_packed, is_pit
from vitrail.checkpoint.dialects.timm_stages import (
    MOBILE2_ROWS,
    MOBILE_ROWS,
    PIT_DISTILLED_ROWS,
    PIT_ROWS,
    settle_stages,
)
from vitrail.checkpoint.dialects.timm_swin import (
    SWIN2_ROWS,
    SWIN_ROWS,
    known_swin,
    known_swin2,
    refuse_swin,
    refuse_swin2,
)
from vitrail.checkpoint.formats.file import Stored
from vitrail.checkpoint.preprocessing import HALF, IMAGENET, OPENAI_CLIP, Interpolation, Preprocessing, Statistics
from vitrail.config import Config, ViTConfig
from vitrail.geometry import Size
from vitrail.parts import Learned, Patches

__all__ = ["TIMM"]


ARGUMENTS = frozenset({"norm_eps", "activation"})
"""What timm takes as arguments of the model, so that a file need not agree."""
UNCHANGED: Statistics = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
"""Pixels between 0 and 1, as MobileViT and MobileCLIP take them."""


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
        patch_budget=_patch_budget(stored),
        source="config.json (pretrained_cfg)" if stated else "what most of the family was trained with",
    )


def _patch_budget(stored: Stored) -> int | None:
    """Return the patches that a NaFlexViT fills with an image: as many as its table of positions has."""
    tables = [tensor for name, tensor in stored.tensors.items() if name.endswith("embeds.pos_embed")]
    return tables[0].shape[1] * tables[0].shape[2] if tables else None


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
        TIMM_SAM,
        *TIMM_HIERA,
        Family(
            name="distilled",
            rows=DISTILLED_ROWS,
            anchor=PATCHES,
            signs=has("dist_token"),
            needs=("prefix.cls", "prefix.distillation", "position.table", "norm.weight"),
            known=known_vit,
            statistics=IMAGENET,
            write=describe,
            loose=ARGUMENTS,
        ),
        Family(
            name="beit",
            rows=BEIT_ROWS,
            anchor=PATCHES,
            signs=has("blocks.0.attn.relative_position_bias_table", "rel_pos_bias.relative_position_bias_table"),
            known=known_vit,
            spare=r".*relative_position_index|lm_head\..*|norm\..*",
            needs=("prefix.cls", "norm.weight"),
            statistics=HALF,
            write=describe,
            loose=ARGUMENTS,
        ),
        Family(
            name="relative vit",
            rows=RELATIVE_ROWS,
            anchor=PATCHES,
            signs=has("blocks.0.attn.rel_pos.mlp.fc1.weight", "shared_rel_pos.mlp.fc1.weight"),
            known=known_vit,
            statistics=IMAGENET,
            write=describe,
            loose=ARGUMENTS,
            refuse=_refuse,
        ),
        *(
            Family(
                name=name,
                rows=rows,
                anchor=anchor,
                signs=has(*any_of),
                known=known_vit,
                statistics=statistics,
                write=describe,
                loose=ARGUMENTS,
                needs=("embedding.projection.weight",),
                refuse=lambda config: refuse_hybrid(config) or _refuse(config),
            )
            for name, rows, anchor, any_of, statistics in (
                ("vit, resnet", RESNET_ROWS, PATCHES, STEMS, HALF),
                ("vit, convolutions", CONVOLUTION_ROWS, CONVOLUTIONS, (CONVOLUTIONS,), UNCHANGED),
            )
        ),
        *(
            Family(
                name=name,
                rows=rows,
                anchor=PATCHES,
                signs=lambda stored, prefix, gated=gated: (
                    all_of(stored, prefix, ("blocks.0.attn.qkv.weight",))
                    and all_of(stored, prefix, ("blocks.0.mlp.fc1_g.weight",)) == gated
                    and not is_eva(stored, prefix)
                ),
                known=known_vit,
                spare=r"pre_logits\..*|decoder.*",
                write=describe,
                loose=ARGUMENTS,
                lacks=frozenset({"norm biases", "out biases", "mlp biases"}),
                refuse=_refuse,
            )
            for name, rows, gated in (("vit", VIT_ROWS, False), ("vit, gated", VIT_GATED_ROWS, True))
        ),
        *(
            Family(
                name=name,
                rows=rows,
                anchor=PATCHES,
                signs=signs,
                known=known_vit,
                spare=r"rope\.periods",
                statistics=IMAGENET,
                write=describe,
                loose=ARGUMENTS,
                lacks=frozenset({"norm biases"}),
                refuse=_refuse,
            )
            for name, rows, signs in (
                ("eva, split", EVA_SPLIT_ROWS, has("blocks.0.attn.q_proj.weight")),
                (
                    "eva, packed",
                    EVA_PACKED_ROWS,
                    lambda stored, prefix: is_eva(stored, prefix) and is_packed(stored, prefix),
                ),
                ("eva", EVA_ROWS, is_eva),
            )
        ),
        Family(
            name="naflexvit",
            rows=NAFLEX_ROWS,
            anchor="embeds.proj.weight",
            signs=has("embeds.pos_embed"),
            known=known_naflex,
            needs=("position.table", "embedding.bias"),
            write=describe,
            loose=ARGUMENTS,
        ),
        *(
            Family(
                name=name,
                rows=rows,
                anchor=PATCHES,
                signs=has(f"layers.0.blocks.0.attn.{sign}"),
                known=known,
                spare=r".*relative_position_index|.*relative_coords_table|.*attn_mask",
                statistics=IMAGENET,
                write=describe,
                needs=("stages.0.blocks.0.norm1.weight", "embedding_norm.weight", "norm.weight"),
                refuse=refuse,
                settle=settle_stages,
            )
            for name, rows, sign, known, refuse in (
                ("swin", SWIN_ROWS, "relative_position_bias_table", known_swin, refuse_swin),
                ("swin v2", SWIN2_ROWS, "logit_scale", known_swin2, refuse_swin2),
            )
        ),
        *(
            Family(
                name=name,
                rows=rows,
                anchor="patch_embed.conv.weight",
                signs=is_pit(tokens),
                known=known_pit,
                statistics=IMAGENET,
                write=describe,
                needs=("stages.0.blocks.0.norm1.weight", "position.table", *needs),
                settle=settle_stages,
            )
            for name, rows, tokens, needs in (
                ("pit", PIT_ROWS, 1, ("prefix.cls",)),
                ("distilled pit", PIT_DISTILLED_ROWS, 2, ("prefix.cls", "prefix.distillation")),
            )
        ),
        *(
            Family(
                name=name,
                rows=rows,
                anchor="stem.conv.weight",
                signs=has(sign),
                known=known_stages,
                statistics=UNCHANGED,
                write=describe,
                needs=("stem.conv.weight", needed),
                settle=settle_stages,
            )
            for name, rows, sign, needed in (
                (
                    "mobilevitv2",
                    MOBILE2_ROWS,
                    "stages.2.1.transformer.0.attn.qkv_proj.weight",
                    "stages.2.transformer.norm.weight",
                ),
                (
                    "mobilevit",
                    MOBILE_ROWS,
                    "stages.0.0.conv1_1x1.conv.weight",
                    "stages.0.residuals.0.expand.conv.weight",
                ),
            )
        ),
    ),
)
