"""OpenCLIP and OpenAI's CLIP: the vision tower, `visual.*`; the text tower is kept as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from torch import Tensor

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.dialects.dialect import Dialect, Family, Written
from vitrail.checkpoint.dialects.evidence import Known
from vitrail.checkpoint.dialects.json_config import JsonConfig
from vitrail.checkpoint.dialects.table import CLS, DENSE, Row, both
from vitrail.checkpoint.formats.file import Stored
from vitrail.checkpoint.preprocessing import OPENAI_CLIP, Interpolation, Preprocessing
from vitrail.config import Config
from vitrail.errors import require
from vitrail.geometry import Size
from vitrail.parts import ClsPool, Learned, MeanPool, Pool

__all__ = ["OPENCLIP"]

LAYER = "{p}transformer.resblocks.{i}"
ROWS = (
    Row(("embedding.weight",), ("{p}conv1.weight",)),
    Row(("prefix.cls",), ("{p}class_embedding",), CLS),
    Row(("position.table",), ("{p}positional_embedding",)),
    *both("embedding_norm", "{p}ln_pre"),
    *both("blocks.{i}.norm1", f"{LAYER}.ln_1"),
    Row(("blocks.{i}.attention.qkv.weight",), (f"{LAYER}.attn.in_proj_weight",)),
    Row(("blocks.{i}.attention.qkv.bias",), (f"{LAYER}.attn.in_proj_bias",)),
    *both("blocks.{i}.attention.out", f"{LAYER}.attn.out_proj"),
    Row(("blocks.{i}.scale1",), (f"{LAYER}.ls_1.gamma",)),
    *both("blocks.{i}.norm2", f"{LAYER}.ln_2"),
    *both("blocks.{i}.mlp.fc1", f"{LAYER}.mlp.c_fc"),
    *both("blocks.{i}.mlp.fc2", f"{LAYER}.mlp.c_proj"),
    Row(("blocks.{i}.scale2",), (f"{LAYER}.ls_2.gamma",)),
    *both("norm", "{p}ln_post"),
    Row(("head.weight",), ("{p}proj",), DENSE),
)


SHOWN = frozenset({"layers", "width", "mlp_ratio", "patch_size", "ls_init_value", "no_ln_pre", "pos_embed_type"})
NO_EFFECT = frozenset({"patch_dropout", "output_tokens", "attn_pooler_queries", "attn_pooler_heads"})
READ = frozenset({"head_width", "image_size", "pool_type", "final_ln_after_pool", "act_kwargs", "norm_kwargs"})
ONLY: Mapping[str, tuple[Any, ...]] = {
    "attentional_pool": (False,),
    "block_type": ("default",),
    **dict.fromkeys(("qk_norm", "scaled_cosine_attn", "scale_heads", "scale_attn_inner"), (False,)),
    **dict.fromkeys(("scale_attn", "scale_fc"), (False,)),
}
POOLS: Mapping[str, Pool] = {"tok": ClsPool(), "avg": MeanPool()}


def _known(stored: Stored, prefix: str) -> Known:
    """Return what OpenAI's files imply: the input size is a tensor, heads are 64 wide, the activation is quick_gelu."""
    fields: dict[str, Any] = {"norm_eps": 1e-5, "activation": "gelu", "position": Learned(convention="timm")}
    width = stored.tensors[f"{prefix}conv1.weight"].shape[0]
    if "model_cfg" in stored.config:
        return _known_by_config(JsonConfig(stored.config, "open_clip_config.json").part("model_cfg"), fields, width)
    side = stored.tensors.get("input_resolution")
    if side is None:
        source = "names and shapes, as OpenCLIP's models have them"
        return Known(source=source, fields=fields, assumed=("activation", "norm_eps", "pool"))
    require(
        side.numel() == 1 and 0 < int(side) < 100_000,
        f"{stored.path} has an input_resolution of {side.flatten()[:3].tolist()}, which is not a side in pixels",
    )
    fields |= {"activation": "quick_gelu", "num_heads": width // 64}
    return Known(source="OpenAI's names, with its input size", fields=fields, image=Size.of(int(side)))


def _known_by_config(model: JsonConfig, fields: dict[str, Any], width: int) -> Known:
    vision = model.part("vision_cfg")
    vision.understand(SHOWN | NO_EFFECT | READ, ONLY)
    pool = vision.text("pool_type", "tok")
    require(pool in POOLS, f"{vision.where} has pool_type {pool!r}; vitrail reads {' and '.join(POOLS)}")
    activation, norm = vision.part("act_kwargs"), vision.part("norm_kwargs")
    activation.understand((), {"approximate": ("none", "tanh")})
    norm.understand({"eps"}, {})
    tanh = activation.text("approximate", "none") == "tanh"
    fields |= {
        "activation": "quick_gelu" if model.flag("quick_gelu", False) else "gelu_tanh" if tanh else "gelu",
        "norm_eps": norm.number("eps", 1e-5),
        "num_heads": width // max(1, vision.whole("head_width", 64)),
        "pool": POOLS[pool],
    }
    if pool == "avg" and vision.flag("final_ln_after_pool", False):
        fields["final_norm"] = "pooled"
    return Known(source="open_clip_config.json", fields=fields, image=vision.size("image_size"))


def _preprocessing(stored: Stored, family: Family, image: Size) -> Preprocessing:
    mean, std = OPENAI_CLIP
    stated = JsonConfig(stored.config, "open_clip_config.json").part("preprocess_cfg")
    interpolation, resize = stated.text("interpolation", "bicubic"), stated.text("resize_mode", "shortest")
    require(
        interpolation in get_args(Interpolation) and resize in ("shortest", "squash"),
        f"{stated.where} has interpolation {interpolation!r} and resize_mode {resize!r}; vitrail reads "
        f"{', '.join(get_args(Interpolation))} and shortest or squash",
    )
    return Preprocessing(
        image=image,
        mean=stated.numbers("mean", mean),
        std=stated.numbers("std", std),
        interpolation=interpolation,  # type: ignore[arg-type]
        resize="squash" if resize == "squash" else "crop",
        source="open_clip_config.json" if stated else "OpenAI's, as OpenCLIP's default",
    )


def _refuse(config: Config) -> str | None:
    if config.image.height != config.image.width or config.patch.height != config.patch.width:
        return f"it takes square images and patches, and here they are {config.image} and {config.patch}"
    return None if config.channels == 3 else f"it takes 3 channels, and this model {config.channels}"


def _describe(checkpoint: Checkpoint, tensors: Mapping[str, Tensor]) -> Written:
    """Update the open_clip_config.json that came with the file: image, patch and outputs may have changed."""
    if checkpoint.dialect != "openclip":
        return Written(prefix="visual.")
    config, origin = checkpoint.config, checkpoint.origin
    if "model_cfg" not in origin:
        return Written(config=origin)
    model = origin["model_cfg"]
    changed = {"image_size": config.image.height, "patch_size": config.patch.height}
    embedded = {"embed_dim": config.classes} if config.classes else {}
    vision = {**model.get("vision_cfg", {}), **changed}
    return Written(config={**origin, "model_cfg": {**model, **embedded, "vision_cfg": vision}})


OPENCLIP = Dialect(
    name="openclip",
    suffix=".safetensors",
    preprocessing=_preprocessing,
    families=(
        Family(
            name="clip",
            rows=ROWS,
            anchor="conv1.weight",
            signs=lambda stored, prefix: f"{prefix}transformer.resblocks.0.attn.in_proj_weight" in stored.tensors,
            known=_known,
            refuse=_refuse,
            needs=("prefix.cls", "position.table", "norm.weight"),
            statistics=OPENAI_CLIP,
            write=_describe,
            loose=frozenset({"activation"}),
        ),
    ),
)
