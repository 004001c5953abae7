"""Self-supervised training steps as values: what a step without labels runs, and what it compares.

`vitrail.nn` has their reference implementation and `vitrail.plan` their cost; a `Workload` names one of them.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from vitrail.codec import from_plain
from vitrail.config import Config, ViTConfig
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size
from vitrail.parts import AttentionPool, FullAttention, Learned, NoPosition, Patches, RelativeBias, Rotary, SinCos2d
from vitrail.rules import NonNegativeInt, PositiveFloat, PositiveInt, Range
from vitrail.value import Value, kind_of

__all__ = ["Dino", "MaskedAutoencoder", "MomentumContrast", "Pretraining", "pretraining_of"]

Views = tuple[tuple[int, Size], ...]
"""The batches that a step takes: the number of images and their size."""
Momentum = Annotated[float, Range("[0, 1)", "0.996 is usual")]


@dataclass(frozen=True, kw_only=True)
class Dino(Value):
    """Self-distillation with crops (DINO, arXiv 2104.14294): a student matches its own moving average.

    The student sees two global crops, of the config's image size, and some local ones; the teacher, which has no
    gradients, sees the global crops.

    >>> Dino(local_crops=6).words
    'DINO with 2 + 6 crops'
    """

    KIND: ClassVar[str] = "dino"

    local_crops: NonNegativeInt = 8
    local_image: Size = Size(96, 96)
    hidden: PositiveInt = 2048
    """Width of the projection's two hidden layers."""
    bottleneck: PositiveInt = 256
    """Width of the unit vector that is compared with the prototypes."""
    prototypes: PositiveInt = 65536
    """Number of outputs."""
    momentum: Momentum = 0.996
    temperature: PositiveFloat = 0.1
    teacher_temperature: PositiveFloat = 0.04

    @property
    def words(self) -> str:
        return f"DINO with 2 + {self.local_crops} crops"

    def views(self, image: Size, batch: int) -> Views:
        return ((2 * batch, image), *([(self.local_crops * batch, self.local_image)] if self.local_crops else []))

    def check(self, config: Config) -> ViTConfig:
        """Return the student's config, without a classifier; refuse what has no reference implementation."""
        return _plain(self, config, (Learned, NoPosition, Rotary, SinCos2d)).but(classes=0)


@dataclass(frozen=True, kw_only=True)
class MaskedAutoencoder(Value):
    """Reconstruction of masked patches (MAE, arXiv 2111.06377).

    The encoder sees only the visible patches. A small decoder sees them and a learned token for each masked one, and
    predicts the pixels of the masked patches.

    >>> MaskedAutoencoder(mask=0.6).visible(196)
    78
    """

    KIND: ClassVar[str] = "mae"

    mask: Annotated[float, Range("(0, 1)", "0.75 is usual")] = 0.75
    """Share of the patches that is masked."""
    decoder_width: PositiveInt = 512
    decoder_depth: PositiveInt = 8
    decoder_heads: PositiveInt = 16

    def visible(self, patches: int) -> int:
        """Return the number of patches that the encoder sees."""
        return int(patches * (1 - self.mask))

    @property
    def words(self) -> str:
        return f"MAE with {self.mask:.0%} masked"

    def views(self, image: Size, batch: int) -> Views:
        return ((batch, image),)

    def check(self, config: Config) -> ViTConfig:
        """Return the encoder's config, without a classifier; refuse what has no reference implementation."""
        plain = _plain(self, config, (Learned, NoPosition, SinCos2d)).but(classes=0)
        require(
            isinstance(plain.embedding, Patches) and plain.embedding.stride is None,
            f"{kind_of(type(self))} predicts the pixels of patches that do not overlap; use Patches without a stride",
        )
        require(
            plain.final_norm == "tokens" and not isinstance(plain.pool, AttentionPool),
            f"{kind_of(type(self))} reads normalised tokens; use final_norm 'tokens', and a pool that learns nothing",
        )
        require(
            self.visible(plain.grid.area) > 0,
            f"mask {self.mask} leaves none of {plain.grid.area} patches; mask less",
        )
        require(
            self.decoder_width % (4 * self.decoder_heads) == 0,
            f"decoder_width {self.decoder_width} is not divisible by 4 · decoder_heads {self.decoder_heads}; try 512",
        )
        return plain


@dataclass(frozen=True, kw_only=True)
class MomentumContrast(Value):
    """Contrast with a queue of keys (MoCo v2, arXiv 2003.04297).

    Of two views of an image, one passes the encoder and the other a moving average of it, without gradients. A
    query must find the key of its own image among those of earlier batches, which are kept in a queue.

    >>> MomentumContrast(queue=4096).words
    'MoCo with a queue of 4,096'
    """

    KIND: ClassVar[str] = "moco"

    queue: PositiveInt = 65536
    dimension: PositiveInt = 128
    """Width of queries and keys."""
    momentum: Momentum = 0.999
    temperature: PositiveFloat = 0.2

    @property
    def words(self) -> str:
        return f"MoCo with a queue of {self.queue:,}"

    def views(self, image: Size, batch: int) -> Views:
        return (batch, image), (batch, image)

    def check(self, config: Config) -> ViTConfig:
        """Return the encoder's config, without a classifier; refuse what has no reference implementation."""
        return _plain(self, config, (Learned, NoPosition, Rotary, RelativeBias, SinCos2d)).but(classes=0)


Pretraining = Dino | MaskedAutoencoder | MomentumContrast


def pretraining_of(text: str) -> Pretraining:
    """Read a step from its name and its settings.

    >>> pretraining_of("dino,local_crops=6,local_image=96x64")
    Dino(local_crops=6, local_image=Size(height=96, width=64))
    """
    kind, *settings = text.split(",")
    given: dict[str, Any] = {"kind": kind}
    for setting in settings:
        key, equals, value = setting.partition("=")
        require(bool(equals), f"setting {setting!r} is not KEY=VALUE; write e.g. dino,local_crops=6")
        given[key] = _number(value)
    return from_plain(given, Pretraining, "pretraining")


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def _plain(step: Value, config: Config, positions: tuple[type, ...]) -> ViTConfig:
    name = kind_of(type(step))
    if not isinstance(config, ViTConfig):
        raise VitrailError(f"{name} needs a plain ViT, not a {type(config).__name__}; choose a ViTConfig")
    require(
        isinstance(config.attention, FullAttention) and config.remainder == "error",
        f"{name} is defined for full attention and images that the patch divides; change the config",
    )
    require(
        isinstance(config.position, positions) and config.position.inside in (None, config.position),
        f"{name} is not defined for {config.position.name}; use {', '.join(kind.__name__ for kind in positions)}",
    )
    require(config.frames == 1, f"{name} is defined for still images, not for clips of {config.frames} frames")
    require(config.merger is None, f"{name} has no use for a merger; leave it out")
    require(not config.prefix.distillation, f"{name} has no use for a distillation token; leave it out")
    return config
