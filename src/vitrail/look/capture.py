"""Capture attention weights by layer and head, while the model keeps its fused attention and its exact outputs.

    with capture(model, layers=[0, 11], queries="cls") as maps:
        model(image)
    maps[11].weights  # (B, h, 1, T)

Forward hooks on the attention modules compute the requested rows from the same input.

Shapes: B images, h heads, T tokens of which p are the prefix and N patches, Q queries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, overload

import torch
from torch import Tensor, nn

from vitrail.charts.notebook import Shown, panel, pictures
from vitrail.charts.raster import data_uri, heat
from vitrail.config import ViTConfig
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size
from vitrail.look.weights import attention_rows
from vitrail.nn.adaptive import to_dense
from vitrail.nn.attention import Attention
from vitrail.nn.intermediates import layer_index
from vitrail.nn.layout import Layout
from vitrail.nn.mobile import MapTransformer
from vitrail.nn.rotary import Rotation

__all__ = ["AttentionMap", "Maps", "Queries", "capture"]

Queries = Literal["all", "cls", "patches"] | Sequence[int]
"""Which queries: all tokens, the CLS token, the patches, or tokens by their index in the sequence."""


@dataclass(frozen=True, kw_only=True, repr=False)
class AttentionMap(Shown):
    """The attention weights of one layer.

    >>> import torch
    >>> from vitrail import load
    >>> from vitrail.look import capture
    >>> model = load("default").model()
    >>> with capture(model) as maps:
    ...     _ = model(torch.zeros(1, 3, 32, 32))
    >>> maps[-1]
    <AttentionMap: blocks.5.attention, 1 × 4 heads × 65 queries × 65 keys, grid 8x8>
    >>> maps[-1].on_grid().shape
    torch.Size([1, 4, 65, 8, 8])
    """

    layer: int
    name: str
    """The module's name in the model: `blocks.6.attention`."""
    weights: Tensor
    """(B, h, Q, T), without dropout; a row sums to 1 over the keys that it attends to."""
    queries: Tensor
    """(Q,): indices in the sequence."""
    layout: Layout
    places: Size | None = None
    """Set in a mobile model, where attention runs per pixel of a patch: B counts (image, row, column in the patch)."""

    @property
    def prefix(self) -> Tensor:
        """(B, h, Q, p): the weights of CLS, distillation and registers."""
        return self.weights[..., : self.layout.prefix]

    @property
    def patches(self) -> Tensor:
        """(B, h, Q, N): the weights of patches."""
        return self.weights[..., self.layout.prefix :]

    def on_grid(self) -> Tensor:
        """Return the weights of patches on the grid, (B, h, Q, rows, columns); an adaptive patch fills its cells."""
        flat = self.patches.flatten(1, 2).mT  # (B, N, h·Q)
        return to_dense(flat, self.layout).unflatten(1, self.weights.shape[1:3])

    def _summary(self) -> str:
        images, heads, queries, keys = self.weights.shape
        return f"{self.name}, {images} × {heads} heads × {queries} queries × {keys} keys, grid {self.layout.grid}"

    def _panel(self) -> Iterator[str]:
        heads = self.on_grid()[0, :, 0]
        yield f"<div>The first image, query {int(self.queries[0])}, by head, each from 0 to its largest weight</div>"
        yield pictures((f"head {place}", _heat(each)) for place, each in enumerate(heads))


def _heat(weights: Tensor) -> str:
    """(rows, columns) → a picture."""
    values = weights.detach().float().cpu().numpy()
    return data_uri(heat(values, 0.0, float(values.max())))


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
        shown = pictures((f"layer {layer}", _heat(each.on_grid()[0, :, 0].mean(0))) for layer, each in maps)
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
    `capture(model, keep=attention_distance)`. The hooks are always removed after the block.

    >>> import torch
    >>> from vitrail import load
    >>> from vitrail.look import capture
    >>> model = load("default").model()
    >>> with capture(model, layers=[0, 5], queries="cls") as maps:
    ...     _ = model(torch.zeros(1, 3, 32, 32))
    >>> maps[5].weights.shape
    torch.Size([1, 4, 1, 65])
    """
    modules = [(name, module) for name, module in model.named_modules() if isinstance(module, Attention)]
    require(
        len(modules) > 0,
        f"{type(model).__name__} has no vitrail attention module to capture; load the model with vitrail, or build it",
    )
    if queries == "cls":
        config = getattr(model, "config", None)
        require(
            isinstance(config, ViTConfig) and config.prefix.cls,
            f"queries 'cls' needs a CLS token, and {type(model).__name__} has none; use 'patches' or token indices",
        )
    depth = len(modules)
    chosen = range(depth) if layers is None else sorted({layer_index(layer, depth) for layer in layers})
    places = _places(model)
    maps: Maps[Any] = Maps(chosen, depth)

    def observer(layer: int, name: str) -> Callable[..., None]:
        def observe(attention: Attention, arguments: tuple, keywords: dict, _: Tensor) -> None:
            with torch.no_grad():
                x, layout, q, k, bias = _mix_inputs(attention, *arguments, **keywords)
                rows = _resolve(queries, layout, x)
                padding = attention.padding(layout)
                weights = attention_rows(attention.mix, q, k, bias, layout, rows, padding=padding)
                captured = AttentionMap(
                    layer=layer, name=name, weights=weights, queries=rows, layout=layout, places=places.get(attention)
                )
                maps._keep(layer, keep(captured))

        return observe

    hooks = [
        modules[layer][1].register_forward_hook(observer(layer, modules[layer][0]), with_kwargs=True)
        for layer in chosen
    ]
    try:
        yield maps
    finally:
        for hook in hooks:
            hook.remove()


def _mix_inputs(
    attention: Attention, x: Tensor, layout: Layout, shared: Rotation | Tensor | None = None
) -> tuple[Tensor, Layout, Tensor, Tensor, Tensor | None]:
    """Return the input and layout, and q, k and bias as the mix gets them."""
    q, k, _ = attention.heads(x)
    return x, layout, *attention.placed(q, k, layout, shared)


def _resolve(queries: Queries, layout: Layout, x: Tensor) -> Tensor:
    tokens = x.shape[1]
    if queries == "cls":
        return torch.zeros(1, dtype=torch.long, device=x.device)
    if isinstance(queries, str):
        require(
            queries in ("all", "patches"), f"queries {queries!r} is not all, cls or patches; use one, or token indices"
        )
        return torch.arange(layout.prefix if queries == "patches" else 0, tokens, device=x.device)
    require(len(queries) > 0, "queries is empty; give at least one token index")
    for query in queries:
        require(
            0 <= query < tokens,
            f"query {query} is outside the sequence of {tokens} tokens; use 0 to {tokens - 1} (the prefix comes first)",
        )
    return torch.tensor(list(queries), dtype=torch.long, device=x.device)


def _places(model: nn.Module) -> dict[nn.Module, Size]:
    """Map the attention modules of a mobile model to the patch whose pixels they process separately."""
    return {
        inner: module.patch
        for module in model.modules()
        if isinstance(module, MapTransformer)
        for inner in module.modules()
        if isinstance(inner, Attention)
    }
