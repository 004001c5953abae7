"""A checkpoint → files of any dialect that can say it; otherwise the reason why not.

A dialect writes only what it would read back: the names are turned round by the same table, read again, and the
config that comes out must be the one that went in.
"""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.dialects.dialect import Dialect, Family, Written, sizes_of
from vitrail.checkpoint.dialects.registry import dialect_named
from vitrail.checkpoint.dialects.table import read_rows, write_rows
from vitrail.checkpoint.evidence import FIXED_TABLE
from vitrail.checkpoint.file import Stored, write_json_file, write_tensors
from vitrail.checkpoint.labels import LABELS_KEY
from vitrail.checkpoint.read import CONFIG_KEY, PREPROCESSING_KEY
from vitrail.checkpoint.rewrite import fixed_table, rewrites
from vitrail.codec import to_plain
from vitrail.config import Config, PyramidConfig, ViTConfig
from vitrail.errors import VitrailError, require
from vitrail.geometry import windows_divide
from vitrail.parts import AttentionPool, ClsPool, Learned, MeanPool, Mlp, RelativeBias, SinCos2d

__all__ = ["Encoded", "encode", "save"]


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """A checkpoint in a dialect's words."""

    dialect: str
    family: str
    config: Config
    tensors: dict[str, Tensor]
    written: Written
    dropped: tuple[str, ...]
    """Tensors of the source that this dialect has no place for."""
    notes: tuple[str, ...]
    """What was changed to say it, and what its reader should know."""


def save(checkpoint: Checkpoint, path: str | Path, dialect: str | None = None) -> Encoded:
    """Write a checkpoint in a dialect, by default its own: a file by its name's ending, or a directory.

    Whatever stops it, what was at `path` before stays; a directory is never written over.
    """
    path, named = Path(path), dialect_named(dialect or checkpoint.dialect)
    encoded = encode(checkpoint, named.name)
    metadata = {
        "format": "pt",
        CONFIG_KEY: json.dumps(to_plain(encoded.config)),
        PREPROCESSING_KEY: json.dumps(to_plain(checkpoint.preprocessing)),
    }
    if checkpoint.labels:
        metadata[LABELS_KEY] = json.dumps(checkpoint.labels)
    if not path.suffix and (named.directory or encoded.written.config):
        _write_directory(path, encoded, metadata)
    else:
        _check_file(path, named)
        write_tensors(path, encoded.tensors, metadata)
    return encoded


def _check_file(path: Path, dialect: Dialect) -> None:
    require(
        not dialect.directory,
        f"{dialect.name} is a directory with a config beside the weights; give a name without an ending, not {path}",
    )
    require(
        not dialect.tells_all or path.suffix == ".safetensors",
        f"{path} has no room for the config that vitrail's own files carry; give {path.with_suffix('.safetensors')}",
    )
    require(bool(path.suffix), f"{path} has no ending to say the format; give {path}{dialect.suffix}")


def _write_directory(path: Path, encoded: Encoded, metadata: dict[str, str]) -> None:
    """All files under a temporary name first, so that the directory appears whole or not at all."""
    require(not path.exists(), f"{path} is there already, and a directory is not written over; choose another name")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        write_tensors(temporary / "model.safetensors", encoded.tensors, metadata)
        write_json_file(temporary / "config.json", encoded.written.config)
        if encoded.written.processor:
            write_json_file(temporary / "preprocessor_config.json", encoded.written.processor)
        os.rename(temporary, path)
    except OSError as error:
        raise VitrailError(f"{path} was not written ({error.strerror or error}); choose another place") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def encode(checkpoint: Checkpoint, dialect: str) -> Encoded:
    """The checkpoint in a dialect's names, or in those of an equivalent model that the dialect has."""
    named = dialect_named(dialect)
    families = sorted(named.families, key=lambda family: family.name != checkpoint.family)
    reasons: list[tuple[int, str]] = []
    for candidate, done in rewrites(checkpoint):
        for family in families:
            found = _try(candidate, named, family)
            if isinstance(found, Encoded):
                return dataclasses.replace(found, notes=(*done, *found.notes))
            reasons.append((*found[:1], f"{family.name}: {found[1]}"))
    _, reason = min(reasons, key=lambda each: each[0])
    raise VitrailError(f"{dialect} cannot say this model ({reason}); write it as vitrail's own, or adapt it first")


