"""transformers' SAM: the image encoder, alone or inside the whole model."""

from __future__ import annotations

from typing import Any

from vitrail.checkpoint.dialects.dialect import Family
from vitrail.checkpoint.dialects.evidence import Known
from vitrail.checkpoint.dialects.huggingface_config import (
    UNRELATED,
    activation_of,
    describe,
    tower_type,
)
from vitrail.checkpoint.dialects.huggingface_family import of_type
from vitrail.checkpoint.dialects.json_config import JsonConfig
from vitrail.checkpoint.dialects.sam_shapes import (
    attention_said,
    known_bare,
    patch_of,
    refuse_sam,
    sam_fields,
    sam_rows,
    shown,
    windows_said,
)
from vitrail.checkpoint.formats.file import Stored
from vitrail.checkpoint.preprocessing import IMAGENET
from vitrail.config import Config, ViTConfig
from vitrail.geometry import Size
from vitrail.parts import DecomposedBias, Learned

__all__ = ["HUGGINGFACE_SAM"]

ROWS = sam_rows(
    "layers", "projection", "layer_norm", ("lin1", "lin2"), ("conv1", "layer_norm1", "conv2", "layer_norm2")
)
SHOWN = frozenset(
    {
        *("hidden_size", "output_channels", "num_hidden_layers", "num_channels", "patch_size", "qkv_bias"),
        *("mlp_ratio", "mlp_dim", "use_abs_pos", "use_rel_pos", "num_pos_feats", "scale"),
    }
)
READ = frozenset(
    {"num_attention_heads", "image_size", "hidden_act", "layer_norm_eps", "window_size", "global_attn_indexes"}
)


def _known(stored: Stored, prefix: str) -> Known:
    said = JsonConfig(stored.config)
    said = said.part("vision_config") if "vision_config" in said else said
    if not said:
        return known_bare(stored, prefix, "projection", 1e-6, "names and shapes, as transformers has them (sam)")
    said.understand(UNRELATED | SHOWN | READ, {})
    patch = patch_of(stored, prefix, "projection")
    position, image, _ = shown(stored, prefix, patch)
    image = image or said.size("image_size") or Size(1024, 1024)
    full = tuple(int(index) for index in said.numbers("global_attn_indexes", (2.0, 5.0, 8.0, 11.0)))
    attention = attention_said(said.whole("window_size", 14), full, said.where, image, patch)
    fields = sam_fields(position, attention, said.number("layer_norm_eps", 1e-6))
    fields |= {"num_heads": said.whole("num_attention_heads", 12), "activation": activation_of(said, "gelu")}
    stated = said.stated(width="hidden_size", depth="num_hidden_layers", channels="num_channels", patch="patch_size")
    whole, tower = stored.config.get("model_type"), tower_type(stored.config)
    source = f"config.json ({whole if whole == tower else f'{tower} inside {whole}'})"
    return Known(source=source, fields=fields, image=said.size("image_size") or image, stated=stated)


def _said(config: ViTConfig) -> dict[str, Any]:
    return {
        "mlp_dim": config.mlp.width,
        "qkv_bias": config.qkv_bias == "all",
        "output_channels": config.feature_width,
        "use_abs_pos": isinstance(config.position, Learned),
        "use_rel_pos": isinstance(config.position.inside, DecomposedBias),
        **windows_said(config.attention),
    }


def _refuse(config: Config) -> str | None:
    reason = refuse_sam(config)
    if reason is None and config.image.height != config.image.width:
        return f"its tables are square and image {config.image} is not"
    return reason


HUGGINGFACE_SAM = Family(
    name="sam",
    rows=ROWS,
    anchor="patch_embed.projection.weight",
    signs=of_type("sam", "sam_vision_model", names=lambda names: "neck.conv1.weight" in names),
    known=_known,
    statistics=IMAGENET,
    write=describe("sam_vision_model", _said, plain=("SamVisionModel", "vision_encoder.")),
    needs=("neck.conv.weight", "embedding.bias"),
    refuse=_refuse,
)
