"""What is known of timm's models beside their tensors: from their config.json, or from the exact names and shapes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vitrail.checkpoint.dialects.evidence import Known
from vitrail.checkpoint.dialects.json_config import JsonConfig
from vitrail.checkpoint.dialects.table import Sizes
from vitrail.checkpoint.dialects.timm_architectures import Architecture, architecture_named, architectures_of
from vitrail.checkpoint.dialects.timm_arguments import NO_EFFECT, fields_of, settings
from vitrail.checkpoint.dialects.timm_hybrid import embedding_of, patch_argument
from vitrail.checkpoint.dialects.timm_signs import is_dinov3
from vitrail.checkpoint.formats.file import Stored
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size, fit
from vitrail.parts import ResNetStem, Stem

__all__ = ["known_naflex", "known_pit", "known_stages", "known_vit"]

SIZES = {"embed_dim": 768, "depth": 12, "in_chans": 3, "patch_size": 16}
"""Defaults of timm's ViT, BEiT and EVA classes."""
PIT_SHOWN = frozenset({"img_size", "num_classes", "in_chans", "patch_size", "depth", "mlp_ratio", "distilled"})
"""PiT's; its base_dims, heads and stride show less, and are read from presets alone."""


def known_vit(stored: Stored, prefix: str) -> Known:
    said = JsonConfig(stored.config)
    names = frozenset(name.removeprefix(prefix) for name in stored.tensors if name.startswith(prefix))
    tower = said.part("model_cfg").part("vision_cfg")  # OpenCLIP's models may have a tower of timm's
    name = said.text("architecture") or tower.text("timm_model_name")
    if not name:
        return _by_shape(stored, prefix, names)
    architecture = architecture_named(name)
    # at the root timm notes the pooling of the model that was saved; all else there has no effect on the outputs
    pool = said.text("global_pool") or tower.text("timm_pool")
    given = {**({"global_pool": pool} if pool else {}), **said.part("model_args").values}
    arguments = settings(architecture, given)
    stated = JsonConfig({**SIZES, **arguments.values}, arguments.where).stated(
        width="embed_dim", depth="depth", channels="in_chans", patch="patch_size"
    )
    fields, hybrid = fields_of(architecture.kind, arguments, names), embedding_of(_shapes(stored, prefix))
    if hybrid is not None:
        cells = patch_argument(hybrid)
        require(
            stated.pop("patch") == cells,
            f"{arguments.where} has a patch_size that is not the {cells} cells of the weights; one is another model's",
        )
        fields["embedding"] = hybrid
    return Known(
        source=f"config.json (timm's {architecture.name})",
        fields=fields,
        image=_image(said) or tower.size("image_size"),
        stated=stated,
    )


def _shapes(stored: Stored, prefix: str) -> dict[str, tuple[int, ...]]:
    own = (name for name in stored.tensors if name.startswith(prefix))
    return {name.removeprefix(prefix): tuple(stored.tensors[name].shape) for name in own}


def _by_shape(stored: Stored, prefix: str, names: frozenset[str]) -> Known:
    """Return what all architectures of these shapes agree on; raise an error that asks the user where they differ."""
    shapes = _shapes(stored, prefix)
    alike, hybrid = architectures_of(shapes), embedding_of(shapes)
    candidates = [each for each in alike if _has_rows(each, shapes, hybrid)] or alike
    shown = {"embedding": hybrid} if hybrid else {}
    if not candidates:
        return Known(
            source="names and shapes, as timm's models have them",
            fields={**_usual_fields(stored, prefix, names), **shown},
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
    return Known(source=source, fields={**fields, **shown}, image=images.pop() if len(images) == 1 else None)


def _has_rows(
    architecture: Architecture, shapes: Mapping[str, tuple[int, ...]], hybrid: ResNetStem | Stem | None
) -> bool:
    """Return whether the position table has the rows of this architecture's own image size."""
    if "pos_embed" not in shapes:
        return True
    patch = hybrid.patch if hybrid else Size(*shapes["patch_embed.proj.weight"][2:])
    tokens = [shapes[name][1] for name in ("cls_token", "dist_token", "reg_token") if name in shapes]
    rows = shapes["pos_embed"][1] - fit(architecture.image, patch, remainder="floor").grid.area
    return rows in (0, sum(tokens))


def _usual_fields(stored: Stored, prefix: str, names: frozenset[str]) -> dict[str, Any]:
    """Return the usual values of timm's models, for weights without a config and of unknown shape."""
    dinov3 = "pos_embed" not in names and is_dinov3(stored, prefix)
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


def known_naflex(stored: Stored, prefix: str) -> Known:
    """The table has the shape of its grid, and patches are flat: their size follows from the channels."""
    found = known_vit(stored, prefix)
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


def known_stages(stored: Stored, prefix: str) -> Known:
    said = JsonConfig(stored.config)
    shown = {"img_size", "num_classes", "in_chans"}
    said.part("model_args").understand(NO_EFFECT | shown, {"global_pool": ("avg",)})
    name = said.text("architecture")
    source = f"config.json (timm's {name})" if name else "names and shapes"
    return Known(source=source, image=_image(said))


def known_pit(stored: Stored, prefix: str) -> Known:
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


def _image(said: JsonConfig) -> Size | None:
    return said.part("model_args").size("img_size") or said.part("pretrained_cfg").size("input_size")
