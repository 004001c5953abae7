"""Write a checkpoint in any dialect that can represent it, or say why it cannot.

A dialect writes only what it reads back: names are mapped by the same table, read again, and the config must be equal.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.atomic import flush, temporary_folder, write_json_file
from vitrail.charts.notebook import Brief
from vitrail.checkpoint.assess.describe import few, pixels_in_words
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.dialects.dialect import Dialect, Family, Written, sizes_of, without
from vitrail.checkpoint.dialects.evidence import FIXED_TABLE
from vitrail.checkpoint.dialects.registry import dialect_named
from vitrail.checkpoint.dialects.rewrite import fixed_table, rewrites
from vitrail.checkpoint.dialects.table import MASK_TOKEN, Row, always, read_rows, write_rows
from vitrail.checkpoint.formats.file import Stored, write_tensors
from vitrail.checkpoint.header import CONFIG_KEY, PREPROCESSING_KEY
from vitrail.checkpoint.labels import LABELS_KEY, read_labels
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.checkpoint.read import recognise
from vitrail.codec import to_plain
from vitrail.config import Config, MobileConfig, PyramidConfig, ViTConfig, padded_grids
from vitrail.errors import VitrailError, require
from vitrail.parts import AttentionPool, ClsPool, Learned, MeanPool, Mlp, RelativeBias, SinCos2d, WindowedAttention

__all__ = ["Encoded", "encode", "save"]

OTHER_INPUT = 10_000
"""The misfit of a family whose models take clips where this one takes images, or the reverse: the last to be named."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Encoded(Brief):
    """A checkpoint in a dialect's names."""

    dialect: str
    family: str
    config: Config
    tensors: dict[str, Tensor]
    written: Written
    carried: tuple[str, ...]
    """Tensors that the model does not use, written as they were."""
    dropped: tuple[str, ...]
    """Tensors of the source that this dialect cannot store."""
    notes: tuple[str, ...]
    """What was changed or left out, and other notes for the user."""


