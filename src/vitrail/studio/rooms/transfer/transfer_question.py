"""What room 5 asks: a table, the grid it goes to, and how; and a patch for the projection to go to."""

from __future__ import annotations

from typing import Literal

from vitrail.studio.controls import Loaded, choice, number

__all__ = ["LARGEST_PATCH", "Question", "Resampling", "TableView"]

LARGEST_PATCH = 64
TableView = Literal["colours", "component", "channel"]
Resampling = Literal[
    "timm", "huggingface", "dinov2", "torchvision", "big_vision", "siglip2", "bilinear", "area", "exact"
]
"""`checkpoint.surgery.resample.Method`, spelt here so that the page's controls need no torch."""


class Question(Loaded):
    """A table, the grid it goes to, and how; and a patch for the projection to go to."""

    transfer_table: Literal["own", "known"] = choice(
        "own",
        label="Table",
        about="The model's own positions, or random ones whose power falls as 1/f², on any grid",
        words={"own": "the model's", "known": "power 1/f²"},
    )
    old_rows: int = number(14, 2, 40, label="From rows", about="Of the grid that a 1/f² table is on")
    old_columns: int = number(14, 2, 40, label="From columns", about="Of the grid that a 1/f² table is on")
    new_rows: int = number(14, 2, 40, label="To rows", about="Of the grid that the table goes to")
    new_columns: int = number(20, 2, 40, label="To columns", about="Of the grid that the table goes to")
    resampling: Resampling = choice(
        "timm",
        label="Method",
        about="The first six are conventions: what models were trained with, or will be run by",
        words={
            "timm": "timm: bicubic, antialiased",
            "huggingface": "Hugging Face: bicubic",
            "dinov2": "DINOv2: bicubic, + 0.1",
            "torchvision": "torchvision: bicubic, corners",
            "big_vision": "big_vision: linear, corners",
            "siglip2": "SigLIP 2: linear, antialiased",
            "bilinear": "linear",
            "area": "mean over the area",
            "exact": "exact: the cosine series",
        },
    )
    bands: int = number(4, 1, 8, label="Bands", about="Of frequency, to tell the errors apart")
    table_view: TableView = choice(
        "colours",
        label="Show",
        about="The table has as many channels as the model is wide: three components as colours, or one at a time",
        words={"colours": "colours", "component": "component", "channel": "channel"},
    )
    table_index: int = number(
        0, 0, 4095, step=1, label="Which", about="Component, the strongest first, or channel; from 0"
    )
    resized_patch: int = number(
        3, 1, LARGEST_PATCH, unit="px", label="New patch", about="That the projection's filters go to"
    )
    filter_resize: Literal["pinv", "natural", "interpolate"] = choice(
        "pinv",
        label="Filters by",
        about="The pseudo-inverse of the resize (FlexiViT); the same over photographs; or as pictures",
        words={"pinv": "pinv", "natural": "natural", "interpolate": "picture"},
    )
