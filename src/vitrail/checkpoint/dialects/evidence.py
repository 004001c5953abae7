"""From weights to the config that they fit: what shapes show, what is known besides, and how the grid is settled.

Nothing is guessed. A grid is known from a config or metadata beside the weights, from the exact shape of a preset, or
from the caller; a count of positions alone never says how they are laid out. The number of heads leaves no trace in
most weights and is known in the same ways.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from torch import Tensor

from vitrail.checkpoint.dialects.table import Sizes
from vitrail.checkpoint.header import Evidence
from vitrail.config import ViTConfig
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size, fit, offsets_of
from vitrail.nn.positions import sincos_2d
from vitrail.parts import (
    AttentionPool,
    ClsPool,
    Learned,
    MeanPool,
    Mlp,
    Neck,
    Patches,
    Prefix,
    RelativeBias,
    ResNetStem,
    SinCos2d,
    SwiGLU,
)
from vitrail.presets import PRESETS

__all__ = ["Known", "settle"]

FIXED_TABLE = "+position.table"
"""Where a stored table of fixed positions is kept aside: the config says what is in it."""


@dataclass(frozen=True, kw_only=True)
class Known:
    """Facts about a model that its shapes do not show. `fields` are ViTConfig's; "activation" is the MLP's."""

    source: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    image: Size | None = None
    any_image: Size | None = None
    """An image to begin with, of a model that has been made for none: its positions are computed."""
    sizes: Sizes = Sizes()
    """Sizes that the dialect's transforms need."""
    assumed: tuple[str, ...] = ()
    """Fields, or "activation", that nothing in the file shows and that are set to the family's usual value."""
    frames: int = 1
    """Frames of the clips that the model takes; 1 for still images."""
    tubelet: int = 1
    """Frames that a patch is deep."""
    stated: Mapping[str, Any] = field(default_factory=dict)
    """What a config says of fields that shapes show, or of "patch" and "mlp_width": it must agree with them."""


def settle(
    tensors: dict[str, Tensor], known: Known, *, from_image: Size | None, num_heads: int | None
) -> tuple[ViTConfig, Evidence]:
    """Return the config of the renamed tensors. A position table that holds fixed sines moves to its "+" name."""
    shown = _shown(tensors, known)
    _check_stated(known, shown)
    fields = {**shown, **{k: v for k, v in known.fields.items() if k != "activation"}}
    sees_prefix, pool_heads = fields.pop("pool_prefix", False), fields.pop("pool_heads", None)
    twins = [
        (name, preset)
        for name, preset in PRESETS.items()
        if isinstance(preset, ViTConfig) and _is_twin(preset, fields, tensors)
    ]
    twins.sort(key=lambda twin: twin[1].patch != fields["embedding"].patch)
    source = known.source
    if num_heads is not None:
        fields["num_heads"] = num_heads
        source += "; num_heads from the caller"
    elif fields.get("num_heads") is None:
        heads = {preset.num_heads: name for name, preset in reversed(twins)}
        require(
            len(heads) == 1,
            f"width {fields['width']} and depth {fields['depth']} are no preset's, and weights do not show num_heads; "
            "give --num-heads, or put the model's config.json beside them",
        )
        fields["num_heads"], name = next(iter(heads.items()))
        source += f"; num_heads {fields['num_heads']} from the shape of preset {name}"
    if isinstance(fields.get("pool"), AttentionPool):
        fields["pool"] = replace(fields["pool"], num_heads=pool_heads or fields["num_heads"], prefix=sees_prefix)
    image, grid_source = _image(tensors, fields, known, twins, from_image)
    if any(side % step for side, step in zip(image, fields["embedding"].patch, strict=True)):
        require(
            not isinstance(fields["embedding"], ResNetStem),
            f"image {image} is no multiple of the ResNet's {fields['embedding'].patch}: the library pads maps where "
            "vitrail drops pixels; give a multiple as --from-image HEIGHTxWIDTH",
        )
        fields["remainder"] = "floor"  # what every library's patch convolution does
    fields["position"] = _position(tensors, fields, image)
    config = ViTConfig(**{**fields, "image": image})
    return config, Evidence(config=source, grid=grid_source, assumed=_assumptions(config, known.assumed))


