"""The parameters of room 5."""

from __future__ import annotations

from typing import Literal

from vitrail.server.controls import Loaded, choice, number

__all__ = ["LARGEST_PATCH", "Question", "Resampling", "TableView"]

LARGEST_PATCH = 64
TableView = Literal["colours", "component", "channel"]
Resampling = Literal[
    "timm", "huggingface", "dinov2", "torchvision", "big_vision", "siglip2", "bilinear", "area", "exact"
]
"""The names of `checkpoint.surgery.resample.Method`, repeated so that the controls do not import torch."""


class Question(Loaded):
    """A position table, a new grid and a resampling method; a new patch size for the projection."""

    transfer_table: Literal["own", "known"] = choice(
        "own",
        label="Table",
        about="The model's positions, or a random table whose power falls as 1/f², on any grid",
        words={"own": "the model's", "known": "power 1/f²"},
    )
    old_rows: int = number(14, 2, 40, label="From rows", about="Rows of the old grid")
    old_columns: int = number(14, 2, 40, label="From columns", about="Columns of the old grid")
    new_rows: int = number(14, 2, 40, label="To rows", about="Rows of the new grid")
    new_columns: int = number(20, 2, 40, label="To columns", about="Columns of the new grid")
    resampling: Resampling = choice(
        "timm",
        label="Method",
        about="How the table is resampled; the first six are conventions of libraries",
        words={
            "timm": "timm: bicubic, antialiased",
            "huggingface": "Hugging Face: bicubic",
            "dinov2": "DINOv2: bicubic, + 0.1",
            "torchvision": "torchvision: bicubic, corners",
            "big_vision": "big_vision: linear, corners",
            "siglip2": "SigLIP 2: linear, antialiased",
            "bilinear": "linear",
            "area": "area average",
            "exact": "exact: the cosine series",
        },
    )
    bands: int = number(4, 1, 8, label="Bands", about="Number of frequency bands for the errors")
    table_view: TableView = choice(
        "colours",
        label="Show",
        about="Three principal components as colours, one component, or one channel",
        words={"colours": "colours", "component": "component", "channel": "channel"},
    )
    table_index: int = number(
        0, 0, 4095, step=1, label="Index", about="Index of the component, strongest first, or of the channel"
    )
    resized_patch: int = number(3, 1, LARGEST_PATCH, unit="px", label="New patch", about="Height of the new patch")
    filter_resize: Literal["pinv", "natural", "interpolate"] = choice(
        "pinv",
        label="Resize by",
        about="Pseudo-inverse of the resize (FlexiViT), the same weighted by photographs, or plain interpolation",
        words={"pinv": "pinv", "natural": "natural", "interpolate": "interpolate"},
    )
