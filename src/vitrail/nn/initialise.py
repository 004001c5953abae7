"""Weight initialisation, chosen by what follows the layer. Weights on the meta device have no values, and are left."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

__all__ = ["initialise", "initialise_table"]


def initialise(weight: Tensor, *, followed_by: Literal["linear", "relu"]) -> None:
    """Xavier uniform before anything linear, He normal before a ReLU, which halves the variance.

    A convolution's weight is treated as the matrix that it applies to a flattened patch.
    """
    if weight.is_meta:
        return
    if followed_by == "relu":
        nn.init.kaiming_normal_(weight, mode="fan_in", nonlinearity="relu")
    else:
        nn.init.xavier_uniform_(weight.view(weight.shape[0], -1))


def initialise_table(table: Tensor) -> None:
    """Initialise tables of positions and tokens: normal with std 0.02, truncated at two std."""
    if not table.is_meta:
        nn.init.trunc_normal_(table, std=0.02, a=-0.04, b=0.04)
