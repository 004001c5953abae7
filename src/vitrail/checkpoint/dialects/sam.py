"""SAM's image encoder: its own names, timm's and transformers', alone or inside a whole SAM.

Windows and full blocks differ in the shapes of their tables of offsets, and a position table has the shape of its grid,
so that weights show almost everything. A window as large as the grid looks like a full block; on the grid of the
weights the two are the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.dialects.conditions import of_patches_alone
from vitrail.checkpoint.dialects.dialect import Dialect, Family, Written
from vitrail.checkpoint.dialects.evidence import Known
from vitrail.checkpoint.dialects.huggingface_config import (
    GENERATION,
    LIBRARY,
    TRAINING,
    activation_of,
    describe,
    tower_type,
)
from vitrail.checkpoint.dialects.huggingface_family import of_type
from vitrail.checkpoint.dialects.json_config import JsonConfig
from vitrail.checkpoint.dialects.table import GRID_LAST, POINTWISE, Row, both
from vitrail.checkpoint.dialects.timm_architectures import architecture_named, architectures_of
from vitrail.checkpoint.dialects.timm_arguments import NO_EFFECT, settings
from vitrail.checkpoint.formats.file import Stored
from vitrail.checkpoint.preprocessing import IMAGENET, Preprocessing
from vitrail.config import Config, ViTConfig
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size
from vitrail.parts import (
    AttentionKind,
    DecomposedBias,
    FullAttention,
    Learned,
    MaxPool,
    MeanPool,
    Mlp,
    NoPosition,
    Patches,
    Position,
    WindowedAttention,
)

__all__ = ["HUGGINGFACE_SAM", "SAM", "TIMM_SAM"]

NECK_EPS = 1e-6
"""Epsilon of the neck's norms, or of the norm in its place, whatever the blocks have."""


def _rows(
    block: str, project: str, norm: str, mlp: tuple[str, str], neck: tuple[str, str, str, str]
) -> tuple[Row, ...]:
    """Return the names of an encoder, given those in which SAM's libraries differ."""
    first, norm1, second, norm2 = (f"{{p}}neck.{each}" for each in neck)
    block = f"{{p}}{block}.{{i}}"
    return (
        *both("embedding", f"{{p}}patch_embed.{project}"),
        Row(("position.table",), ("{p}pos_embed",), GRID_LAST, of_patches_alone),
        *both("blocks.{i}.norm1", f"{block}.{norm}1"),
        *both("blocks.{i}.attention.qkv", f"{block}.attn.qkv"),
        Row(("blocks.{i}.attention.position.rows",), (f"{block}.attn.rel_pos_h",)),
        Row(("blocks.{i}.attention.position.columns",), (f"{block}.attn.rel_pos_w",)),
        *both("blocks.{i}.attention.out", f"{block}.attn.proj"),
        *both("blocks.{i}.norm2", f"{block}.{norm}2"),
        *both("blocks.{i}.mlp.fc1", f"{block}.mlp.{mlp[0]}"),
        *both("blocks.{i}.mlp.fc2", f"{block}.mlp.{mlp[1]}"),
        Row(("neck.project.weight",), (f"{first}.weight",), POINTWISE),
        *both("neck.norm1", norm1),
        Row(("neck.conv.weight",), (f"{second}.weight",)),
        *both("neck.norm2", norm2),
    )


OWN_ROWS = _rows("blocks", "proj", "norm", ("lin1", "lin2"), ("0", "1", "2", "3"))
TIMM_ROWS = (
    *_rows("blocks", "proj", "norm", ("fc1", "fc2"), ("0", "1", "2", "3")),
    *both("blocks.{i}.attention.q_norm", "{p}blocks.{i}.attn.q_norm"),
    *both("blocks.{i}.attention.k_norm", "{p}blocks.{i}.attn.k_norm"),
    Row(("blocks.{i}.scale1",), ("{p}blocks.{i}.ls1.gamma",)),
    Row(("blocks.{i}.scale2",), ("{p}blocks.{i}.ls2.gamma",)),
    *both("embedding_norm", "{p}norm_pre"),
    *both("norm", "{p}neck"),
    *both("head", "{p}head.fc"),
)
HUGGINGFACE_ROWS = _rows(
    "layers", "projection", "layer_norm", ("lin1", "lin2"), ("conv1", "layer_norm1", "conv2", "layer_norm2")
)


# ── what weights show, and what configs say ─────────────────────────────────────────────────────────────────────


