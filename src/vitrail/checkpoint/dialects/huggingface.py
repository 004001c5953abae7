"""Hugging Face transformers, by the names that its files have (its modules' differ): a table per model type."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.dialects.dialect import Dialect, Family, Written
from vitrail.checkpoint.dialects.huggingface_config import (
    activation_of,
    common_fields,
    labels,
    processor_config,
    read_processor,
    vision_part,
)
from vitrail.checkpoint.dialects.table import CLS, JOINED, PIXELS_LAST, Q_AND_KV, TABLE, Row, Sizes, both
from vitrail.checkpoint.dialects.timm import gated, is_learned, is_shared_bias, is_sincos, pooled_norm, token_norm
from vitrail.checkpoint.evidence import FIXED_TABLE, Known
from vitrail.checkpoint.file import Stored
from vitrail.checkpoint.preprocessing import HALF, IMAGENET, OPENAI_CLIP, Statistics
from vitrail.checkpoint.said import Said
from vitrail.config import Config, ViTConfig
from vitrail.errors import require
from vitrail.geometry import Size
from vitrail.parts import ClsPool, Learned, MeanPool, Position, RelativeBias, Rotary, SinCos2d

__all__ = ["HUGGINGFACE"]


# ── tables ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _qkv(theirs: str, query: str = "query", key: str = "key", value: str = "value") -> tuple[Row, Row]:
    return both(
        "blocks.{i}.attention.qkv", f"{theirs}.{query}", f"{theirs}.{key}", f"{theirs}.{value}", transform=JOINED
    )


def _two_biases(theirs: str, query: str = "query", value: str = "value") -> tuple[Row, Row]:
    return (
        Row(("blocks.{i}.attention.q_bias",), (f"{theirs}.{query}.bias",)),
        Row(("blocks.{i}.attention.v_bias",), (f"{theirs}.{value}.bias",)),
    )


LAYER = "{p}encoder.layer.{i}"
FRONT = (
    *both("embedding", "{p}embeddings.patch_embeddings.projection"),
    Row(("prefix.cls",), ("{p}embeddings.cls_token",)),
    Row(("position.table",), ("{p}embeddings.position_embeddings",), TABLE),
)
VIT_BLOCK = (
    *both("blocks.{i}.norm1", f"{LAYER}.layernorm_before"),
    *both("blocks.{i}.attention.out", f"{LAYER}.attention.output.dense"),
    *both("blocks.{i}.norm2", f"{LAYER}.layernorm_after"),
    *both("blocks.{i}.mlp.fc1", f"{LAYER}.intermediate.dense"),
    *both("blocks.{i}.mlp.fc2", f"{LAYER}.output.dense"),
)
VIT_ROWS = (
    *FRONT,
    *VIT_BLOCK,
    *_qkv(f"{LAYER}.attention.attention"),
    *both("norm", "{p}layernorm"),
    *both("head", "classifier"),
)
DEIT_ROWS = (
    *FRONT,
    Row(("prefix.distillation",), ("{p}embeddings.distillation_token",)),
    *VIT_BLOCK,
    *_qkv(f"{LAYER}.attention.attention"),
    *both("norm", "{p}layernorm"),
    *both("head", "cls_classifier"),
    *both("distillation_head", "distillation_classifier"),
)
MAE_ROWS = (*VIT_ROWS, Row((FIXED_TABLE,), ("{p}embeddings.position_embeddings",), TABLE, is_sincos))
BEIT_ROWS = (
    *FRONT[:3],
    Row(("position.table",), ("{p}embeddings.position_embeddings",), TABLE, is_learned),
    *VIT_BLOCK,
    _qkv(f"{LAYER}.attention.attention")[0],
    *_two_biases(f"{LAYER}.attention.attention"),
    Row(("blocks.{i}.scale1",), (f"{LAYER}.lambda_1",)),
    Row(("blocks.{i}.scale2",), (f"{LAYER}.lambda_2",)),
    Row(
        ("blocks.{i}.attention.position.table",),
        (f"{LAYER}.attention.attention.relative_position_bias.relative_position_bias_table",),
    ),
    Row(
        ("position.table",),
        ("{p}encoder.relative_position_bias.relative_position_bias_table",),
        when=is_shared_bias,
    ),
    *both("norm", "{p}layernorm", when=token_norm),
    *both("norm", "{p}pooler.layernorm", when=pooled_norm),
    *both("head", "classifier"),
)
DINOV2_ROWS = (
    *FRONT,
    *both("blocks.{i}.norm1", f"{LAYER}.norm1"),
    *_qkv(f"{LAYER}.attention.attention"),
    *both("blocks.{i}.attention.out", f"{LAYER}.attention.output.dense"),
    Row(("blocks.{i}.scale1",), (f"{LAYER}.layer_scale1.lambda1",)),
    *both("blocks.{i}.norm2", f"{LAYER}.norm2"),
    *both("blocks.{i}.mlp.fc1", f"{LAYER}.mlp.fc1", when=lambda config: not gated(config)),
    *both("blocks.{i}.mlp.fc2", f"{LAYER}.mlp.fc2", when=lambda config: not gated(config)),
    *both("blocks.{i}.mlp.fc1", f"{LAYER}.mlp.weights_in", when=gated),
    *both("blocks.{i}.mlp.fc2", f"{LAYER}.mlp.weights_out", when=gated),
    Row(("blocks.{i}.scale2",), (f"{LAYER}.layer_scale2.lambda1",)),
    *both("norm", "{p}layernorm"),
)
DINOV2_REGISTER_ROWS = (*DINOV2_ROWS, Row(("prefix.registers",), ("{p}embeddings.register_tokens",)))
DINOV3_ROWS = (
    *both("embedding", "{p}embeddings.patch_embeddings"),
    Row(("prefix.cls",), ("{p}embeddings.cls_token",)),
    Row(("prefix.registers",), ("{p}embeddings.register_tokens",)),
    *both("blocks.{i}.norm1", "{p}layer.{i}.norm1"),
    _qkv("{p}layer.{i}.attention", "q_proj", "k_proj", "v_proj")[0],
    *_two_biases("{p}layer.{i}.attention", "q_proj", "v_proj"),
    *both("blocks.{i}.attention.out", "{p}layer.{i}.attention.o_proj"),
    Row(("blocks.{i}.scale1",), ("{p}layer.{i}.layer_scale1.lambda1",)),
    *both("blocks.{i}.norm2", "{p}layer.{i}.norm2"),
    *both("blocks.{i}.mlp.fc1", "{p}layer.{i}.mlp.gate_proj", "{p}layer.{i}.mlp.up_proj", transform=JOINED, when=gated),
    *both("blocks.{i}.mlp.fc1", "{p}layer.{i}.mlp.up_proj", when=lambda config: not gated(config)),
    *both("blocks.{i}.mlp.fc2", "{p}layer.{i}.mlp.down_proj"),
    Row(("blocks.{i}.scale2",), ("{p}layer.{i}.layer_scale2.lambda1",)),
    *both("norm", "{p}norm"),
)
TOWER_BLOCK = (
    *both("blocks.{i}.norm1", "{p}encoder.layers.{i}.layer_norm1"),
    *_qkv("{p}encoder.layers.{i}.self_attn", "q_proj", "k_proj", "v_proj"),
    *both("blocks.{i}.attention.out", "{p}encoder.layers.{i}.self_attn.out_proj"),
    *both("blocks.{i}.norm2", "{p}encoder.layers.{i}.layer_norm2"),
    *both("blocks.{i}.mlp.fc1", "{p}encoder.layers.{i}.mlp.fc1"),
    *both("blocks.{i}.mlp.fc2", "{p}encoder.layers.{i}.mlp.fc2"),
    *both("norm", "{p}post_layernorm"),
    Row(("position.table",), ("{p}embeddings.position_embedding.weight",)),
)
CLIP_ROWS = (
    *both("embedding", "{p}embeddings.patch_embedding"),
    Row(("prefix.cls",), ("{p}embeddings.class_embedding",), CLS),
    *both("embedding_norm", "{p}pre_layrnorm"),
    *TOWER_BLOCK,
    Row(("head.weight",), ("visual_projection.weight",)),
)
SIGLIP_ROWS = (
    *both("embedding", "{p}embeddings.patch_embedding"),
    *TOWER_BLOCK,
    Row(("pool.query",), ("{p}head.probe",)),
    Row(("pool.q.weight", "pool.kv.weight"), ("{p}head.attention.in_proj_weight",), Q_AND_KV),
    Row(("pool.q.bias", "pool.kv.bias"), ("{p}head.attention.in_proj_bias",), Q_AND_KV),
    *both("pool.out", "{p}head.attention.out_proj"),
    *both("pool.norm", "{p}head.layernorm"),
    *both("pool.mlp.fc1", "{p}head.mlp.fc1"),
    *both("pool.mlp.fc2", "{p}head.mlp.fc2"),
)
SIGLIP2_ROWS = (
    Row(("embedding.weight",), ("{p}embeddings.patch_embedding.weight",), PIXELS_LAST),
    Row(("embedding.bias",), ("{p}embeddings.patch_embedding.bias",)),
    *SIGLIP_ROWS[2:],
)


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
        source = f"config.json ({said.text('model_type')})" if said else "names and shapes, as transformers has them"
        return Known(source=source, fields=found, image=said.size("image_size"))

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
    return Known(source=known.source, fields=fields, image=known.image)


def _known_siglip2(stored: Stored, prefix: str) -> Known:
    known = _known(Learned(convention="huggingface"), eps=1e-6, activation="gelu_pytorch_tanh")(stored, prefix)
    said = vision_part(stored)
    patch, count = said.whole("patch_size", 16), said.whole("num_patches", 256)
    require(
        count > 0 and math.isqrt(count) ** 2 == count,
        f"config.json has num_patches {count}, and a SigLIP2 table is square by definition; mend it",
    )
    return Known(
        source=known.source,
        fields=known.fields,
        image=Size.of(patch * math.isqrt(count)),
        sizes=Sizes(patch=Size.of(patch), channels=said.whole("num_channels", 3)),
    )


def _of_type(*types: str, names: Callable[[set[str]], bool]) -> Callable[[Stored, str], bool]:
    """By the config's model_type, or, without a config, by the names."""

    def signs(stored: Stored, prefix: str) -> bool:
        if "model_type" in stored.config:
            return stored.config["model_type"] in types
        return names({name.removeprefix(prefix) for name in stored.tensors if name.startswith(prefix)})

    return signs


