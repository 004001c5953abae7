"""Hugging Face transformers, by the names that its files have (its modules' differ): a table per model type."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.dialects.conditions import gated
from vitrail.checkpoint.dialects.dialect import Dialect, Family, Written
from vitrail.checkpoint.dialects.huggingface_config import (
    activation_of,
    beit_fields,
    clip_fields,
    describe,
    dinov2_fields,
    dinov3_fields,
    mlp_fields,
    read_processor,
    siglip2_fields,
    vision_part,
    vit_fields,
)
from vitrail.checkpoint.dialects.huggingface_names import (
    BEIT_ROWS,
    CLIP_CLASSIFIER_ROWS,
    CLIP_ROWS,
    DEIT_CLASSIFIER_ROWS,
    DEIT_ROWS,
    DINOV2_REGISTER_ROWS,
    DINOV2_ROWS,
    DINOV3_ROWS,
    MAE_ROWS,
    SIGLIP2_CLASSIFIER_ROWS,
    SIGLIP2_ROWS,
    SIGLIP_CLASSIFIER_ROWS,
    SIGLIP_ROWS,
    VIT_ROWS,
)
from vitrail.checkpoint.dialects.table import Row, Sizes
from vitrail.checkpoint.evidence import FIXED_TABLE, Known
from vitrail.checkpoint.file import Stored
from vitrail.checkpoint.preprocessing import HALF, IMAGENET, OPENAI_CLIP, Statistics
from vitrail.config import Config, ViTConfig
from vitrail.errors import require
from vitrail.geometry import Size
from vitrail.parts import ClsPool, Learned, MeanPool, Position, RelativeBias, Rotary, SinCos2d

__all__ = ["HUGGINGFACE"]


# ── reading config.json ─────────────────────────────────────────────────────────────────────────────────────────


def _known(
    position: Position | None, *, eps: float = 1e-12, activation: str = "gelu", **fields: Any
) -> Callable[[Stored, str], Known]:
    """What config.json says, with the model type's own defaults where it does not."""

    def known(stored: Stored, prefix: str) -> Known:
        said = vision_part(stored)
        found: dict[str, Any] = {
            "norm_eps": said.number("layer_norm_eps", eps),
            "activation": activation_of(said, activation),
            "position": position,
            **fields,
        }
        if "num_attention_heads" in said:
            found["num_heads"] = said.whole("num_attention_heads", 0)
        if isinstance(position, Rotary):
            found["position"] = Rotary(coordinates="normalised", temperature=said.number("rope_theta", 100.0))
        for key in ("layerscale_value", "layer_scale_init_value"):
            if key in said:
                found["layer_scale"] = said.number(key, 0.0) or None
        if not said:
            source = "names and shapes, as transformers has them"
            return Known(source=source, fields=found, assumed=("activation", "norm_eps"))
        return Known(
            source=f"config.json ({stored.config.get('model_type')})", fields=found, image=said.size("image_size")
        )

    return known


def _known_vit(stored: Stored, prefix: str) -> Known:
    eps = 1e-6 if stored.config.get("model_type") == "vit_msn" else 1e-12
    return _known(LEARNED, eps=eps)(stored, prefix)


def _known_dinov3(stored: Stored, prefix: str) -> Known:
    known = _known(Rotary(coordinates="normalised"), eps=1e-5, pool=ClsPool())(stored, prefix)
    said = vision_part(stored)
    activation = said.text("hidden_act", "gelu")
    require(
        not said.flag("use_gated_mlp", False) or activation == "silu",
        f"config.json has hidden_act {activation!r} in a gated MLP, and vitrail's gated MLP has 'silu'; "
        "it cannot be read",
    )
    return known


