"""Hugging Face transformers, by the names that its files have (its modules' differ): a table per model type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vitrail.checkpoint.dialects.conditions import gated
from vitrail.checkpoint.dialects.dialect import Dialect, Family
from vitrail.checkpoint.dialects.evidence import FIXED_TABLE, Known
from vitrail.checkpoint.dialects.hiera_huggingface import HUGGINGFACE_HIERA
from vitrail.checkpoint.dialects.huggingface_clips import CLIPS
from vitrail.checkpoint.dialects.huggingface_config import (
    aimv2_fields,
    beit_fields,
    describe,
    dinov2_fields,
    dinov3_fields,
    internvl_fields,
    mlp_fields,
    read_processor,
    siglip2_fields,
    vit_fields,
)
from vitrail.checkpoint.dialects.huggingface_family import MODEL_TYPES, SPARE, family, of_type, square
from vitrail.checkpoint.dialects.huggingface_known import (
    LEARNED,
    known,
    known_beit,
    known_dinov3,
    known_siglip2_classifier,
    known_vit,
    settle_dinov3,
)
from vitrail.checkpoint.dialects.huggingface_mobile import (
    MOBILEVIT2_ROWS,
    MOBILEVIT_ROWS,
    describe_mobilevit,
    known_mobilevit,
    refuse_mobilevit,
)
from vitrail.checkpoint.dialects.huggingface_names import (
    AIMV2_ROWS,
    BEIT_ROWS,
    CLIP_CLASSIFIER_ROWS,
    DEIT_CLASSIFIER_ROWS,
    DEIT_ROWS,
    DINOV2_CLASSIFIER_ROWS,
    DINOV2_REGISTER_CLASSIFIER_ROWS,
    DINOV2_REGISTER_ROWS,
    DINOV2_ROWS,
    DINOV3_ROWS,
    INTERNVL_ROWS,
    MAE_ROWS,
    SIGLIP2_CLASSIFIER_ROWS,
    SIGLIP_CLASSIFIER_ROWS,
    VIT_MSN_CLASSIFIER_ROWS,
    VIT_ROWS,
)
from vitrail.checkpoint.dialects.huggingface_stages import (
    SWIN2_ROWS,
    SWIN_ROWS,
    describe_swin,
    known_swin,
    refuse_swin,
    settle_swin,
)
from vitrail.checkpoint.dialects.huggingface_towers import CLIP, METACLIP2, QWEN, QWEN3, SIGLIP, SIGLIP2, TIPS, TOWERS
from vitrail.checkpoint.dialects.sam_huggingface import HUGGINGFACE_SAM
from vitrail.checkpoint.dialects.table import Row
from vitrail.checkpoint.dialects.timm_stages import settle_stages
from vitrail.checkpoint.formats.file import Stored
from vitrail.checkpoint.preprocessing import IMAGENET, OPENAI_CLIP
from vitrail.config import Config, ViTConfig
from vitrail.parts import ClsMeanPool, Learned, MeanPool, RelativeBias, SinCos2d

__all__ = ["HUGGINGFACE"]


# ── refusals and constants ──────────────────────────────────────────────────────────────────────────────────────


def _square_bias(config: Config) -> str | None:
    """Refuse non-square grids: transformers reads their tables with height and width swapped."""
    assert isinstance(config, ViTConfig)
    if isinstance(config.position, RelativeBias) and config.grid.height != config.grid.width:
        return f"its relative biases are for square grids, and {config.grid} is not"
    return None


def _swiglu_width(config: Config) -> str | None:
    """Refuse other gated widths: DINOv2 computes its own from the model's width and has no field for it."""
    assert isinstance(config, ViTConfig)
    due = (int(4 * config.width * 2 / 3) + 7) // 8 * 8
    if gated(config) and config.mlp.width != due:
        return f"its gated MLP of width {config.width} is {due} wide, not {config.mlp.width}"
    return None


def _one_register(config: Config) -> str | None:
    assert isinstance(config, ViTConfig)
    count = config.prefix.registers
    return None if count == 1 else f"its one distillation token takes the place of a register, and here are {count}"


