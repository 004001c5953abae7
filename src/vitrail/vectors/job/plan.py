"""The plan of a run: its inputs, shards, model and kind of vector.

plan.json                   the plan
inputs-…-00000.parquet      every input, to be read shard by shard (`vitrail.vectors.job.listing`)

When inputs were added or changed, the same command writes the next generation, plan-00001.json, and so on; the newest
holds. A generation is created by one process only, and never changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.checkpoint.formats.directory import files_of
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.checkpoint.sources.hub import name_of
from vitrail.codec import from_plain, to_plain
from vitrail.config import Config
from vitrail.errors import VitrailError, require
from vitrail.remote import Location, Remote
from vitrail.rules import NonNegativeInt, PositiveInt
from vitrail.value import Value
from vitrail.vectors.job.inputs import Input
from vitrail.vectors.job.listing import STAMP_DIGITS, Listing, read_inputs
from vitrail.vectors.job.options import Options

__all__ = [
    "MANIFEST",
    "SUCCESS",
    "Plan",
    "find_generation",
    "generation_of",
    "input_at",
    "is_superseded",
    "names_in",
    "plan_path",
    "read_plan",
    "read_shard",
    "weights_sha256",
    "weights_stamp",
]

MANIFEST, SUCCESS = "manifest.json", "_SUCCESS"
NAME = re.compile(r"plan(?:-(\d+))?\.json")


@dataclass(frozen=True, kw_only=True)
class Plan(Value):
    input: str
    images: NonNegativeInt
    repeated: NonNegativeInt
    unread: NonNegativeInt
    unasked: NonNegativeInt
    shard_size: PositiveInt
    inputs: str
    """Beginning of the names of the files that list the inputs."""
    shard_rows: str
    """Number of inputs of every shard, equal neighbours as 1024*976,512."""
    shard_stamps: str
    """A stamp of 16 hexadecimal digits for every shard."""
    generation: NonNegativeInt
    weights: str
    weights_sha256: str
    config: Config
    preprocessing: Preprocessing
    options: Options

    @staticmethod
    def shards_of(listing: Listing) -> dict[str, Any]:
        """Return the fields that describe the shards."""
        runs = ((rows, len(list(run))) for rows, run in groupby(listing.rows))
        return {
            "images": sum(listing.rows),
            "shard_rows": ",".join(str(rows) if times == 1 else f"{rows}*{times}" for rows, times in runs),
            "shard_stamps": "".join(listing.stamps),
        }

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        """The number of inputs up to the end of each shard."""
        runs = [each.partition("*") for each in self.shard_rows.split(",") if each]
        return np.cumsum(np.repeat([int(rows) for rows, _, _ in runs], [int(times or 1) for _, _, times in runs]))

    @property
    def shards(self) -> int:
        return len(self.shard_stamps) // STAMP_DIGITS

    def rows(self, shard: int) -> int:
        return int(self._ends[shard] - (self._ends[shard - 1] if shard else 0))

    def stamp(self, shard: int) -> str:
        """Return what tells whether a part was made of the shard's inputs."""
        return self.shard_stamps[shard * STAMP_DIGITS : (shard + 1) * STAMP_DIGITS]

    def find(self, number: int) -> tuple[int, int]:
        """Return the shard of an input and its row there."""
        shard = int(np.searchsorted(self._ends, number, side="right"))
        return shard, number - int(self._ends[shard]) + self.rows(shard)

    @property
    def weights_name(self) -> str:
        """The model and commit on the Hugging Face Hub, or the file's name."""
        return name_of(Path(self.weights)) or Path(self.weights).name

    @cached_property
    def kind(self) -> str:
        """Hash of what a vector depends on besides its image; every part stores it."""
        parts = {name: to_plain(getattr(self, name)) for name in ("config", "preprocessing", "options")}
        return _sha256(parts | {"weights": self.weights_sha256})

    @cached_property
    def fingerprint(self) -> str:
        """Hash of everything that the output depends on."""
        return _sha256(to_plain(self))


def _sha256(plain: Any) -> str:
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


def weights_sha256(path: Path) -> str:
    """Hash a file, or the files that are read of a directory."""
    if path.is_file():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    require(path.is_dir(), f"weights {path} do not exist; give a file or a directory that vitrail reads")
    each = {file.name: weights_sha256(file) for file in files_of(path)}
    return hashlib.sha256(json.dumps(each).encode()).hexdigest()


def weights_stamp(path: Path) -> str:
    """Return the files' sizes and times, which workers of a run compare instead of hashing the weights again."""
    stats = [file.stat() for file in files_of(path) if file.exists()]
    return ";".join(f"{each.st_ino},{each.st_size},{each.st_mtime_ns},{each.st_ctime_ns}" for each in stats)


# ── generations ─────────────────────────────────────────────────────────────────────────────────────────────────


def plan_path(folder: Location, generation: int) -> Location:
    return folder / (f"plan-{generation:05d}.json" if generation else "plan.json")


def names_in(folder: Location, prefix: str = "") -> list[str]:
    """List the names in an output folder that begin with a prefix; none if there is no such folder."""
    if isinstance(folder, Remote):
        return folder.names(prefix)
    try:
        return [name for name in os.listdir(folder) if name.startswith(prefix)]
    except FileNotFoundError:
        return []


def find_generation(folder: Location) -> int | None:
    """Return the newest generation of a folder's plan; None if it has no plan."""
    try:
        found = [generation_of(name) for name in names_in(folder, "plan")]
    except OSError:  # what is no folder has no plan
        return None
    return max((each for each in found if each is not None), default=None)


def generation_of(name: str) -> int | None:
    """Return the generation of a plan's file by its name; None if it is another file."""
    match = NAME.fullmatch(name)
    return None if match is None else int(match[1] or 0)


def is_superseded(folder: Location, plan: Plan) -> bool:
    """Whether another run has written the next generation."""
    return plan_path(folder, plan.generation + 1).exists()


def read_plan(folder: Location, generation: int | None = None) -> Plan:
    """Read a generation of a folder's plan, by default the newest."""
    generation = find_generation(folder) if generation is None else generation
    if generation is None:
        raise VitrailError(f"{folder} holds no plan.json; give a folder that vitrail embed wrote")
    path = plan_path(folder, generation)
    try:
        plain = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        if isinstance(error, VitrailError):
            raise
        raise VitrailError(f"{path} cannot be read ({error}); choose another --out") from None
    return from_plain(plain, Plan, "plan")


def read_shard(folder: Location, plan: Plan, shard: int) -> list[Input]:
    """Return the inputs of one shard."""
    inputs = read_inputs(folder, plan.inputs, shard)
    require(
        len(inputs) == plan.rows(shard),
        f"{folder / plan.inputs} is not the list that the plan was made with; choose another --out",
    )
    return inputs


def input_at(folder: Location, plan: Plan, number: int) -> Input:
    """Return one input by its number in the plan."""
    shard, row = plan.find(number)
    return read_shard(folder, plan, shard)[row]
