"""Put the merger that a vision-language model has behind its tower: the model then gives the language model's tokens.

A tower is read alone, and the rest of its file is kept aside. What is needed of the merger is found there by the names
that transformers has for it; its sizes are those of its weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.dialects.huggingface_config import activation_of
from vitrail.checkpoint.dialects.json_config import JsonConfig
from vitrail.checkpoint.surgery.blocks import without_blocks
from vitrail.config import ViTConfig
from vitrail.errors import VitrailError, require
from vitrail.parts import LinearMerger, MeanPool, MergerNorm, MlpMerger

__all__ = ["with_merger"]


class _Names(NamedTuple):
    """Where the weights of a merger with two linear layers are, and what its files do not say."""

    fc1: str
    fc2: str
    norm: str = ""
    norm_eps: float = 1e-6


MLPS = (
    _Names("merger.mlp.0", "merger.mlp.2", "merger.ln_q"),  # Qwen2-VL, Qwen2.5-VL
    _Names("merger.linear_fc1", "merger.linear_fc2", "merger.norm"),  # Qwen3-VL
    _Names(
        "multi_modal_projector.linear_1", "multi_modal_projector.linear_2", "multi_modal_projector.layer_norm", 1e-5
    ),
)
"""The last are InternVL's, and LLaVA's without the norm."""
LINEAR = "multi_modal_projector.linear"
POOLED, POOLED_NORM = "multi_modal_projector.mm_input_projection_weight", "multi_modal_projector.mm_soft_emb_norm"


def with_merger(checkpoint: Checkpoint) -> Checkpoint:
    """Return the tower with the merger that its file has beside it, of Qwen-VL, InternVL, LLaVA, PaliGemma or Gemma 3.

    The tower ends where the language model reads it: LLaVA's reads the last block but one. The result is saved in
    vitrail's own names.
    """
    config, said = checkpoint.config, JsonConfig(checkpoint.origin)
    require(isinstance(config, ViTConfig), f"a {type(config).__name__} is no tower of a vision-language model")
    assert isinstance(config, ViTConfig)
    beside = _without_prefix(checkpoint.extra)
    found = _mlp(config, beside, said) or _linear(beside) or _pooled(config, beside, said)
    if found is None:
        raise VitrailError("no merger is beside this tower; read the whole vision-language model, with its config.json")
    merger, tensors = found
    ended = _ended(checkpoint, said)
    assert isinstance(ended.config, ViTConfig)
    kept = {name: tensor for name, tensor in ended.tensors.items() if not name.startswith("pool.")}
    return ended.but(
        config=ended.config.but(pool=MeanPool(), classes=0, merger=merger),
        tensors=kept | {f"merger.{name}": tensor for name, tensor in tensors.items()},
        dialect="vitrail",
        family="vit",
        name_prefix="",
        extra={},
        origin={},
    )


def _without_prefix(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors by their names from the merger on."""
    places = {name: max(name.find("multi_modal_projector."), name.find("merger.")) for name in tensors}
    return {name[place:]: tensors[name] for name, place in places.items() if place == 0 or name[place - 1] == "."}


def _ended(checkpoint: Checkpoint, said: JsonConfig) -> Checkpoint:
    """Return the tower up to the block that the language model reads."""
    if "vision_feature_layer" not in said:
        return checkpoint
    layer, strategy = said.whole("vision_feature_layer", -1), said.text("vision_feature_select_strategy", "default")
    require(strategy == "default", f"{said.where} has vision_feature_select_strategy {strategy!r}, not 'default'")
    require(layer < 0, f"{said.where} has vision_feature_layer {layer}, and it is counted from the end here")
    config = checkpoint.config
    assert isinstance(config, ViTConfig)
    if layer == -1 and checkpoint.family == "internvl_vision":
        return checkpoint
    gone = range(config.depth + layer + 1, config.depth)
    shorter = without_blocks(checkpoint, gone)[0] if gone else checkpoint
    assert isinstance(shorter.config, ViTConfig)
    tensors = {name: tensor for name, tensor in shorter.tensors.items() if not name.startswith("norm.")}
    return shorter.but(config=shorter.config.but(final_norm="none", final_norm_eps=None), tensors=tensors)


Found = tuple[MlpMerger | LinearMerger, dict[str, Tensor]] | None


def _mlp(config: ViTConfig, beside: Mapping[str, Tensor], said: JsonConfig) -> Found:
    for names in MLPS:
        tensors = {
            f"{ours}.{leaf}": beside[f"{theirs}.{leaf}"]
            for ours, theirs in (("norm", names.norm), ("fc1", names.fc1), ("fc2", names.fc2))
            for leaf in ("weight", "bias")
            if f"{theirs}.{leaf}" in beside
        }
        if "fc1.weight" not in tensors:
            continue
        joined, norm = tensors["fc1.weight"].shape[1], tensors.get("norm.weight")
        merge = math.isqrt(joined // config.width)
        kind: MergerNorm = "none" if norm is None else "layer" if "norm.bias" in tensors else "rms"
        merger = MlpMerger(
            width=tensors["fc2.weight"].shape[0],
            mlp_width=tensors["fc1.weight"].shape[0],
            merge=merge,
            norm=kind,
            norm_merged=norm is not None and norm.shape[0] == joined,
            norm_eps=names.norm_eps,
            activation=activation_of(said, "gelu", "projector_hidden_act"),
            bias="fc1.bias" in tensors,
        )
        return merger, tensors
    return None


def _linear(beside: Mapping[str, Tensor]) -> Found:
    if f"{LINEAR}.weight" not in beside:
        return None
    tensors = {f"out.{leaf}": beside[f"{LINEAR}.{leaf}"] for leaf in ("weight", "bias")}
    return LinearMerger(width=tensors["out.weight"].shape[0]), tensors


def _pooled(config: ViTConfig, beside: Mapping[str, Tensor], said: JsonConfig) -> Found:
    """Gemma 3's: its projection is stored the other way round, and its norm as what is added to one."""
    if POOLED not in beside:
        return None
    side = math.isqrt(said.whole("mm_tokens_per_image", 256))
    merger = LinearMerger(
        width=beside[POOLED].shape[1],
        merge=config.grid.height // side,
        norm="rms",
        norm_eps=said.part("vision_config").number("layer_norm_eps", 1e-6),
        bias=False,
    )
    return merger, {"out.weight": beside[POOLED].T.contiguous(), "norm.weight": 1 + beside[f"{POOLED_NORM}.weight"]}
