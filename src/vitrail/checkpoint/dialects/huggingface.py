"""Hugging Face transformers, by the names that its files have (its modules' differ): a table per model type."""

from __future__ import annotations

from vitrail.checkpoint.dialects.dialect import Dialect
from vitrail.checkpoint.dialects.evidence import FIXED_TABLE
from vitrail.checkpoint.dialects.hiera_huggingface import HUGGINGFACE_HIERA
from vitrail.checkpoint.dialects.huggingface_classifiers import (
    CLASSIFIERS,
    DEIT,
    DINOV2,
    DINOV2_WITH_REGISTERS,
    mask_token,
)
from vitrail.checkpoint.dialects.huggingface_clips import CLIPS
from vitrail.checkpoint.dialects.huggingface_config import (
    aimv2_fields,
    beit_fields,
    describe,
    dinov3_fields,
    internvl_fields,
    read_processor,
    vit_fields,
)
from vitrail.checkpoint.dialects.huggingface_dpt import HUGGINGFACE_DPT
from vitrail.checkpoint.dialects.huggingface_family import MODEL_TYPES, family, of_type, square
from vitrail.checkpoint.dialects.huggingface_known import (
    LEARNED,
    known,
    known_beit,
    known_dinov3,
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
    DINOV3_ROWS,
    INTERNVL_ROWS,
    MAE_ROWS,
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
from vitrail.checkpoint.dialects.huggingface_towers import QWEN, QWEN3, TIPS, TOWERS
from vitrail.checkpoint.dialects.sam2_huggingface import HUGGINGFACE_SAM2
from vitrail.checkpoint.dialects.sam_huggingface import HUGGINGFACE_SAM
from vitrail.checkpoint.dialects.timm_stages import settle_stages
from vitrail.checkpoint.formats.file import Stored
from vitrail.checkpoint.preprocessing import IMAGENET, OPENAI_CLIP
from vitrail.config import Config, ViTConfig
from vitrail.parts import MeanPool, RelativeBias, SinCos2d

__all__ = ["HUGGINGFACE"]


# ── refusals and constants ──────────────────────────────────────────────────────────────────────────────────────


def _square_bias(config: Config) -> str | None:
    """Refuse non-square grids: transformers reads their tables with height and width swapped."""
    assert isinstance(config, ViTConfig)
    if isinstance(config.position, RelativeBias) and config.grid.height != config.grid.width:
        return f"its relative biases are for square grids, and {config.grid} is not"
    return None


VIT_SIGNS = of_type("vit", "vit_msn", names=lambda names: True)


def _blocks_apart(stored: Stored, prefix: str) -> bool:
    """Whether the blocks' names lack the prefix that the embeddings' names have."""
    return bool(prefix) and "encoder.layer.0.layernorm_before.weight" in stored.tensors


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
        *QWEN,
        QWEN3,
        *CLIPS,
        *CLASSIFIERS,  # told from the plain models by one layer more
        *TOWERS,
        HUGGINGFACE_SAM,
        HUGGINGFACE_SAM2,
        HUGGINGFACE_HIERA,
        HUGGINGFACE_DPT[0],
        family(
            "dinov3",
            DINOV3_ROWS,
            known_dinov3,
            of_type("dinov3_vit", names=lambda names: "embeddings.register_tokens" in names),
            describe("dinov3_vit", dinov3_fields, plain=("DINOv3ViTModel", "")),
            anchor="embeddings.patch_embeddings.weight",
            statistics=IMAGENET,
            constants=mask_token(1, 1),
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
        HUGGINGFACE_DPT[1],
        TIPS,  # last, since it could hold what DINOv2 with registers is written as
    ),
)