def _mask_token(*shape: int) -> Callable[[Config], dict[str, Tensor]]:
    def constants(config: Config) -> dict[str, Tensor]:
        assert isinstance(config, ViTConfig)
        return {"embeddings.mask_token": torch.zeros(*shape, config.width)}

    return constants


VIT_SIGNS = of_type("vit", "vit_msn", names=lambda names: True)


def _blocks_apart(stored: Stored, prefix: str) -> bool:
    """Whether the blocks' names lack the prefix that the embeddings' names have."""
    return bool(prefix) and "encoder.layer.0.layernorm_before.weight" in stored.tensors


def _foreign(stored: Stored) -> str | None:
    kind = stored.config.get("model_type")
    known = ", ".join(MODEL_TYPES)
    return None if kind is None else f"config.json has model_type {kind!r}, and vitrail reads {known}"


DINOV2_WITH_REGISTERS = family(
    "dinov2_with_registers",
    DINOV2_REGISTER_ROWS,
    known(Learned(prefix="cls", convention="timm"), eps=1e-6),  # it resizes with antialiasing, as timm does
    of_type("dinov2_with_registers", names=lambda names: "embeddings.register_tokens" in names),
    describe("dinov2_with_registers", dinov2_fields, plain=("Dinov2WithRegistersModel", "")),
    statistics=IMAGENET,
    constants=_mask_token(1),
    refuse=_swiglu_width,
    needs=("prefix.cls", "prefix.registers", "blocks.0.scale1", "position.table", "norm.weight"),
)
DINOV2 = family(
    "dinov2",
    DINOV2_ROWS,
    known(Learned(prefix="cls", convention="huggingface"), eps=1e-6),
    of_type("dinov2", names=lambda names: "encoder.layer.0.layer_scale1.lambda1" in names),
    describe("dinov2", dinov2_fields, plain=("Dinov2Model", "")),
    statistics=IMAGENET,
    constants=_mask_token(1),
    refuse=_swiglu_width,
    needs=("prefix.cls", "blocks.0.scale1", "position.table", "norm.weight"),
)
DEIT = family(
    "deit",
    DEIT_ROWS,
    known(LEARNED),
    of_type("deit", names=lambda names: "embeddings.distillation_token" in names),
    describe(
        "deit",
        vit_fields,
        plain=("DeiTModel", ""),
        headed=("DeiTForImageClassificationWithTeacher", "deit."),
    ),
    statistics=IMAGENET,
    needs=("prefix.cls", "prefix.distillation", "position.table", "norm.weight"),
)


def _classifier(
    plain: Family,
    rows: tuple[Row, ...],
    read: Callable[[Stored, str], Known],
    model: str,
    prefix: str,
    fields: Callable[[ViTConfig], Mapping[str, Any]],
    *,
    needs: tuple[str, ...],
    nested: bool = False,
    spare: str = SPARE,
    **options: Any,
) -> Family:
    """A plain model with a "classifier" layer; `nested` if the vision tower's config is nested in the file's."""
    return replace(
        plain,
        name=f"{plain.name}_classifier",
        rows=rows,
        known=read,
        signs=lambda stored, at: "classifier.weight" in stored.tensors and plain.signs(stored, at),
        write=describe(plain.name, fields, plain=(model, prefix), headed=(model, prefix), nested=nested),
        needs=("head.weight", *needs),
        spare=spare,
        **options,
    )