def _try(checkpoint: Checkpoint, dialect: Dialect, family: Family) -> Encoded | tuple[int, str]:
    """The encoded checkpoint, or how far it was from fitting, and why."""
    config = checkpoint.config
    home = (checkpoint.dialect, checkpoint.family) == (dialect.name, family.name)
    kept = {name: tensor for name, tensor in checkpoint.extra.items() if name.startswith("+")}
    stores_sines = any(row.ours == (FIXED_TABLE,) for row in family.rows)
    if stores_sines and isinstance(config, ViTConfig) and isinstance(config.position, SinCos2d):
        table = fixed_table(config, config.position)
        if FIXED_TABLE not in kept or kept[FIXED_TABLE].shape != table.shape:
            kept[FIXED_TABLE] = table
    theirs, left = write_rows(family.rows, checkpoint.tensors, kept, "", sizes_of(config), config)
    if left:
        return len(left), f"it has no place for {', '.join(left[:3])}{' …' if len(left) > 3 else ''}"
    missing = [name for name in family.needs if name not in checkpoint.tensors and name not in kept]
    if missing:
        return len(missing), f"it always has {', '.join(missing)}"
    reason = family.refuse(config)
    if reason is not None:
        return 0, reason
    written = family.write(checkpoint, theirs)
    prefix = written.prefix if written.prefix is not None else checkpoint.name_prefix if home else ""
    tensors, _ = write_rows(family.rows, checkpoint.tensors, kept, prefix, sizes_of(config), config)
    reason = None if dialect.tells_all else _difference(config, family, tensors, prefix, written)
    if reason is not None:
        return 0, reason
    constants = {prefix + name: tensor for name, tensor in family.constants(config).items()}
    rest = {name: tensor for name, tensor in checkpoint.extra.items() if not name.startswith("+")}
    return Encoded(
        dialect=dialect.name,
        family=family.name,
        config=config,
        tensors={**constants, **(rest if home else {}), **tensors},
        written=written,
        dropped=() if home else tuple(rest),
        notes=written.notes,
    )


def _difference(
    config: Config, family: Family, tensors: dict[str, Tensor], prefix: str, written: Written
) -> str | None:
    """What would be another model when read back, in words; None where nothing would."""
    stored = Stored(path=Path("the result"), format="memory", tensors=tensors, config=written.config)
    heads = config.num_heads if isinstance(config, ViTConfig) else None
    try:
        again, _ = read_rows(family.rows, tensors, prefix, sizes_of(config))
        found, _ = family.settle(again, family.known(stored, prefix), from_image=config.image, num_heads=heads)
    except VitrailError as error:
        return str(error)
    ours, theirs = _essence(config), _essence(found)
    different = [name for name in ours if name not in family.loose and theirs.get(name) != ours[name]]
    return ", ".join(f"its {name} is {theirs.get(name)!r}, this model's {ours[name]!r}" for name in different) or None


def _essence(config: Config) -> dict[str, Any]:
    """What makes two configs one function: without training's fields, first values, and conventions of resizing."""
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    for name in ("dropout", "attention_dropout", "drop_path", "remainder"):
        fields.pop(name, None)
    if isinstance(config, PyramidConfig) and all(windows_divide(grid, config.window) for grid in config.grids):
        fields.pop("window_padding")  # there is none
    if not isinstance(config, ViTConfig):
        return fields
    fields["activation"] = config.mlp.activation if isinstance(config.mlp, Mlp) else "silu"
    fields["mlp"] = (type(config.mlp).__name__, config.mlp.width)
    fields["attention"] = type(config.attention).__name__
    fields["layer_scale"] = config.layer_scale is not None
    if isinstance(config.position, Learned):
        prefix = config.prefix
        rows = {"all": prefix.count, "cls": int(prefix.cls), "none": 0}[config.position.prefix]
        fields["position"] = f"a learned table with {rows} prefix rows"
    if isinstance(config.position, RelativeBias):
        fields["position"] = ("RelativeBias", config.position.shared, config.position.prefix)
    if isinstance(config.pool, AttentionPool):
        seen = config.pool.prefix and config.prefix.count > 0
        fields["pool"] = ("AttentionPool", config.pool.num_heads, config.pool.mlp_width, seen)
    if config.classes == 0:
        fields.pop("head_bias")
        if config.final_norm == "tokens" and isinstance(config.pool, ClsPool | MeanPool):
            fields["pool"] = "the reader's choice"  # a model without a head gives tokens
    return fields
