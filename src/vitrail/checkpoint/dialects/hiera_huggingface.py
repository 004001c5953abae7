"""transformers' Hiera: the plain model, the one that classifies, or the encoder of the one that is pretrained."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.dialects.dialect import Written
from vitrail.checkpoint.dialects.evidence import Known
from vitrail.checkpoint.dialects.hiera import (
    Shape,
    block_rows,
    hiera_config,
    refuse_hiera,
    refuse_plain,
    usual_windows,
)
from vitrail.checkpoint.dialects.huggingface_config import (
    OTHER_HEADS,
    UNRELATED,
    labels,
    processor_config,
)
from vitrail.checkpoint.dialects.huggingface_family import family, of_type
from vitrail.checkpoint.dialects.json_config import JsonConfig
from vitrail.checkpoint.dialects.table import TABLE, Row, both
from vitrail.checkpoint.dialects.timm_stages import settle_stages
from vitrail.checkpoint.formats.file import Stored
from vitrail.checkpoint.preprocessing import IMAGENET
from vitrail.config import Config, PyramidConfig
from vitrail.errors import require
from vitrail.geometry import Size
from vitrail.parts import Learned

__all__ = ["HUGGINGFACE_HIERA"]

PROJECTION, POSITIONS = "embeddings.patch_embeddings.projection", "embeddings.position_embeddings"
STAGE = re.compile(r"encoder\.stages\.(\d{1,2})\.layers\.(\d{1,4})\.attn\.proj\.weight")
ROWS = (
    *both("embedding", f"{{p}}{PROJECTION}"),
    Row(("position.table",), (f"{{p}}{POSITIONS}",), TABLE),
    *block_rows("{p}encoder.stages.{s}.layers.{i}", ("layernorm_before", "layernorm_after"), ("fc1", "fc2")),
    *both("norm", "{p}pooler.layernorm"),
    *both("head", "classifier"),
)
PRETRAINED = "HieraForPreTraining"
SHOWN = frozenset({"embed_dim", "depths", "num_channels", "hidden_size"})
READ = frozenset({"image_size", "num_heads", "layer_norm_eps"})
PRETRAINING = frozenset(
    {"layer_norm_init", "decoder_hidden_size", "decoder_depth", "decoder_num_heads", "normalize_pixel_loss"}
)
ONLY: Mapping[str, tuple[Any, ...]] = {
    **{"patch_size": ([7, 7],), "patch_stride": ([4, 4],), "patch_padding": ([3, 3],), "query_stride": ([2, 2],)},
    **{"num_query_pool": (3,), "embed_dim_multiplier": (2.0,), "mlp_ratio": (4.0,), "hidden_act": ("gelu",)},
    **{"masked_unit_size": ([8, 8],), "masked_unit_attention": ([True, True, False, False],)},
}


def _known(stored: Stored, prefix: str) -> Known:
    said = JsonConfig(stored.config)
    require(bool(said), f"{stored.path} does not show the heads of its Hiera; put its config.json beside it")
    said.understand(UNRELATED | OTHER_HEADS | PRETRAINING | SHOWN | READ, ONLY)
    shape, image = _shape(stored, prefix), said.size("image_size") or Size(224, 224)
    config, sizes = hiera_config(
        stored.path,
        shape,
        image,
        heads=tuple(int(count) for count in said.numbers("num_heads", (1, 2, 4, 8))),
        position=Learned(convention="huggingface"),
        norm_eps=said.number("layer_norm_eps", 1e-6),
        final_norm="pooled" if f"{prefix}pooler.layernorm.weight" in stored.tensors else "none",
        **usual_windows(shape.depths),
    )
    return Known(source="config.json (hiera)", fields={"config": config}, image=image, sizes=sizes)


def _shape(stored: Stored, prefix: str) -> Shape:
    own = {name.removeprefix(prefix): tensor for name, tensor in stored.tensors.items() if name.startswith(prefix)}
    depths = Counter(int(found[1]) for name in own if (found := STAGE.fullmatch(name)))
    levels = range(len(depths))
    first = [f"encoder.stages.{level}.layers.0.attn.proj.weight" for level in levels]
    missing = [name for name in (*first, f"{PROJECTION}.weight", POSITIONS) if name not in own]
    require(not missing, f"{stored.path} lacks {', '.join(missing[:3])}; it is not a whole Hiera")
    return Shape(
        depths=tuple(depths[level] for level in levels),
        widths=tuple(own[name].shape[0] for name in first),
        projection=tuple(own[f"{PROJECTION}.weight"].shape),
        table=tuple(own[POSITIONS].shape),
    )


def _describe(checkpoint: Checkpoint, tensors: Mapping[str, Tensor]) -> Written:
    config = checkpoint.config
    assert isinstance(config, PyramidConfig)
    origin = checkpoint.origin if checkpoint.dialect == "huggingface" else {}
    architecture, prefix = ("HieraForImageClassification", "hiera.") if config.classes else ("HieraModel", "")
    came_as = JsonConfig(origin).first("architectures")
    if came_as in (architecture, PRETRAINED):
        architecture, prefix = came_as, None
    found = {
        "model_type": "hiera",
        **origin,
        "architectures": [architecture],
        "image_size": list(config.image),
        "num_channels": config.channels,
        "embed_dim": config.stages[0].width,
        "depths": [stage.depth for stage in config.stages],
        "num_heads": [stage.num_heads for stage in config.stages],
        "layer_norm_eps": config.norm_eps,
        **labels(config.classes, origin, checkpoint.labels),
    }
    bare = config.final_norm == "none" and architecture != PRETRAINED
    notes = ("it has no norm of the pooled vector: load it as HieraModel with add_pooling_layer=False",) if bare else ()
    return Written(prefix=prefix, config=found, processor=processor_config(checkpoint), notes=notes)


def _refuse(config: Config) -> str | None:
    reason = refuse_hiera(config)
    if reason is not None or not isinstance(config, PyramidConfig):
        return reason
    if config.final_norm == "tokens" or (config.classes and config.final_norm == "none"):
        return "it normalises the pooled vector"
    widths = [stage.width for stage in config.stages]
    if widths != [widths[0] << level for level in range(len(widths))]:
        return "its widths double from stage to stage"
    return refuse_plain(config)


HUGGINGFACE_HIERA = family(
    "hiera",
    ROWS,
    _known,
    of_type("hiera", names=lambda names: any(STAGE.fullmatch(name) for name in names)),
    _describe,
    statistics=IMAGENET,
    needs=("position.table", "stages.1.blocks.0.shortcut.weight"),
    refuse=_refuse,
    settle=settle_stages,
    spare=r"(?!)",
)
