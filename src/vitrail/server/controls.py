"""The parameters of all rooms, defined once: the server validates them, and the page draws its controls from them.

A group is a pydantic model; a room's question inherits from groups. FastAPI validates each field by its range, and
/api/controls sends range, unit and help to the page, which therefore repeats none of them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic.fields import FieldInfo

from vitrail.plan.cards import CARDS
from vitrail.plan.workload import AttentionKernel, Optimizer, Precision

__all__ = [
    "BINARY",
    "Asking",
    "CardChoice",
    "Control",
    "Foldered",
    "Geometry",
    "Group",
    "Loaded",
    "Name",
    "Paired",
    "Pictured",
    "Planned",
    "Seen",
    "Weighted",
    "Work",
    "choice",
    "controls_of",
    "number",
]


def number(
    default: int | float,
    low: float,
    high: float,
    *,
    label: str,
    about: str,
    unit: str = "",
    step: float = 1,
    scale: Literal["linear", "log"] = "linear",
    zero: str = "",
) -> Any:
    """Return a field drawn as a slider. `step` limits the slider alone: any value in the range is valid.

    `zero` is what the value 0 means, where it is not a quantity.
    """
    extra: dict[str, Any] = {"unit": unit, "step": step, "scale": scale, "zero": zero}
    return Field(default, ge=low, le=high, title=label, description=about, json_schema_extra=extra)


def choice(default: Any, *, label: str, about: str, words: dict[str, str] | None = None, source: str = "") -> Any:
    """Return a field with a few options. `words` label them; `source` names a list that only the session has."""
    extra: dict[str, Any] = {"words": words or {}, "source": source}
    return Field(default, title=label, description=about, json_schema_extra=extra)


Name = Annotated[str, StringConstraints(max_length=200)]
BINARY = {"requestBody": {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}}
"""The schema of a request whose body is a file."""


class Group(BaseModel):
    """The base of all questions; unknown parameters are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Planned(Group):
    model: Name = choice("B/16", label="Model", about="A preset: width, depth, heads", source="models")


class Geometry(Group):
    height: int = number(224, 16, 2048, step=8, unit="px", label="Image height", about="Height of the model's input")
    width: int = number(224, 16, 2048, step=8, unit="px", label="Image width", about="Width of the model's input")
    patch_height: int = number(16, 2, 64, unit="px", label="Patch height", about="Rows of pixels in a patch")
    patch_width: int = number(16, 2, 64, unit="px", label="Patch width", about="Columns of pixels in a patch")
    remainder: Literal["pad", "crop", "resize"] = choice(
        "pad",
        label="Remainder",
        about="If patches do not divide the image: pad it with masked pixels, crop its edges, or resize it",
        words={"pad": "pad", "crop": "crop", "resize": "resize"},
    )


class Work(Group):
    batch: int = number(32, 1, 4096, scale="log", label="Batch", about="Images per device and forward pass")
    train: bool = choice(True, label="Training", about="Plan a step with backward and optimizer; otherwise inference")
    precision: Precision = choice(
        "amp-bf16",
        label="Precision",
        about="Data types of weights and arithmetic",
        words={"fp32": "fp32", "amp-bf16": "mixed bf16", "amp-fp16": "mixed fp16", "bf16": "pure bf16"},
    )
    optimizer: Optimizer = choice(
        "adamw",
        label="Optimizer",
        about="Its state and temporaries count in training; Adafactor and 8-bit AdamW are estimates",
        words={
            "sgd": "SGD",
            "momentum": "SGD + momentum",
            "adamw": "AdamW",
            "adamw-fused": "AdamW, fused",
            "adafactor": "Adafactor",
            "adamw-8bit": "AdamW, 8-bit",
        },
    )
    attention: AttentionKernel = choice(
        "flash", label="Attention", about="The attention kernel: eager stores attention maps, the others do not"
    )
    checkpointing: bool = choice(
        False,
        label="Checkpointing",
        about="Store only each block's input: about a third more compute, not 2–3×",
    )
    accumulate: int = number(
        1, 1, 256, scale="log", label="Accumulate", about="Forward and backward passes per optimizer step"
    )
    shard: Literal["none", "tensor", "ddp", "zero1", "zero2", "fsdp"] = choice(
        "none",
        label="Sharding",
        about="What devices share: each block's heads and hidden units (tensor parallel), nothing (DDP), "
        "optimizer state (ZeRO-1), + gradients (ZeRO-2), + weights (FSDP); ZeRO-2 is an estimate",
        words={
            "none": "one device",
            "tensor": "tensor parallel",
            "ddp": "DDP",
            "zero1": "ZeRO-1",
            "zero2": "ZeRO-2",
            "fsdp": "FSDP",
        },
    )
    devices: int = number(8, 1, 64, scale="log", label="Devices", about="Number of devices that share the state")
    gradient_as_bucket_view: bool = choice(
        False,
        label="Gradients as bucket views",
        about="DDP's gradient_as_bucket_view: gradients lie in the buckets that are reduced, not beside them",
    )
    reshard_after_forward: bool = choice(
        True,
        label="Reshard after forward",
        about="FSDP's reshard_after_forward: release a block's weights after its forward, and gather them again",
    )
    param_dtype: Literal["same", "bf16"] = choice(
        "same",
        label="Gathered weights",
        about="FSDP's param_dtype, the type that weights are gathered and used in; without mixed precision",
        words={"same": "their own type", "bf16": "bf16"},
    )
    offload: bool = choice(
        False,
        label="Offload",
        about="Keep the optimizer's state on the CPU and step there; with FSDP, weights and gradients too",
    )


