"""transformers' DPT (arXiv 2103.13413): its ViT, plain or behind a ResNet of BiT's, alone or before its depth head.

A DPT around another backbone (DINOv2's, BEiT's) is read as that backbone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.dialects.dialect import Written
from vitrail.checkpoint.dialects.evidence import Known
from vitrail.checkpoint.dialects.huggingface_config import GENERATION, LIBRARY, OTHER_HEADS, describe, vit_fields
from vitrail.checkpoint.dialects.huggingface_family import family, of_type, square
from vitrail.checkpoint.dialects.huggingface_known import LEARNED, known
from vitrail.checkpoint.dialects.huggingface_names import VIT_ROWS
from vitrail.checkpoint.dialects.json_config import JsonConfig
from vitrail.checkpoint.dialects.table import both
from vitrail.checkpoint.dialects.timm_hybrid import bottleneck_rows, conv_norm
from vitrail.checkpoint.formats.file import Stored
from vitrail.config import Config, ViTConfig
from vitrail.errors import require
from vitrail.geometry import Size
from vitrail.parts import ResNetStem

__all__ = ["HUGGINGFACE_DPT"]

HEAD = frozenset(
    {
        *("add_projection", "backbone_out_indices", "fusion_hidden_size", "head_in_index", "neck_hidden_sizes"),
        *("neck_ignore_stages", "readout_type", "reassemble_factors", "semantic_classifier_dropout"),
        *("use_batch_norm_in_fusion_residual", "use_bias_in_fusion_residual", "backbone_featmap_shape"),
        *("is_hybrid", "backbone_config", "backbone", "backbone_kwargs", "use_pretrained_backbone"),
        "use_timm_backbone",
    }
)
"""What the depth head reads, and what is read here."""
BIT_READ = frozenset({"depths", "embedding_size", "num_groups", "hidden_sizes", "num_channels", "drop_path_rate"})
BIT_SAID = {"layer_type": "bottleneck", "global_padding": "SAME", "embedding_dynamic_padding": True}
"""What a config must say, since BiT's own defaults are others."""
BIT_ONLY: Mapping[str, tuple[Any, ...]] = {
    **{"hidden_act": ("relu",), "output_stride": (32,), "width_factor": (1,)},
}
BIT = "{p}embeddings.backbone.bit"
ROWS = tuple(row for row in VIT_ROWS if row.ours[0].partition(".")[0] != "head")
HYBRID_ROWS = (
    *conv_norm("embedding.stem", f"{BIT}.embedder.convolution", f"{BIT}.embedder.norm"),
    *bottleneck_rows(f"{BIT}.encoder.stages.{{s}}.layers.{{i}}"),
    *both("embedding.projection", "{p}embeddings.projection"),
    *(row for row in ROWS if not row.ours[0].startswith("embedding.")),
)


def _known(stored: Stored, prefix: str) -> Known:
    plain = {key: value for key, value in stored.config.items() if key not in HEAD}
    found = known(LEARNED)(replace(stored, config=plain), prefix)
    require(
        found.image is None or found.image.height == found.image.width,
        f"{stored.path} has positions for image {found.image}, and DPT takes its table for a square; mend its config",
    )
    return found


def _known_hybrid(stored: Stored, prefix: str) -> Known:
    found, bit = _known(stored, prefix), JsonConfig(stored.config).part("backbone_config")
    require(bool(bit), f"{stored.path} does not show the groups of its ResNet; put its config.json beside it")
    ours = LIBRARY | GENERATION | OTHER_HEADS | BIT_READ
    bit.understand(ours | BIT_SAID.keys(), BIT_ONLY)
    for key, due in BIT_SAID.items():
        value = bit.values.get(key)
        require(
            value == due or (isinstance(value, str) and value.upper() == due),
            f"{bit.where} has {key} {value!r}, and vitrail's ResNetStem has {due!r}; it cannot be read",
        )
    stem = ResNetStem(
        depths=_wholes(bit, "depths", (3, 4, 9)),
        width=bit.whole("embedding_size", 64),
        groups=bit.whole("num_groups", 32),
    )
    widths = _wholes(bit, "hidden_sizes", stem.widths[1:])
    require(
        widths[: len(stem.depths)] == stem.widths[1:],
        f"{stored.path} has a ResNet of widths {widths}, and vitrail's ResNetStem has {stem.widths[1:]}",
    )
    return replace(found, fields={**found.fields, "embedding": stem})


def _wholes(said: JsonConfig, key: str, usual: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(value) for value in said.numbers(key, usual))


_describe = describe("dpt", vit_fields, plain=("DPTModel", ""))


def _describe_hybrid(checkpoint: Checkpoint, tensors: Mapping[str, Tensor]) -> Written:
    config, origin = checkpoint.config, dict(checkpoint.origin)
    assert isinstance(config, ViTConfig)
    assert isinstance(config.embedding, ResNetStem)
    stem, bit = config.embedding, origin.pop("backbone_config", {})
    written = _describe(checkpoint.but(origin=origin), tensors)
    stages = [f"stage{number}" for number in range(1, len(stem.depths) + 1)]
    backbone = {
        "model_type": "bit",
        **BIT_SAID,
        **bit,
        **{"depths": list(stem.depths), "embedding_size": stem.width, "num_groups": stem.groups},
        **{"hidden_sizes": list(stem.widths[1:]), "num_channels": config.channels, "out_features": stages},
    }
    shape = [1, stem.widths[-1], *config.grid]
    more = {"is_hybrid": True, "backbone_config": backbone, "backbone_featmap_shape": shape}
    return replace(written, config={**written.config, **more})


def _refuse_hybrid(config: Config) -> str | None:
    stem = config.embedding if isinstance(config, ViTConfig) else None
    if not isinstance(stem, ResNetStem) or len(stem.depths) != 3 or stem.cells != Size(1, 1):
        return "its ResNet has three stages, and its patches are cells of the last map"
    return square(config)


def _is_hybrid(stored: Stored, prefix: str) -> bool:
    return f"{prefix}embeddings.backbone.bit.embedder.convolution.weight" in stored.tensors


SIGNS = of_type("dpt", names=lambda names: False)
HUGGINGFACE_DPT = (
    family(
        "dpt_hybrid",
        HYBRID_ROWS,
        _known_hybrid,
        _is_hybrid,
        _describe_hybrid,
        anchor="embeddings.projection.weight",
        needs=("prefix.cls", "position.table", "norm.weight", "embedding.projection.weight"),
        refuse=_refuse_hybrid,
    ),
    family(
        "dpt",
        ROWS,
        _known,
        SIGNS,
        _describe,
        needs=("prefix.cls", "position.table", "norm.weight", "embedding.bias"),
        refuse=square,
    ),
)
