"""Activation checkpointing of blocks with torch.utils.checkpoint: full, or selective by a policy."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from vitrail.checkpointing import Checkpointing

__all__ = ["PRODUCTS", "checkpoint_blocks", "keep_products"]

_aten = torch.ops.aten

PRODUCTS = frozenset(
    {
        _aten.mm.default,
        _aten.addmm.default,
        _aten.bmm.default,
        _aten.baddbmm.default,
        _aten.convolution.default,
        _aten._scaled_dot_product_flash_attention.default,
        _aten._scaled_dot_product_efficient_attention.default,
        _aten._scaled_dot_product_cudnn_attention.default,
        _aten._scaled_dot_product_flash_attention_for_cpu.default,
    }
)
"""Operators whose outputs selective checkpointing keeps: almost all of a block's FLOPs are in them."""


def keep_products(context: Any, operator: Any, *args: Any, **options: Any) -> CheckpointPolicy:
    """Keep the outputs of matrix products, convolutions and attention; recompute all others.

    This is a policy for `torch.utils.checkpoint.create_selective_checkpoint_contexts`.
    """
    return CheckpointPolicy.MUST_SAVE if operator in PRODUCTS else CheckpointPolicy.PREFER_RECOMPUTE


def checkpoint_blocks(
    blocks: Iterable[tuple[str, nn.Module]], how: Checkpointing, *, random_state: bool = True
) -> None:
    """Change the forward of blocks, given with their paths, so that backward recomputes what `how` does not keep.

    With `random_state`, dropout draws the same numbers again; without, the state is neither kept nor restored.
    """
    settings: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": random_state}
    if how.kind == "selective":
        settings["context_fn"] = partial(create_selective_checkpoint_contexts, keep_products)
    for path, block in blocks:
        if how.covers(int(path.rpartition(".")[2])):
            block.forward = partial(checkpoint, block.forward, **settings)
