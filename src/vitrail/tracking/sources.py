"""Modules by name: a function of a Python file, a model of timm, or one of transformers from a local config.

Modules are built on the meta device: no weights are made, and nothing is downloaded.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from vitrail.errors import VitrailError, require
from vitrail.geometry import Size

__all__ = ["Source", "explained", "source"]


@dataclass(frozen=True)
class Source:
    """A module by name, and how it is built."""

    name: str
    build: Callable[[Size | None, bool], nn.Module]
    """(image size or None for the model's own, whether attention is explicit) → the module."""
    file: Path | None = None
    """The user's file, whose lines errors name."""


def source(name: str) -> Source:
    """Return the source that `FILE.py:NAME`, `timm:NAME` or `transformers:FOLDER` names."""
    kind, _, rest = name.partition(":")
    if kind == "timm" and rest:
        return Source(name, lambda image, eager: _timm(rest, image, eager))
    if kind == "transformers" and rest:
        return Source(name, lambda image, eager: _transformers(rest, image, eager))
    path, _, attribute = name.rpartition(":")
    require(
        path.endswith(".py") and attribute.isidentifier(),
        f"module {name!r} is not FILE.py:NAME, timm:NAME or transformers:FOLDER; write my_model.py:make",
    )
    file = Path(path)
    require(file.is_file(), f"module {name!r}: there is no file {path}; give the path of a Python file")
    return Source(name, lambda image, eager: _from_file(file, attribute), file)


@contextmanager
def explained(origin: Source, doing: str) -> Iterator[None]:
    """Turn an error of someone else's module into one line with the place where it was raised."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    silent, log.disabled = log.disabled, True  # it writes the whole traceback of an error that is told here
    try:
        yield
    except VitrailError:
        raise
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        place = _place(origin, error)
        raise VitrailError(
            f"{place}{doing} needs the values of a tensor ({error.func}), and fake tensors have none; "
            "compute it from shapes, or take it out of the step"
        ) from None
    except Exception as error:  # whatever a user's file may raise
        said = (str(error).strip() or "no message").splitlines()[0]
        raise VitrailError(
            f"{_place(origin, error)}{type(error).__name__} while {doing}: {said}; mend the module, or change its input"
        ) from None
    finally:
        log.disabled = silent


def _place(origin: Source, error: Exception) -> str:
    """Return `file.py:12: `, the innermost line of the user's file, or else of the library's."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: "
    frames = traceback.extract_tb(error.__traceback__)
    if origin.file is not None:
        own = [frame for frame in frames if Path(frame.filename) == origin.file.resolve()]
        return f"{origin.file}:{own[-1].lineno}: " if own else f"{origin.file}: "
    theirs = [frame for frame in frames if "/torch/" not in frame.filename and "/vitrail/" not in frame.filename]
    return f"{'/'.join(Path(theirs[-1].filename).parts[-3:])}:{theirs[-1].lineno}: " if theirs else ""


def _from_file(file: Path, attribute: str) -> nn.Module:
    spec = importlib.util.spec_from_file_location(file.stem, file.resolve())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(file.stem, module)  # dataclasses look their module up
    sys.path.insert(0, str(file.resolve().parent))  # as `python FILE` does
    with torch.device("meta"):
        spec.loader.exec_module(module)
        require(hasattr(module, attribute), f"{file} has no {attribute}; it has {', '.join(_callables(module))}")
        made: Any = getattr(module, attribute)
        made = made if isinstance(made, nn.Module) else made()
    require(
        isinstance(made, nn.Module),
        f"{file}:{attribute} gives a {type(made).__name__}, not an nn.Module; return the module",
    )
    return made


def _callables(module: Any) -> list[str]:
    return [name for name, value in vars(module).items() if callable(value) and value.__module__ == module.__name__]


def _library(name: str) -> Any:
    try:
        return _imported(name)
    except ModuleNotFoundError:
        raise VitrailError(f"{name} is not installed, and --module {name}:… needs it; pip install {name}") from None
    except RuntimeError as error:
        if "operator torchvision::" not in str(error):
            raise
    for operator in ("nms", "qnms"):  # a torchvision of another build lacks them; they are of detection, not of models
        torch.library.define(f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return _imported(name)


def _imported(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a library warns of at import is its own
        return importlib.import_module(name)


def _timm(name: str, image: Size | None, eager: bool) -> nn.Module:
    timm = _library("timm")
    require(timm.is_model(name), f"timm has no model {name!r}; timm.list_models() has their names")
    fused = timm.layers.use_fused_attn()
    timm.layers.set_fused_attn(not eager)  # read by attention when it is built
    try:
        with torch.device("meta"):
            if image is not None:
                try:
                    return timm.create_model(name, pretrained=False, img_size=tuple(image))
                except TypeError:  # a convolutional network has no image size of its own
                    pass
            return timm.create_model(name, pretrained=False)
    finally:
        timm.layers.set_fused_attn(bool(fused))


def _transformers(name: str, image: Size | None, eager: bool) -> nn.Module:
    transformers = _library("transformers")
    if importlib.util.find_spec("torchvision") is not None:
        _library("torchvision")  # models import it later, and transformers hides why that fails
    try:
        config = transformers.AutoConfig.from_pretrained(name, local_files_only=True)
    except (OSError, ValueError) as error:
        if (file := Path(name, "config.json")).is_file():
            said = " ".join(str(error).split())
            raise VitrailError(f"transformers cannot read {file}: {said[:200]}; mend the file") from None
        raise VitrailError(
            f"transformers finds no config of {name!r} on this machine; give a folder with its config.json "
            "(nothing is downloaded)"
        ) from None
    if image is not None:
        config.image_size = tuple(image)
    config._attn_implementation = "eager" if eager else "sdpa"
    architecture = getattr(transformers, (config.architectures or [""])[0] or "-", None)
    with torch.device("meta"):
        return transformers.AutoModel.from_config(config) if architecture is None else architecture(config)
