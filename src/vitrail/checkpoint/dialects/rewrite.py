"""The same function in other words: exact changes that let a model be written where its own form has no place.

Each gives a checkpoint whose model computes the same, to the bit or, where a sum moves, to its rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations

import torch

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.dialects.evidence import FIXED_TABLE
from vitrail.config import ViTConfig
from vitrail.nn.positions import sincos_2d
from vitrail.parts import Learned, Patches, SinCos2d, Tubelets

__all__ = ["fixed_table", "rewrites"]


def rewrites(checkpoint: Checkpoint) -> Iterator[tuple[Checkpoint, tuple[str, ...]]]:
    """Yield the checkpoint and its equivalents, least changed first, each with a description of the change."""
    yield checkpoint, ()
    config = checkpoint.config
    if not isinstance(config, ViTConfig):
        return
    for count in (1, 2, 3):
        for changes in combinations(CHANGES, count):
            changed, done = checkpoint, []
            for change in changes:
                assert isinstance(changed.config, ViTConfig)
                step = change(changed, changed.config)
                if step is None:
                    break
                changed = step[0]
                done.append(step[1])
            else:
                yield changed, tuple(done)


Rewritten = tuple[Checkpoint, str] | None


def fixed_table(config: ViTConfig, position: SinCos2d) -> torch.Tensor:
    """Return the table as stored, (prefix + N, D), with zero rows for the prefix."""
    table = sincos_2d(config.grid, config.width, position)
    return torch.cat([table.new_zeros(config.prefix.count, config.width), table])


def _bake_sines(checkpoint: Checkpoint, config: ViTConfig) -> Rewritten:
    if not isinstance(config.position, SinCos2d) or config.steps > 1:
        return None
    table = fixed_table(config, config.position).to(checkpoint.tensors["embedding.weight"])
    tensors = {**checkpoint.tensors, "position.table": table}
    return _changed(checkpoint, tensors, position=Learned()), "its sines were written out as a table of positions"


def _fold_positions(checkpoint: Checkpoint, config: ViTConfig) -> Rewritten:
    """Add each prefix token's position row to the token itself, which gives the same sums."""
    if not isinstance(config.position, Learned):
        return None
    rows = checkpoint.tensors["position.table"].shape[0] - config.steps * config.grid.area
    if rows == 0:
        return None
    table, tensors, start = checkpoint.tensors["position.table"], dict(checkpoint.tensors), 0
    for name in ("prefix.cls", "prefix.distillation", "prefix.registers"):
        if name in tensors and start < rows:
            count = tensors[name].shape[1]
            tensors[name] = tensors[name] + table[start : start + count]
            start += count
    tensors["position.table"] = table[rows:]
    position = config.position.but(prefix="none")
    return _changed(checkpoint, tensors, position=position), "the prefix's positions were added into its tokens"


def _zero_positions(checkpoint: Checkpoint, config: ViTConfig) -> Rewritten:
    if not isinstance(config.position, Learned) or not config.prefix.count:
        return None
    table = checkpoint.tensors["position.table"]
    missing = config.prefix.count - (table.shape[0] - config.steps * config.grid.area)
    if missing == 0:
        return None
    place = config.prefix.count - missing
    parts = [table[:place], table.new_zeros(missing, config.width), table[place:]]
    position = config.position.but(prefix="all")
    tensors = {**checkpoint.tensors, "position.table": torch.cat(parts)}
    return _changed(checkpoint, tensors, position=position), "prefix tokens without a position were given one of zeros"


def _fill_qkv_biases(checkpoint: Checkpoint, config: ViTConfig) -> Rewritten:
    if config.qkv_bias == "all":
        return None
    tensors = dict(checkpoint.tensors)
    zeros = tensors["blocks.0.attention.qkv.weight"].new_zeros(config.width)
    for index in range(config.depth):
        query, value = (tensors.pop(f"blocks.{index}.attention.{name}_bias", zeros) for name in "qv")
        tensors[f"blocks.{index}.attention.qkv.bias"] = torch.cat([query, zeros, value])
    return _changed(checkpoint, tensors, qkv_bias="all"), "biases of keys that the model does without became zeros"


def _fill_patch_bias(checkpoint: Checkpoint, config: ViTConfig) -> Rewritten:
    if not isinstance(config.embedding, Patches | Tubelets) or config.embedding.bias:
        return None
    zeros = checkpoint.tensors["embedding.weight"].new_zeros(config.width)
    tensors = {**checkpoint.tensors, "embedding.bias": zeros}
    return _changed(
        checkpoint, tensors, embedding=config.embedding.but(bias=True)
    ), "the patch projection was given a bias of zeros"


def _fill_head_bias(checkpoint: Checkpoint, config: ViTConfig) -> Rewritten:
    if config.head_bias or not config.classes:
        return None
    zeros = checkpoint.tensors["head.weight"].new_zeros(config.classes)
    return _changed(checkpoint, {**checkpoint.tensors, "head.bias": zeros}, head_bias=True), (
        "the head was given a bias of zeros"
    )


CHANGES: tuple[Callable[[Checkpoint, ViTConfig], Rewritten], ...] = (
    _bake_sines,
    _fold_positions,
    _zero_positions,
    _fill_head_bias,
    _fill_qkv_biases,
    _fill_patch_bias,
)


def _changed(checkpoint: Checkpoint, tensors: dict[str, torch.Tensor], **changes: object) -> Checkpoint:
    extra = {name: tensor for name, tensor in checkpoint.extra.items() if name != FIXED_TABLE}
    return checkpoint.but(config=checkpoint.config.but(**changes), tensors=tensors, extra=extra)
