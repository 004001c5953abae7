"""timm: one naming for ViT, DeiT, DINOv2, CLIP, SigLIP, FlexiViT …; others for distilled DeiT, BEiT, EVA/DINOv3, and
models in stages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

from vitrail.checkpoint.dialects.dialect import Dialect, Family
from vitrail.checkpoint.dialects.evidence import Known
from vitrail.checkpoint.dialects.hiera_timm import TIMM_HIERA
from vitrail.checkpoint.dialects.json_config import JsonConfig
from vitrail.checkpoint.dialects.sam_timm import TIMM_SAM
from vitrail.checkpoint.dialects.table import Sizes
from vitrail.checkpoint.dialects.timm_architectures import Architecture, architecture_named, architectures_of
from vitrail.checkpoint.dialects.timm_arguments import NO_EFFECT, fields_of, settings
from vitrail.checkpoint.dialects.timm_describe import describe
from vitrail.checkpoint.dialects.timm_names import (
    BEIT_ROWS,
    DISTILLED_ROWS,
    EVA_PACKED_ROWS,
    EVA_ROWS,
    EVA_SPLIT_ROWS,
    NAFLEX_ROWS,
    RELATIVE_ROWS,
    VIT_GATED_ROWS,
    VIT_ROWS,
)
from vitrail.checkpoint.dialects.timm_stages import (
    MOBILE2_ROWS,
    MOBILE_ROWS,
    PIT_DISTILLED_ROWS,
    PIT_ROWS,
    settle_stages,
)
from vitrail.checkpoint.dialects.timm_swin import (
    SWIN2_ROWS,
    SWIN_ROWS,
    known_swin,
    known_swin2,
    refuse_swin,
    refuse_swin2,
)
from vitrail.checkpoint.formats.file import Stored
from vitrail.checkpoint.preprocessing import HALF, IMAGENET, OPENAI_CLIP, Interpolation, Preprocessing, Statistics
from vitrail.config import Config, ViTConfig
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size, fit
from vitrail.parts import Learned, Patches

__all__ = ["TIMM"]


ARGUMENTS = frozenset({"norm_eps", "activation"})
"""What timm takes as arguments of the model, so that a file need not agree."""
SIZES = {"embed_dim": 768, "depth": 12, "in_chans": 3, "patch_size": 16}
"""Defaults of timm's ViT, BEiT and EVA classes."""
PIT_SHOWN = frozenset({"img_size", "num_classes", "in_chans", "patch_size", "depth", "mlp_ratio", "distilled"})
"""PiT's; its base_dims, heads and stride show less, and are read from presets alone."""


def _known(stored: Stored, prefix: str) -> Known:
    said = JsonConfig(stored.config)
    names = frozenset(name.removeprefix(prefix) for name in stored.tensors if name.startswith(prefix))
    tower = said.part("model_cfg").part("vision_cfg")  # OpenCLIP's models may have a tower of timm's
    name = said.text("architecture") or tower.text("timm_model_name")
    if not name:
        return _known_by_shape(stored, prefix, names)
    architecture = architecture_named(name)
    # at the root timm notes the pooling of the model that was saved; all else there has no effect on the outputs
    pool = said.text("global_pool") or tower.text("timm_pool")
    given = {**({"global_pool": pool} if pool else {}), **said.part("model_args").values}
    arguments = settings(architecture, given)
    return Known(
        source=f"config.json (timm's {architecture.name})",
        fields=fields_of(architecture.kind, arguments, names),
        image=_image(said) or tower.size("image_size"),
        stated=JsonConfig({**SIZES, **arguments.values}, arguments.where).stated(
            width="embed_dim", depth="depth", channels="in_chans", patch="patch_size"
        ),
    )


def _known_by_shape(stored: Stored, prefix: str, names: frozenset[str]) -> Known:
    """Return what all architectures of these shapes agree on; raise an error that asks the user where they differ."""
    shapes = {name: tuple(stored.tensors[prefix + name].shape) for name in names}
    alike = architectures_of(shapes)
    candidates = [each for each in alike if _has_rows(each, shapes)] or alike
    if not candidates:
        return Known(
            source="names and shapes, as timm's models have them",
            fields=_usual_fields(stored, prefix, names),
            assumed=("activation", "norm_eps", "pool", "position", "block_norm"),
        )
    found: dict[str, tuple[Architecture, dict[str, Any] | VitrailError]] = {}
    for candidate in candidates:
        try:
            fields: dict[str, Any] | VitrailError = fields_of(candidate.kind, settings(candidate, {}), names)
        except VitrailError as error:
            fields = error
        found.setdefault(str(fields).replace(candidate.name, ""), (candidate, fields))
    (first, fields), *others = found.values()
    if others:
        raise VitrailError(
            f"{stored.path} may be timm's {first.name} or its {others[0][0].name}, which have the same names and "
            "shapes and different outputs; put its config.json beside it, or say which by --architecture"
        )
    if isinstance(fields, VitrailError):
        raise VitrailError(f"{stored.path} has the names and shapes of a model that vitrail does not read: {fields}")
    more = f" and {len(candidates) - 1} more" if len(candidates) > 1 else ""
    source = f"the exact names and shapes of timm's {first.name}{more}"
    images = {each.image for each in candidates}
    return Known(source=source, fields=fields, image=images.pop() if len(images) == 1 else None)