def _shown(stored: Stored, prefix: str, patch: Size) -> tuple[Position, Size | None, dict[int, Size]]:
    """Return the kind of position, the image of the position table, and what the offsets of each block span."""
    table = stored.tensors.get(f"{prefix}pos_embed")
    require(
        table is None or table.ndim == 4,
        f"{stored.path} has no table of positions with the height and width of a grid, as SAM has; it is not whole",
    )
    spans: dict[int, Size] = {}
    for name, rows in stored.tensors.items():
        found = re.fullmatch(r"(?:blocks|layers)\.(\d+)\.attn\.rel_pos_h", name.removeprefix(prefix))
        columns = stored.tensors.get(f"{name[:-1]}w")
        if found and columns is not None:
            spans[int(found[1])] = Size(*((each.shape[0] + 1) // 2 for each in (rows, columns)))
    relative = DecomposedBias() if spans else None
    if table is None:
        return relative or NoPosition(), None, spans
    grid = Size(*table.shape[1:3])
    return Learned(relative=relative), Size(grid.height * patch.height, grid.width * patch.width), spans


def _attention(window: int, full: tuple[int, ...], where: str, image: Size, patch: Size) -> AttentionKind:
    """Return the attention that a config says; 0 is no window."""
    if window == 0:
        return FullAttention()
    grid = Size(*(side // step for side, step in zip(image, patch, strict=True)))
    require(
        window <= min(grid),
        f"{where} has windows of {window} on a grid of {grid}, which SAM pads to a whole window and vitrail does not; "
        "give a larger image",
    )
    return WindowedAttention(window=Size.of(window), shift=False, window_padding="zeros", full=full)


def _attention_of(spans: Mapping[int, Size], grid: Size, path: Any) -> AttentionKind:
    """Return the attention that the tables of offsets show: those of full blocks span the grid."""
    windows = {span for span in spans.values() if span != grid}
    require(
        len(windows) <= 1, f"{path} has tables of offsets for windows of {len(windows)} sizes, and vitrail reads one"
    )
    if not windows:
        return FullAttention()
    full = tuple(sorted(block for block, span in spans.items() if span == grid))
    return WindowedAttention(window=windows.pop(), shift=False, window_padding="zeros", full=full)


def _windows(attention: AttentionKind) -> dict[str, Any]:
    """Return what all libraries' configs say of windows; 0 is none."""
    if not isinstance(attention, WindowedAttention):
        return {"window_size": 0, "global_attn_indexes": []}
    return {"window_size": attention.window.height, "global_attn_indexes": list(attention.full)}


def _patch(stored: Stored, prefix: str, project: str) -> Size:
    return Size(*stored.tensors[f"{prefix}patch_embed.{project}.weight"].shape[2:])


def _fields(position: Position, attention: AttentionKind, norm_eps: float) -> dict[str, Any]:
    same = norm_eps == NECK_EPS
    return {
        "position": position,
        "attention": attention,
        "norm_eps": norm_eps,
        "final_norm_eps": None if same else NECK_EPS,
        "activation": "gelu",
        "pool": MeanPool(),
    }


def _known_bare(stored: Stored, prefix: str, project: str, norm_eps: float, source: str) -> Known:
    """Weights without a config: SAM's own, whose activation and epsilon are always the same."""
    patch = _patch(stored, prefix, project)
    position, image, spans = _shown(stored, prefix, patch)
    if image is None and len(set(spans.values())) == 2:  # the larger are those of full blocks
        image = Size(*(max(sides) * step for sides, step in zip(zip(*spans.values(), strict=True), patch, strict=True)))
    if image is None or not spans:
        raise VitrailError(f"{stored.path} does not show the windows of its SAM; put its config.json beside it")
    grid = Size(image.height // patch.height, image.width // patch.width)
    fields = _fields(position, _attention_of(spans, grid, stored.path), norm_eps)
    return Known(source=source, fields=fields, image=image, assumed=("activation", "norm_eps"))


# ── timm ────────────────────────────────────────────────────────────────────────────────────────────────────────

TIMM_SHOWN = frozenset(
    {
        *("img_size", "patch_size", "in_chans", "num_classes", "embed_dim", "depth", "mlp_ratio", "qkv_bias"),
        *("qk_norm", "init_values", "pre_norm", "use_abs_pos", "use_rel_pos", "neck_chans"),
    }
)
TIMM_POOLS = {"avg": MeanPool(), "max": MaxPool()}
TIMM_EPS = 1e-5


def _known_timm(stored: Stored, prefix: str) -> Known:
    said = JsonConfig(stored.config)
    name, source = said.text("architecture"), "config.json (timm's {})"
    if not name:
        own = {key.removeprefix(prefix): each for key, each in stored.tensors.items() if key.startswith(prefix)}
        alike = architectures_of({key: tuple(tensor.shape) for key, tensor in own.items()})
        if len(alike) != 1:
            return _known_bare(stored, prefix, "proj", TIMM_EPS, "names and shapes, as timm's SAM has them")
        name, source = alike[0].name, "the exact names and shapes of timm's {}"
    architecture, patch = architecture_named(name), _patch(stored, prefix, "proj")
    require(
        architecture.kind == "VisionTransformerSAM",
        f"{stored.path} has the names of SAM's encoder, and {name} is another kind of model; mend its config",
    )
    pool = said.text("global_pool") or "avg"
    arguments = settings(architecture, {"global_pool": pool, **said.part("model_args").values})
    read = {"num_heads", "window_size", "global_attn_indexes"}
    arguments.understand(NO_EFFECT | TIMM_SHOWN | read, {"global_pool": tuple(TIMM_POOLS), "use_rope": (False,)})
    position, image, _ = _shown(stored, prefix, patch)
    image = image or said.part("model_args").size("img_size") or architecture.image
    full = tuple(int(index) for index in arguments.numbers("global_attn_indexes", ()))
    attention = _attention(arguments.whole("window_size", 14), full, arguments.where, image, patch)
    fields = _fields(position, attention, TIMM_EPS)
    fields |= {"num_heads": arguments.whole("num_heads", 12), "pool": TIMM_POOLS[arguments.text("global_pool")]}
    usual = {"embed_dim": 768, "depth": 12, "in_chans": 3, "patch_size": 16}
    stated = JsonConfig({**usual, **arguments.values}, arguments.where).stated(
        width="embed_dim", depth="depth", channels="in_chans", patch="patch_size"
    )
    return Known(source=source.format(name), fields=fields, image=image, stated=stated)


def _describe_timm(checkpoint: Checkpoint, tensors: Mapping[str, Tensor]) -> Written:
    """The arguments of timm's class, all of them, beside the name of its base model."""
    config = checkpoint.config
    assert isinstance(config, ViTConfig)
    origin = checkpoint.origin if checkpoint.dialect == "timm" else {}
    patch = config.patch
    pool = next(name for name, pool in TIMM_POOLS.items() if pool == config.pool)
    arguments: dict[str, Any] = {
        "img_size": list(config.image),
        "patch_size": patch.height if patch.height == patch.width else list(patch),
        **{"in_chans": config.channels, "num_classes": config.classes, "embed_dim": config.width},
        **{"depth": config.depth, "num_heads": config.num_heads, "mlp_ratio": config.mlp.width / config.width},
        **{"qkv_bias": config.qkv_bias == "all", "qk_norm": config.qk_norm, "init_values": config.layer_scale},
        **{"pre_norm": config.embedding_norm, "global_pool": pool},
        "use_abs_pos": isinstance(config.position, Learned),
        "use_rel_pos": isinstance(config.position.inside, DecomposedBias),
        **_windows(config.attention),
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
    """Refuse what no library's SAM can express."""
    if not isinstance(config, ViTConfig):
        return "it is a plain Vision Transformer"
    attention = config.attention
    if isinstance(attention, WindowedAttention):
        if attention.shift or attention.window_padding != "zeros" or attention.window.height != attention.window.width:
            return f"its windows are square, not shifted, and padded with zeros, and here is {attention}"
        if any(window > side for window, side in zip(attention.window, config.grid, strict=True)):
            return f"its windows of {attention.window} are padded on a grid of {config.grid}, and here they are smaller"
    elif not isinstance(attention, FullAttention):
        return f"its attention is in windows or full, not {type(attention).__name__}"
    if not isinstance(config.mlp, Mlp) or not isinstance(config.embedding, Patches):
        return "its MLP is not gated, and its patches are plain"
    own = config.norm_eps if config.final_norm_eps is None else config.final_norm_eps
    if own != NECK_EPS:
        return f"its last norms have an epsilon of {NECK_EPS:g}, and here it is {own:g}"
    return None


def _refuse_timm(config: Config) -> str | None:
    reason = _refuse(config)
    if reason is not None or not isinstance(config, ViTConfig):
        return reason
    if config.pool not in TIMM_POOLS.values():
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
    rows=TIMM_ROWS,
    anchor="patch_embed.proj.weight",
    signs=lambda stored, prefix: (
        f"{prefix}blocks.0.mlp.fc1.weight" in stored.tensors
        and any(f"{prefix}{name}" in stored.tensors for name in ("blocks.0.attn.rel_pos_h", "neck.0.weight"))
    ),
    known=_known_timm,
    statistics=IMAGENET,
    write=_describe_timm,
    refuse=_refuse_timm,
    loose=frozenset({"norm_eps", "final_norm_eps", "activation"}),
)


# ── transformers ────────────────────────────────────────────────────────────────────────────────────────────────

HUGGINGFACE_SHOWN = frozenset(
    {
        *("hidden_size", "output_channels", "num_hidden_layers", "num_channels", "patch_size", "qkv_bias"),
        *("mlp_ratio", "mlp_dim", "use_abs_pos", "use_rel_pos", "num_pos_feats", "scale"),
    }
)
HUGGINGFACE_READ = frozenset(
    {"num_attention_heads", "image_size", "hidden_act", "layer_norm_eps", "window_size", "global_attn_indexes"}
)


def _known_huggingface(stored: Stored, prefix: str) -> Known:
    said = JsonConfig(stored.config)
    said = said.part("vision_config") if "vision_config" in said else said
    if not said:
        return _known_bare(stored, prefix, "projection", 1e-6, "names and shapes, as transformers has them (sam)")
    said.understand(LIBRARY | GENERATION | TRAINING | HUGGINGFACE_SHOWN | HUGGINGFACE_READ, {})
    patch = _patch(stored, prefix, "projection")
    position, image, _ = _shown(stored, prefix, patch)
    image = image or said.size("image_size") or Size(1024, 1024)
    full = tuple(int(index) for index in said.numbers("global_attn_indexes", (2.0, 5.0, 8.0, 11.0)))
    attention = _attention(said.whole("window_size", 14), full, said.where, image, patch)
    fields = _fields(position, attention, said.number("layer_norm_eps", 1e-6))
    fields |= {"num_heads": said.whole("num_attention_heads", 12), "activation": activation_of(said, "gelu")}
    stated = said.stated(width="hidden_size", depth="num_hidden_layers", channels="num_channels", patch="patch_size")
    whole, tower = stored.config.get("model_type"), tower_type(stored.config)
    source = f"config.json ({whole if whole == tower else f'{tower} inside {whole}'})"
    return Known(source=source, fields=fields, image=said.size("image_size") or image, stated=stated)


def _huggingface_fields(config: ViTConfig) -> dict[str, Any]:
    return {
        "mlp_dim": config.mlp.width,
        "qkv_bias": config.qkv_bias == "all",
        "output_channels": config.feature_width,
        "use_abs_pos": isinstance(config.position, Learned),
        "use_rel_pos": isinstance(config.position.inside, DecomposedBias),
        **_windows(config.attention),
    }


def _refuse_huggingface(config: Config) -> str | None:
    reason = _refuse(config)
    if reason is None and config.image.height != config.image.width:
        return f"its tables are square and image {config.image} is not"
    return reason


HUGGINGFACE_SAM = Family(
    name="sam",
    rows=HUGGINGFACE_ROWS,
    anchor="patch_embed.projection.weight",
    signs=of_type("sam", "sam_vision_model", names=lambda names: "neck.conv1.weight" in names),
    known=_known_huggingface,
    statistics=IMAGENET,
    write=describe("sam_vision_model", _huggingface_fields, plain=("SamVisionModel", "vision_encoder.")),
    needs=("neck.conv.weight", "embedding.bias"),
    refuse=_refuse_huggingface,
)


# ── SAM's own files ─────────────────────────────────────────────────────────────────────────────────────────────


def _preprocessing(stored: Stored, family: Family, image: Size) -> Preprocessing:
    mean, std = IMAGENET
    return Preprocessing(
        image=image,
        mean=mean,
        std=std,
        interpolation="bilinear",
        resize="squash",
        source="SAM's own statistics; it pads the shorter side with zeros, and here the image is squashed",
    )


SAM = Dialect(
    name="sam",
    suffix=".pth",
    preprocessing=_preprocessing,
    families=(
        Family(
            name="sam",
            rows=OWN_ROWS,
            anchor="patch_embed.proj.weight",
            signs=lambda stored, prefix: f"{prefix}blocks.0.mlp.lin1.weight" in stored.tensors,
            known=lambda stored, prefix: _known_bare(
                stored, prefix, "proj", 1e-6, "names and shapes, as segment-anything has them"
            ),
            statistics=IMAGENET,
            write=lambda checkpoint, tensors: Written(prefix="image_encoder."),
            needs=("position.table", "blocks.0.attention.position.rows", "neck.conv.weight", "embedding.bias"),
            refuse=_refuse,
        ),
    ),
)
