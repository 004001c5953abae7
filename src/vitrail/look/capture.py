"""Capture attention weights by layer and head, while the model keeps its fused attention and its exact outputs.

    with capture(model, layers=[0, 11], queries="cls") as maps:
        model(image)
    maps[11].weights  # (B, h, 1, T)

The requested rows are computed from the queries and keys of the forward pass.

Shapes: B images, h heads, T tokens of which p are the prefix and N patches, Q queries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Generic, TypeVar, overload

from torch import nn

from vitrail.charts.notebook import panel, pictures
from vitrail.config import PyramidConfig, ViTConfig
from vitrail.errors import VitrailError, require
from vitrail.look.attention_map import AttentionMap, heat_map
from vitrail.look.inputs import Queries, attention_modules, watching
from vitrail.nn.intermediates import layer_index

__all__ = ["Maps", "capture"]

Kept = TypeVar("Kept")


class Maps(Mapping[int, Kept], Generic[Kept]):
    """The maps of the last forward pass, by layer; a negative layer counts from the end.

    >>> import torch
    >>> from vitrail import load
    >>> from vitrail.look import capture
    >>> model = load("default").model()
    >>> with capture(model) as maps:
    ...     _ = model(torch.zeros(1, 3, 32, 32))
    >>> maps, list(maps)
    (<Maps: 6 of 6 layers have run>, [0, 1, 2, 3, 4, 5])
    """

    def __init__(self, layers: Sequence[int], depth: int) -> None:
        self._layers, self._depth = tuple(layers), depth
        self._kept: dict[int, Kept] = {}

    def __getitem__(self, layer: int) -> Kept:
        layer = layer_index(layer, self._depth)
        if layer not in self._layers:
            raise VitrailError(f"layer {layer} was not captured; capture it with layers=[{layer}, …]")
        if layer not in self._kept:
            raise VitrailError(f"layer {layer} has not run; call the model inside the with block")
        return self._kept[layer]

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._kept))

    def __len__(self) -> int:
        return len(self._kept)

    def __repr__(self) -> str:
        return f"<Maps: {len(self)} of {len(self._layers)} layers have run>"

    def _repr_html_(self) -> str:
        maps = [(layer, kept) for layer, kept in self.items() if isinstance(kept, AttentionMap)]
        words = "<div>The first image and query, mean over heads, each from 0 to its largest weight</div>"
        shown = pictures((f"layer {layer}", heat_map(each.on_grid()[0, :, 0].mean(0))) for layer, each in maps)
        return panel(repr(self)[1:-1], words + shown if maps else "")

    def _keep(self, layer: int, kept: Kept) -> None:
        self._kept[layer] = kept


@overload
def capture(
    model: nn.Module, layers: Sequence[int] | None = None, queries: Queries = "all"
) -> AbstractContextManager[Maps[AttentionMap]]: ...


@overload
def capture(
    model: nn.Module,
    layers: Sequence[int] | None = None,
    queries: Queries = "all",
    *,
    keep: Callable[[AttentionMap], Kept],
) -> AbstractContextManager[Maps[Kept]]: ...


@contextmanager
def capture(
    model: nn.Module,
    layers: Sequence[int] | None = None,
    queries: Queries = "all",
    *,
    keep: Callable[[AttentionMap], Any] = lambda attention: attention,
) -> Iterator[Maps[Any]]:
    """Capture the attention of `layers` (default: all) from forward passes inside the `with` block.

    `keep` reduces each layer's map as soon as it is computed, so that large images need one layer's memory at a time:
    `capture(model, keep=attention_distance)`. The model is always restored after the block.

    >>> import torch
    >>> from vitrail import load
    >>> from vitrail.look import capture
    >>> model = load("default").model()
    >>> with capture(model, layers=[0, 5], queries="cls") as maps:
    ...     _ = model(torch.zeros(1, 3, 32, 32))
    >>> maps[5].weights.shape
    torch.Size([1, 4, 1, 65])
    """
    modules = attention_modules(model)
    if queries == "cls":
        config = getattr(model, "config", None)
        require(
            isinstance(config, ViTConfig | PyramidConfig) and config.prefix.cls,
            f"queries 'cls' needs a CLS token, and {type(model).__name__} has none; use 'patches' or token indices",
        )
    depth = len(modules)
    chosen = range(depth) if layers is None else sorted({layer_index(layer, depth) for layer in layers})
    maps: Maps[Any] = Maps(chosen, depth)
    with watching(model, lambda inputs: maps._keep(inputs.layer, keep(inputs.rows(queries))), chosen):
        yield maps
