"""Adapt a checkpoint to another image, patch, prefix, pool, head or number of frames: → (checkpoint, changes).

The old and the new model are built on the meta device, and every tensor of the new one is made by its kind of module:
the grid of a table is the module's own, never the square root of a count. Unchanged tensors are the same objects.

Shapes: D width, C channels, P×Q patch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.dialects.evidence import FIXED_TABLE
from vitrail.checkpoint.header import Evidence
from vitrail.checkpoint.surgery.blocks import without_blocks
from vitrail.checkpoint.surgery.caveats import caveats
from vitrail.checkpoint.surgery.changes import Change, Changes, Resized, Status
from vitrail.checkpoint.surgery.projection import (
    Projection,
    change_channels,
    change_tubelet,
    projection_named,
    resize_projection,
)
from vitrail.checkpoint.surgery.resample import Method, method_of
from vitrail.checkpoint.surgery.tables import Carried, carry_position, prefix_rows
from vitrail.checkpoint.surgery.target import change_preprocessing, check_target, find_target
from vitrail.config import Config
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.nn.build import build
from vitrail.nn.patches import PatchEmbed, TubeletEmbed
from vitrail.nn.prefix import Prefix

__all__ = ["adapt"]

HEADS = ("head", "distillation_head")


def adapt(
    checkpoint: Checkpoint,
    target: Config | Mapping[str, Any],
    *,
    method: str | None = None,
    projection: str = "pinv",
    drop_blocks: Sequence[int] = (),
    seed: int = 0,
) -> tuple[Checkpoint, Changes]:
    """Adapt a checkpoint to another config, or to its own with some fields changed: `{"image": "384x640"}`.

    The changes list every tensor; `vitrail.assess` measures their effect.

    `{"frames": 16, "tubelet": 2}` makes a model of clips from one of still images, whose features it gives for frames
    that are all alike, and `{"frames": 1}` goes back.

    `method`, one of `METHODS` or "hf", resamples the positions (default: the checkpoint's own convention).
    `projection` resizes the patch projection. `drop_blocks` are numbers of blocks to leave out, counted from 0. A new
    head is zero (as in arXiv 2010.11929, section 3.2); new tokens are drawn from a normal distribution of standard
    deviation 0.02 with `seed`.

    >>> from vitrail import adapt, load
    >>> wide, changes = adapt(load("default"), {"image": "48x64"})
    >>> wide.config.grid, changes.resampled
    (Size(height=12, width=16), ('position.table',))
    """
    whole = checkpoint
    checkpoint, dropped = without_blocks(checkpoint, drop_blocks) if drop_blocks else (checkpoint, ())
    source = checkpoint.config
    named, how = None if method is None else method_of(method), projection_named(projection)
    target = find_target(source, target, method=named) if isinstance(target, Mapping) else target
    check_target(source, target)
    surgery = _Surgery(checkpoint, target, method=named, projection=how, seed=seed)
    tensors, changed = surgery.operate()
    notes = caveats(checkpoint, target, changed, method=named)
    if dropped:
        numbers = ", ".join(map(str, sorted(set(drop_blocks))))
        notes = (f"blocks {numbers} are dropped, and the blocks after them were trained on their output; heal", *notes)
    changes = Changes(source=whole.config, target=target, tensors=(*changed, *dropped), notes=notes)
    if target == source:
        return checkpoint, changes
    adapted = replace(
        checkpoint,
        config=target,
        tensors=tensors,
        preprocessing=change_preprocessing(checkpoint.preprocessing, target),
        evidence=_evidence(checkpoint.evidence, source, target),
        labels=checkpoint.labels if target.classes == source.classes else (),
        # a stored sinusoidal table belongs to the old grid, even if the new grid has the same number of rows
        extra={name: tensor for name, tensor in checkpoint.extra.items() if name != FIXED_TABLE},
    )
    return adapted, changes


def _evidence(before: Evidence, source: Config, target: Config) -> Evidence:
    old, new = source.position_grid, target.position_grid
    return replace(before, grid=f"adapted to {new} from {old}") if old != new else before


class _Surgery:
    """One adaptation: makes every tensor of the new model, and records the change."""

    def __init__(
        self, checkpoint: Checkpoint, target: Config, *, method: Method | None, projection: Projection, seed: int
    ) -> None:
        self.stored = checkpoint.tensors
        self.before = {name: _wide(tensor) for name, tensor in checkpoint.tensors.items()}
        self.method: Method | None = method
        self.projection: Projection = projection
        self.rows = (prefix_rows(checkpoint.config), prefix_rows(target))
        self.dtype = next(iter(self.stored.values())).dtype
        self.generator = torch.Generator().manual_seed(seed)
        with torch.device("meta"):
            old, new = build(checkpoint.config), build(target)
        self.old_modules, self.new_modules = dict(old.named_modules()), dict(new.named_modules())
        self.shapes = {name: tuple(tensor.shape) for name, tensor in new.state_dict().items()}

    def operate(self) -> tuple[dict[str, Tensor], tuple[Change, ...]]:
        tensors, changes = {}, []
        for name, shape in self.shapes.items():
            before = self.before.get(name)
            made = self._make(name, shape, before)
            status: Status = "missing" if made.fresh else "kept" if made.tensor is before else "resampled"
            old = None if before is None else tuple(before.shape)
            changes.append(
                Change(name=name, status=status, before=old, after=shape, note=made.note, resized=made.resized)
            )
            tensors[name] = self._as_stored(name, made.tensor)
        changes += [
            Change(name=name, status="unused", before=tuple(tensor.shape), after=None)
            for name, tensor in self.stored.items()
            if name not in tensors
        ]
        return tensors, tuple(changes)

    def _as_stored(self, name: str, tensor: Tensor) -> Tensor:
        """Return the stored tensor if it is unchanged; otherwise the new one in the weights' dtype."""
        if tensor is self.before.get(name):
            return self.stored[name]
        return tensor.to(self.stored[name].dtype if name in self.stored else self.dtype)

    def _make(self, name: str, shape: tuple[int, ...], tensor: Tensor | None) -> Carried:
        owner, _, leaf = name.rpartition(".")
        old, new = self.old_modules.get(owner), self.new_modules[owner]
        if tensor is None:
            return self._fresh(name, shape)
        if isinstance(new, Prefix):
            return self._prefix(leaf, tensor, shape)
        if carried := carry_position(leaf, tensor, old, new, rows=self.rows, method=self.method):
            return carried
        depths = _tubelet(old), _tubelet(new)
        if tuple(tensor.shape) == shape and (depths[0] == depths[1] or leaf == "bias"):
            return Carried(tensor)
        if isinstance(new, PatchEmbed | nn.Conv2d) and tensor.ndim == 4:
            return self._convolution(tensor, shape, depths)
        if owner in HEADS:
            return self._fresh(name, shape, f"{tensor.shape[0]} classes become {shape[0]}; ")
        raise VitrailError(
            f"{name} has shape {tuple(tensor.shape)} and the target needs {shape}; "
            "adapt changes image, patch, frames, channels, prefix, pool, classes and convention"
        )

    def _prefix(self, leaf: str, tokens: Tensor, shape: tuple[int, ...]) -> Carried:
        """(1, tokens, D): keep tokens and append new ones; add a position row that is removed to its token."""
        count = min(tokens.shape[1], shape[1])
        kept, notes = tokens[:, :count], []
        names = [f"registers.{index}" for index in range(count)] if leaf == "registers" else [leaf]
        orphans = [token in self.rows[0] and token not in self.rows[1] for token in names]
        if any(orphans):
            table = self.before["position.table"]
            kept = kept.clone()
            for index in (index for index, orphan in enumerate(orphans) if orphan):
                kept[:, index] += table[self.rows[0].index(names[index])]
            notes.append("its position row is added to it")
        if tokens.shape[1] != shape[1]:
            kept = torch.cat([kept, self._draw((1, shape[1] - count, shape[2])).to(kept)], dim=1)
            notes.append(f"{tokens.shape[1]} tokens become {shape[1]}")
        return Carried(kept if notes else tokens, "; ".join(notes))

    def _convolution(self, weight: Tensor, shape: tuple[int, ...], depths: tuple[int, int]) -> Carried:
        """(D, t·C, P, Q): change the channels, the depth in frames, then the patch size."""
        old, new = Size(*weight.shape[2:]), Size(*shape[2:])
        channels = weight.shape[1] // depths[0], shape[1] // depths[1]
        result, notes, resized = weight, [], None
        if channels[0] != channels[1]:
            result = change_channels(result.reshape(-1, channels[0], *old), channels[1])
            result = result.reshape(weight.shape[0], -1, *old)
            notes.append(f"channels {channels[0]} → {channels[1]}")
        if depths[0] != depths[1]:
            result = change_tubelet(result.unflatten(1, (depths[0], -1)), depths[1]).flatten(1, 2)
            notes.append(f"tubelet of {depths[0]} → {depths[1]} frames")
        if old != new:
            result = resize_projection(result, new, how=self.projection)
            resized = Resized(what="patch", old=old, new=new, by=self.projection)
            notes.append(f"patch {old} → {new} by {self.projection}")
        return Carried(result, "; ".join(notes), resized)

    def _fresh(self, name: str, shape: tuple[int, ...], why: str = "") -> Carried:
        """Make a new tensor: zeros for heads and biases, ones for norm scales, a small normal otherwise."""
        owner, _, leaf = name.rpartition(".")
        if owner in HEADS or leaf == "bias":
            result, how = torch.zeros(shape), "zero"
        elif isinstance(self.new_modules[owner], nn.LayerNorm | nn.RMSNorm):
            result, how = torch.ones(shape), "one"
        else:
            result, how = self._draw(shape), "normal of deviation 0.02"
        return Carried(result, f"{why}{how}", fresh=True)

    def _draw(self, shape: tuple[int, ...]) -> Tensor:
        return nn.init.trunc_normal_(torch.empty(shape), std=0.02, a=-0.04, b=0.04, generator=self.generator)


def _tubelet(module: nn.Module | None) -> int:
    return module.tubelet if isinstance(module, TubeletEmbed) else 1


def _wide(tensor: Tensor) -> Tensor:
    """Convert float8, in which torch cannot compute, to float32."""
    return tensor.float() if tensor.is_floating_point() and tensor.itemsize == 1 else tensor
