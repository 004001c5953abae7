"""Read a checkpoint: open the file, detect the dialect, rename, infer the config, check every shape."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch
from torch import Tensor

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.dialects.dialect import Dialect, Family
from vitrail.checkpoint.dialects.registry import DIALECTS
from vitrail.checkpoint.dialects.table import read_rows
from vitrail.checkpoint.formats.file import Stored, open_stored
from vitrail.checkpoint.header import (
    CONFIG_KEY,
    METADATA,
    PREPROCESSING_KEY,
    check_size,
    written_preprocessing,
)
from vitrail.checkpoint.labels import read_labels
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.checkpoint.sources.hub import name_of
from vitrail.checkpoint.sources.names import weights_path
from vitrail.config import Config, config_from_json
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size
from vitrail.nn.build import build

__all__ = ["load", "read_stored", "recognise"]


def load(
    path: str | Path,
    from_image: Size | str | None = None,
    num_heads: int | None = None,
    architecture: str | None = None,
) -> Checkpoint:
    """Read weights of any dialect: a file, a directory with its config, or a name.

    Names are "default", the bundled model; "owner/name" or "owner/name@revision" of the Hugging Face Hub, also with
    "hf-hub:" in front; and those that `vitrail weights` lists. An existing path wins over a name of the Hub.

    >>> load("default").config.image
    Size(height=32, width=32)

    `from_image` (the image size that the positions were trained for), `num_heads` and `architecture` (timm's name of
    the model) are needed only if neither a config beside the weights nor the shapes of a known model give them.

    >>> from vitrail import load
    >>> load("default").config.grid
    Size(height=8, width=8)
    """
    stored = open_stored(weights_path(path))
    if architecture is not None:
        stored = dataclasses.replace(stored, config={**stored.config, "architecture": architecture})
    return read_stored(stored, from_image=None if from_image is None else Size.of(from_image), num_heads=num_heads)


def read_stored(stored: Stored, *, from_image: Size | None = None, num_heads: int | None = None) -> Checkpoint:
    dialect, family, prefix = recognise(stored)
    if "architecture" in stored.config:
        require(
            dialect.name == "timm",
            f"{stored.path} has {dialect.name}'s names, and --architecture is for timm's; leave it out",
        )
    known = family.known(stored, prefix)
    tensors, rest = read_rows(family.rows, stored.tensors, prefix, known.sizes)
    unknown = [name for name in rest if not family.is_spare(name, prefix)]
    require(
        not unknown,
        f"{stored.path} has {', '.join(unknown[:3])}{' …' if len(unknown) > 3 else ''}, for which {dialect.name}'s "
        f"{family.name} has no place; it is another architecture",
    )
    written = stored.metadata.get(CONFIG_KEY)
    if written is not None and from_image is None:
        config: Config = config_from_json(written)
        evidence = METADATA
    else:
        config, evidence = family.settle(tensors, known, from_image=from_image, num_heads=num_heads)
    extra = {**{name: tensors.pop(name) for name in list(tensors) if name.startswith("+")}, **rest}
    _check_shapes(stored, config, tensors)
    return Checkpoint(
        config=config,
        tensors=tensors,
        format=stored.format,
        dialect=dialect.name,
        family=family.name,
        name_prefix=prefix,
        preprocessing=_preprocessing(stored, dialect, family, config.image),
        evidence=evidence,
        labels=read_labels(stored, config.classes),
        extra=extra,
        origin=stored.config,
        source=name_of(stored.path),
    )


def _preprocessing(stored: Stored, dialect: Dialect, family: Family, image: Size) -> Preprocessing:
    if PREPROCESSING_KEY in stored.metadata:
        return written_preprocessing(stored.path, stored.metadata, image)
    return dialect.preprocessing(stored, family, image)


def recognise(stored: Stored) -> tuple[Dialect, Family, str]:
    for dialect in DIALECTS.values():
        for family in dialect.families:
            prefix = family.prefix_in(stored)
            if prefix is not None:
                return dialect, family, prefix
    reason = next(filter(None, (dialect.foreign(stored) for dialect in DIALECTS.values())), None)
    require(reason is None, f"{stored.path} cannot be read: {reason}")
    some = ", ".join(list(stored.tensors)[:3]) or "nothing"
    raise VitrailError(
        f"{stored.path} holds {some} …, which are no names of {', '.join(DIALECTS)}; "
        "it is not a Vision Transformer that vitrail knows"
    )


def _check_shapes(stored: Stored, config: Config, tensors: dict[str, Tensor]) -> None:
    check_size(stored.path, config, len(tensors))
    try:
        with torch.device("meta"):
            expected = build(config).state_dict()
    except (RuntimeError, TypeError, OverflowError) as error:  # torch raises these for sides that overflow 64 bits
        reason = str(error).splitlines()[0][:80]
        raise VitrailError(f"{stored.path} has a config that nothing can be built from ({reason}); mend it") from None
    missing = sorted(expected.keys() - tensors.keys())
    require(not missing, f"{stored.path} lacks {', '.join(missing[:3])} ({len(missing)} in all); it is not whole")
    unknown = sorted(tensors.keys() - expected.keys())
    require(not unknown, f"{stored.path} has {', '.join(unknown[:3])}, which its config has no place for")
    for name, tensor in tensors.items():
        require(
            tensor.shape == expected[name].shape,
            f"{stored.path}: {name} has shape {tuple(tensor.shape)} where the rest of the model needs "
            f"{tuple(expected[name].shape)}; the file is damaged or mixes two models",
        )
        require(
            tensor.is_floating_point() == expected[name].is_floating_point(),
            f"{stored.path}: {name} is {tensor.dtype} where the model has {expected[name].dtype}; save it as float32",
        )
