"""The plan of a run, written once: its inputs, shards, model and kind of vector.

plan.json            the plan
inputs-….parquet     every input; row group i holds the inputs of shard i

The first process writes it; others, at the same time or later, follow it or are refused.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.atomic import write_file
from vitrail.checkpoint.formats.directory import files_of
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.checkpoint.sources.hub import name_of
from vitrail.codec import from_plain, to_plain
from vitrail.config import Config
from vitrail.errors import VitrailError, require
from vitrail.rules import NonNegativeInt, PositiveInt
from vitrail.value import Value
from vitrail.vectors.job.inputs import Input, Inputs, find_inputs
from vitrail.vectors.job.options import Options

if TYPE_CHECKING:
    from vitrail.checkpoint.checkpoint import Checkpoint

__all__ = ["Plan", "freeze", "growth", "input_at", "read_plan", "read_shard", "weights_sha256", "weights_stamp"]

FILE = "plan.json"
LARGEST_SHARD, SMALLEST_SHARD, SHARDS_PER_WORKER = 1024, 16, 4


@dataclass(frozen=True, kw_only=True)
class Plan(Value):
    input: str
    images: NonNegativeInt
    repeated: NonNegativeInt
    unread: NonNegativeInt
    shard_size: PositiveInt
    inputs: str
    """Name of the file beside plan.json that lists the inputs."""
    ids_sha256: str
    weights: str
    weights_sha256: str
    config: Config
    preprocessing: Preprocessing
    options: Options

    @property
    def shards(self) -> int:
        return -(-self.images // self.shard_size)

    def rows(self, shard: int) -> int:
        return min(self.shard_size, self.images - shard * self.shard_size)

    @property
    def weights_name(self) -> str:
        """The model and commit on the Hugging Face Hub, or the file's name."""
        return name_of(Path(self.weights)) or Path(self.weights).name

    @cached_property
    def fingerprint(self) -> str:
        """Hash of everything that the output depends on; every part stores it."""
        return hashlib.sha256(json.dumps(to_plain(self), sort_keys=True).encode()).hexdigest()


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


# ── freezing ────────────────────────────────────────────────────────────────────────────────────────────────────


def freeze(
    folder: Path,
    source: Path,
    weights: Path,
    checkpoint: Checkpoint,
    options: Options,
    *,
    shard_size: int | None = None,
    workers: int = 1,
) -> Plan:
    """Return the folder's plan, making it if there is none; refuse a plan for something else."""
    require(shard_size is None or shard_size > 0, f"shard size {shard_size} is not positive; give 1 or more")
    options.check(checkpoint.config)
    asked = {
        "input": str(source.absolute()),
        "weights_sha256": weights_sha256(weights),
        "config": checkpoint.config,
        "preprocessing": checkpoint.preprocessing,
        "options": options,
    }
    if not (folder / FILE).exists():
        _check_empty(folder)
        inputs = find_inputs(source)
        size, each = _shard_size(inputs, shard_size, workers)
        name = f"inputs-{secrets.token_hex(4)}.parquet"
        images, digest = _write_inputs(folder / name, each, size)
        require(images > 0, f"{source} holds no images; give one that does")
        plan = Plan(
            images=images,
            repeated=inputs.repeated,
            unread=inputs.unread,
            shard_size=size,
            inputs=name,
            ids_sha256=digest,
            weights=str(weights.absolute()),
            **asked,
        )
        text = json.dumps(to_plain(plan), indent=2).encode() + b"\n"
        if write_file(folder / FILE, lambda file: file.write(text), replace=False):
            return plan
        (folder / name).unlink(missing_ok=True)  # a finished run may have removed it
    held = read_plan(folder)
    changed = list(_differences(held, asked))
    require(
        not changed,
        f"{folder} holds another run: {'; '.join(changed[:3])}; use the same options, or choose another --out",
    )
    return held


def _check_empty(folder: Path) -> None:
    try:
        # another process may write its plan at this moment, which is followed
        other = [path.name for path in folder.iterdir() if not path.name.startswith((".", "inputs-", FILE))]
    except FileNotFoundError:
        return
    except OSError as error:
        raise VitrailError(f"--out {folder} is not a folder to write to ({error.strerror}); choose another") from None
    require(not other, f"{folder} holds {', '.join(sorted(other)[:3])} and no plan; choose a new or empty --out")