# ── writing config.json ─────────────────────────────────────────────────────────────────────────────────────────


def _describe(
    model_type: str,
    fields: Callable[[ViTConfig], Mapping[str, Any]],
    *,
    plain: tuple[str, str],
    headed: tuple[str, str] | None = None,
) -> Callable[[Checkpoint], Written]:
    """`plain` and `headed` are the class, and what stands before its names, without and with a head."""

    def describe(checkpoint: Checkpoint) -> Written:
        config = checkpoint.config
        found = common_fields(checkpoint)
        assert isinstance(config, ViTConfig)
        origin = checkpoint.origin if checkpoint.dialect == "huggingface" else {}
        architecture, prefix = headed if config.classes and headed else plain
        came_as = Said(origin).first("architectures")
        whole = isinstance(origin.get("vision_config"), Mapping)  # image and text: it stays what it is
        if came_as and (whole or headed is None or (came_as == headed[0]) == bool(config.classes)):
            architecture, prefix = came_as, None
        found = {**found, **fields(config), **(labels(config.classes, origin) if headed else {})}
        if whole:
            found = {"vision_config": {**origin["vision_config"], **found}}
        stated = {"model_type": model_type, **origin, "architectures": [architecture], **found}
        return Written(prefix=prefix, config=stated, processor=processor_config(checkpoint))

    return describe


