"""timm's names of Vision Transformers: one table for most, others for distilled DeiT, BEiT and EVA/DINOv3."""

from __future__ import annotations

from vitrail.checkpoint.dialects.conditions import (
    gated,
    is_learned,
    is_shared_bias,
    is_sincos,
    of_patches_alone,
    plain,
    pooled_norm,
    token_norm,
)
from vitrail.checkpoint.dialects.evidence import FIXED_TABLE
from vitrail.checkpoint.dialects.table import (
    GRID_LAST,
    JOINED,
    MASK_TOKEN,
    PIXELS_LAST,
    STACKED_AXES,
    TABLE,
    Row,
    both,
    never,
)

__all__ = [
    "BEIT_ROWS",
    "BLOCK",
    "DISTILLED_ROWS",
    "EVA_PACKED_ROWS",
    "EVA_ROWS",
    "EVA_SPLIT_ROWS",
    "FRONT",
    "NAFLEX_ROWS",
    "RELATIVE_ROWS",
    "VIT_GATED_ROWS",
    "VIT_ROWS",
]

FRONT = (
    *both("embedding", "{p}patch_embed.proj"),
    Row(("prefix.cls",), ("{p}cls_token",)),
    Row(("position.table",), ("{p}pos_embed",), TABLE),
)
BLOCK = (
    *both("blocks.{i}.norm1", "{p}blocks.{i}.norm1"),
    *both("blocks.{i}.attention.qkv", "{p}blocks.{i}.attn.qkv"),
    *both("blocks.{i}.attention.out", "{p}blocks.{i}.attn.proj"),
    *both("blocks.{i}.norm2", "{p}blocks.{i}.norm2"),
    *both("blocks.{i}.mlp.fc1", "{p}blocks.{i}.mlp.fc1"),
    *both("blocks.{i}.mlp.fc2", "{p}blocks.{i}.mlp.fc2"),
)
FIXED = Row((FIXED_TABLE,), ("{p}pos_embed",), TABLE, is_sincos)
NORMS = (
    *both("norm", "{p}norm", when=token_norm),
    *both("norm", "{p}fc_norm", when=pooled_norm),
)
HEAD = both("head", "{p}head")
QK_NORMS = (
    *both("blocks.{i}.attention.q_norm", "{p}blocks.{i}.attn.q_norm"),
    *both("blocks.{i}.attention.k_norm", "{p}blocks.{i}.attn.k_norm"),
)
INNER_NORMS = (
    *both("blocks.{i}.attention.norm", "{p}blocks.{i}.attn.norm"),
    *both("blocks.{i}.mlp.norm", "{p}blocks.{i}.mlp.norm"),
)
GATE_AND_VALUE = both(
    "blocks.{i}.mlp.fc1", "{p}blocks.{i}.mlp.fc1_g", "{p}blocks.{i}.mlp.fc1_x", transform=JOINED, when=gated
)
REGISTERS = Row(("prefix.registers",), ("{p}reg_token",))
GAMMAS = (
    Row(("blocks.{i}.scale1",), ("{p}blocks.{i}.gamma_1",)),
    Row(("blocks.{i}.scale2",), ("{p}blocks.{i}.gamma_2",)),
)
TWO_BIASES = (
    Row(("blocks.{i}.attention.q_bias",), ("{p}blocks.{i}.attn.q_bias",)),
    Row(("blocks.{i}.attention.v_bias",), ("{p}blocks.{i}.attn.v_bias",)),
)
MASK = Row((MASK_TOKEN,), ("{p}mask_token",), when=never)
"""In files of others under timm's names. timm has no place for it, and takes a file that has one for DINOv2's."""
PRE_NORM = both("embedding_norm", "{p}norm_pre")
ATTENTION_POOL = (
    Row(("pool.query",), ("{p}attn_pool.latent",)),
    *both("pool.q", "{p}attn_pool.q"),
    *both("pool.kv", "{p}attn_pool.kv"),
    *both("pool.out", "{p}attn_pool.proj"),
    *both("pool.norm", "{p}attn_pool.norm"),
    *both("pool.mlp.fc1", "{p}attn_pool.mlp.fc1"),
    *both("pool.mlp.fc2", "{p}attn_pool.mlp.fc2"),
)
VIT_ROWS = (
    *FRONT,
    *both("patch_norm", "{p}patch_embed.norm"),
    MASK,
    FIXED,
    REGISTERS,
    *PRE_NORM,
    *BLOCK,
    *QK_NORMS,
    *INNER_NORMS,
    Row(("blocks.{i}.scale1",), ("{p}blocks.{i}.ls1.gamma",)),
    Row(("blocks.{i}.scale2",), ("{p}blocks.{i}.ls2.gamma",)),
    *NORMS,
    *ATTENTION_POOL,
    *HEAD,
)
NAFLEX_ROWS = (
    Row(("embedding.weight",), ("{p}embeds.proj.weight",), PIXELS_LAST),
    Row(("embedding.bias",), ("{p}embeds.proj.bias",)),
    Row(("prefix.cls",), ("{p}embeds.cls_token",)),
    Row(("prefix.registers",), ("{p}embeds.reg_token",)),
    Row(("position.table",), ("{p}embeds.pos_embed",), GRID_LAST, of_patches_alone),
    *(row for row in VIT_ROWS if row.ours[0].startswith(("blocks.", "norm.", "pool.", "head."))),
)
"""Flat patches and a table with the height and width of its grid."""
RELATIVE_ROWS = (
    *(row for row in VIT_ROWS if row.ours[0] not in ("position.table", FIXED_TABLE)),
    *both("blocks.{i}.attention.position.fc1", "{p}blocks.{i}.attn.rel_pos.mlp.fc1"),
    *both("blocks.{i}.attention.position.fc2", "{p}blocks.{i}.attn.rel_pos.mlp.fc2"),
    *both("position.fc1", "{p}shared_rel_pos.mlp.fc1"),
    *both("position.fc2", "{p}shared_rel_pos.mlp.fc2"),
)
"""Biases that an MLP computes, one in every block or one for all."""
VIT_GATED_ROWS = (*(row for row in VIT_ROWS if ".mlp.fc1." not in row.ours[0]), *GATE_AND_VALUE)
"""Gate and value in two layers, as AIMv2 has them."""
DISTILLED_ROWS = (
    *FRONT,
    Row(("prefix.distillation",), ("{p}dist_token",)),
    *BLOCK,
    *NORMS,
    *HEAD,
    *both("distillation_head", "{p}head_dist"),
)
BEIT_BLOCK = tuple(row for row in BLOCK if row.ours[0] != "blocks.{i}.attention.qkv.bias")
BEIT_ROWS = (
    *FRONT[:3],
    MASK,
    Row(("position.table",), ("{p}pos_embed",), TABLE, is_learned),
    Row(("position.table",), ("{p}rel_pos_bias.relative_position_bias_table",), when=is_shared_bias),
    *BEIT_BLOCK,
    *TWO_BIASES,
    *GAMMAS,
    Row(("blocks.{i}.attention.position.table",), ("{p}blocks.{i}.attn.relative_position_bias_table",)),
    *NORMS,
    *HEAD,
)
EVA = (
    *FRONT,
    MASK,
    REGISTERS,
    *PRE_NORM,
    Row(("blocks.{i}.attention.position.frequencies",), ("{p}rope.freqs",), STACKED_AXES),
    *(row for row in BLOCK if row.ours[0].partition(".mlp.")[2][:3] != "fc1"),
    *TWO_BIASES,
    *GAMMAS,
    *QK_NORMS,
    *INNER_NORMS,
    *NORMS,
    *ATTENTION_POOL,
    *HEAD,
)
EVA_ROWS = (*EVA, *both("blocks.{i}.mlp.fc1", "{p}blocks.{i}.mlp.fc1", when=plain), *GATE_AND_VALUE)
EVA_SPLIT_ROWS = (
    *(row for row in EVA_ROWS if ".attention.qkv." not in row.ours[0] and row not in TWO_BIASES),
    Row(
        ("blocks.{i}.attention.qkv.weight",),
        tuple(f"{{p}}blocks.{{i}}.attn.{name}_proj.weight" for name in "qkv"),
        JOINED,
    ),
    Row(("blocks.{i}.attention.q_bias",), ("{p}blocks.{i}.attn.q_proj.bias",)),
    Row(("blocks.{i}.attention.v_bias",), ("{p}blocks.{i}.attn.v_proj.bias",)),
)
"""Queries, keys and values in three layers."""
EVA_PACKED_ROWS = (*EVA, *both("blocks.{i}.mlp.fc1", "{p}blocks.{i}.mlp.fc1", when=gated))
"""Gate and value in one layer."""
