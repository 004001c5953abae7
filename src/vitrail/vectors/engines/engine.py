"""Engines: uint8 images → vectors, behind one small interface.

Shapes: B images, H×W pixels, C channels, T tokens, D width; an image may be a clip of F frames.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.config import ViTConfig
from vitrail.errors import require
from vitrail.geometry import Size
from vitrail.nn.attention import within
from vitrail.nn.compile import compiled
from vitrail.nn.layout import Layout
from vitrail.nn.patches import BytePatchEmbed, PatchEmbed
from vitrail.nn.pool import one_vector
from vitrail.nn.vit import ViT
from vitrail.vectors.engines.device import Place
from vitrail.vectors.engines.int8 import IntegerPatches, quantise, watched, why_no_int8
from vitrail.vectors.engines.lean import Group, LeanBlock, Stage, kept_tokens, lean_blocks
from vitrail.vectors.engines.merge import MergingEncoder, check_mergeable
from vitrail.vectors.engines.names import Device

__all__ = [
    "Agreement",
    "Engine",
    "EngineName",
    "Features",
    "LeanEngine",
    "PlainEngine",
    "agreement",
    "agreement_of",
    "build_engine",
    "images_at_once",
]

EngineName = Literal["torch", "int8"]
ROWS = 800
"""Tokens per pass through the encoder, so that activations stay in the CPU's cache."""


class Features(NamedTuple):
    vectors: Tensor
    """(B, D)."""
    tokens: Tensor
    """(B, T, D), after the final norm."""
    layout: Layout
    """The layout of the tokens."""


class Engine(Protocol):
    """Runs a model on uint8 images (B, H, W, C), as `prepare` returns them, or on clips (B, F, H, W, C)."""

    name: str
    width: int
    """D, the length of a vector."""

    def vectors(self, images: Tensor) -> Tensor:
        """uint8 (B, H, W, C) → float32 (B, D), the pooled vectors, not normalised to unit length."""
        ...

    def features(self, images: Tensor) -> Features:
        """uint8 (B, H, W, C) → the vectors and the tokens they are pooled from."""
        ...


def build_engine(
    checkpoint: Checkpoint,
    name: EngineName = "torch",
    *,
    threads: int | None = None,
    calibration: Tensor | Mapping[str, Tensor] | None = None,
    compile: bool = False,  # noqa: A002 — torch's word
    merge: float = 0.0,
    device: Device = "cpu",
    bf16: bool = False,
) -> Engine:
    """Build the torch or int8 engine for these weights; `graph_engine` builds those of other runtimes.

    `threads`: torch threads of this process (default: unchanged). `calibration`: some of the user's images, uint8
    (B, H, W, C), on which int8 is calibrated, or its ranges. `compile`: use torch.compile, at the first batch.
    `merge`: patches whose tokens differ by less than this are merged (0: none). `device`: where it computes. `bf16`:
    multiply in bfloat16.
    """
    require(name in ("torch", "int8"), f"engine {name!r} is unknown; use torch or int8")
    require(0 <= merge < 1, f"merge {merge} is not in [0, 1); give how much merged tokens may differ, like 0.15, or 0")
    if threads is not None:
        torch.set_num_threads(threads)
    plain = isinstance(checkpoint.config, ViTConfig)
    kind = type(checkpoint.config).__name__
    reason = why_no_int8(checkpoint.config) if name == "int8" else None
    require(reason is None, f"int8 cannot run this model: {reason}; use the torch engine")
    require(plain or not merge, f"{kind} has no single sequence of tokens to merge; use merge 0")
    if plain:
        engine = LeanEngine(checkpoint, merge=merge, device=device, bf16=bf16)
    else:
        engine = PlainEngine(checkpoint, device=device, bf16=bf16)
    if name == "int8":
        assert isinstance(engine, LeanEngine)
        require(
            device == "cpu" and not bf16, f"int8 computes on the cpu, not on {device} or in bfloat16; leave these out"
        )
        require(
            calibration is not None and len(calibration) > 0,
            "int8 needs images to calibrate on; give some of your own as calibration",
        )
        assert calibration is not None
        engine.to_int8(engine.ranges(calibration) if isinstance(calibration, Tensor) else calibration)
    if compile:
        require(
            name == "torch" and not merge, "compile is for the torch engine and all tokens; leave out int8 and merge"
        )
        engine._vectors = compiled(engine._vectors)  # type: ignore[method-assign]
    return engine


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Cosines between two engines' vectors of the same images."""

    images: int
    mean: float
    lowest: float


