"""timm's SAM: the image encoder, with or without its neck and a head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.dialects.dialect import Family, Written
from vitrail.checkpoint.dialects.evidence import Known
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
from vitrail.checkpoint.dialects.table import Row, both
from vitrail.checkpoint.dialects.timm_architectures import architecture_shown
from vitrail.checkpoint.dialects.timm_arguments import NO_EFFECT, settings
from vitrail.checkpoint.formats.file import Stored
from vitrail.checkpoint.preprocessing import IMAGENET
from vitrail.config import Config, ViTConfig
from vitrail.errors import require
from vitrail.parts import DecomposedBias, Learned, MaxPool, MeanPool, NoPosition, Patches

__all__ = ["TIMM_SAM"]

ROWS = (
    *sam_rows("blocks", "proj", "norm", ("fc1", "fc2"), ("0", "1", "2", "3")),
    *both("blocks.{i}.attention.q_norm", "{p}blocks.{i}.attn.q_norm"),
    *both("blocks.{i}.attention.k_norm", "{p}blocks.{i}.attn.k_norm"),
    Row(("blocks.{i}.scale1",), ("{p}blocks.{i}.ls1.gamma",)),
    Row(("blocks.{i}.scale2",), ("{p}blocks.{i}.ls2.gamma",)),
    *both("embedding_norm", "{p}norm_pre"),
    *both("norm", "{p}neck"),
    *both("head", "{p}head.fc"),
)

SHOWN = frozenset(
    {
        *("img_size", "patch_size", "in_chans", "num_classes", "embed_dim", "depth", "mlp_ratio", "qkv_bias"),
        *("qk_norm", "init_values", "pre_norm", "use_abs_pos", "use_rel_pos", "neck_chans"),
    }
)
POOLS = {"avg": MeanPool(), "max": MaxPool()}
EPS = 1e-5


def _known(stored: Stored, prefix: str) -> Known:
    said = JsonConfig(stored.config)
    found = architecture_shown(stored, prefix)
    if found is None:
        return known_bare(stored, prefix, "proj", EPS, "names and shapes, as timm's SAM has them")
    (architecture, source), patch = found, patch_of(stored, prefix, "proj")
    name = architecture.name
    require(
        architecture.kind == "VisionTransformerSAM",
        f"{stored.path} has the names of SAM's encoder, and {name} is another kind of model; mend its config",
    )
    pool = said.text("global_pool") or "avg"
    arguments = settings(architecture, {"global_pool": pool, **said.part("model_args").values})
    read = {"num_heads", "window_size", "global_attn_indexes"}
    arguments.understand(NO_EFFECT | SHOWN | read, {"global_pool": tuple(POOLS), "use_rope": (False,)})
    position, image, _ = shown(stored, prefix, patch)
    image = image or said.part("model_args").size("img_size") or architecture.image
    full = tuple(int(index) for index in arguments.numbers("global_attn_indexes", ()))
    attention = attention_said(arguments.whole("window_size", 14), full, arguments.where, image, patch)
    fields = sam_fields(position, attention, EPS)
    fields |= {"num_heads": arguments.whole("num_heads", 12), "pool": POOLS[arguments.text("global_pool")]}
    usual = {"embed_dim": 768, "depth": 12, "in_chans": 3, "patch_size": 16}
    stated = JsonConfig({**usual, **arguments.values}, arguments.where).stated(
        width="embed_dim", depth="depth", channels="in_chans", patch="patch_size"
    )
    return Known(source=source.format(name), fields=fields, image=image, stated=stated)


def _describe(checkpoint: Checkpoint, tensors: Mapping[str, Tensor]) -> Written:
    """The arguments of timm's class, all of them, beside the name of its base model."""
    config = checkpoint.config
    assert isinstance(config, ViTConfig)
    origin = checkpoint.origin if checkpoint.dialect == "timm" else {}
    patch = config.patch
    pool = next(name for name, pool in POOLS.items() if pool == config.pool)
    arguments: dict[str, Any] = {
        "img_size": list(config.image),
        "patch_size": patch.height if patch.height == patch.width else list(patch),
        **{"in_chans": config.channels, "num_classes": config.classes, "embed_dim": config.width},
        **{"depth": config.depth, "num_heads": config.num_heads, "mlp_ratio": config.mlp.width / config.width},
        **{"qkv_bias": config.qkv_bias == "all", "qk_norm": config.qk_norm, "init_values": config.layer_scale},
        **{"pre_norm": config.embedding_norm, "global_pool": pool},
        "use_abs_pos": isinstance(config.position, Learned),
        "use_rel_pos": isinstance(config.position.inside, DecomposedBias),
        **windows_said(config.attention),
        "neck_chans": None if config.neck is None else config.neck.width,
    }
    steps = checkpoint.preprocessing
    pretrained = {
        **(origin.get("pretrained_cfg") or {}),
        **{"input_size": [config.channels, *config.image], "mean": list(steps.mean), "std": list(steps.std)},
        **{"interpolation": steps.interpolation, "crop_pct": steps.crop_share, "num_classes": config.classes},
        "crop_mode": "squash" if steps.resize == "squash" else "center",
    }
    stated = {
        "architecture": "samvit_base_patch16",
        **origin,
        **{"num_classes": config.classes, "num_features": config.vector_width, "global_pool": pool},
        **{"model_args": arguments, "pretrained_cfg": pretrained},
    }
    return Written(config=stated)


def _refuse(config: Config) -> str | None:
    reason = refuse_sam(config)
    if reason is not None or not isinstance(config, ViTConfig):
        return reason
    if config.pool not in POOLS.values():
        return "it pools patches by their mean or maximum"
    if config.neck is None and config.final_norm != "tokens":
        return "it has a neck, or a final norm of tokens"
    if isinstance(config.embedding, Patches) and config.embedding.bias == config.embedding_norm:
        return "its patch projection has a bias exactly where no norm follows it"
    if config.position != NoPosition() and not isinstance(config.position, Learned | DecomposedBias):
        return f"it has no {config.position.name}"
    return None


TIMM_SAM = Family(
    name="sam",
    rows=ROWS,
    anchor="patch_embed.proj.weight",
    signs=lambda stored, prefix: (
        f"{prefix}blocks.0.mlp.fc1.weight" in stored.tensors
        and any(f"{prefix}{name}" in stored.tensors for name in ("blocks.0.attn.rel_pos_h", "neck.0.weight"))
    ),
    known=_known,
    statistics=IMAGENET,
    write=_describe,
    refuse=_refuse,
    loose=frozenset({"norm_eps", "final_norm_eps", "activation"}),
)