def _shard_size(inputs: Inputs, asked: int | None, workers: int) -> tuple[int, Iterator[Input]]:
    """Choose a size that keeps files few but gives every worker several shards."""
    if asked is not None:
        return asked, iter(inputs)
    most = LARGEST_SHARD * SHARDS_PER_WORKER * workers
    first = list(islice(inputs, most))
    size = -(-len(first) // (SHARDS_PER_WORKER * workers))
    return max(SMALLEST_SHARD, min(LARGEST_SHARD, size)), chain(first, inputs)


def _write_inputs(path: Path, inputs: Iterator[Input], size: int) -> tuple[int, str]:
    import pyarrow as arrow
    from pyarrow import parquet

    schema = arrow.schema(
        [
            ("id", arrow.string()),
            ("place", arrow.string()),
            ("file", arrow.binary()),
            *((name, arrow.int64()) for name in ("start", "length", "size", "modified")),
        ]
    )
    count, digest = 0, hashlib.sha256()

    def write(file: Any) -> None:
        nonlocal count
        with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
            while batch := list(islice(inputs, size)):
                count += len(batch)
                digest.update(_ids(batch))
                columns = [
                    arrow.array(column, kind)
                    for column, kind in zip(zip(*batch, strict=True), schema.types, strict=True)
                ]
                writer.write_table(arrow.Table.from_arrays(columns, schema=schema), row_group_size=size)

    write_file(path, write)
    return count, digest.hexdigest()


def _ids(batch: list[Input]) -> bytes:
    return b"".join(each.id.encode() + b"\0" for each in batch)


# ── following ───────────────────────────────────────────────────────────────────────────────────────────────────


def read_plan(folder: Path) -> Plan:
    path = folder / FILE
    try:
        plain = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise VitrailError(f"{folder} holds no plan.json; give a folder that vitrail embed wrote") from None
    except (OSError, ValueError) as error:
        raise VitrailError(f"{path} cannot be read ({error}); choose another --out") from None
    return from_plain(plain, Plan, "plan")


def read_shard(folder: Path, plan: Plan, shard: int) -> list[Input]:
    """Return the inputs of one shard."""
    table = _opened(folder, plan).read_row_group(shard)
    columns = [table.column(name).to_pylist() for name in Input._fields]
    return [Input(*row) for row in zip(*columns, strict=True)]


def input_at(folder: Path, plan: Plan, number: int) -> Input:
    """Return one input by its number in the plan."""
    row = _opened(folder, plan).read_row_group(number // plan.shard_size).slice(number % plan.shard_size, 1)
    return Input(**row.to_pylist()[0])


def _opened(folder: Path, plan: Plan) -> Any:
    import pyarrow as arrow
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(folder / plan.inputs)
    except (OSError, arrow.ArrowException) as error:
        raise VitrailError(
            f"{folder / plan.inputs} cannot be read ({str(error)[:80]}), and the plan needs it; choose another --out"
        ) from None
    require(
        file.num_row_groups == plan.shards and file.metadata.num_rows == plan.images,
        f"{folder / plan.inputs} is not the file that the plan was made with; choose another --out",
    )
    return file


def growth(plan: Plan) -> str | None:
    """Say how the input has changed since the plan was made; None if it has not."""
    inputs = find_inputs(Path(plan.input))
    count, digest = 0, hashlib.sha256()
    while batch := list(islice(inputs, LARGEST_SHARD)):
        count += len(batch)
        digest.update(_ids(batch))
    if digest.hexdigest() == plan.ids_sha256:
        return None
    return (
        f"{plan.input} holds {count:,} images now and held others, {plan.images:,}, when the plan was made: the "
        "plan is followed; embed what is new into another --out"
    )


def _differences(held: Plan, asked: dict[str, Any]) -> Iterator[str]:
    for name, now in asked.items():
        before = getattr(held, name)
        if before == now:
            continue
        if name in ("preprocessing", "options"):
            for field in fields(now):
                was, wants = getattr(before, field.name), getattr(now, field.name)
                if was != wants:
                    yield f"{field.name.replace('_', ' ')} was {was}, now {wants}"
        elif name == "config":
            yield "the model's config differs"
        else:
            yield f"{name.replace('_', ' ')} was {str(before)[-64:]}, now {str(now)[-64:]}"
