"""timm's Hiera, and SAM 2's backbone in timm's names: windows and full blocks are the architecture's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.dialects.dialect import Family, Written
from vitrail.checkpoint.dialects.evidence import Known
from vitrail.checkpoint.dialects.hiera import (
    LEARNED,
    hiera_config,
    hiera_rows,
    hiera_said,
    refuse_hiera,
    refuse_plain,
    shape_of,
    usual_windows,
)
from vitrail.checkpoint.dialects.json_config import JsonConfig
from vitrail.checkpoint.dialects.table import both
from vitrail.checkpoint.dialects.timm_architectures import architecture_shown
from vitrail.checkpoint.dialects.timm_arguments import NO_EFFECT, settings
from vitrail.checkpoint.dialects.timm_describe import config_json
from vitrail.checkpoint.dialects.timm_stages import settle_stages
from vitrail.checkpoint.formats.file import Stored
from vitrail.checkpoint.preprocessing import IMAGENET
from vitrail.config import Config, PyramidConfig
from vitrail.errors import VitrailError, require
from vitrail.parts import TiledTable

__all__ = ["TIMM_HIERA"]

ROWS = (
    *hiera_rows("proj", "norm", ("fc1", "fc2"), "pos_embed_window"),
    *both("norm", "{p}head.norm"),
    *both("head", "{p}head.fc"),
)
SHOWN = frozenset({"in_chans", "num_classes", "embed_dim", "img_size", "global_pos_size", "stages"})
READ = frozenset({"num_heads", "window_spec", "global_att_blocks"})
ONLY: Mapping[str, tuple[Any, ...]] = {
    **{"patch_kernel": ([7, 7],), "patch_stride": ([4, 4],), "patch_padding": ([3, 3],), "patch_size": (None,)},
    **{"q_pool": (3,), "q_stride": ([2, 2],), "dim_mul": (2.0,), "head_mul": (2.0,), "mlp_ratio": (4.0,)},
    **{"init_values": (None,), "global_pool": ("avg",), "norm_layer": ("LayerNorm",), "act_layer": ("GELU",)},
    **{"mask_unit_size": ([8, 8],), "mask_unit_attn": ([True, True, False, False],), "use_expand_proj": (True,)},
    **{"sep_pos_embed": (False,), "abs_win_pos_embed": (False,), "patch_drop_rate": (0.0,)},
}


def _known(stored: Stored, prefix: str) -> Known:
    said = JsonConfig(stored.config)
    shown = architecture_shown(stored, prefix)
    if shown is None:
        raise VitrailError(
            f"{stored.path} does not show the windows of its Hiera; put its config.json beside it, or say which it "
            "is by --architecture"
        )
    architecture, source = shown
    name = architecture.name
    require(
        architecture.kind in ("Hiera", "HieraDet"),
        f"{stored.path} has the names of a Hiera, and {name} is another kind of model; mend its config",
    )
    arguments = settings(architecture, said.part("model_args").values)
    arguments.understand(NO_EFFECT | SHOWN | READ, ONLY)
    shape = shape_of(stored, prefix, "proj")
    windows = usual_windows(shape.depths)
    if architecture.kind == "HieraDet":
        windows = {
            "windows": tuple(int(side) for side in arguments.numbers("window_spec", (8, 4, 14, 7))),
            "full": tuple(int(index) for index in arguments.numbers("global_att_blocks", (12, 16, 20))),
        }
    image = said.part("model_args").size("img_size") or said.part("pretrained_cfg").size("input_size")
    config, sizes = hiera_config(
        stored.path,
        shape,
        image or architecture.image,
        heads=tuple(arguments.whole("num_heads", 1) * 2**level for level in range(len(shape.depths))),
        **windows,
        norm_eps=1e-6,
        final_norm="pooled" if f"{prefix}head.norm.weight" in stored.tensors else "none",
    )
    return Known(source=source.format(name), fields={"config": config}, image=config.image, sizes=sizes)


def _describe(checkpoint: Checkpoint, tensors: Mapping[str, Tensor]) -> Written:
    """The arguments of timm's class, all of them, beside the name of its smallest model."""
    config = checkpoint.config
    assert isinstance(config, PyramidConfig)
    origin = checkpoint.origin if checkpoint.dialect == "timm" else {}
    windows, full = hiera_said(config)
    tiled = isinstance(config.position, TiledTable)
    arguments: dict[str, Any] = {
        "embed_dim": config.stages[0].width,
        "num_heads": config.stages[0].num_heads,
        "stages": [stage.depth for stage in config.stages],
        "in_chans": config.channels,
        "num_classes": config.classes,
    }
    if isinstance(config.position, TiledTable):
        arguments |= {"window_spec": windows, "global_att_blocks": list(full)}
        arguments["global_pos_size"] = list(config.position.background)
    else:
        arguments["img_size"] = list(config.image)
    written = config_json(checkpoint, "sam2_hiera_tiny" if tiled else "hiera_tiny_224", arguments)
    return Written(config={**origin, **written, **({"architecture": origin["architecture"]} if origin else {})})


def _refuse(config: Config) -> str | None:
    reason = refuse_hiera(config)
    if reason is not None or not isinstance(config, PyramidConfig):
        return reason
    if config.final_norm == "tokens":
        return "it normalises the pooled vector"
    heads = [stage.num_heads for stage in config.stages]
    if heads != [heads[0] * 2**level for level in range(len(heads))]:
        return "its heads double from stage to stage"
    if len(config.stages) != 4 or config.mlp_ratio != 4 or config.norm_eps != 1e-6:
        return "it has four stages, an mlp_ratio of 4 and norms with eps 1e-06"
    if isinstance(config.position, TiledTable):
        return None
    return refuse_plain(config)


def _signs(tiled: bool) -> Callable[[Stored, str], bool]:
    """Match by a block that projects its shortcut, or by the architecture's name."""

    def signs(stored: Stored, prefix: str) -> bool:
        named = JsonConfig(stored.config).text("architecture").startswith(("hiera", "sam2_hiera"))
        shortcut = any(f"{prefix}blocks.{number}.proj.weight" in stored.tensors for number in range(1, 4))
        shortcut = shortcut or f"{prefix}pos_embed_win" in stored.tensors  # a form that is refused
        return (named or shortcut) and (f"{prefix}pos_embed_window" in stored.tensors) == tiled

    return signs


TIMM_HIERA = tuple(
    Family(
        name=name,
        rows=rows,
        anchor="patch_embed.proj.weight",
        signs=_signs(tiled),
        known=_known,
        statistics=IMAGENET,
        write=_describe,
        needs=("stages.1.blocks.0.shortcut.weight", *needs),
        refuse=_refuse,
        settle=settle_stages,
    )
    for name, rows, tiled, needs in (
        ("sam2 hiera", ROWS, True, ("position.window",)),
        ("hiera", (*(row for row in ROWS if not row.ours[0].startswith("position.")), LEARNED), False, ()),
    )
)
