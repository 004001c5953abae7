"""Vision towers of transformers' models of image and text, alone or inside the whole: SigLIP, CLIP, BLIP, Qwen-VL."""

from __future__ import annotations

from dataclasses import replace

from vitrail.checkpoint.dialects.dialect import Family
from vitrail.checkpoint.dialects.dino import DINOV2_ROWS
from vitrail.checkpoint.dialects.huggingface_config import (
    clip_fields,
    describe,
    dinov2_fields,
    headless_fields,
    mlp_fields,
    siglip2_fields,
    tower_type,
    vit_fields,
)
from vitrail.checkpoint.dialects.huggingface_family import TOWER, family, of_type, square
from vitrail.checkpoint.dialects.huggingface_known import LEARNED, known, known_siglip2
from vitrail.checkpoint.dialects.huggingface_names import (
    ALTCLIP_ROWS,
    BLIP_ROWS,
    CLIP_ROWS,
    OWLVIT_ROWS,
    SIGLIP2_ROWS,
    SIGLIP_ROWS,
    SIGLIP_TOKENS_ROWS,
)
from vitrail.checkpoint.dialects.huggingface_qwen import (
    FRAMES,
    QWEN2_5_VL_ROWS,
    QWEN2_VL_ROWS,
    QWEN3_VL_ROWS,
    describe_qwen,
    known_qwen,
    known_qwen3,
)
from vitrail.checkpoint.dialects.table import both
from vitrail.checkpoint.preprocessing import OPENAI_CLIP
from vitrail.parts import Learned

__all__ = ["CLIP", "METACLIP2", "QWEN", "QWEN3", "SIGLIP", "SIGLIP2", "TIPS", "TOWERS"]