def _check_stated(known: Known, shown: Mapping[str, Any]) -> None:
    real = {**shown, "patch": shown["embedding"].patch, "mlp_width": shown["mlp"].width}
    for name, said in known.stated.items():
        require(
            real[name] == said,
            f"{known.source} says {name} {said}, and the weights have {real[name]}; one of them is another model's",
        )


def _assumptions(config: ViTConfig, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the assumptions in words, each with its value."""
    values = {
        "activation": config.mlp.activation if isinstance(config.mlp, Mlp) else "silu in a gated MLP",
        "norm_eps": f"{config.norm_eps:g}",
        "pool": type(config.pool).__name__,
        "position": type(config.position).__name__,
        "frames": config.frames,
        "block_norm": config.block_norm,
    }
    return tuple(f"{name} {values[name]}" for name in names)


def _shown(tensors: Mapping[str, Tensor], known: Known) -> dict[str, Any]:
    """Return the fields that names and shapes determine."""
    first, projection = _convolutions(tensors, known)
    fc1, fc2 = _need(tensors, "blocks.0.mlp.fc1.weight", 2), _need(tensors, "blocks.0.mlp.fc2.weight", 2)
    hidden, activation = fc2.shape[1], known.fields.get("activation", "gelu")
    registers = tensors.get("prefix.registers")
    prefix = Prefix(
        cls="prefix.cls" in tensors,
        distillation="prefix.distillation" in tensors,
        registers=0 if registers is None else _need(tensors, "prefix.registers", 3).shape[1],
    )
    inner = {"bias": "blocks.0.mlp.fc1.bias" in tensors, "norm": "blocks.0.mlp.norm.weight" in tensors}
    biases = "all" if "blocks.0.attention.qkv.bias" in tensors else "none"
    patches = Patches(patch=Size(*projection.shape[2:]), bias="embedding.bias" in tensors)
    shown: dict[str, Any] = {
        "channels": first.shape[1] // known.tubelet,
        "embedding": known.fields.get("embedding") or patches.with_frames(known.frames, known.tubelet),
        "prefix": prefix,
        "patch_norm": "patch_norm.weight" in tensors,
        "embedding_norm": "embedding_norm.weight" in tensors,
        "width": projection.shape[0],
        "depth": _depth(tensors),
        "qkv_bias": "no_key" if "blocks.0.attention.q_bias" in tensors else biases,
        "qk_norm": "blocks.0.attention.q_norm.weight" in tensors,
        "attention_norm": "blocks.0.attention.norm.weight" in tensors,
        "out_bias": "blocks.0.attention.out.bias" in tensors,
        "norm": "layer" if "blocks.0.norm1.bias" in tensors else "rms",
        "mlp": SwiGLU(width=hidden, **inner)
        if fc1.shape[0] == 2 * hidden
        else Mlp(width=hidden, activation=activation, **inner),
        "final_norm": "tokens" if "norm.weight" in tensors else "none",
        "pool": ClsPool() if prefix.cls else MeanPool(),
        "classes": tensors["head.weight"].shape[0] if "head.weight" in tensors else 0,
        "head_bias": "head.bias" in tensors or "head.weight" not in tensors,
        "layer_scale": 1e-5 if "blocks.0.scale1" in tensors else None,
    }
    if "neck.conv.weight" in tensors:
        shown["neck"] = Neck(width=_need(tensors, "neck.conv.weight", 4).shape[0])
    if "pool.query" in tensors:
        inner = _need(tensors, "pool.mlp.fc1.weight", 2).shape[0]
        shown["pool"] = AttentionPool(mlp_width=inner, activation=activation)
    if "blocks.0.attention.position.table" in tensors:
        shown["num_heads"] = _need(tensors, "blocks.0.attention.position.table", 2).shape[1]
    return shown


def _convolutions(tensors: Mapping[str, Tensor], known: Known) -> tuple[Tensor, Tensor]:
    """Return the weights of the layer that reads the pixels and of the one that gives the tokens, often the same."""
    if "embedding" not in known.fields:
        return _need(tensors, "embedding.weight", 4), _need(tensors, "embedding.weight", 4)
    first = "stem" if isinstance(known.fields["embedding"], ResNetStem) else "layers.0"
    return _need(tensors, f"embedding.{first}.conv.weight", 4), _need(tensors, "embedding.projection.weight", 4)


def _need(tensors: Mapping[str, Tensor], name: str, ndim: int) -> Tensor:
    require(name in tensors, f"the weights have no {name}; they are not a whole Vision Transformer's")
    tensor = tensors[name]
    require(
        tensor.ndim == ndim and all(tensor.shape),
        f"{name} has shape {tuple(tensor.shape)} where {ndim} sides above 0 are due; the file is another model's",
    )
    return tensor


def _depth(tensors: Mapping[str, Tensor]) -> int:
    numbers = {int(found[1]) for name in tensors if (found := re.match(r"blocks\.(\d+)\.", name))}
    missing = sorted(set(range(len(numbers))) - numbers)
    require(not missing, f"the weights have {len(numbers)} blocks but not number {missing[:1]}; the file is not whole")
    return len(numbers)


SHAPED = ("width", "depth", "prefix", "qk_norm", "attention_norm", "out_bias", "norm", "patch_norm", "embedding_norm")
"""Fields that names and shapes show and that presets share."""


def _is_twin(preset: ViTConfig, fields: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bool:
    """Return whether a preset has the same names and shapes, apart from patch, position grid and classes."""
    learned = isinstance(preset.position, Learned | SinCos2d)  # a fixed table may be stored as a learned one
    if type(preset.mlp) is not type(fields["mlp"]):
        return False
    activation = {"activation": preset.mlp.activation} if isinstance(preset.mlp, Mlp) else {}
    return (
        type(preset.embedding) is type(fields["embedding"])
        and preset.frames == fields["embedding"].frames
        and all(getattr(preset, name) == fields[name] for name in SHAPED)
        and preset.mlp == fields["mlp"].but(**activation)
        and isinstance(preset.pool, AttentionPool) == ("pool.query" in tensors)
        and learned == ("position.table" in tensors)
        and (preset.neck is None) == ("neck.conv.weight" not in tensors)
        and isinstance(preset.position, RelativeBias) == ("blocks.0.attention.position.table" in tensors)
    )


def _image(
    tensors: Mapping[str, Tensor],
    fields: Mapping[str, Any],
    known: Known,
    twins: list[tuple[str, ViTConfig]],
    from_image: Size | None,
) -> tuple[Size, str]:
    """Return the image size that the positions were trained for, and the evidence for it."""
    if from_image is not None:
        return from_image, f"image {from_image} from the caller"
    if known.image is not None:
        return known.image, f"image {known.image} from {known.source}"
    if known.any_image is not None:
        return (
            known.any_image,
            f"image {known.any_image} to begin with; positions are computed, so that any grid will do",
        )
    patch = fields["embedding"].patch
    places = [name for name in ("position.table", "blocks.0.attention.position.table") if name in tensors]
    table = _need(tensors, places[0], 2) if places else None
    for name, preset in twins:
        if preset.patch == patch and (table is None or _fits(table, preset)):
            reason = "" if table is not None else "; positions are computed, so that any grid will do"
            rows = f"{table.shape[0]} × {table.shape[1]} and " if table is not None else ""
            return (
                preset.image,
                f"image {preset.image} from the exact shape of preset {name} ({rows}patch {patch}){reason}",
            )
    if table is None:
        raise VitrailError("the weights show no positions and match no preset; give --from-image HEIGHTxWIDTH")
    raise VitrailError(_ambiguous(table.shape[0], fields["prefix"], patch))


def _ambiguous(rows: int, prefix: Prefix, patch: Size) -> str:
    count = rows - prefix.count if rows > prefix.count else rows
    heights = (height for height in range(2, math.isqrt(count) + 1) if count % height == 0)
    grids = [Size(height, count // height) for height in islice(heights, 2)] or [Size(1, count)]
    layouts = " or ".join(str(grid) for grid in grids)
    example = Size(grids[0].height * patch.height, grids[0].width * patch.width)
    return (
        f"{rows} rows of positions do not say how the patches are laid out (as {layouts}?), and no config or preset "
        f"does; give the image that the model was made for, as in --from-image {example}"
    )


def _fits(table: Tensor, preset: ViTConfig) -> bool:
    """Return whether the table has the preset's number of rows, or timm's for registers (no rows for the prefix)."""
    grid, prefix = preset.grid, preset.prefix
    match preset.position:
        case Learned() as learned:
            rows = preset.steps * grid.area + learned.prefix_rows(prefix)
            return table.shape[0] == rows or (prefix.registers > 0 and table.shape[0] == grid.area)
        case RelativeBias() as relative:
            return table.shape[0] == relative.entries(grid)
        case _:
            return table.shape[0] == grid.area + prefix.count


def _position(tensors: dict[str, Tensor], fields: Mapping[str, Any], image: Size) -> Any:
    """Return the position part after checking the table's rows against the grid."""
    grid = fit(image, fields["embedding"].patch, remainder="floor").grid
    stated = fields.get("position")
    if "blocks.0.attention.position.table" in tensors or isinstance(stated, RelativeBias):
        shared = "blocks.0.attention.position.table" not in tensors
        table = _need(tensors, "position.table" if shared else "blocks.0.attention.position.table", 2)
        extra = table.shape[0] - offsets_of(grid).area
        require(extra in (0, 3), _wrong_rows(table, image, grid, f"{offsets_of(grid).area} offsets"))
        stated = stated if isinstance(stated, RelativeBias) else RelativeBias()
        return replace(stated, shared=shared, prefix=extra == 3)
    if "position.table" not in tensors:
        require(stated is not None, "how this model places its patches is not in the weights; add its config.json")
        return stated
    table = _need(tensors, "position.table", 2)
    prefix: Prefix = fields["prefix"]
    patches = fields["embedding"].steps * grid.area
    rows = table.shape[0] - patches
    kinds = {prefix.count: "all", int(prefix.cls): "cls", 0: "none"}
    if prefix.count == 0:
        kinds = {0: "all"}
    require(rows in kinds, _wrong_rows(table, image, grid, f"{patches} patches and {prefix.count} prefix tokens"))
    if isinstance(stated, SinCos2d):
        fixed = sincos_2d(grid, table.shape[1], stated) if table.shape[1] % 4 == 0 else None
        if fixed is not None and (table[rows:].float() - fixed.float()).abs().max() < 1e-6 and not table[:rows].any():
            tensors[FIXED_TABLE] = tensors.pop("position.table")
            return stated
    learned = stated if isinstance(stated, Learned) else Learned(convention="huggingface")
    if learned.prefix == "cls" and rows == int(prefix.cls):
        return learned
    return replace(learned, prefix="all" if rows == prefix.count else kinds[rows])


def _wrong_rows(table: Tensor, image: Size, grid: Size, due: str) -> str:
    return (
        f"the positions have {table.shape[0]} rows, and image {image} is a grid of {grid}, {due}; "
        "give the image that the weights were made for as --from-image HEIGHTxWIDTH"
    )