class CardChoice(Group):
    card: Name = choice("rtx-4090", label="Card", about="A name, or an amount of memory such as 24GiB", source="cards")


class Pictured(Group):
    """For rooms that use the image."""

    image: Name = choice("cat", label="Image", about="A bundled image, or the id of an uploaded one", source="images")


class Foldered(Group):
    """For rooms that measure several images."""

    folder: Name = choice("", label="Folder", about="A dropped folder, by the id of its upload; empty: the image alone")


class Weighted(Group):
    """For rooms that read a loaded model, and no image."""

    weights: Name = choice(
        "default",
        label="Weights",
        about="The loaded model; get more with vitrail weights fetch, or start with --weights",
        source="weights",
    )


class Loaded(Weighted, Pictured):
    """For rooms that read a loaded model and the image."""


class Seen(Loaded):
    """For rooms that run the model at a chosen input size."""

    seen: int = number(
        0,
        0,
        2048,
        unit="px",
        zero="auto",
        label="Input size",
        about="Side of the square input, in whole patches; auto (0): the training size, or 16 patches if it has few",
    )


class Paired(Group):
    """For rooms that take a second image."""

    second: Name = choice(
        "turned", label="Second image", about="A bundled image, or the id of an uploaded one", source="images"
    )


class Asking(Seen):
    """For rooms that follow one token."""

    token: int = number(
        -1,
        -1,
        4095,
        label="Token",
        about="Index in the sequence, prefix first; −1: the room's default, CLS or the patch in the middle",
    )


class Control(BaseModel):
    """One control of the page."""

    kind: Literal["number", "choice", "flag", "text"]
    label: str
    help: str
    default: int | float | bool | str
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    step: float | None = None
    scale: Literal["linear", "log"] = "linear"
    zero: str = ""
    """What the value 0 means, where it is not a quantity."""
    options: list[Annotated[tuple[str, ...], Field(min_length=2, max_length=2)]] = []
    """Pairs of value and label."""
    source: str = ""
    """The session's list that has the options: models, weights, images, readers or cards."""


def controls_of(question: type[BaseModel]) -> dict[str, Control]:
    """Return the fields of a question as controls, in order."""
    schema = question.model_json_schema()["properties"]  # once: pydantic takes milliseconds for it
    return {name: _control(field, schema[name]) for name, field in question.model_fields.items()}


def _control(field: FieldInfo, schema: dict[str, Any]) -> Control:
    extra = field.json_schema_extra
    assert isinstance(extra, dict)
    common = {"label": field.title, "help": field.description, "default": field.default}
    if field.annotation is bool:
        return Control(kind="flag", **common)  # type: ignore[arg-type]
    if "minimum" in schema:
        limits = {key: schema[key] for key in ("minimum", "maximum", "step", "unit", "scale", "zero")}
        return Control(kind="number", **common, **limits)  # type: ignore[arg-type]
    words = extra["words"]
    assert isinstance(words, dict)
    options = [(value, words.get(value, value)) for value in get_args(field.annotation)]
    kind = "choice" if options or extra["source"] else "text"
    return Control(kind=kind, **common, options=options, source=extra["source"])  # type: ignore[arg-type]


CARD_WORDS = [(entry.key, f"{entry.name} · {entry.visible_bytes / 2**30:.1f} GiB") for entry in CARDS]