CLASSIFIERS = (
    _classifier(
        SIGLIP2,
        SIGLIP2_CLASSIFIER_ROWS,
        known_siglip2_classifier,
        "Siglip2ForImageClassification",
        "vision_model.",
        siglip2_fields,
        needs=("position.table", "embedding.bias", "norm.weight"),
        nested=True,
        spare=rf"{SPARE}|head\..*",
    ),
    _classifier(
        SIGLIP,
        SIGLIP_CLASSIFIER_ROWS,
        known(LEARNED, eps=1e-6, activation="gelu_pytorch_tanh", pool=MeanPool()),
        "SiglipForImageClassification",
        "vision_model.",
        mlp_fields,
        needs=("position.table", "embedding.bias", "norm.weight"),
        nested=True,
        spare=rf"{SPARE}|head\..*",
    ),
    *(
        _classifier(
            plain,
            CLIP_CLASSIFIER_ROWS,
            known(LEARNED, eps=1e-5, activation="quick_gelu", pool=MeanPool(), final_norm="none"),
            f"{model}ForImageClassification",
            "vision_model.",
            mlp_fields,
            needs=("prefix.cls", "embedding_norm.weight", "position.table"),
            nested=True,
            spare=rf"{SPARE}|post_layernorm\..*",
        )
        for plain, model in ((CLIP, "CLIP"), (METACLIP2, "MetaClip2"))
    ),
    _classifier(
        DINOV2_WITH_REGISTERS,
        DINOV2_REGISTER_CLASSIFIER_ROWS,
        known(Learned(prefix="cls", convention="timm"), eps=1e-6, pool=ClsMeanPool()),
        "Dinov2WithRegistersForImageClassification",
        "dinov2_with_registers.",
        dinov2_fields,
        needs=DINOV2_WITH_REGISTERS.needs,
    ),
    _classifier(
        DINOV2,
        DINOV2_CLASSIFIER_ROWS,
        known(Learned(prefix="cls", convention="huggingface"), eps=1e-6, pool=ClsMeanPool()),
        "Dinov2ForImageClassification",
        "dinov2.",
        dinov2_fields,
        needs=DINOV2.needs,
    ),
    _classifier(
        DEIT,
        DEIT_CLASSIFIER_ROWS,
        known(LEARNED),
        "DeiTForImageClassification",
        "deit.",
        vit_fields,
        needs=("prefix.cls", "prefix.registers", "position.table", "norm.weight"),
        refuse=_one_register,
    ),
)