def save(checkpoint: Checkpoint, path: str | Path, dialect: str | None = None) -> Encoded:
    """Write a checkpoint in a dialect (default: its own): a file, whose suffix sets the format, or a directory.

    A file is replaced atomically; an existing directory is refused.

    >>> from vitrail import load, save
    >>> written = save(load("default"), "bundled.safetensors", dialect="timm")
    >>> load("bundled.safetensors").dialect
    'timm'
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
    directory = not path.suffix and (named.directory or bool(encoded.written.config))
    if directory:
        _write_directory(path, encoded, metadata)
    else:
        _check_file(path, named)
        write_tensors(path, encoded.tensors, metadata)
    beside = encoded.written if directory else Written()
    stored = Stored(
        path=path,
        format="memory",
        tensors=encoded.tensors,
        metadata=metadata if directory or path.suffix == ".safetensors" else {},
        config=beside.config,
        processor=beside.processor,
    )
    return dataclasses.replace(encoded, notes=(*encoded.notes, *_unsaid_by(stored, checkpoint, encoded, named)))


def _unsaid_by(stored: Stored, checkpoint: Checkpoint, encoded: Encoded, dialect: Dialect) -> Iterator[str]:
    """Yield notes on what a reader of the files would not know."""
    if dialect.tells_all:
        return
    family = dialect.family(encoded.family)
    assert family is not None
    if encoded.written.config and not stored.config:
        folder = stored.path.with_suffix("")
        yield f"without its config, which a single file cannot store; give {folder} to write both"
    elif _pixels(checkpoint.preprocessing) != _pixels(dialect.preprocessing(stored, family, encoded.config.image)):
        ours = pixels_in_words(checkpoint.preprocessing)
        yield f"{dialect.name}'s reader would not prepare pixels as the model expects: {ours}"
    if checkpoint.labels and read_labels(stored, encoded.config.classes) != checkpoint.labels:
        yield f"the names of its {len(checkpoint.labels)} classes have no place in {stored.path.name}"


def _pixels(steps: Preprocessing) -> tuple[Any, ...]:
    return steps.mean, steps.std, steps.interpolation, steps.resize, steps.resize_to


def _check_file(path: Path, dialect: Dialect) -> None:
    require(
        not dialect.directory,
        f"{dialect.name} is a directory with a config beside the weights; give a name without a suffix, not {path}",
    )
    require(
        not dialect.tells_all or path.suffix == ".safetensors",
        f"{path} cannot store the config, which vitrail's own files have; give {path.with_suffix('.safetensors')}",
    )
    require(bool(path.suffix), f"{path} has no suffix, which sets the format; give {path}{dialect.suffix}")


def _write_directory(path: Path, encoded: Encoded, metadata: dict[str, str]) -> None:
    """Write all files to a temporary directory, then rename it, so that it appears atomically."""
    require(not os.path.lexists(path), f"{path} exists, and a directory is not overwritten; choose another name")
    try:
        with temporary_folder(path) as temporary:
            prefix = "open_clip_" if encoded.dialect == "openclip" else ""  # the file names that each library expects
            write_tensors(temporary / f"{prefix}model.safetensors", encoded.tensors, metadata)
            write_json_file(temporary / f"{prefix}config.json", encoded.written.config)
            if encoded.written.processor:
                write_json_file(temporary / "preprocessor_config.json", encoded.written.processor)
            temporary.rename(path)
            flush(path.parent)
    except OSError as error:
        raise VitrailError(f"{path} was not written ({error.strerror or error}); choose another place") from None


def encode(checkpoint: Checkpoint, dialect: str) -> Encoded:
    """Encode the checkpoint in a dialect's names, rewriting it to an equivalent model if the dialect needs that."""
    named = dialect_named(dialect)
    families = sorted(named.families, key=lambda family: family.name != checkpoint.family)
    reasons: list[tuple[int, str]] = []
    for candidate, done in rewrites(checkpoint):
        for family in families:
            found = _try(candidate, named, family)
            if isinstance(found, Encoded):
                return _with_rest(found, checkpoint, named, family, done)
            reasons.append((*found[:1], f"{family.name}: {found[1]}"))
    _, reason = min(reasons, key=lambda each: each[0])
    raise VitrailError(
        f"{dialect} cannot represent this model ({reason}); write it in vitrail's own names (--to vitrail), "
        "or adapt it first"
    )


def _with_rest(
    encoded: Encoded, checkpoint: Checkpoint, dialect: Dialect, family: Family, done: tuple[str, ...]
) -> Encoded:
    """Add tensors that the model does not use if the dialect is their own; otherwise note that they are dropped."""
    rest = _rest(checkpoint)
    if (checkpoint.dialect, checkpoint.family) == (dialect.name, family.name):
        carried, dropped = rest, []
    else:
        carried, dropped = {}, [name for name in rest if not _is_computed(name, checkpoint)]
        mask = checkpoint.extra.get(MASK_TOKEN)  # zeros unless it was trained
        if mask is not None and mask.any() and not _has_place(MASK_TOKEN, checkpoint, family):
            dropped.append(MASK_TOKEN[1:])
    without = (f"without {few(dropped)}, which {dialect.name} has no place for",) if dropped else ()
    return dataclasses.replace(
        encoded,
        tensors={**encoded.tensors, **carried},
        carried=tuple(name for name in carried if not _is_computed(name, checkpoint)),
        dropped=tuple(dropped),
        notes=(*done, *encoded.notes, *without),
    )


