"""timm's Vision Transformers as data: what each name passes to its class, found by asking timm itself.

python tests/survey/architectures.py    # writes src/vitrail/checkpoint/dialects/timm_architectures.json anew
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from peers import timm
from vitrail.checkpoint.dialects.timm_architectures import shape_digest

TABLE = Path(__file__).parents[2] / "src/vitrail/checkpoint/dialects/timm_architectures.json"
MODULES = ("vision_transformer", "deit", "beit", "eva", "naflexvit", "swin_transformer", "swin_transformer_v2")
MODULES = (*MODULES, "vision_transformer_relpos", "vision_transformer_sam", "hiera", "hieradet_sam2")
MODULES = (*MODULES, "vision_transformer_hybrid")
CLASSES = ("VisionTransformer", "VisionTransformerDistilled", "Beit", "Eva", "NaFlexVit", "SwinTransformer")
CLASSES = (*CLASSES, "SwinTransformerV2", "VisionTransformerRelPos", "VisionTransformerSAM", "Hiera", "HieraDet")
NOT_ARGUMENTS = {"pretrained_filter_fn", "pretrained_strict", "feature_cfg", "kwargs_filter", "cache_dir"}


class _ReachedBuilderError(Exception):
    """The builder was reached: the model itself is not wanted."""


def call(name: str) -> tuple[type, dict[str, Any]] | None:
    """The class and the arguments with which timm would build a model, if it is one of `CLASSES`."""
    module = timm.models._registry._model_to_module[name]
    if module not in MODULES or "_resnet" in name:  # hybrids with another ResNet, for which timm has no weights
        return None
    called: list[tuple[type, dict[str, Any]]] = []

    def builder(kind: type, variant: str, pretrained: bool, **arguments: Any) -> None:
        called.append((kind, arguments))
        raise _ReachedBuilderError

    with (
        mock.patch.object(importlib.import_module(f"timm.models.{module}"), "build_model_with_cfg", builder),
        contextlib.suppress(_ReachedBuilderError),
    ):
        timm.create_model(name)
    return called[0] if called[0][0].__name__ in CLASSES else None


def arguments_of(kind: type, given: dict[str, Any]) -> dict[str, Any]:
    """Those that differ from the class's defaults, as JSON has them."""
    defaults = {key: parameter.default for key, parameter in inspect.signature(kind).parameters.items()}
    if "cfg" in given:  # NaFlexVit's are in one object
        given = {**given, **vars(given["cfg"])}
        defaults |= vars(type(given.pop("cfg"))())
    return {
        key: _plain(value)
        for key, value in given.items()
        if key not in NOT_ARGUMENTS and _plain(value) != _plain(defaults.get(key))
    }


def digest_of(name: str) -> str:
    with torch.device("meta"):
        return shape_digest({key: tuple(value.shape) for key, value in timm.create_model(name).state_dict().items()})


def _plain(value: Any) -> Any:
    """A value that JSON has; a class or a partial by its name and its numbers."""
    if value is timm.layers.SwiGLUPacked:
        return "SwiGLUPacked"
    if isinstance(value, functools.partial):
        numbers = {key: each for key, each in value.keywords.items() if isinstance(each, int | float)}
        return value.func.__name__ + "".join(f"({key}={each})" for key, each in numbers.items())
    if isinstance(value, torch.nn.Module):
        return type(value).__name__
    if isinstance(value, type) or callable(value):
        return value.__name__
    return [_plain(each) for each in value] if isinstance(value, tuple | list) else value


def _row(name: str, kind: type, given: dict[str, Any]) -> str:
    entry = {
        "class": kind.__name__,
        "image": list(timm.models.get_pretrained_cfg(name).input_size[1:]),
        "shapes": digest_of(name),
        "arguments": arguments_of(kind, given),
    }
    return f"  {json.dumps(name)}: {json.dumps(entry)}"


if __name__ == "__main__":
    rows = [_row(name, *called) for name in timm.list_models() if (called := call(name))]
    TABLE.write_text("{\n" + ",\n".join(rows) + "\n}\n")
