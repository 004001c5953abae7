"""The MLP of a block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vitrail.rules import PositiveInt
from vitrail.value import Value

__all__ = ["Activation", "Mlp", "MlpKind", "SwiGLU"]

Activation = Literal["gelu", "gelu_tanh", "quick_gelu", "silu", "relu", "tanh"]


@dataclass(frozen=True, kw_only=True)
class Mlp(Value):
    """Two linear layers with an activation between them; `width` is that of the hidden layer.

    >>> from vitrail import Mlp, ViTConfig
    >>> ViTConfig(mlp=Mlp(width=1536)).mlp.width
    1536
    """

    width: PositiveInt = 3072
    activation: Activation = "gelu"
    bias: bool = True
    norm: bool = False
    """Normalise the hidden layer before it is projected back, as BEiT-3 does."""


@dataclass(frozen=True, kw_only=True)
class SwiGLU(Value):
    """A gated MLP: silu(gate) · value, projected back; `width` is that of gate and value (arXiv 2002.05202).

    >>> from vitrail import SwiGLU, ViTConfig
    >>> ViTConfig(mlp=SwiGLU(width=1024)).mlp
    SwiGLU(width=1024)
    """

    width: PositiveInt = 2048
    bias: bool = True
    norm: bool = False
    """Normalise the product before it is projected back, as EVA-02 does."""


MlpKind = Mlp | SwiGLU
