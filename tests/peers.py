"""The libraries that vitrail is compared with, made importable where torchvision has no compiled operators."""

from __future__ import annotations

import importlib
import warnings

import torch

for _name in ("nms", "qnms"):
    try:
        torch.library.define(f"torchvision::{_name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    except RuntimeError as error:
        if "multiple" not in str(error):  # torchvision brought its own
            raise

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what peers warn of at import is theirs
    timm = importlib.import_module("timm")
    transformers = importlib.import_module("transformers")
    vit_pytorch = importlib.import_module("vit_pytorch")

__all__ = ["timm", "transformers", "vit_pytorch"]