class _Vectors(Protocol):
    def vectors(self, images: Tensor, /) -> Tensor: ...


def agreement(engine: _Vectors, reference: _Vectors, images: Tensor) -> Agreement:
    """Compare an engine with a reference on uint8 images (B, H, W, C)."""
    return agreement_of(engine.vectors(images), reference.vectors(images))


def agreement_of(vectors: Tensor, reference: Tensor) -> Agreement:
    """Compare vectors (B, D) with reference vectors of the same images."""
    cosines = F.cosine_similarity(vectors.double(), reference.double(), dim=1)
    return Agreement(images=len(vectors), mean=cosines.mean().item(), lowest=cosines.min().item())


class PlainEngine:
    """The unmodified model: for pyramids and mobile networks, and the reference for the other engines."""

    name = "torch"

    def __init__(self, checkpoint: Checkpoint, *, device: Device = "cpu", bf16: bool = False) -> None:
        self.place = Place(device, bf16=bf16)
        self.model = checkpoint.model(dtype=torch.float32, device=self.place.device)
        self.preprocessing = checkpoint.preprocessing
        config, size = checkpoint.config, checkpoint.preprocessing.image
        blank = torch.zeros(1, *config.input_shape[:-3], *size, config.channels, dtype=torch.uint8)
        self.width = self.vectors(blank).shape[1]

    @torch.inference_mode()
    def vectors(self, images: Tensor) -> Tensor:
        with self.place.computing():
            return self.place.back(self._vectors(self.place.there(images)))

    def _vectors(self, images: Tensor) -> Tensor:
        return one_vector(self.model.vector(self.preprocessing.normalise(images.movedim(-1, -3))))

    @torch.inference_mode()
    def features(self, images: Tensor) -> Features:
        model = self.model
        require(isinstance(model, ViT), f"{type(model).__name__} has no tokens on one grid; use vectors() instead")
        assert isinstance(model, ViT)
        with self.place.computing():
            pixels = self.preprocessing.normalise(self.place.there(images).movedim(-1, -3))
            tokens, layout = model.features(pixels)
            vectors = one_vector(model.pooled(tokens, layout))
        return Features(self.place.back(vectors), self.place.back(tokens), layout)


