"""The inputs of attention layers: queries and keys, from which any row of attention can be computed later.

Forward passes inside `watching` run with their fused attention and their exact outputs.

Shapes: B images, h heads, T tokens, Q queries, d values per head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from vitrail.charts.notebook import Brief
from vitrail.errors import require
from vitrail.geometry import Size
from vitrail.look.attention_map import AttentionMap
from vitrail.look.weights import attention_chunks, attention_rows
from vitrail.nn.attention import Attention, Mix
from vitrail.nn.layout import Layout
from vitrail.nn.mobile import MapTransformer
from vitrail.nn.query_bias import Bias, QueryBias
from vitrail.nn.query_pool import PooledAttention
from vitrail.nn.windowed_attention import Padding

__all__ = ["AttentionInputs", "Queries", "attention_modules", "watching"]

Queries = Literal["all", "cls", "patches"] | Sequence[int]
"""Which queries: all tokens, the CLS token, the patches, or tokens by their index in the sequence."""
CHUNK_ELEMENTS = 1 << 19
"""Weights of a chunk: 2 MiB. Smaller ones cost more calls, larger ones leave the processor's cache."""


@dataclass(frozen=True, kw_only=True, repr=False)
class AttentionInputs(Brief):
    """What one attention layer mixes."""

    layer: int
    name: str
    """The module's name in the model: `blocks.6.attention`."""
    mix: Mix
    q: Tensor
    """(B, h, T, d), like k: after norms and rotation."""
    k: Tensor
    bias: Bias | None
    padding: Padding | None
    layout: Layout
    places: Size | None
    """Set in a mobile model; see `AttentionMap.places`."""

    def rows(self, queries: Queries = "all") -> AttentionMap:
        """Return the attention weights of some queries."""
        chosen = self._resolve(queries)
        weights = attention_rows(self.mix, self.q, self.k, self.bias, self.layout, chosen, padding=self.padding)
        return self._map(weights, chosen)

    def chunks(self) -> Iterator[AttentionMap]:
        """Yield the rows of all queries, a few at a time, so that the whole map is never in memory.

        The next chunk may take the memory of this one.
        """
        tokens = self._resolve("all")
        for part, weights, scores in attention_chunks(
            self.mix,
            self.q,
            self.k,
            self.bias,
            self.layout,
            tokens,
            padding=self.padding,
            chunk_elements=CHUNK_ELEMENTS,
        ):
            yield self._map(weights, tokens[part], scores)

    def _map(self, weights: Tensor, queries: Tensor, scores: Tensor | None = None) -> AttentionMap:
        return AttentionMap(
            layer=self.layer,
            name=self.name,
            weights=weights,
            queries=queries,
            layout=self.layout,
            places=self.places,
            scores=scores,
        )

    def _resolve(self, queries: Queries) -> Tensor:
        tokens, device = self.k.shape[2], self.k.device
        if queries == "cls":
            return torch.zeros(1, dtype=torch.long, device=device)
        if isinstance(queries, str):
            require(
                queries in ("all", "patches"),
                f"queries {queries!r} is not all, cls or patches; use one, or token indices",
            )
            return torch.arange(self.layout.prefix if queries == "patches" else 0, tokens, device=device)
        require(len(queries) > 0, "queries is empty; give at least one token index")
        for query in queries:
            require(
                0 <= query < tokens,
                f"query {query} is outside the sequence of {tokens} tokens; use 0 to {tokens - 1} "
                "(the prefix comes first)",
            )
        return torch.tensor(list(queries), dtype=torch.long, device=device)


def attention_modules(model: nn.Module) -> list[tuple[str, Attention]]:
    """Return the attention layers of a model with their names, in order."""
    modules = [(name, module) for name, module in model.named_modules() if isinstance(module, Attention)]
    require(
        not any(isinstance(module, PooledAttention) for module in model.modules()),
        "this model pools the queries of some blocks, which have fewer of them than keys; maps of its attention are "
        "not drawn: look at its tokens instead",
    )
    require(
        len(modules) > 0,
        f"{type(model).__name__} has no vitrail attention module to capture; give a model with attention, loaded or "
        "built by vitrail",
    )
    return modules


@contextmanager
def watching(
    model: nn.Module, observe: Callable[[AttentionInputs], None], layers: Sequence[int] | None = None
) -> Iterator[None]:
    """Call `observe` with the inputs of each of `layers` (default: all) as it runs inside the `with` block."""
    modules, places = attention_modules(model), _places(model)
    watched = {
        module: (index, name) for index, (name, module) in enumerate(modules) if layers is None or index in layers
    }
    before = {module: vars(module).get("mixed") for module in watched}
    for module, (layer, name) in watched.items():
        # the method gets the very queries and keys that the layer mixes, which a forward hook would compute again
        vars(module)["mixed"] = _observed(module, layer, name, places.get(module), observe)
    try:
        yield
    finally:
        for module, method in before.items():
            if method is None:
                del vars(module)["mixed"]
            else:
                vars(module)["mixed"] = method


def _observed(
    attention: Attention, layer: int, name: str, places: Size | None, observe: Callable[[AttentionInputs], None]
) -> Callable[..., Tensor]:
    mix = attention.mixed

    def mixed(q: Tensor, k: Tensor, v: Tensor, layout: Layout, bias: Bias | None, dropout: float) -> Tensor:
        with torch.no_grad():
            observe(
                AttentionInputs(
                    layer=layer,
                    name=name,
                    mix=attention.mix,
                    q=q.detach().contiguous(),  # else views of memory that also holds the values
                    k=k.detach().contiguous(),
                    bias=_detached(bias),
                    padding=attention.padding(layout),
                    layout=layout,
                    places=places,
                )
            )
        return mix(q, k, v, layout, bias, dropout)

    return mixed


def _detached(bias: Bias | None) -> Bias | None:
    if isinstance(bias, QueryBias):
        return bias.each(Tensor.detach)
    return None if bias is None else bias.detach()


def _places(model: nn.Module) -> dict[nn.Module, Size]:
    """Map the attention modules of a mobile model to the patch whose pixels they process separately."""
    return {
        inner: module.patch
        for module in model.modules()
        if isinstance(module, MapTransformer)
        for inner in module.modules()
        if isinstance(inner, Attention)
    }
