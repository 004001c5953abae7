"""The names that transformers' files have (its modules' differ): a table per model type."""

from __future__ import annotations

from dataclasses import replace

from vitrail.checkpoint.dialects.conditions import (
    gated,
    is_learned,
    is_shared_bias,
    is_sincos,
    plain,
    pooled_norm,
    token_norm,
)
from vitrail.checkpoint.dialects.evidence import FIXED_TABLE
from vitrail.checkpoint.dialects.table import (
    CLS,
    JOINED,
    KEY_FIRST,
    MASK_TOKEN,
    PIXELS_LAST,
    Q_AND_KV,
    TABLE,
    TOKEN,
    Row,
    both,
)

__all__ = [
    "AIMV2_ROWS",
    "ALTCLIP_ROWS",
    "BEIT_ROWS",
    "BLIP_ROWS",
    "CLIP_CLASSIFIER_ROWS",
    "CLIP_ROWS",
    "DEIT_CLASSIFIER_ROWS",
    "DEIT_ROWS",
    "DINOV2_CLASSIFIER_ROWS",
    "DINOV2_REGISTER_CLASSIFIER_ROWS",
    "DINOV2_REGISTER_ROWS",
    "DINOV2_ROWS",
    "DINOV3_ROWS",
    "INTERNVL_ROWS",
    "LAYER",
    "MAE_ROWS",
    "OWLVIT_ROWS",
    "SIGLIP2_CLASSIFIER_ROWS",
    "SIGLIP2_ROWS",
    "SIGLIP_CLASSIFIER_ROWS",
    "SIGLIP_ROWS",
    "SIGLIP_TOKENS_ROWS",
    "VIT_BLOCK",
    "VIT_MSN_CLASSIFIER_ROWS",
    "VIT_ROWS",
    "qkv_rows",
]


def qkv_rows(theirs: str, query: str = "query", key: str = "key", value: str = "value") -> tuple[Row, Row]:
    return both(
        "blocks.{i}.attention.qkv", f"{theirs}.{query}", f"{theirs}.{key}", f"{theirs}.{value}", transform=JOINED
    )


def _two_biases(theirs: str, query: str = "query", value: str = "value") -> tuple[Row, Row]:
    return (
        Row(("blocks.{i}.attention.q_bias",), (f"{theirs}.{query}.bias",)),
        Row(("blocks.{i}.attention.v_bias",), (f"{theirs}.{value}.bias",)),
    )


def _renamed(rows: tuple[Row, ...], before: str, after: str) -> tuple[Row, ...]:
    return tuple(replace(row, theirs=tuple(name.replace(before, after) for name in row.theirs)) for row in rows)


