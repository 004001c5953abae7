"""Features of several layers from one forward pass.

Shapes: B images, C channels, H×W pixels, T tokens of which p are the prefix and N patches, D width, h×w grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, overload

from torch import Tensor

from vitrail.errors import require
from vitrail.nn.adaptive import to_dense
from vitrail.nn.layout import Layout

__all__ = ["Form", "Intermediates", "layer_index"]

Form = Literal["tokens", "grid"]


def layer_index(layer: int, depth: int) -> int:
    """Return a layer's index counted from the front; −1 is the last layer."""
    require(
        -depth <= layer < depth,
        f"layer {layer} is out of range for {depth} layers; use 0 to {depth - 1}, or −1 for the last",
    )
    return layer % depth


class Intermediates:
    """A model whose layers (blocks of a ViT, stages of the others) give features."""

    @overload
    def intermediates(
        self,
        image: Tensor,
        layers: Sequence[int] | None = None,
        *,
        norm: bool = False,
        form: Form = "tokens",
        prefix: Literal[False] = False,
    ) -> list[Tensor]: ...
    @overload
    def intermediates(
        self,
        image: Tensor,
        layers: Sequence[int] | None = None,
        *,
        norm: bool = False,
        form: Form = "tokens",
        prefix: Literal[True],
    ) -> list[tuple[Tensor, Tensor]]: ...
    def intermediates(
        self,
        image: Tensor,
        layers: Sequence[int] | None = None,
        *,
        norm: bool = False,
        form: Form = "tokens",
        prefix: bool = False,
    ) -> list[Tensor] | list[tuple[Tensor, Tensor]]:
        """Return the features after each of `layers` (default: all), in that order, from one pass over (B, C, H, W).

        `form` "tokens" gives the patches as (B, N, D), "grid" as (B, D, h, w). `norm` applies the model's final norm:
        in a pyramid it fits the last stage only, and a mobile model has none. With `prefix`, each entry is a pair: the
        patches and the prefix tokens (B, p, D). Gradients are recorded as in any forward pass.

        >>> import torch
        >>> from vitrail import ViT, ViTConfig
        >>> model = ViT(ViTConfig(image="32x48", width=24, depth=4, num_heads=3))
        >>> [x.shape for x in model.intermediates(torch.zeros(1, 3, 32, 48), layers=(1, -1), form="grid")]
        [torch.Size([1, 24, 2, 3]), torch.Size([1, 24, 2, 3])]
        """
        require(form in ("tokens", "grid"), f"form {form!r} is not one of tokens, grid; choose one of them")
        depth = self.count_layers()
        chosen = list(range(depth)) if layers is None else [layer_index(layer, depth) for layer in layers]
        require(len(chosen) > 0, f"no layer is requested; name some of 0 to {depth - 1}, or leave layers out for all")
        features = self.layer_features(image, frozenset(chosen), norm=norm)
        pairs = {layer: _split(*found, form) for layer, found in features.items()}
        return [pairs[layer] for layer in chosen] if prefix else [pairs[layer][0] for layer in chosen]

    def count_layers(self) -> int:
        raise NotImplementedError

    def layer_features(self, image: Tensor, layers: frozenset[int], *, norm: bool) -> dict[int, tuple[Tensor, Layout]]:
        """Return tokens (B, T, D) and their layout after each of `layers`."""
        raise NotImplementedError


def _split(x: Tensor, layout: Layout, form: Form) -> tuple[Tensor, Tensor]:
    patches = x[:, layout.prefix :]
    return to_dense(patches, layout) if form == "grid" else patches, x[:, : layout.prefix]