def _mlp(config: ViTConfig) -> dict[str, Any]:
    return {"intermediate_size": config.mlp.width}


def _vit_fields(config: ViTConfig) -> dict[str, Any]:
    return {**_mlp(config), "qkv_bias": config.qkv_bias == "all"}


def _dinov2_fields(config: ViTConfig) -> dict[str, Any]:
    ratio = config.mlp.width / config.width
    return {
        "mlp_ratio": 4 if gated(config) else int(ratio) if ratio == int(ratio) else ratio,
        "use_swiglu_ffn": gated(config),
        "qkv_bias": config.qkv_bias == "all",
        "layerscale_value": config.layer_scale,
        **({"num_register_tokens": config.prefix.registers} if config.prefix.registers else {}),
    }


def _dinov3_fields(config: ViTConfig) -> dict[str, Any]:
    biased = config.qkv_bias == "no_key"
    return {
        **_mlp(config),
        "use_gated_mlp": gated(config),
        "query_bias": biased,
        "key_bias": False,
        "value_bias": biased,
        "layerscale_value": config.layer_scale,
        "num_register_tokens": config.prefix.registers,
        "rope_theta": config.position.temperature if isinstance(config.position, Rotary) else 100.0,
        **({"hidden_act": "silu"} if gated(config) else {}),
    }


def _beit_fields(config: ViTConfig) -> dict[str, Any]:
    shared = getattr(config.position, "shared", None)
    return {
        **_mlp(config),
        "layer_scale_init_value": config.layer_scale or 0.0,
        "use_relative_position_bias": shared is False,
        "use_shared_relative_position_bias": shared is True,
        "use_absolute_position_embeddings": isinstance(config.position, Learned),
        "use_mean_pooling": config.final_norm == "pooled",
    }