def _known_beit(stored: Stored, prefix: str) -> Known:
    known = _known(None)(stored, prefix)
    fields = dict(known.fields)
    if f"{prefix}pooler.layernorm.weight" in stored.tensors:
        fields |= {"final_norm": "pooled", "pool": MeanPool()}
    if f"{prefix}embeddings.position_embeddings" in stored.tensors:
        fields["position"] = Learned(convention="huggingface")
    elif f"{prefix}encoder.relative_position_bias.relative_position_bias_table" in stored.tensors:
        fields["position"] = RelativeBias(shared=True)
    return replace(known, fields=fields)


def _known_siglip2(stored: Stored, prefix: str) -> Known:
    known = _known(Learned(convention="huggingface"), eps=1e-6, activation="gelu_pytorch_tanh")(stored, prefix)
    said = vision_part(stored)
    patch, count = said.whole("patch_size", 16), said.whole("num_patches", 256)
    require(
        count > 0 and math.isqrt(count) ** 2 == count,
        f"config.json has num_patches {count}, and a SigLIP2 table is square by definition; mend it",
    )
    sizes = Sizes(patch=Size.of(patch), channels=said.whole("num_channels", 3))
    return replace(known, image=Size.of(patch * math.isqrt(count)), sizes=sizes)


MODEL_TYPES: list[str] = []


def _known_siglip2_classifier(stored: Stored, prefix: str) -> Known:
    known = _known_siglip2(stored, prefix)
    return replace(known, fields={**known.fields, "pool": MeanPool()})


def _of_type(*types: str, names: Callable[[set[str]], bool], classifier: bool = False) -> Callable[[Stored, str], bool]:
    """By the config's model_type, or, without a config, by the names; a `classifier` has a layer of that name."""
    MODEL_TYPES.extend(kind for kind in types if kind not in MODEL_TYPES)

    def signs(stored: Stored, prefix: str) -> bool:
        if classifier and "classifier.weight" not in stored.tensors:
            return False
        if "model_type" in stored.config:
            return stored.config["model_type"] in types
        return names({name.removeprefix(prefix) for name in stored.tensors if name.startswith(prefix)})

    return signs


# ── refusals and constants ──────────────────────────────────────────────────────────────────────────────────────


def _square(config: Config) -> str | None:
    return (
        None if config.image.height == config.image.width else f"its tables are square and image {config.image} is not"
    )


def _swiglu_width(config: Config) -> str | None:
    """DINOv2 computes its gated width from the model's and has no field for another."""
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


SPARE = r"embeddings\.mask_token|pooler\..*|embeddings\.position_ids|.*relative_position_index"


def _family(
    name: str,
    rows: tuple[Row, ...],
    known: Callable[[Stored, str], Known],
    signs: Callable[[Stored, str], bool],
    write: Callable[[Checkpoint, Mapping[str, Tensor]], Written],
    *,
    anchor: str = "embeddings.patch_embeddings.projection.weight",
    statistics: Statistics = HALF,
    spare: str = SPARE,
    **options: Any,
) -> Family:
    return Family(
        name=name,
        rows=rows,
        anchor=anchor,
        known=known,
        signs=signs,
        spare=spare,
        statistics=statistics,
        write=write,
        **options,
    )


LEARNED = Learned(convention="huggingface")
TOWER = "embeddings.patch_embedding.weight"


def _foreign(stored: Stored) -> str | None:
    kind = stored.config.get("model_type")
    known = ", ".join(MODEL_TYPES)
    return None if kind is None else f"config.json has model_type {kind!r}, and vitrail reads {known}"


