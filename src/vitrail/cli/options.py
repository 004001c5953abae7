"""Types of options that commands share: how words on the command line become values.

A list of values is separated by commas (`--image 24,32,48`); a list of files or names by spaces (`--data a.tar b.tar`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from vitrail.checkpointing import Checkpointing
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size
from vitrail.parts import Prefix
from vitrail.plan.cards import Card, card
from vitrail.plan.workload import Shard
from vitrail.pretraining import Pretraining, pretraining_of
from vitrail.remote import Location, location_of
from vitrail.tuning import Lora, Tuning

__all__ = [
    "Architecture",
    "CardOption",
    "Flag",
    "FromImage",
    "Json",
    "LocationOption",
    "Names",
    "NumHeads",
    "Numbers",
    "Paths",
    "PrefixOption",
    "PretrainingOption",
    "ShardOption",
    "SizeOption",
    "Weights",
    "Words",
    "checkpointing_of",
    "one",
    "several",
    "tuning_of",
]


def one(read: Callable[[str], Any]) -> Parameter:
    """An option whose word is read by a function, which raises a VitrailError for what it refuses."""
    return Parameter(converter=lambda _, tokens: read(tokens[0].value), n_tokens=1, accepts_keys=False, negative=())


def several(read: Callable[[str], Any], example: str) -> Parameter:
    """An option with a list of values, separated by commas."""

    def read_all(text: str) -> tuple[Any, ...]:
        try:
            return tuple(read(part) for part in text.split(","))
        except VitrailError:
            raise
        except ValueError:
            raise VitrailError(f"{text!r} is not a list of numbers; write {example}") from None

    return one(read_all)


Flag = Annotated[bool, Parameter(negative=(), show_default=False)]
"""--compile, off unless given and without a --no-compile."""
LocationOption = Annotated[Location, one(location_of)]
"""A path, or a URL of a store."""
Words = Annotated[list[str], Parameter(consume_multiple=True, negative=())]
Paths = Annotated[list[Path], Parameter(consume_multiple=True, negative=())]
SizeOption = Annotated[Size, one(Size.of)]
CardOption = Annotated[Card, one(card)]
PretrainingOption = Annotated[Pretraining, one(pretraining_of)]
ShardOption = Annotated[Shard, one(Shard.of)]
PrefixOption = Annotated[Prefix, one(Prefix.parse)]
Numbers = Annotated[tuple[int, ...], several(int, "5,9")]
Names = Annotated[tuple[str, ...], several(str.strip, "embedding,blocks[:8]")]

Json = Annotated[bool, Parameter(negative=(), show_default=False, help="Print exact values as JSON instead of tables.")]

Weights = Annotated[
    str,
    Parameter(
        help="Weights in the format of vitrail, timm, Hugging Face, torchvision, Google, DINO or OpenCLIP: a file, a "
        "folder with its config, or a name: owner/name[@revision] on the Hugging Face Hub, one that vitrail weights "
        "lists, or default, the bundled model."
    ),
]

# Facts that another library's weights file may leave open.
FromImage = Annotated[
    Size | None,
    one(Size.of),
    Parameter(help="Image size that the positions were trained for, e.g. 384x640 (default: read from the weights)."),
]
NumHeads = Annotated[int | None, Parameter(help="Number of attention heads (default: read from the weights).")]
Architecture = Annotated[
    str | None,
    Parameter(
        help="timm's name of the model, e.g. vit_base_patch16_clip_224, where several models have the same shapes "
        "(default: read from the weights)."
    ),
]


def checkpointing_of(*, checkpointing: bool, checkpoint_every: int | None, selective: bool) -> Checkpointing | None:
    """Return how activations are checkpointed, from the options of `vitrail plan` and `vitrail train`."""
    require(
        checkpointing or not (selective or checkpoint_every),
        "--selective and --checkpoint-every say how blocks are checkpointed; give --checkpointing too",
    )
    every = 1 if checkpoint_every is None else checkpoint_every
    return Checkpointing("selective" if selective else "full", every) if checkpointing else None


def tuning_of(
    *,
    freeze: tuple[str, ...] | None,
    train_last: int | None,
    train_only: tuple[str, ...] | None,
    lora: int | None,
    lora_on: tuple[str, ...] | None,
) -> Tuning:
    """Return what is trained, from the options of `vitrail plan` and `vitrail train`."""
    require(lora is not None or lora_on is None, "--lora-on names layers for --lora; give --lora RANK too")
    adapters = None
    if lora is not None:
        adapters = Lora(rank=lora) if lora_on is None else Lora(rank=lora, on=lora_on)  # type: ignore[arg-type]
    return Tuning(freeze=freeze or (), last=train_last, only=train_only or (), lora=adapters)
