"""Leave blocks out of a trained ViT: those after them move up, and everything else is unchanged."""

from __future__ import annotations

from collections.abc import Sequence

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.surgery.changes import Change
from vitrail.config import ViTConfig
from vitrail.errors import require
from vitrail.parts import WindowedAttention

__all__ = ["without_blocks"]


def without_blocks(checkpoint: Checkpoint, dropped: Sequence[int]) -> tuple[Checkpoint, tuple[Change, ...]]:
    """Return the checkpoint without the blocks of these numbers, counted from 0, and the changes of their tensors."""
    config = checkpoint.config
    require(
        isinstance(config, ViTConfig), f"a {type(config).__name__} has stages; blocks can be dropped from a ViT only"
    )
    assert isinstance(config, ViTConfig)
    gone = set(dropped)
    require(
        all(0 <= number < config.depth for number in gone),
        f"blocks {', '.join(map(str, sorted(gone)))} are not all among the model's 0 to {config.depth - 1}",
    )
    require(len(gone) < config.depth, f"all {config.depth} blocks would be dropped; leave one or more")
    require(
        not config.position.per_block,
        f"{type(config.position).__name__} belongs to blocks, which then change their numbers; drop none",
    )
    kept = [number for number in range(config.depth) if number not in gone]
    names = {f"blocks.{old}": f"blocks.{new}" for new, old in enumerate(kept)}
    tensors, changes = {}, []
    for name, tensor in checkpoint.tensors.items():
        part = ".".join(name.split(".")[:2])
        if not name.startswith("blocks."):
            tensors[name] = tensor
        elif part in names:
            tensors[names[part] + name[len(part) :]] = tensor
        else:
            changes.append(Change(name=name, status="unused", before=tuple(tensor.shape), after=None, note="dropped"))
    attention = config.attention
    if isinstance(attention, WindowedAttention):
        attention = attention.but(full=tuple(new for new, old in enumerate(kept) if old in attention.full))
    return checkpoint.but(config=config.but(depth=len(kept), attention=attention), tensors=tensors), tuple(changes)