HUGGINGFACE = Dialect(
    name="huggingface",
    foreign=_foreign,
    directory=True,
    preprocessing=read_processor,
    families=(
        *QWEN,
        QWEN3,
        *CLIPS,
        *CLASSIFIERS,  # told from the plain models by one layer more
        *TOWERS,
        HUGGINGFACE_SAM,
        HUGGINGFACE_HIERA,
        family(
            "dinov3",
            DINOV3_ROWS,
            known_dinov3,
            of_type("dinov3_vit", names=lambda names: "embeddings.register_tokens" in names),
            describe("dinov3_vit", dinov3_fields, plain=("DINOv3ViTModel", "")),
            anchor="embeddings.patch_embeddings.weight",
            statistics=IMAGENET,
            constants=_mask_token(1, 1),
            needs=("prefix.cls", "blocks.0.scale1", "norm.weight"),
            lacks=frozenset({"out biases", "mlp biases"}),
            settle=settle_dinov3,
        ),
        family(
            "internvl_vision",
            INTERNVL_ROWS,
            known(LEARNED, eps=1e-6, pool=MeanPool()),
            of_type(
                "internvl_vision", names=lambda names: "encoder.layer.0.attention.projection_layer.weight" in names
            ),
            describe("internvl_vision", internvl_fields, plain=("InternVLVisionModel", "")),
            statistics=IMAGENET,
            needs=("prefix.cls", "blocks.0.scale1", "position.table"),
            refuse=square,
            lacks=frozenset({"norm biases"}),
        ),
        family(
            "aimv2",
            AIMV2_ROWS,
            known(LEARNED, eps=1e-5, activation="silu", pool=MeanPool()),
            of_type("aimv2_vision_model", names=lambda names: "encoder.layers.0.ffn.gate_proj.weight" in names),
            describe("aimv2_vision_model", aimv2_fields, plain=("Aimv2VisionModel", "")),
            anchor="embeddings.patch_embed.weight",
            statistics=OPENAI_CLIP,
            needs=("position.table", "norm.weight", "patch_norm.weight"),
            lacks=frozenset({"norm biases", "out biases", "mlp biases"}),
        ),
        DINOV2_WITH_REGISTERS,
        DINOV2,
        family(
            "beit",
            BEIT_ROWS,
            known_beit,
            of_type("beit", "data2vec-vision", names=lambda names: "encoder.layer.0.lambda_1" in names),
            describe("beit", beit_fields, plain=("BeitModel", ""), headed=("BeitForImageClassification", "beit.")),
            refuse=_square_bias,
            needs=("prefix.cls", "norm.weight"),
        ),
        *(
            family(
                name,
                rows,
                known_swin(second=second),
                of_type(
                    name, names=lambda names, sign=sign: f"encoder.layers.0.blocks.0.attention.self.{sign}" in names
                ),
                describe_swin,
                statistics=IMAGENET,
                refuse=refuse_swin,
                settle=settle_swin,
                needs=("norm.weight", "stages.0.blocks.0.norm1.weight", f"stages.0.blocks.0.attention.{needed}"),
            )
            for name, rows, sign, needed, second in (
                ("swin", SWIN_ROWS, "relative_position_bias_table", "position.table", False),
                ("swinv2", SWIN2_ROWS, "logit_scale", "scale", True),
            )
        ),
        family(
            "donut-swin",
            tuple(row for row in SWIN_ROWS if not row.ours[0].startswith("norm.")),
            known_swin(final_norm="none"),
            of_type("donut-swin", names=lambda names: False),
            describe_swin,
            statistics=IMAGENET,
            refuse=refuse_swin,
            settle=settle_swin,
            needs=("stages.0.blocks.0.attention.position.table",),
        ),
        *(
            family(
                name,
                rows,
                known_mobilevit,
                of_type(name, names=names),
                describe_mobilevit,
                anchor="conv_stem.convolution.weight",
                statistics=((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
                refuse=refuse_mobilevit,
                settle=settle_stages,
                needs=("stem.conv.weight", "stages.2.transformer.norm.weight"),
            )
            for name, rows, names in (
                (
                    "mobilevitv2",
                    MOBILEVIT2_ROWS,
                    lambda names: "encoder.layer.2.transformer.layer.0.ffn.conv1.convolution.weight" in names,
                ),
                ("mobilevit", MOBILEVIT_ROWS, lambda names: True),
            )
        ),
        DEIT,
        family(
            "mae",
            MAE_ROWS,
            known(SinCos2d(layout="mae"), classes=0, head_bias=True),
            of_type("vit_mae", names=lambda names: False),
            describe("vit_mae", vit_fields, plain=("ViTMAEModel", "")),
            statistics=IMAGENET,
            needs=("prefix.cls", FIXED_TABLE, "norm.weight"),
        ),
        family(
            "ijepa",
            tuple(row for row in VIT_ROWS if row.ours[0] != "prefix.cls"),
            known(LEARNED, pool=MeanPool()),
            of_type("ijepa", names=lambda names: "embeddings.cls_token" not in names),
            describe("ijepa", vit_fields, plain=("IJepaModel", ""), headed=("IJepaForImageClassification", "ijepa.")),
            statistics=IMAGENET,
            needs=("position.table", "norm.weight", "embedding.bias"),
        ),
        family(
            "vit",
            VIT_ROWS,
            known_vit,
            lambda stored, prefix: VIT_SIGNS(stored, prefix) and not _blocks_apart(stored, prefix),
            describe("vit", vit_fields, plain=("ViTModel", ""), headed=("ViTForImageClassification", "vit.")),
            needs=("prefix.cls", "position.table", "norm.weight", "embedding.bias"),
        ),
        family(
            "vit_msn_classifier",
            VIT_MSN_CLASSIFIER_ROWS,
            known(LEARNED, eps=1e-6),
            lambda stored, prefix: VIT_SIGNS(stored, prefix) and _blocks_apart(stored, prefix),
            describe(
                "vit_msn",
                vit_fields,
                plain=("ViTMSNForImageClassification", "vit."),
                headed=("ViTMSNForImageClassification", "vit."),
            ),
            needs=("head.weight", "prefix.cls", "position.table", "norm.weight", "embedding.bias"),
        ),
        TIPS,  # last, since it could hold what DINOv2 with registers is written as
    ),
)
