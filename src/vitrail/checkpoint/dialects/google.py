"""Google's .npz, as vision_transformer and big_vision write them: flax names, (in, out) kernels, axes of heads."""

from __future__ import annotations

from vitrail.checkpoint.dialects.dialect import Dialect, Family
from vitrail.checkpoint.dialects.evidence import Known
from vitrail.checkpoint.dialects.table import DENSE, HEADS_IN, HEADS_IN_BIAS, HEADS_OUT, HWIO, TABLE, Row
from vitrail.checkpoint.formats.file import Stored
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.geometry import Size
from vitrail.parts import Learned

__all__ = ["GOOGLE"]

LAYER = "{p}Transformer/encoderblock_{i}"
ATTENTION = f"{LAYER}/MultiHeadDotProductAttention_1"
NAMES = ("query", "key", "value")


def _norm(ours: str, theirs: str) -> tuple[Row, Row]:
    return Row((f"{ours}.weight",), (f"{theirs}/scale",)), Row((f"{ours}.bias",), (f"{theirs}/bias",))


def _dense(ours: str, theirs: str) -> tuple[Row, Row]:
    return Row((f"{ours}.weight",), (f"{theirs}/kernel",), DENSE), Row((f"{ours}.bias",), (f"{theirs}/bias",))


ROWS = (
    Row(("embedding.weight",), ("{p}embedding/kernel",), HWIO),
    Row(("embedding.bias",), ("{p}embedding/bias",)),
    Row(("prefix.cls",), ("{p}cls",)),
    Row(("position.table",), ("{p}Transformer/posembed_input/pos_embedding",), TABLE),
    *_norm("blocks.{i}.norm1", f"{LAYER}/LayerNorm_0"),
    Row(("blocks.{i}.attention.qkv.weight",), tuple(f"{ATTENTION}/{name}/kernel" for name in NAMES), HEADS_IN),
    Row(("blocks.{i}.attention.qkv.bias",), tuple(f"{ATTENTION}/{name}/bias" for name in NAMES), HEADS_IN_BIAS),
    Row(("blocks.{i}.attention.out.weight",), (f"{ATTENTION}/out/kernel",), HEADS_OUT),
    Row(("blocks.{i}.attention.out.bias",), (f"{ATTENTION}/out/bias",)),
    *_norm("blocks.{i}.norm2", f"{LAYER}/LayerNorm_2"),
    *_dense("blocks.{i}.mlp.fc1", f"{LAYER}/MlpBlock_3/Dense_0"),
    *_dense("blocks.{i}.mlp.fc2", f"{LAYER}/MlpBlock_3/Dense_1"),
    *_norm("norm", "{p}Transformer/encoder_norm"),
    *_dense("head", "{p}head"),
)


def _known(stored: Stored, prefix: str) -> Known:
    query = stored.tensors[f"{prefix}{ATTENTION}/query/kernel".replace("{p}", "").replace("{i}", "0")]
    return Known(
        source="Google's names, and kernels with an axis of heads",
        fields={
            "norm_eps": 1e-6,
            "activation": "gelu",
            "num_heads": query.shape[1],
            "position": Learned(convention="big_vision"),
        },
    )


def _has_heads(stored: Stored, prefix: str) -> bool:
    query = stored.tensors.get(f"{prefix}Transformer/encoderblock_0/MultiHeadDotProductAttention_1/query/kernel")
    return query is not None and query.ndim == 3


def _preprocessing(stored: Stored, family: Family, image: Size) -> Preprocessing:
    return Preprocessing(image=image, interpolation="bilinear", resize="squash", source="Google's: pixels to −1 … 1")


GOOGLE = Dialect(
    name="google",
    suffix=".npz",
    preprocessing=_preprocessing,
    families=(
        Family(
            name="vit",
            rows=ROWS,
            anchor="embedding/kernel",
            signs=_has_heads,
            known=_known,
            needs=("position.table", "norm.weight", "embedding.bias", "blocks.0.attention.qkv.bias"),
            spare=r"pre_logits/.*|opt/.*",
        ),
    ),
)
