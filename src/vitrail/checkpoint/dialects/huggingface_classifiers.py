"""transformers' DINOv2 and DeiT, and the models of its that have one layer more than a plain one: a classifier."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vitrail.checkpoint.dialects.conditions import gated
from vitrail.checkpoint.dialects.dialect import Family
from vitrail.checkpoint.dialects.evidence import Known
from vitrail.checkpoint.dialects.huggingface_config import (
    describe,
    dinov2_fields,
    mlp_fields,
    siglip2_fields,
    vit_fields,
)
from vitrail.checkpoint.dialects.huggingface_family import SPARE, family, of_type
from vitrail.checkpoint.dialects.huggingface_known import LEARNED, known, known_siglip2_classifier
from vitrail.checkpoint.dialects.huggingface_names import (
    CLIP_CLASSIFIER_ROWS,
    DEIT_CLASSIFIER_ROWS,
    DEIT_ROWS,
    DINOV2_CLASSIFIER_ROWS,
    DINOV2_REGISTER_CLASSIFIER_ROWS,
    DINOV2_REGISTER_ROWS,
    DINOV2_ROWS,
    SIGLIP2_CLASSIFIER_ROWS,
    SIGLIP_CLASSIFIER_ROWS,
)
from vitrail.checkpoint.dialects.huggingface_towers import CLIP, METACLIP2, SIGLIP, SIGLIP2
from vitrail.checkpoint.dialects.table import Row
from vitrail.checkpoint.formats.file import Stored
from vitrail.checkpoint.preprocessing import IMAGENET
from vitrail.config import Config, ViTConfig
from vitrail.parts import ClsMeanPool, Learned, MeanPool

__all__ = ["CLASSIFIERS", "DEIT", "DINOV2", "DINOV2_WITH_REGISTERS", "mask_token"]


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


def mask_token(*shape: int) -> Callable[[Config], dict[str, Tensor]]:
    def constants(config: Config) -> dict[str, Tensor]:
        assert isinstance(config, ViTConfig)
        return {"embeddings.mask_token": torch.zeros(*shape, config.width)}

    return constants


DINOV2_WITH_REGISTERS = family(
    "dinov2_with_registers",
    DINOV2_REGISTER_ROWS,
    known(Learned(prefix="cls", convention="timm"), eps=1e-6),  # it resizes with antialiasing, as timm does
    of_type("dinov2_with_registers", names=lambda names: "embeddings.register_tokens" in names),
    describe("dinov2_with_registers", dinov2_fields, plain=("Dinov2WithRegistersModel", "")),
    statistics=IMAGENET,
    constants=mask_token(1),
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
    constants=mask_token(1),
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


SIGLIP_CLASSIFIER = known(LEARNED, eps=1e-6, activation="gelu_pytorch_tanh", pool=MeanPool())
CLASSIFIERS = (
    *(
        _classifier(
            plain,
            rows,
            read,
            f"{model}ForImageClassification",
            "vision_model.",
            fields,
            needs=("position.table", "embedding.bias", "norm.weight"),
            nested=True,
            spare=rf"{SPARE}|head\..*",
        )
        for plain, model, rows, read, fields in (
            (SIGLIP2, "Siglip2", SIGLIP2_CLASSIFIER_ROWS, known_siglip2_classifier, siglip2_fields),
            (SIGLIP, "Siglip", SIGLIP_CLASSIFIER_ROWS, SIGLIP_CLASSIFIER, mlp_fields),
        )
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
