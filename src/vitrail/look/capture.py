"""Attention by layer and head, observed from outside: the model keeps its fused attention and its exact outputs.

    with capture(model, layers=[0, 11], queries="cls") as maps:
        model(image)
    maps[11].weights  # (B, h, 1, T)

Forward hooks on the attention modules compute, from the same input, the rows that were asked for.

Shapes: B images, h heads, T tokens of which p are the prefix and N patches, Q queries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, overload

import torch
from torch import Tensor, nn

from vitrail.config import ViTConfig
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size
from vitrail.look.weights import attention_rows
from vitrail.nn.adaptive import to_dense
from vitrail.nn.attention import Attention
from vitrail.nn.layout import Layout
from vitrail.nn.mobile import MapTransformer
from vitrail.nn.rotary import Rotation

__all__ = ["AttentionMap", "Maps", "Queries", "capture", "layer_index"]

Queries = Literal["all", "cls", "patches"] | Sequence[int]
"""Whose rows: everybody's, the CLS token's, the patches', or those of tokens by their place in the sequence."""


@dataclass(frozen=True, kw_only=True)
class AttentionMap:
    """One layer's attention: what each query takes from every token."""

    layer: int
    name: str
    """The module's name in the model: `blocks.6.attention`."""
    weights: Tensor
    """(B, h, Q, T); a row sums to 1 over what it may meet. Dropout is not in it."""
    queries: Tensor
    """(Q,): the tokens' places in the sequence."""
    layout: Layout
    places: Size | None = None
    """In a mobile model each place of a patch attends by itself: B counts (image, place row, place column)."""

    @property
    def prefix(self) -> Tensor:
        """(B, h, Q, p): what goes to CLS, distillation and registers."""
        return self.weights[..., : self.layout.prefix]

    @property
    def patches(self) -> Tensor:
        """(B, h, Q, N): what goes to patches."""
        return self.weights[..., self.layout.prefix :]

    def on_grid(self) -> Tensor:
        """(B, h, Q, rows, columns): what goes to patches, where they lie; a large adaptive patch fills its cells."""
        flat = self.patches.flatten(1, 2).mT  # (B, N, h·Q)
        return to_dense(flat, self.layout).unflatten(1, self.weights.shape[1:3])


Kept = TypeVar("Kept")


class Maps(Mapping[int, Kept], Generic[Kept]):
    """What the last forward pass left, by layer; a negative layer counts from the end."""

    def __init__(self, layers: Sequence[int], depth: int) -> None:
        self._layers, self._depth = tuple(layers), depth
        self._kept: dict[int, Kept] = {}

    def __getitem__(self, layer: int) -> Kept:
        layer = layer_index(layer, self._depth)
        if layer not in self._layers:
            raise VitrailError(f"layer {layer} was not chosen; capture it with layers=[{layer}, …]")
        if layer not in self._kept:
            raise VitrailError(f"layer {layer} has not run; call the model inside the with block")
        return self._kept[layer]

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._kept))

    def __len__(self) -> int:
        return len(self._kept)

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
    keep: Callable[[AttentionMap], Any] = lambda found: found,
) -> Iterator[Maps[Any]]:
    """Observe the attention of `layers` (all unless chosen) while the block runs the model.

    `keep` reduces each layer's map as soon as it is known, so that large images need one layer's memory at a time:
    `capture(model, keep=attention_distance)`. Hooks are gone after the block, whatever happens in it.
    """
    found = [(name, module) for name, module in model.named_modules() if isinstance(module, Attention)]
    require(
        len(found) > 0,
        f"{type(model).__name__} has no attention of vitrail's to capture; load it with vitrail, or build it",
    )
    if queries == "cls":
        config = getattr(model, "config", None)
        require(
            isinstance(config, ViTConfig) and config.prefix.cls,
            f"{type(model).__name__} has no CLS token to ask; use queries='patches' or places in the sequence",
        )
    chosen = range(len(found)) if layers is None else sorted({layer_index(layer, len(found)) for layer in layers})
    places = _places(model)
    maps: Maps[Any] = Maps(chosen, len(found))

    def observer(layer: int, name: str) -> Callable[..., None]:
        def observe(attention: Attention, arguments: tuple, keywords: dict, _: Tensor) -> None:
            with torch.no_grad():
                x, layout, q, k, bias = _met(attention, *arguments, **keywords)
                asked = _resolve(queries, layout, x)
                padding = attention.padding(layout)
                weights = attention_rows(attention.mix, q, k, bias, layout, asked, padding=padding)
                one = AttentionMap(
                    layer=layer, name=name, weights=weights, queries=asked, layout=layout, places=places.get(attention)
                )
                maps._keep(layer, keep(one))

        return observe

    hooks = [
        found[layer][1].register_forward_hook(observer(layer, found[layer][0]), with_kwargs=True) for layer in chosen
    ]
    try:
        yield maps
    finally:
        for hook in hooks:
            hook.remove()


def layer_index(layer: int, depth: int) -> int:
    """A layer counted from the front, 0 first; −1 is the last."""
    require(
        -depth <= layer < depth,
        f"layer {layer} is not among this model's {depth}; use 0 to {depth - 1}, or −1 for the last",
    )
    return layer % depth


def _met(
    attention: Attention, x: Tensor, layout: Layout, shared: Rotation | Tensor | None = None
) -> tuple[Tensor, Layout, Tensor, Tensor, Tensor | None]:
    """The input, and q, k and bias as attention's mix gets them."""
    q, k, _ = attention.heads(x)
    return x, layout, *attention.placed(q, k, layout, shared)


def _resolve(queries: Queries, layout: Layout, x: Tensor) -> Tensor:
    tokens = x.shape[1]
    if queries == "cls":
        return torch.zeros(1, dtype=torch.long, device=x.device)
    if isinstance(queries, str):
        require(
            queries in ("all", "patches"), f"queries {queries!r} is not all, cls or patches; or give places of tokens"
        )
        return torch.arange(layout.prefix if queries == "patches" else 0, tokens, device=x.device)
    require(len(queries) > 0, "queries is empty; name at least one token")
    for query in queries:
        require(
            0 <= query < tokens,
            f"query {query} is outside the sequence of {tokens} tokens; use 0 to {tokens - 1} (the prefix comes first)",
        )
    return torch.tensor(list(queries), dtype=torch.long, device=x.device)


def _places(model: nn.Module) -> dict[nn.Module, Size]:
    """Attention modules of a mobile model, and the patch whose places they keep apart."""
    return {
        inner: module.patch
        for module in model.modules()
        if isinstance(module, MapTransformer)
        for inner in module.modules()
        if isinstance(inner, Attention)
    }
