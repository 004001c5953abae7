"""Saved states of a run: weights, their moving average, the optimizers' moments and the step.

Randomness is a function of the step (`vitrail.training.random`), so that only the step is saved. A state is a
directory, written to a temporary name with a manifest of SHA-256 sums, flushed and renamed; the two newest are kept,
and a damaged one is skipped for the one before.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from vitrail.atomic import flush
from vitrail.checkpoint.formats.safetensors import read_safetensors, write_safetensors
from vitrail.errors import VitrailError, require
from vitrail.training.distributed import read_shards, save_shards

__all__ = ["KEPT", "Trained", "newest_state", "read_state", "save_state", "states", "sweep"]

KEPT = 2
FILE = "state.safetensors"
MANIFEST = "manifest.json"


@dataclass
class Trained:
    """Everything that a step changes."""

    objective: nn.Module
    optimizers: tuple[torch.optim.Optimizer, ...]
    """Their state has all its tensors from the start, so that a saved state can be read into them."""
    mean: dict[str, Tensor] | None
    """Moving average of the trained weights by name; None if the recipe has none."""

    def parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield name and tensor of what is trained; frozen weights are left out."""
        return ((name, each) for name, each in self.objective.named_parameters() if each.requires_grad)

    def groups(self) -> Iterator[dict[str, Any]]:
        """Yield the optimizers' parameter groups."""
        return chain(*(optimizer.param_groups for optimizer in self.optimizers))

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors by name, without copying them."""
        found = {f"weights.{name}": tensor for name, tensor in self.objective.state_dict().items()}
        found |= {f"mean.{name}": tensor for name, tensor in (self.mean or {}).items()}
        for name, parameter in self.objective.named_parameters():
            for optimizer in self.optimizers:
                of = type(optimizer).__name__.lower()
                found |= {f"{of}.{key}.{name}": held for key, held in optimizer.state.get(parameter, {}).items()}
        return found

    @torch.no_grad()
    def restore(self, held: Mapping[str, Tensor], name: str) -> None:
        own = self.tensors()
        odd = sorted(own.keys() ^ held.keys())
        require(not odd, f"{name} does not fit this run ({', '.join(odd[:3])}); it is another run's state")
        for key, tensor in own.items():
            tensor.copy_(held[key])


# ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────


def save_state(folder: Path, step: int, trained: Trained, *, rank: int = 0) -> Path:
    """Save the state after `step` steps; with FSDP every process writes its own part, and all must call it."""
    tensors = trained.tensors()
    sharded = any(isinstance(tensor, DTensor) for tensor in tensors.values())
    final, temporary = folder / f"step-{step:08d}", folder / f".tmp-{step:08d}"
    try:
        if rank == 0:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
        if sharded:
            save_shards(tensors, temporary)
        elif rank == 0:
            with (temporary / FILE).open("wb") as file:
                write_safetensors(file, tensors, {"step": str(step)})
        if rank == 0:
            _finish(temporary, final, step)
            for old in states(folder)[KEPT:]:
                shutil.rmtree(old)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        kept = states(folder)
        last = f"the last good state is {kept[0]}" if kept else "there is no earlier state"
        raise VitrailError(
            f"the state of step {step} was not saved in {folder} ({error.strerror or error}); "
            f"{last}: make room and resume"
        ) from None
    return final


def _finish(temporary: Path, final: Path, step: int) -> None:
    """Flush the files, write the manifest, and rename the directory."""
    files = sorted(path for path in temporary.iterdir() if path.is_file())
    sums = {path.name: _flushed_sum(path) for path in files}
    manifest = temporary / MANIFEST
    manifest.write_text(json.dumps({"step": step, "sha256": sums}, indent=2))
    for path in (manifest, temporary):
        flush(path)
    if final.exists():
        shutil.rmtree(final)
    temporary.rename(final)
    flush(final.parent)


def _flushed_sum(path: Path) -> str:
    flush(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────


def states(folder: Path) -> list[Path]:
    """Return the saved states, newest first."""
    return sorted((path for path in folder.glob("step-*") if path.is_dir()), reverse=True)


def sweep(folder: Path) -> None:
    """Remove temporary files of killed processes."""
    for path in folder.glob(".tmp-*"):
        shutil.rmtree(path, ignore_errors=True)


def newest_state(folder: Path) -> tuple[int, Path, list[str]]:
    """Return (step, directory, messages about skipped states) of the newest intact state."""
    passed: list[str] = []
    for path in states(folder):
        fault = _fault(path)
        if fault is None:
            return int(path.name.removeprefix("step-")), path, passed
        passed.append(f"{path} is damaged ({fault})")
    detail = f"; {'; '.join(passed)}" if passed else ""
    raise VitrailError(f"{folder.parent} has no state to resume from{detail}; start it again with another --out")


def read_state(path: Path, trained: Trained) -> None:
    """Read a state that `newest_state` returned."""
    if (path / FILE).is_file():
        held, _ = read_safetensors(path / FILE)
        trained.restore(held, str(path))
    else:
        read_shards(trained.tensors(), path)


def _fault(path: Path) -> str | None:
    """Return how the state differs from its manifest; None if it is intact."""
    try:
        sums = json.loads((path / MANIFEST).read_bytes())["sha256"]
        for name, told in sums.items():
            with (path / name).open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != told:
                    return f"{name} is not what was written"
    except OSError as error:
        return f"{Path(error.filename).name} is missing" if error.filename else str(error)
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} is not readable"
    return None
