"""What may be asked, said once: the server checks it, and the page draws its controls from it.

A group is a pydantic model; a room's question is a class of groups. A field's range, unit and help become the checks
of FastAPI and the answer of /api/controls, so that the page holds none of them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from vitrail.plan.hardware import CARDS
from vitrail.plan.workload import AttentionKernel, Optimizer, Precision

__all__ = [
    "Asking",
    "CardChoice",
    "Control",
    "Geometry",
    "Group",
    "Loaded",
    "Pictured",
    "Planned",
    "Seen",
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
) -> Any:
    """A slider. `step` is the slider's; any value in the range may be typed or asked."""
    extra: dict[str, Any] = {"unit": unit, "step": step, "scale": scale}
    return Field(default, ge=low, le=high, title=label, description=about, json_schema_extra=extra)


def choice(default: Any, *, label: str, about: str, words: dict[str, str] | None = None, source: str = "") -> Any:
    """One of a few. `words` are what people read; `source` names options that only the session knows."""
    extra: dict[str, Any] = {"words": words or {}, "source": source}
    return Field(default, title=label, description=about, json_schema_extra=extra)


Name = Annotated[str, StringConstraints(max_length=200)]


class Group(BaseModel):
    """The base of all questions: what is not named is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Planned(Group):
    model: Name = choice("B/16", label="Model", about="Width, depth, heads: whose costs are planned", source="models")


class Geometry(Group):
    height: int = number(224, 16, 2048, step=8, unit="px", label="Image height", about="Of the image the model gets")
    width: int = number(224, 16, 2048, step=8, unit="px", label="Image width", about="Of the image the model gets")
    patch_height: int = number(16, 2, 64, unit="px", label="Patch height", about="Rows of pixels in a patch")
    patch_width: int = number(16, 2, 64, unit="px", label="Patch width", about="Columns of pixels in a patch")
    remainder: Literal["pad", "crop", "resize"] = choice(
        "pad",
        label="What doesn't divide",
        about="Pad with masked pixels, crop the edge away, or resize to the nearest size that divides",
        words={"pad": "pad", "crop": "crop", "resize": "resize"},
    )


class Work(Group):
    batch: int = number(32, 1, 4096, scale="log", label="Batch", about="Images per device and forward pass")
    train: bool = choice(True, label="Training", about="A step with backward and optimizer; otherwise inference")
    precision: Precision = choice(
        "amp-bf16",
        label="Precision",
        about="Of weights and arithmetic",
        words={"fp32": "fp32", "amp-bf16": "mixed bf16", "amp-fp16": "mixed fp16", "bf16": "pure bf16"},
    )
    optimizer: Optimizer = choice(
        "adamw",
        label="Optimizer",
        about="Its state and temporaries count in training; adafactor and 8-bit AdamW are estimates",
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
        "flash", label="Attention", about="The kernel: eager keeps attention maps, the others do not"
    )
    checkpointing: bool = choice(
        False, label="Checkpointing", about="Keep only each block's input; about a third more compute, not 2–3×"
    )
    accumulate: int = number(
        1, 1, 256, scale="log", label="Accumulate", about="Forward and backward passes per optimizer step"
    )
    shard: Literal["none", "ddp", "zero1", "zero2", "fsdp"] = choice(
        "none",
        label="Sharding",
        about="What is spread over devices: nothing (ddp), optimizer (ZeRO-1), + gradients (ZeRO-2), + weights (FSDP)",
        words={"none": "one device", "ddp": "DDP", "zero1": "ZeRO-1", "zero2": "ZeRO-2", "fsdp": "FSDP"},
    )
    devices: int = number(8, 1, 64, scale="log", label="Devices", about="Cards that share the state")


class CardChoice(Group):
    card: Name = choice("rtx-4090", label="Card", about="By name, or by its memory, like 24GiB", source="cards")


class Pictured(Group):
    """For rooms that look at the image."""

    image: Name = choice("cat", label="Image", about="An uploaded image's id, or a bundled image", source="images")


class Loaded(Pictured):
    """For rooms that look into a model: which one, on the image."""

    weights: Name = choice("default", label="Weights", about="The model that looks", source="weights")


class Seen(Loaded):
    """For rooms that run it: how large the image is, too."""

    seen: int = number(
        0,
        0,
        512,
        step=16,
        unit="px",
        label="Seen at",
        about="Side of the square that the model gets, to the nearest patch; 0: as trained, larger if that is coarse",
    )


class Asking(Seen):
    """For rooms that follow one token."""

    token: int = number(
        -1,
        -1,
        4095,
        label="Token",
        about="Its place in the sequence, the prefix first; −1 leaves it to the room: CLS, or the patch in the middle",
    )


class Control(BaseModel):
    """One control, as the page draws it."""

    kind: Literal["number", "choice", "flag", "text"]
    label: str
    help: str
    default: int | float | bool | str
    unit: str = ""
    minimum: float | None = None
    maximum: float | None = None
    step: float | None = None
    scale: Literal["linear", "log"] = "linear"
    options: list[Annotated[tuple[str, ...], Field(min_length=2, max_length=2)]] = []
    """Value and words."""
    source: str = ""
    """Which of the session's lists has the options: models, weights, images or cards."""


def controls_of(question: type[BaseModel]) -> dict[str, Control]:
    """A question's fields as controls, in their order."""
    return {name: _control(name, question) for name in question.model_fields}


def _control(name: str, question: type[BaseModel]) -> Control:
    field, schema = question.model_fields[name], question.model_json_schema()["properties"][name]
    extra = field.json_schema_extra
    assert isinstance(extra, dict)
    said = {"label": field.title, "help": field.description, "default": field.default}
    if field.annotation is bool:
        return Control(kind="flag", **said)  # type: ignore[arg-type]
    if "minimum" in schema:
        ranged = {key: schema[key] for key in ("minimum", "maximum", "step", "unit", "scale")}
        return Control(kind="number", **said, **ranged)  # type: ignore[arg-type]
    words = extra["words"]
    assert isinstance(words, dict)
    options = [(value, words.get(value, value)) for value in get_args(field.annotation)]
    kind = "choice" if options or extra["source"] else "text"
    return Control(kind=kind, **said, options=options, source=extra["source"])  # type: ignore[arg-type]


CARD_WORDS = [(entry.key, f"{entry.name} · {entry.visible_bytes / 2**30:.1f} GiB") for entry in CARDS]