HUGGINGFACE = Dialect(
    name="huggingface",
    foreign=_foreign,
    directory=True,
    preprocessing=read_processor,
    families=(
        _family(
            "siglip2_classifier",
            SIGLIP2_CLASSIFIER_ROWS,
            _known_siglip2_classifier,
            lambda stored, prefix: (
                stored.config.get("model_type", "siglip2") == "siglip2"
                and stored.tensors[prefix + TOWER].ndim == 2
                and "classifier.weight" in stored.tensors
            ),
            describe(
                "siglip2",
                siglip2_fields,
                plain=("Siglip2ForImageClassification", "vision_model."),
                headed=("Siglip2ForImageClassification", "vision_model."),
                nested=True,
            ),
            anchor=TOWER,
            refuse=_square,
            needs=("head.weight", "position.table", "embedding.bias", "norm.weight"),
            spare=rf"{SPARE}|head\..*",
        ),
        _family(
            "siglip_classifier",
            SIGLIP_CLASSIFIER_ROWS,
            _known(LEARNED, eps=1e-6, activation="gelu_pytorch_tanh", pool=MeanPool()),
            _of_type("siglip", names=lambda names: "head.probe" in names, classifier=True),
            describe(
                "siglip",
                mlp_fields,
                plain=("SiglipForImageClassification", "vision_model."),
                headed=("SiglipForImageClassification", "vision_model."),
                nested=True,
            ),
            anchor=TOWER,
            refuse=_square,
            needs=("head.weight", "position.table", "embedding.bias", "norm.weight"),
            spare=rf"{SPARE}|head\..*",
        ),
        _family(
            "clip_classifier",
            CLIP_CLASSIFIER_ROWS,
            _known(LEARNED, eps=1e-5, activation="quick_gelu", pool=MeanPool(), final_norm="none"),
            _of_type("clip", names=lambda names: "embeddings.class_embedding" in names, classifier=True),
            describe(
                "clip",
                mlp_fields,
                plain=("CLIPForImageClassification", "vision_model."),
                headed=("CLIPForImageClassification", "vision_model."),
                nested=True,
            ),
            anchor=TOWER,
            statistics=OPENAI_CLIP,
            refuse=_square,
            needs=("head.weight", "prefix.cls", "embedding_norm.weight", "position.table"),
            spare=rf"{SPARE}|post_layernorm\..*",
        ),
        _family(
            "siglip2",
            SIGLIP2_ROWS,
            _known_siglip2,
            lambda stored, prefix: (
                stored.config.get("model_type", "siglip2") in ("siglip2", "siglip2_vision_model")
                and stored.tensors[prefix + TOWER].ndim == 2
            ),
            describe("siglip2_vision_model", siglip2_fields, plain=("Siglip2VisionModel", "")),
            anchor=TOWER,
            refuse=_square,
            needs=("pool.query", "position.table", "embedding.bias"),
        ),
        _family(
            "siglip",
            SIGLIP_ROWS,
            _known(LEARNED, eps=1e-6, activation="gelu_pytorch_tanh"),
            _of_type("siglip", "siglip_vision_model", "siglip2", names=lambda names: "head.probe" in names),
            describe("siglip_vision_model", mlp_fields, plain=("SiglipVisionModel", "")),
            anchor=TOWER,
            refuse=_square,
            needs=("pool.query", "position.table", "embedding.bias"),
        ),
        _family(
            "clip",
            CLIP_ROWS,
            _known(LEARNED, eps=1e-5, activation="quick_gelu"),
            _of_type("clip", "clip_vision_model", names=lambda names: "embeddings.class_embedding" in names),
            describe(
                "clip_vision_model",
                clip_fields,
                plain=("CLIPVisionModel", ""),
                headed=("CLIPVisionModelWithProjection", "vision_model."),
            ),
            anchor=TOWER,
            statistics=OPENAI_CLIP,
            refuse=_square,
            needs=("prefix.cls", "embedding_norm.weight", "position.table", "norm.weight"),
        ),
        _family(
            "dinov3",
            DINOV3_ROWS,
            _known_dinov3,
            _of_type("dinov3_vit", names=lambda names: "embeddings.register_tokens" in names),
            describe("dinov3_vit", dinov3_fields, plain=("DINOv3ViTModel", "")),
            anchor="embeddings.patch_embeddings.weight",
            statistics=IMAGENET,
            constants=_mask_token(1, 1),
            needs=("prefix.cls", "blocks.0.scale1", "norm.weight"),
        ),
        _family(
            "dinov2_with_registers",
            DINOV2_REGISTER_ROWS,
            _known(Learned(prefix="cls", convention="timm"), eps=1e-6),  # it resizes with antialiasing, as timm does
            _of_type("dinov2_with_registers", names=lambda names: "embeddings.register_tokens" in names),
            describe("dinov2_with_registers", dinov2_fields, plain=("Dinov2WithRegistersModel", "")),
            statistics=IMAGENET,
            constants=_mask_token(1),
            refuse=_swiglu_width,
            needs=("prefix.cls", "prefix.registers", "blocks.0.scale1", "position.table", "norm.weight"),
        ),
        _family(
            "dinov2",
            DINOV2_ROWS,
            _known(Learned(prefix="cls", convention="huggingface"), eps=1e-6),
            _of_type("dinov2", names=lambda names: "encoder.layer.0.layer_scale1.lambda1" in names),
            describe("dinov2", dinov2_fields, plain=("Dinov2Model", "")),
            statistics=IMAGENET,
            constants=_mask_token(1),
            refuse=_swiglu_width,
            needs=("prefix.cls", "blocks.0.scale1", "position.table", "norm.weight"),
        ),
        _family(
            "beit",
            BEIT_ROWS,
            _known_beit,
            _of_type("beit", "data2vec-vision", names=lambda names: "encoder.layer.0.lambda_1" in names),
            describe("beit", beit_fields, plain=("BeitModel", ""), headed=("BeitForImageClassification", "beit.")),
            needs=("prefix.cls", "norm.weight"),
        ),
        _family(
            "deit_classifier",
            DEIT_CLASSIFIER_ROWS,
            _known(LEARNED),
            _of_type("deit", names=lambda names: "embeddings.distillation_token" in names, classifier=True),
            describe(
                "deit",
                vit_fields,
                plain=("DeiTForImageClassification", "deit."),
                headed=("DeiTForImageClassification", "deit."),
            ),
            statistics=IMAGENET,
            refuse=_one_register,
            needs=("head.weight", "prefix.cls", "prefix.registers", "position.table", "norm.weight"),
        ),
        _family(
            "deit",
            DEIT_ROWS,
            _known(LEARNED),
            _of_type("deit", names=lambda names: "embeddings.distillation_token" in names),
            describe(
                "deit",
                vit_fields,
                plain=("DeiTModel", ""),
                headed=("DeiTForImageClassificationWithTeacher", "deit."),
            ),
            statistics=IMAGENET,
            needs=("prefix.cls", "prefix.distillation", "position.table", "norm.weight"),
        ),
        _family(
            "mae",
            MAE_ROWS,
            _known(SinCos2d(layout="mae"), classes=0, head_bias=True),
            _of_type("vit_mae", names=lambda names: False),
            describe("vit_mae", vit_fields, plain=("ViTMAEModel", "")),
            statistics=IMAGENET,
            needs=("prefix.cls", FIXED_TABLE, "norm.weight"),
        ),
        _family(
            "ijepa",
            tuple(row for row in VIT_ROWS if row.ours[0] != "prefix.cls"),
            _known(LEARNED, pool=MeanPool()),
            _of_type("ijepa", names=lambda names: "embeddings.cls_token" not in names),
            describe("ijepa", vit_fields, plain=("IJepaModel", ""), headed=("IJepaForImageClassification", "ijepa.")),
            statistics=IMAGENET,
            needs=("position.table", "norm.weight", "embedding.bias"),
        ),
        _family(
            "vit",
            VIT_ROWS,
            _known_vit,
            _of_type("vit", "vit_msn", names=lambda names: True),
            describe("vit", vit_fields, plain=("ViTModel", ""), headed=("ViTForImageClassification", "vit.")),
            needs=("prefix.cls", "position.table", "norm.weight", "embedding.bias"),
        ),
    ),
)