def _rest(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Return the unused tensors, which have the dialect's own names."""
    return {name: tensor for name, tensor in checkpoint.extra.items() if not name.startswith("+")}


def _has_place(name: str, checkpoint: Checkpoint, family: Family) -> bool:
    kept, config = {name: checkpoint.extra[name]}, checkpoint.config
    return bool(write_rows(family.rows, {}, kept, "", sizes_of(config), config)[0])


def _is_computed(name: str, checkpoint: Checkpoint) -> bool:
    """Whether a tensor follows from the config, such as a mask or rotary periods."""
    family = dialect_named(checkpoint.dialect).family(checkpoint.family)
    known = family.constants(checkpoint.config) if family is not None else {}
    constant, tensor = known.get(name.removeprefix(checkpoint.name_prefix)), checkpoint.extra[name]
    return constant is not None and constant.shape == tensor.shape and torch.equal(constant.to(tensor), tensor)


def _try(checkpoint: Checkpoint, dialect: Dialect, family: Family) -> Encoded | tuple[int, str]:
    """Return the encoded checkpoint, or a misfit score and its reason."""
    config = checkpoint.config
    if not dialect.tells_all and family.clips != (config.frames > 1):
        return (
            OTHER_INPUT,
            "its models take clips" if family.clips else "its models take still images, and this one clips",
        )
    home = (checkpoint.dialect, checkpoint.family) == (dialect.name, family.name)
    rows = tuple(_at_home(row) for row in family.rows) if home else family.rows
    kept = {name: tensor for name, tensor in checkpoint.extra.items() if name.startswith("+")}
    stores_sines = any(row.ours == (FIXED_TABLE,) for row in family.rows)
    if stores_sines and isinstance(config, ViTConfig) and isinstance(config.position, SinCos2d):
        table = fixed_table(config, config.position)
        if FIXED_TABLE not in kept or kept[FIXED_TABLE].shape != table.shape:
            kept[FIXED_TABLE] = table
    theirs, left = write_rows(rows, checkpoint.tensors, kept, "", sizes_of(config), config)
    if left:
        return len(left), f"it has no place for {few(left, 3)}"
    missing = [name for name in family.needs if name not in checkpoint.tensors and name not in kept]
    if missing:
        return len(missing), f"it always has {', '.join(missing)}, and this model does not"
    unknown = [why for name, why in without(config).items() if name not in family.lacks and not dialect.tells_all]
    reason = unknown[0] if unknown else family.refuse(config)
    if reason is not None:
        return 0, reason
    written = family.write(checkpoint if home else checkpoint.but(origin={}), theirs)
    prefix = written.prefix if written.prefix is not None else checkpoint.name_prefix if home else ""
    tensors, _ = write_rows(rows, checkpoint.tensors, kept, prefix, sizes_of(config), config)
    notes = written.notes
    if not dialect.tells_all:
        found = _read_back(config, family, tensors, prefix, written)
        if isinstance(found, str):
            return 0, found
        reason = _difference(config, found, family.loose)
        if reason is not None:
            return 0, reason
        notes = (*notes, *_unsaid(config, found, dialect.name, family.loose if not notes else frozenset()))
    tensors = {**{prefix + name: tensor for name, tensor in family.constants(config).items()}, **tensors}
    mistaken = _mistaken_for(dialect, family, {**tensors, **(_rest(checkpoint) if home else {})}, written)
    if mistaken == dialect.name:
        return 0, "it would be read as another of its families"
    if mistaken is not None:
        notes = (*notes, f"these names are also {mistaken}'s, and vitrail reads them as {mistaken}'s")
    return Encoded(
        dialect=dialect.name,
        family=family.name,
        config=config,
        tensors=tensors,
        written=written,
        carried=(),
        dropped=(),
        notes=notes,
    )


def _at_home(row: Row) -> Row:
    """Keep a mask token that the file had, even where its library has none."""
    return dataclasses.replace(row, when=always) if row.ours == (MASK_TOKEN,) else row


def _mistaken_for(dialect: Dialect, family: Family, tensors: dict[str, Tensor], written: Written) -> str | None:
    """Return the dialect that the files would be read as, if it is not this dialect and family."""
    stored = Stored(path=Path("the result"), format="memory", tensors=tensors, config=written.config)
    found, kind, _ = recognise(stored)
    return None if (found.name, kind.name) == (dialect.name, family.name) else found.name


def _read_back(
    config: Config, family: Family, tensors: dict[str, Tensor], prefix: str, written: Written
) -> Config | str:
    """Return the config that the dialect's reader infers, or why it fails."""
    stored = Stored(path=Path("the result"), format="memory", tensors=tensors, config=written.config)
    try:
        again, _ = read_rows(family.rows, tensors, prefix, sizes_of(config))
        known = family.known(stored, prefix)
        image = config.image if known.image is None else None  # a size in the config must agree
        heads = config.num_heads if isinstance(config, ViTConfig) and "num_heads" not in known.fields else None
        found, _ = family.settle(again, known, from_image=image, num_heads=heads)
    except VitrailError as error:
        return str(error).partition(";")[0]  # the remedy is about files
    return found


def _difference(config: Config, found: Config, loose: frozenset[str]) -> str | None:
    """Describe how the model that is read back differs; None if it is the same."""
    ours, theirs = _essence(config), _essence(found)
    different = [name for name in ours if name not in loose and theirs.get(name) != ours[name]]
    return ", ".join(f"its {name} is {theirs.get(name)}, this model's {ours[name]}" for name in different) or None


def _unsaid(config: Config, found: Config, dialect: str, loose: frozenset[str]) -> Iterator[str]:
    """Yield settings that the file does not store and its reader sets differently, without effect on the own grid."""
    if isinstance(config, MobileConfig) or isinstance(found, MobileConfig):
        return
    ours, theirs = (getattr(each.position, "convention", None) for each in (config, found))
    if ours != theirs:
        yield f"on another grid {dialect}'s reader resamples positions as {theirs} does, and this model as {ours} does"
    if not isinstance(config, ViTConfig) or not isinstance(found, ViTConfig):
        return
    if type(config.pool) is not type(found.pool):
        pools = type(config.pool).__name__, type(found.pool).__name__
        yield f"the file does not say how tokens are pooled: this model takes {pools[0]}, {dialect}'s reader {pools[1]}"
    if config.remainder != found.remainder:
        yield f"the file does not say remainder {config.remainder!r}: {dialect}'s reader takes {found.remainder!r}"
    essences = _essence(config), _essence(found)
    for name in sorted(loose):
        if essences[0].get(name) != essences[1].get(name):
            yield f"the file does not say {name} {essences[0][name]}: {dialect}'s reader takes {essences[1].get(name)}"


def _essence(config: Config) -> dict[str, Any]:
    """Return the fields that determine the model's function: no dropout, initial values or resampling conventions."""
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    for name in ("dropout", "attention_dropout", "drop_path", "remainder"):
        fields.pop(name, None)
    if isinstance(config, MobileConfig):
        return fields
    if isinstance(config, PyramidConfig) and isinstance(config.attention, WindowedAttention):
        fields |= {name: getattr(config.attention, name) for name in ("window", "shift")}
        if padded_grids(config):  # otherwise nothing is padded
            fields["window_padding"] = config.attention.window_padding
    fields["attention"] = type(config.attention).__name__
    if isinstance(config.position, Learned):
        rows = config.position.prefix_rows(config.prefix)
        beside = f" and {config.position.inside}" if config.position.inside else ""
        fields["position"] = f"a learned table with {rows} prefix rows{beside}"
    if isinstance(config.position, RelativeBias):
        fields["position"] = ("RelativeBias", config.position.shared, config.position.prefix)
    if isinstance(config, PyramidConfig):
        return fields
    if isinstance(config.attention, WindowedAttention):
        fields["attention"] = config.attention
    fields["activation"] = config.mlp.activation if isinstance(config.mlp, Mlp) else "silu"
    fields["mlp"] = f"{type(config.mlp).__name__} of width {config.mlp.width}" + " and a norm" * config.mlp.norm
    fields["layer_scale"] = config.layer_scale is not None
    if isinstance(config.pool, AttentionPool):
        pool = config.pool
        alike = pool.activation == fields["activation"]  # as in every library, so the blocks' activation implies it
        activation = "the blocks' activation" if alike else pool.activation
        seen = " and the prefix" if pool.prefix and config.prefix.count else ""
        fields["pool"] = (
            f"AttentionPool of {pool.num_heads} heads over the patches{seen}, MLP width {pool.mlp_width}, {activation}"
        )
    if config.classes == 0:
        fields.pop("head_bias")
        if config.final_norm == "tokens" and isinstance(config.pool, ClsPool | MeanPool):
            fields["pool"] = "the reader's choice"  # a model without a head returns tokens
    return fields