LAYER = "{p}encoder.layer.{i}"
MASK = Row((MASK_TOKEN,), ("{p}embeddings.mask_token",))
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
    MASK,
    *VIT_BLOCK,
    *qkv_rows(f"{LAYER}.attention.attention"),
    *both("norm", "{p}layernorm"),
    *both("head", "classifier"),
)
VIT_MSN_CLASSIFIER_ROWS = _renamed(VIT_ROWS, "{p}encoder.", "encoder.")
"""transformers 5 saves the blocks of this model without the prefix that its other names have."""
DEIT_ROWS = (
    *FRONT,
    MASK,
    Row(("prefix.distillation",), ("{p}embeddings.distillation_token",)),
    *VIT_BLOCK,
    *qkv_rows(f"{LAYER}.attention.attention"),
    *both("norm", "{p}layernorm"),
    *both("head", "cls_classifier"),
    *both("distillation_head", "distillation_classifier"),
)
DEIT_CLASSIFIER_ROWS = (
    *FRONT,
    Row(("prefix.registers",), ("{p}embeddings.distillation_token",)),  # a token that no head reads is a register
    *VIT_BLOCK,
    *qkv_rows(f"{LAYER}.attention.attention"),
    *both("norm", "{p}layernorm"),
    *both("head", "classifier"),
)
MAE_ROWS = (*VIT_ROWS, Row((FIXED_TABLE,), ("{p}embeddings.position_embeddings",), TABLE, is_sincos))
BEIT_ROWS = (
    *FRONT[:3],
    MASK,
    Row(("position.table",), ("{p}embeddings.position_embeddings",), TABLE, is_learned),
    *VIT_BLOCK,
    qkv_rows(f"{LAYER}.attention.attention")[0],
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
INTERNVL_ROWS = (
    *FRONT,
    MASK,
    *both("blocks.{i}.norm1", f"{LAYER}.layernorm_before"),
    *qkv_rows(f"{LAYER}.attention", "q_proj", "k_proj", "v_proj"),
    *both("blocks.{i}.attention.out", f"{LAYER}.attention.projection_layer"),
    Row(("blocks.{i}.scale1",), (f"{LAYER}.lambda_1",)),
    *both("blocks.{i}.norm2", f"{LAYER}.layernorm_after"),
    *both("blocks.{i}.mlp.fc1", f"{LAYER}.mlp.fc1"),
    *both("blocks.{i}.mlp.fc2", f"{LAYER}.mlp.fc2"),
    Row(("blocks.{i}.scale2",), (f"{LAYER}.lambda_2",)),
    *both("norm", "{p}layernorm"),
)
AIMV2_LAYER = "{p}encoder.layers.{i}"
AIMV2_ROWS = (
    *both("embedding", "{p}embeddings.patch_embed"),
    Row(("patch_norm.weight",), ("{p}embeddings.rms_norm.weight",)),
    Row(("position.table",), ("{p}embeddings.position_embedding.weight",)),
    Row(("blocks.{i}.norm1.weight",), (f"{AIMV2_LAYER}.rms_norm1.weight",)),
    *qkv_rows(f"{AIMV2_LAYER}.attention", "q_proj", "k_proj", "v_proj"),
    *both("blocks.{i}.attention.out", f"{AIMV2_LAYER}.attention.out_proj"),
    Row(("blocks.{i}.norm2.weight",), (f"{AIMV2_LAYER}.rms_norm2.weight",)),
    *both("blocks.{i}.mlp.fc1", f"{AIMV2_LAYER}.ffn.gate_proj", f"{AIMV2_LAYER}.ffn.up_proj", transform=JOINED),
    *both("blocks.{i}.mlp.fc2", f"{AIMV2_LAYER}.ffn.down_proj"),
    Row(("norm.weight",), ("{p}rms_norm.weight",)),
)
DINOV2_ROWS = (
    *FRONT,
    Row((MASK_TOKEN,), ("{p}embeddings.mask_token",), TOKEN),
    *both("blocks.{i}.norm1", f"{LAYER}.norm1"),
    *qkv_rows(f"{LAYER}.attention.attention"),
    *both("blocks.{i}.attention.out", f"{LAYER}.attention.output.dense"),
    Row(("blocks.{i}.scale1",), (f"{LAYER}.layer_scale1.lambda1",)),
    *both("blocks.{i}.norm2", f"{LAYER}.norm2"),
    *both("blocks.{i}.mlp.fc1", f"{LAYER}.mlp.fc1", when=plain),
    *both("blocks.{i}.mlp.fc2", f"{LAYER}.mlp.fc2", when=plain),
    *both("blocks.{i}.mlp.fc1", f"{LAYER}.mlp.weights_in", when=gated),
    *both("blocks.{i}.mlp.fc2", f"{LAYER}.mlp.weights_out", when=gated),
    Row(("blocks.{i}.scale2",), (f"{LAYER}.layer_scale2.lambda1",)),
    *both("norm", "{p}layernorm"),
)
DINOV2_REGISTER_ROWS = (*DINOV2_ROWS, Row(("prefix.registers",), ("{p}embeddings.register_tokens",)))
DINOV2_CLASSIFIER_ROWS = (*DINOV2_ROWS, *both("head", "classifier"))
DINOV2_REGISTER_CLASSIFIER_ROWS = (*DINOV2_REGISTER_ROWS, *both("head", "classifier"))
DINOV3_ROWS = (
    *both("embedding", "{p}embeddings.patch_embeddings"),
    Row(("prefix.cls",), ("{p}embeddings.cls_token",)),
    Row(("prefix.registers",), ("{p}embeddings.register_tokens",)),
    MASK,
    *both("blocks.{i}.norm1", "{p}layer.{i}.norm1"),
    qkv_rows("{p}layer.{i}.attention", "q_proj", "k_proj", "v_proj")[0],
    Row(
        ("blocks.{i}.attention.qkv.bias",),
        tuple(f"{{p}}layer.{{i}}.attention.{name}_proj.bias" for name in "kqv"),
        KEY_FIRST,
    ),
    *_two_biases("{p}layer.{i}.attention", "q_proj", "v_proj"),
    *both("blocks.{i}.attention.out", "{p}layer.{i}.attention.o_proj"),
    Row(("blocks.{i}.scale1",), ("{p}layer.{i}.layer_scale1.lambda1",)),
    *both("blocks.{i}.norm2", "{p}layer.{i}.norm2"),
    *both("blocks.{i}.mlp.fc1", "{p}layer.{i}.mlp.gate_proj", "{p}layer.{i}.mlp.up_proj", transform=JOINED, when=gated),
    *both("blocks.{i}.mlp.fc1", "{p}layer.{i}.mlp.up_proj", when=plain),
    *both("blocks.{i}.mlp.fc2", "{p}layer.{i}.mlp.down_proj"),
    Row(("blocks.{i}.scale2",), ("{p}layer.{i}.layer_scale2.lambda1",)),
    *both("norm", "{p}norm"),
)
TOWER_BLOCK = (
    *both("blocks.{i}.norm1", "{p}encoder.layers.{i}.layer_norm1"),
    *qkv_rows("{p}encoder.layers.{i}.self_attn", "q_proj", "k_proj", "v_proj"),
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
ALTCLIP_ROWS = _renamed(CLIP_ROWS, "encoder.layers.", "encoder.layer.")
BLIP_ROWS = (
    *both("embedding", "{p}embeddings.patch_embedding"),
    Row(("prefix.cls",), ("{p}embeddings.class_embedding",)),
    Row(("position.table",), ("{p}embeddings.position_embedding",), TABLE),
    *(row for row in TOWER_BLOCK if ".attention." not in row.ours[0] and row.ours[0] != "position.table"),
    *both("blocks.{i}.attention.qkv", "{p}encoder.layers.{i}.self_attn.qkv"),
    *both("blocks.{i}.attention.out", "{p}encoder.layers.{i}.self_attn.projection"),
)
OWLVIT_ROWS = _renamed(CLIP_ROWS, "pre_layrnorm", "pre_layernorm")
CLIP_CLASSIFIER_ROWS = (
    *(row for row in CLIP_ROWS[:-1] if not row.ours[0].startswith("norm.")),  # its head reads tokens before the norm
    *both("head", "classifier"),
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
FLAT_EMBEDDING = (
    Row(("embedding.weight",), ("{p}embeddings.patch_embedding.weight",), PIXELS_LAST),
    Row(("embedding.bias",), ("{p}embeddings.patch_embedding.bias",)),
)
SIGLIP_TOKENS_ROWS = tuple(row for row in SIGLIP_ROWS if not row.ours[0].startswith("pool."))
SIGLIP2_ROWS = (*FLAT_EMBEDDING, *SIGLIP_ROWS[2:])
SIGLIP_CLASSIFIER_ROWS = (
    *both("embedding", "{p}embeddings.patch_embedding"),
    *TOWER_BLOCK,
    *both("head", "classifier"),
)
SIGLIP2_CLASSIFIER_ROWS = (*FLAT_EMBEDDING, *TOWER_BLOCK, *both("head", "classifier"))