class LeanEngine:
    """A ViT of any config that computes only what pooling reads, a few images at a time."""

    def __init__(
        self, checkpoint: Checkpoint, *, merge: float = 0.0, device: Device = "cpu", bf16: bool = False
    ) -> None:
        self.place = Place(device, bf16=bf16)
        model = checkpoint.model(dtype=torch.float32, device=self.place.device, shared=True)
        assert isinstance(model, ViT)
        self.name, self.width = "torch", model.config.vector_width
        self.model, self.preprocessing = model, checkpoint.preprocessing
        steps = checkpoint.preprocessing
        plain = type(model.embedding) is PatchEmbed and model.embedding.stride in (None, model.embedding.patch)
        self.front = model.from_bytes(steps.mean, steps.std) if plain and model.config.remainder == "error" else None
        self.lean = lean_blocks(model, keep=kept_tokens(model))
        self.last = self.lean[-1] if self.lean[-1].keep is None else lean_blocks(model, keep=None)[-1]
        whole = [*self.lean[:-1], self.last]
        if merge:
            check_mergeable(model)
        self.merging = MergingEncoder(self.lean, merge, model.position) if merge else None
        self.blocks: Sequence[Stage] = [self.merging] if self.merging else self.lean
        self.whole: Sequence[Stage] = [MergingEncoder(whole, merge, model.position)] if merge else whole

    @torch.inference_mode()
    def vectors(self, images: Tensor) -> Tensor:
        with self.place.computing():
            return self.place.back(torch.cat([self._vectors(self.place.there(part)) for part in self.parts(images)]))

    @torch.inference_mode()
    def features(self, images: Tensor) -> Features:
        with self.place.computing():
            parts = [self.encode(*self.embed(self.place.there(part)), self.whole) for part in self.parts(images)]
            tokens, layout = torch.cat([self.model.normed(*part) for part in parts]), parts[0][1]
            vectors = one_vector(self.model.pooled(tokens, layout))
        return Features(self.place.back(vectors), self.place.back(tokens), layout)

    @torch.inference_mode()
    def ranges(self, calibration: Tensor) -> dict[str, Tensor]:
        """Measure the input ranges of all layers on uint8 images (B, H, W, C), to calibrate int8."""
        parts = self.parts(calibration)  # adaptive patches differ in number from image to image
        return watched(self._every_block(), lambda: [self._last_blocks(*self.embed(part)) for part in parts])

    def _last_blocks(self, x: Tensor, layout: Layout) -> None:
        """Run the last block both for what pooling reads and for all tokens; those before it run once."""
        before, ends = self.lean[:-1], self._every_block()[len(self.lean) - 1 :]
        x, _ = self.encode(x, layout, before)
        for block in ends:
            self.encode(x, layout, [block])

    @torch.inference_mode()
    def to_int8(self, ranges: Mapping[str, Tensor]) -> None:
        """Replace the blocks' layers by 8-bit ones, quantised for these input ranges."""
        quantise(self._every_block(), ranges)
        if self.front is not None and isinstance(self.front.embedding, BytePatchEmbed):
            self.front.embedding = IntegerPatches(self.front.embedding)
        self.name = "int8"

    def _every_block(self) -> list[LeanBlock]:
        return self.lean if self.last is self.lean[-1] else [*self.lean, self.last]

    def embed(self, images: Tensor) -> tuple[Tensor, Layout]:
        """uint8 (B, H, W, C) → the input of the first block."""
        if self.front is not None:
            x, layout = self.front.embed(images)
        else:
            x, layout = self.model.embed(self.preprocessing.normalise(images.movedim(-1, -3)))
        return x if self.model.embedding_norm is None else self.model.embedding_norm(x), layout

    def encode(self, x: Tensor, layout: Layout, blocks: Sequence[Stage]) -> tuple[Tensor, Layout]:
        position = within(self.model.position, layout, x)
        for block in blocks:
            x = block(x, layout, position)
        return x, layout

    def packed(self, x: Tensor, groups: Sequence[Group]) -> tuple[Tensor, Sequence[Group]]:
        """Packed tokens (R, D), the input of the first block → those after the last, with their groups."""
        if self.merging:
            return self.merging.packed(x, groups)
        for block in self.lean:
            x, groups = block.attended(x, groups)
            x = block.with_mlp(x)
        return x, groups

    def pooled(self, x: Tensor, layout: Layout) -> Tensor:
        """Pool the tokens, all or the kept ones → (B, D)."""
        return one_vector(self.model.pooled(self.model.normed(x, layout), layout))

    def _vectors(self, images: Tensor) -> Tensor:
        return self.pooled(*self.encode(*self.embed(images), self.blocks))

    def parts(self, images: Tensor) -> tuple[Tensor, ...]:
        """Split a batch into parts that pass through the encoder together."""
        if self.place.device != "cpu":  # what fits into a processor's cache is no limit there
            return (images,)
        few = images_at_once(self.model.config, Size(*images.shape[-3:-1]), len(images))
        return images.split(few if self.blocks is self.lean else 2 * few)  # merged images have fewer tokens


def images_at_once(config: ViTConfig, size: Size, batch: int) -> int:
    """Return how many images of a batch pass through the encoder together on a processor: an equal part of the batch,
    so that no part has to be padded, with about `ROWS` tokens.

    >>> images_at_once(ViTConfig(), Size(224, 224), 32), images_at_once(ViTConfig(), Size(384, 384), 9)
    (4, 1)
    """
    tokens = config.prefix.count + config.steps * config.fit(size).grid.area
    equal = (part for part in range(1, batch + 1) if batch % part == 0)
    return min(equal, key=lambda part: abs(math.log(part * tokens / ROWS)), default=1)