def _clip_fields(config: ViTConfig) -> dict[str, Any]:
    return {**_mlp(config), **({"projection_dim": config.classes} if config.classes else {})}


def _siglip2_fields(config: ViTConfig) -> dict[str, Any]:
    return {**_mlp(config), "num_patches": config.grid.area}


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


def _mask_token(*shape: int) -> Callable[[Config], dict[str, Tensor]]:
    def constants(config: Config) -> dict[str, Tensor]:
        assert isinstance(config, ViTConfig)
        return {"embeddings.mask_token": torch.zeros(*shape, config.width)}

    return constants


def _family(
    name: str,
    rows: tuple[Row, ...],
    known: Callable[[Stored, str], Known],
    signs: Callable[[Stored, str], bool],
    write: Callable[[Checkpoint], Written],
    *,
    anchor: str = "embeddings.patch_embeddings.projection.weight",
    statistics: Statistics = HALF,
    **options: Any,
) -> Family:
    spare = r"embeddings\.mask_token|pooler\..*|classifier\..*|embeddings\.position_ids|.*relative_position_index"
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
HUGGINGFACE = Dialect(
    name="huggingface",
    directory=True,
    preprocessing=read_processor,
    families=(
        _family(
            "siglip2",
            SIGLIP2_ROWS,
            _known_siglip2,
            lambda stored, prefix: (
                stored.config.get("model_type", "siglip2") in ("siglip2", "siglip2_vision_model")
                and stored.tensors[prefix + TOWER].ndim == 2
            ),
            _describe("siglip2_vision_model", _siglip2_fields, plain=("Siglip2VisionModel", "")),
            anchor=TOWER,
            refuse=_square,
            needs=("pool.query", "position.table", "embedding.bias"),
        ),
        _family(
            "siglip",
            SIGLIP_ROWS,
            _known(LEARNED, eps=1e-6, activation="gelu_pytorch_tanh"),
            _of_type("siglip", "siglip_vision_model", "siglip2", names=lambda names: "head.probe" in names),
            _describe("siglip_vision_model", _mlp, plain=("SiglipVisionModel", "")),
            anchor=TOWER,
            refuse=_square,
            needs=("pool.query", "position.table", "embedding.bias"),
        ),
        _family(
            "clip",
            CLIP_ROWS,
            _known(LEARNED, eps=1e-5, activation="quick_gelu"),
            _of_type("clip", "clip_vision_model", names=lambda names: "embeddings.class_embedding" in names),
            _describe(
                "clip_vision_model",
                _clip_fields,
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
            _known(Rotary(coordinates="normalised"), eps=1e-5, pool=ClsPool()),
            _of_type("dinov3_vit", names=lambda names: "embeddings.register_tokens" in names),
            _describe("dinov3_vit", _dinov3_fields, plain=("DINOv3ViTModel", "")),
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
            _describe("dinov2_with_registers", _dinov2_fields, plain=("Dinov2WithRegistersModel", "")),
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
            _describe("dinov2", _dinov2_fields, plain=("Dinov2Model", "")),
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
            _describe("beit", _beit_fields, plain=("BeitModel", ""), headed=("BeitForImageClassification", "beit.")),
            needs=("prefix.cls", "norm.weight"),
        ),
        _family(
            "deit",
            DEIT_ROWS,
            _known(LEARNED),
            _of_type("deit", names=lambda names: "embeddings.distillation_token" in names),
            _describe(
                "deit",
                _vit_fields,
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
            _describe("vit_mae", _vit_fields, plain=("ViTMAEModel", "")),
            statistics=IMAGENET,
            needs=("prefix.cls", FIXED_TABLE, "norm.weight"),
        ),
        _family(
            "ijepa",
            tuple(row for row in VIT_ROWS if row.ours[0] != "prefix.cls"),
            _known(LEARNED, pool=MeanPool()),
            _of_type("ijepa", names=lambda names: "embeddings.cls_token" not in names),
            _describe("ijepa", _vit_fields, plain=("IJepaModel", ""), headed=("IJepaForImageClassification", "ijepa.")),
            statistics=IMAGENET,
            needs=("position.table", "norm.weight", "embedding.bias"),
        ),
        _family(
            "vit",
            VIT_ROWS,
            _known(LEARNED),
            _of_type("vit", "vit_msn", names=lambda names: True),
            _describe("vit", _vit_fields, plain=("ViTModel", ""), headed=("ViTForImageClassification", "vit.")),
            needs=("prefix.cls", "position.table", "norm.weight", "embedding.bias"),
        ),
    ),
)
