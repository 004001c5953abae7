"""Mergers: how a vision tower's patches become the tokens that a language model receives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from vitrail.parts.mlp import Activation
from vitrail.rules import PositiveInt, Range
from vitrail.value import Value

__all__ = ["BranchMerger", "LinearMerger", "Merger", "MergerNorm", "MlpMerger"]

MergerNorm = Literal["layer", "rms", "none"]
Epsilon = Annotated[float, Range("[0, inf)", "1e-6 is usual")]


@dataclass(frozen=True, kw_only=True)
class MlpMerger(Value):
    """Concatenate neighbouring patches, row by row, and project them by two linear layers.

    With merge 2, the merger of Qwen2-VL (arXiv 2409.12191); normalised after the concatenation, InternVL's pixel
    shuffle (arXiv 2404.16821); with merge 1 and no norm, LLaVA's projector (arXiv 2310.03744).

    >>> from vitrail import MlpMerger, ViTConfig
    >>> tower = ViTConfig(classes=0, merger=MlpMerger(width=3584, mlp_width=3072))
    >>> tower.tokens, tower.visual_tokens
    (197, 49)
    """

    width: PositiveInt
    """The width of a token of the language model."""
    mlp_width: PositiveInt
    merge: PositiveInt = 2
    """Patches of this many rows and columns become one token."""
    norm: MergerNorm = "layer"
    norm_merged: bool = False
    """Normalise concatenated patches together, and not each patch before."""
    norm_eps: Epsilon = 1e-6
    activation: Activation = "gelu"
    bias: bool = True


@dataclass(frozen=True, kw_only=True)
class LinearMerger(Value):
    """Average neighbouring patches, and project them by a linear layer.

    With merge 4 and an RMS norm, Gemma 3's (arXiv 2503.19786); with merge 1, PaliGemma's (arXiv 2407.07726).

    >>> from vitrail import LinearMerger, MeanPool, preset
    >>> preset("siglip-B/16", pool=MeanPool(), merger=LinearMerger(width=2048)).visual_tokens
    196
    """

    width: PositiveInt
    merge: PositiveInt = 1
    norm: MergerNorm = "none"
    """Of the averaged patches."""
    norm_eps: Epsilon = 1e-6
    bias: bool = True


@dataclass(frozen=True, kw_only=True)
class BranchMerger(Value):
    """Join the tokens of two towers, as DeepSeek-VL does (arXiv 2403.05525): the high one's feature maps, its last and
    an early one, are shrunk to the low one's grid by convolutions; each tower's are projected to half the width, and
    both together once more.

    >>> from vitrail.parts import BranchMerger
    >>> BranchMerger(width=4096).width
    4096
    """

    width: PositiveInt
    """The width of a token of the language model."""
    norm_eps: Epsilon = 1e-6
    """Of the neck behind the early feature map."""


Merger = MlpMerger | LinearMerger