def _has_rows(architecture: Architecture, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """Return whether the position table has the rows of this architecture's own image size."""
    if "pos_embed" not in shapes:
        return True
    patch = Size(*shapes["patch_embed.proj.weight"][2:])
    tokens = [shapes[name][1] for name in ("cls_token", "dist_token", "reg_token") if name in shapes]
    rows = shapes["pos_embed"][1] - fit(architecture.image, patch, remainder="floor").grid.area
    return rows in (0, sum(tokens))


def _usual_fields(stored: Stored, prefix: str, names: frozenset[str]) -> dict[str, Any]:
    """Return the usual values of timm's models, for weights without a config and of unknown shape."""
    dinov3 = "pos_embed" not in names and _is_dinov3(stored, prefix)
    clip = "norm_pre.weight" in names
    arguments: dict[str, Any] = {"norm_layer": "LayerNorm(eps=1e-05)"} if dinov3 or clip else {}
    if dinov3:
        arguments |= {"use_rot_pos_emb": True, "rope_type": "dinov3", "rope_rotate_half": True, "rope_temperature": 100}
    kind = "Eva" if dinov3 or "fc_norm.weight" in names or "cls_token" not in names else "VisionTransformer"
    if "attn_pool.latent" in names:
        arguments["global_pool"] = "map"
    fields = fields_of(kind, JsonConfig(arguments), names)
    del fields["num_heads"]
    return fields


def _known_naflex(stored: Stored, prefix: str) -> Known:
    """The table has the shape of its grid, and patches are flat: their size follows from the channels."""
    found = _known(stored, prefix)
    table, weight = (stored.tensors[f"{prefix}embeds.{name}"] for name in ("pos_embed", "proj.weight"))
    channels = JsonConfig(stored.config).part("model_args").whole("in_chans", 3)
    side = math.isqrt(weight.shape[-1] // channels)
    require(
        table.ndim == 4 and side * side * channels == weight.shape[-1],
        f"{stored.path} has patches of {weight.shape[-1]} values, which are no squares of {channels} channels",
    )
    grid = Size(*table.shape[1:3])
    sizes = Sizes(patch=Size.of(side), channels=channels, grid=grid)
    return replace(found, image=Size(grid.height * side, grid.width * side), sizes=sizes)


def _known_stages(stored: Stored, prefix: str) -> Known:
    said = JsonConfig(stored.config)
    shown = {"img_size", "num_classes", "in_chans"}
    said.part("model_args").understand(NO_EFFECT | shown, {"global_pool": ("avg",)})
    name = said.text("architecture")
    source = f"config.json (timm's {name})" if name else "names and shapes"
    return Known(source=source, image=_image(said))


def _known_pit(stored: Stored, prefix: str) -> Known:
    said = JsonConfig(stored.config)
    only = {"global_pool": ("token",), "stem_type": ("overlap",)}
    said.part("model_args").understand(NO_EFFECT | PIT_SHOWN | {"pos_drop_drate"}, only)
    name, table = said.text("architecture"), stored.tensors.get(f"{prefix}pos_embed")
    require(
        table is not None and table.ndim == 4,
        f"{stored.path} has no table of positions with the height and width of a grid, as PiT has; it is not whole",
    )
    assert table is not None
    return Known(
        source=f"config.json (timm's {name})" if name else "names and shapes",
        image=_image(said),
        sizes=Sizes(grid=Size(*table.shape[2:])),
    )


def _is_pit(tokens: int) -> Any:
    """Match PiT's names and this many tokens before the patches: CLS, or CLS and distillation."""

    def signs(stored: Stored, prefix: str) -> bool:
        cls = stored.tensors.get(f"{prefix}cls_token")
        there = _any(stored, prefix, ("transformers.0.blocks.0.norm1.weight",))
        return there and cls is not None and tuple(cls.shape[1:2]) == (tokens,)

    return signs


def _any(stored: Stored, prefix: str, names: tuple[str, ...]) -> bool:
    return any(prefix + name in stored.tensors for name in names)


def _all(stored: Stored, prefix: str, names: tuple[str, ...]) -> bool:
    return all(prefix + name in stored.tensors for name in names)


def _is_dinov3(stored: Stored, prefix: str) -> bool:
    """Match CLS, four registers and no table: among models without a config, only DINOv3 has these."""
    registers = stored.tensors.get(f"{prefix}reg_token")
    return _any(stored, prefix, ("cls_token",)) and registers is not None and registers.shape[1:2] == (4,)


def _is_packed(stored: Stored, prefix: str) -> bool:
    """Match a gated MLP whose gate and value are one layer."""
    fc1, fc2 = (stored.tensors.get(f"{prefix}blocks.0.mlp.{layer}.weight") for layer in ("fc1", "fc2"))
    return fc1 is not None and fc2 is not None and fc1.shape[0] == 2 * fc2.shape[-1]


def _is_eva(stored: Stored, prefix: str) -> bool:
    """Match timm's Eva class by tensors that no other has, by its architecture's name, or by its exact shapes."""
    own = ("blocks.0.gamma_1", "blocks.0.attn.q_bias", "rope.freqs")
    shapes = {
        name.removeprefix(prefix): tuple(each.shape) for name, each in stored.tensors.items() if name.startswith(prefix)
    }
    if "blocks.0.norm1.weight" not in shapes:
        return False
    if _any(stored, prefix, own):
        return True
    name = JsonConfig(stored.config).text("architecture")
    alike = [architecture_named(name)] if name else architectures_of(shapes)
    return bool(alike) and all(each.kind == "Eva" for each in alike)


def _image(said: JsonConfig) -> Size | None:
    return said.part("model_args").size("img_size") or said.part("pretrained_cfg").size("input_size")


def _has(*names: str) -> Any:
    return lambda stored, prefix: _any(stored, prefix, names)


def _refuse(config: Config) -> str | None:
    """Refuse combinations that timm's VisionTransformer and Eva cannot express."""
    if not isinstance(config, ViTConfig):
        return "it is a plain Vision Transformer"
    position, registers = config.position, config.prefix.registers
    if isinstance(position, Learned) and position.prefix == "cls" and registers:
        return "it gives positions to all prefix tokens or to none, and here CLS alone has one"
    if isinstance(config.embedding, Patches) and config.embedding.bias == config.embedding_norm:
        return "its patch projection has a bias exactly where no norm follows it"
    if config.out_bias != config.mlp.bias:
        return "its attention and its MLP have biases, or neither has"
    if not config.head_bias and config.classes:
        return "its head has a bias"
    return None


def _preprocessing(stored: Stored, family: Family, image: Size) -> Preprocessing:
    said = JsonConfig(stored.config)
    stated = said.part("pretrained_cfg")
    mean, std = _statistics(said.text("architecture"), family)
    interpolation = stated.text("interpolation", "bicubic")
    return Preprocessing(
        image=image,
        mean=stated.numbers("mean", mean),
        std=stated.numbers("std", std),
        interpolation=interpolation if interpolation in get_args(Interpolation) else "bicubic",  # type: ignore[arg-type]
        resize="squash" if stated.text("crop_mode") == "squash" else "crop",
        crop_share=min(1.0, stated.number("crop_pct", 0.9)),
        patch_budget=_patch_budget(stored),
        source="config.json (pretrained_cfg)" if stated else "what most of the family was trained with",
    )


def _patch_budget(stored: Stored) -> int | None:
    """Return the patches that a NaFlexViT fills with an image: as many as its table of positions has."""
    tables = [tensor for name, tensor in stored.tensors.items() if name.endswith("embeds.pos_embed")]
    return tables[0].shape[1] * tables[0].shape[2] if tables else None


def _statistics(name: str, family: Family) -> Statistics:
    if "_clip_" in name:
        return OPENAI_CLIP
    return IMAGENET if "dino" in name else family.statistics


def _foreign(stored: Stored) -> str | None:
    name = JsonConfig(stored.config).text("architecture")
    return f"config.json names timm's {name!r}, which is not an architecture that vitrail knows" if name else None


TIMM = Dialect(
    name="timm",
    preprocessing=_preprocessing,
    foreign=_foreign,
    families=(
        TIMM_SAM,
        *TIMM_HIERA,
        Family(
            name="distilled",
            rows=DISTILLED_ROWS,
            anchor="patch_embed.proj.weight",
            signs=_has("dist_token"),
            needs=("prefix.cls", "prefix.distillation", "position.table", "norm.weight"),
            known=_known,
            statistics=IMAGENET,
            write=describe,
            loose=ARGUMENTS,
        ),
        Family(
            name="beit",
            rows=BEIT_ROWS,
            anchor="patch_embed.proj.weight",
            signs=_has("blocks.0.attn.relative_position_bias_table", "rel_pos_bias.relative_position_bias_table"),
            known=_known,
            spare=r".*relative_position_index|lm_head\..*|norm\..*",
            needs=("prefix.cls", "norm.weight"),
            statistics=HALF,
            write=describe,
            loose=ARGUMENTS,
        ),
        Family(
            name="relative vit",
            rows=RELATIVE_ROWS,
            anchor="patch_embed.proj.weight",
            signs=_has("blocks.0.attn.rel_pos.mlp.fc1.weight", "shared_rel_pos.mlp.fc1.weight"),
            known=_known,
            statistics=IMAGENET,
            write=describe,
            loose=ARGUMENTS,
            refuse=_refuse,
        ),
        *(
            Family(
                name=name,
                rows=rows,
                anchor="patch_embed.proj.weight",
                signs=lambda stored, prefix, gated=gated: (
                    _all(stored, prefix, ("blocks.0.attn.qkv.weight",))
                    and _all(stored, prefix, ("blocks.0.mlp.fc1_g.weight",)) == gated
                    and not _is_eva(stored, prefix)
                ),
                known=_known,
                spare=r"pre_logits\..*|decoder.*",
                write=describe,
                loose=ARGUMENTS,
                lacks=frozenset({"norm biases", "out biases", "mlp biases"}),
                refuse=_refuse,
            )
            for name, rows, gated in (("vit", VIT_ROWS, False), ("vit, gated", VIT_GATED_ROWS, True))
        ),
        *(
            Family(
                name=name,
                rows=rows,
                anchor="patch_embed.proj.weight",
                signs=signs,
                known=_known,
                spare=r"rope\.periods",
                statistics=IMAGENET,
                write=describe,
                loose=ARGUMENTS,
                lacks=frozenset({"norm biases"}),
                refuse=_refuse,
            )
            for name, rows, signs in (
                ("eva, split", EVA_SPLIT_ROWS, _has("blocks.0.attn.q_proj.weight")),
                (
                    "eva, packed",
                    EVA_PACKED_ROWS,
                    lambda stored, prefix: _is_eva(stored, prefix) and _is_packed(stored, prefix),
                ),
                ("eva", EVA_ROWS, _is_eva),
            )
        ),
        Family(
            name="naflexvit",
            rows=NAFLEX_ROWS,
            anchor="embeds.proj.weight",
            signs=_has("embeds.pos_embed"),
            known=_known_naflex,
            needs=("position.table", "embedding.bias"),
            write=describe,
            loose=ARGUMENTS,
        ),
        *(
            Family(
                name=name,
                rows=rows,
                anchor="patch_embed.proj.weight",
                signs=_has(f"layers.0.blocks.0.attn.{sign}"),
                known=known,
                spare=r".*relative_position_index|.*relative_coords_table|.*attn_mask",
                statistics=IMAGENET,
                write=describe,
                needs=("stages.0.blocks.0.norm1.weight", "embedding_norm.weight", "norm.weight"),
                refuse=refuse,
                settle=settle_stages,
            )
            for name, rows, sign, known, refuse in (
                ("swin", SWIN_ROWS, "relative_position_bias_table", known_swin, refuse_swin),
                ("swin v2", SWIN2_ROWS, "logit_scale", known_swin2, refuse_swin2),
            )
        ),
        *(
            Family(
                name=name,
                rows=rows,
                anchor="patch_embed.conv.weight",
                signs=_is_pit(tokens),
                known=_known_pit,
                statistics=IMAGENET,
                write=describe,
                needs=("stages.0.blocks.0.norm1.weight", "position.table", *needs),
                settle=settle_stages,
            )
            for name, rows, tokens, needs in (
                ("pit", PIT_ROWS, 1, ("prefix.cls",)),
                ("distilled pit", PIT_DISTILLED_ROWS, 2, ("prefix.cls", "prefix.distillation")),
            )
        ),
        *(
            Family(
                name=name,
                rows=rows,
                anchor="stem.conv.weight",
                signs=_has(sign),
                known=_known_stages,
                statistics=((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
                write=describe,
                needs=("stem.conv.weight", needed),
                settle=settle_stages,
            )
            for name, rows, sign, needed in (
                (
                    "mobilevitv2",
                    MOBILE2_ROWS,
                    "stages.2.1.transformer.0.attn.qkv_proj.weight",
                    "stages.2.transformer.norm.weight",
                ),
                (
                    "mobilevit",
                    MOBILE_ROWS,
                    "stages.0.0.conv1_1x1.conv.weight",
                    "stages.0.residuals.0.expand.conv.weight",
                ),
            )
        ),
    ),
)