SIGLIP2 = family(
    "siglip2",
    SIGLIP2_ROWS,
    known_siglip2,
    lambda stored, prefix: (
        (tower_type(stored.config) or "siglip2") in ("siglip2", "siglip2_vision_model")
        and stored.tensors[prefix + TOWER].ndim == 2
    ),
    describe("siglip2_vision_model", siglip2_fields, plain=("Siglip2VisionModel", "")),
    anchor=TOWER,
    refuse=square,
    needs=("pool.query", "position.table", "embedding.bias"),
)
SIGLIP = family(
    "siglip",
    SIGLIP_ROWS,
    known(LEARNED, eps=1e-6, activation="gelu_pytorch_tanh"),
    of_type("siglip", "siglip_vision_model", "siglip2", names=lambda names: "head.probe" in names),
    describe("siglip_vision_model", mlp_fields, plain=("SiglipVisionModel", "")),
    anchor=TOWER,
    refuse=square,
    needs=("pool.query", "position.table", "embedding.bias"),
)
CLIP_LAYER = "encoder.layers.0.self_attn.q_proj.weight"
CLIP = family(
    "clip",
    CLIP_ROWS,
    known(LEARNED, eps=1e-5, activation="quick_gelu"),
    of_type("clip", "clip_vision_model", names=lambda names: {"embeddings.class_embedding", CLIP_LAYER} <= names),
    describe(
        "clip_vision_model",
        clip_fields,
        plain=("CLIPVisionModel", ""),
        headed=("CLIPVisionModelWithProjection", "vision_model."),
    ),
    anchor=TOWER,
    statistics=OPENAI_CLIP,
    refuse=square,
    needs=("prefix.cls", "embedding_norm.weight", "position.table", "norm.weight"),
)
LIKE_CLIP = tuple(
    replace(
        CLIP,
        name=name,
        rows=rows,
        signs=of_type(name, f"{name}_vision_model", names=lambda names: False),
        write=describe(f"{name}_vision_model", clip_fields, plain=(f"{model}VisionModel", "")),
    )
    for name, model, rows in (
        ("altclip", "AltCLIP", ALTCLIP_ROWS),
        ("chinese_clip", "ChineseCLIP", CLIP_ROWS),
        ("metaclip_2", "MetaClip2", CLIP_ROWS),
        ("clipseg", "CLIPSeg", CLIP_ROWS),
        ("git", "Git", CLIP_ROWS),
        ("kosmos_2", "Kosmos2", CLIP_ROWS),
        ("owlvit", "OwlViT", OWLVIT_ROWS),
        ("owlv2", "Owlv2", OWLVIT_ROWS),
    )
)
BLIP = tuple(
    family(
        name,
        BLIP_ROWS,
        known(LEARNED, eps=eps),
        of_type(f"{name}_vision_model", names=names),
        describe(f"{name}_vision_model", vit_fields, plain=(model, "")),
        anchor=TOWER,
        statistics=OPENAI_CLIP,
        refuse=square,
        needs=("prefix.cls", "position.table", "norm.weight", "embedding.bias", "blocks.0.attention.qkv.bias"),
    )
    for name, model, eps, names in (
        ("blip", "BlipVisionModel", 1e-5, lambda names: "encoder.layers.0.self_attn.projection.weight" in names),
        ("blip_2", "Blip2VisionModel", 1e-6, lambda names: False),
        ("instructblip", "InstructBlipVisionModel", 1e-6, lambda names: False),
    )
)
"""They read the tokens after one norm; BLIP's own projection reads them after a second one, and is not part of it."""
SIGLIP_TOKENS = replace(
    SIGLIP,
    name="siglip, tokens",
    rows=SIGLIP_TOKENS_ROWS,
    signs=lambda stored, prefix: SIGLIP.signs(stored, prefix) and f"{prefix}head.probe" not in stored.tensors,
    write=describe("siglip_vision_model", headless_fields, plain=("SiglipVisionModel", "")),
    needs=("position.table", "embedding.bias", "norm.weight"),
)
"""Without its pooling head: language models read the tokens."""
QWEN = tuple(
    family(
        name,
        rows,
        known_qwen,
        lambda stored, prefix, mlp=mlp: (
            f"{prefix}merger.ln_q.weight" in stored.tensors
            and f"{prefix}blocks.0.mlp.{mlp}.weight" in stored.tensors
            and stored.tensors[f"{prefix}patch_embed.proj.weight"].ndim == 5
        ),
        describe_qwen,
        anchor="patch_embed.proj.weight",
        statistics=OPENAI_CLIP,
        spare=r"merger\..*",
        needs=(FRAMES,),
        lacks=frozenset({"norm biases"} if name == "qwen2_5_vl" else ()),
    )
    for name, rows, mlp in (("qwen2_vl", QWEN2_VL_ROWS, "fc1"), ("qwen2_5_vl", QWEN2_5_VL_ROWS, "gate_proj"))
)
QWEN3 = family(
    "qwen3_vl",
    QWEN3_VL_ROWS,
    known_qwen3,
    lambda stored, prefix: (
        f"{prefix}merger.linear_fc1.weight" in stored.tensors
        and f"{prefix}pos_embed.weight" in stored.tensors
        and stored.tensors[f"{prefix}patch_embed.proj.weight"].ndim == 5
    ),
    describe_qwen,
    anchor="patch_embed.proj.weight",
    spare=r"(merger|deepstack_merger_list)\..*",
    needs=(FRAMES, "position.table", "embedding.bias"),
    refuse=square,
)
TIPS = family(
    "tipsv2",
    (
        *(row for row in DINOV2_ROWS if ".mlp." not in row.ours[0]),
        *both("blocks.{i}.mlp.fc1", "{p}blocks.{i}.mlp.c_fc"),
        *both("blocks.{i}.mlp.fc2", "{p}blocks.{i}.mlp.c_proj"),
    ),
    known(Learned(prefix="cls", convention="siglip2"), eps=1e-6),
    of_type("tipsv2_vision_model", names=lambda names: "blocks.0.mlp.c_fc.weight" in names),
    describe("tipsv2_vision_model", dinov2_fields, plain=("Tipsv2VisionModel", "")),
    anchor="patch_embed.proj.weight",
    spare=r"mask_token",
    needs=("prefix.cls", "prefix.registers", "blocks.0.scale1", "position.table", "norm.weight"),
    refuse=square,
)
"""TIPS v2: DINOv2's names and registers, in transformers' files."""
METACLIP2 = next(each for each in LIKE_CLIP if each.name == "metaclip_2")


def _unclassified(bare: Family) -> Family:
    """Match a family's models that have no classifier, which would read the tower in its own way."""
    return replace(
        bare, signs=lambda stored, prefix: "classifier.weight" not in stored.tensors and bare.signs(stored, prefix)
    )


TOWERS = (SIGLIP2, SIGLIP_TOKENS, SIGLIP, CLIP, *map(_unclassified, (*LIKE_CLIP, *BLIP)))
"""In the order in which a file is tried."""
