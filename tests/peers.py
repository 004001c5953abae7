"""The libraries that vitrail is compared with, made importable where torchvision has no compiled operators."""

from __future__ import annotations

import importlib
import warnings
from types import ModuleType

import torch

PEERS = ("open_clip", "peft", "timm", "transformers", "vit_pytorch")

for _name in ("nms", "qnms"):
    try:
        torch.library.define(f"torchvision::{_name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    except RuntimeError as error:
        if "multiple" not in str(error):  # torchvision brought its own
            raise


def __getattr__(name: str) -> ModuleType:
    """Imported when asked for: who compares with one peer does not wait for the others."""
    if name not in PEERS:
        raise AttributeError(f"peers has no {name!r}; it has {', '.join(PEERS)}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what peers warn of at import is theirs
        return importlib.import_module(name)
