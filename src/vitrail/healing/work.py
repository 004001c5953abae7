"""A healing's folder: what was decided and the weights that distillation starts from, beside the run itself.

plan.json            what is healed, by its fingerprint; the fits that were made; the number of steps
start.safetensors    the weights after the fits
the rest             the run (`vitrail.training.folder`), and best.safetensors
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.atomic import write_file, write_json_file
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.formats.safetensors import read_safetensors, write_safetensors
from vitrail.codec import from_plain, parse_json, to_plain
from vitrail.errors import VitrailError, require
from vitrail.rules import FiniteFloat, NonNegativeFloat, NonNegativeInt
from vitrail.value import Value

__all__ = ["Plan", "Step", "fingerprint", "read_plan", "write_plan"]

PLAN, START = "plan.json", "start.safetensors"


@dataclass(frozen=True, kw_only=True)
class Step(Value):
    """A step of healing, with the error after it on the images to choose by; it is kept if the error falls."""

    name: str
    error: FiniteFloat
    kept: bool


@dataclass(frozen=True, kw_only=True)
class Plan(Value):
    """What a healing decided before distillation."""

    fingerprint: str
    fits: tuple[Step, ...]
    steps: NonNegativeInt
    """Steps of distillation that the time allows."""
    seconds: NonNegativeFloat
    """Time that was spent until then."""


def fingerprint(before: Checkpoint, after: Checkpoint, images: Sequence[bytes], **options: Any) -> str:
    """Return a hash of everything that the result depends on."""
    found = hashlib.sha256(repr(sorted(options.items())).encode())
    for checkpoint in (before, after):
        found.update(repr((to_plain(checkpoint.config), to_plain(checkpoint.preprocessing))).encode())
        for name, tensor in sorted(checkpoint.tensors.items()):
            found.update(name.encode())
            found.update(tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy().data)
    for mark in images:
        found.update(mark)
    return found.hexdigest()


def write_plan(folder: Path, plan: Plan, start: Mapping[str, Tensor]) -> None:
    write_file(folder / START, lambda file: write_safetensors(file, start, {}))
    write_json_file(folder / PLAN, to_plain(plan))  # last: its existence says that the start is whole


def read_plan(folder: Path, wanted: str, after: Checkpoint) -> tuple[Plan, Checkpoint] | None:
    """Return the plan and the checkpoint that distillation starts from; None in a folder without a plan."""
    path = folder / PLAN
    if not path.is_file():
        held = [each.name for each in folder.iterdir() if not each.name.startswith(".")] if folder.is_dir() else []
        require(
            not held or set(held) <= {START},
            f"{folder} holds {', '.join(sorted(held)[:3])} and no healing; choose another folder",
        )
        return None
    text = path.read_text(encoding="utf-8")
    plan = from_plain(parse_json(text, str(path), "remove the folder and start again"), Plan, "plan")
    if plan.fingerprint != wanted:
        raise VitrailError(
            f"{folder} holds the healing of other weights, images or options; remove it, or choose another folder"
        )
    tensors, _ = read_safetensors(folder / START)
    return plan, after.but(tensors={name: tensors[name] for name in after.tensors})
