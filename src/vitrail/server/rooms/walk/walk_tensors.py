"""The tensors of a walk by name, and which of their numbers belong to one token.

A studio picks the numbers here. The graph of an exported page (`server/site/graph.py`) has the same tensors as outputs,
and the page picks them by the same table.

Shapes: N patches, T tokens, D width, h heads, d values per head, L blocks, Q queries.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from vitrail.look.walk import Walk

__all__ = ["PICKED", "ends_of", "pick", "rows_of", "shown"]

Place = tuple[str | int | None, ...]
"""The name of a tensor and an index for each of its first axes: a number, the name of one, or None for all of it."""

PICKED: dict[str, Place] = {
    "patch": ("patches", "cell"),
    "filter": ("filters", "unit"),
    "filter_bias": ("filter_biases", "unit"),
    "projected": ("projected", "cell"),
    "position": ("positions", "patch"),
    "prefixed": ("prefix_tokens",),
    "entering_first": ("stages", 0, "patch"),
    "unit_before": ("prefixed", "token", "unit"),
    "unit_position": ("positions", "token", "unit"),
    "entering": ("stages", "block", "token"),
    "normed": ("normed", "layer", "token"),
    "q": ("q", "layer", "head", "token"),
    "k": ("k", "layer", "head", "key"),
    "scores": ("scores", "layer", "head", "query"),
    "bias": ("bias", "layer", "head", "query", "key"),
    "weights": ("weights", "layer", "head", "query"),
    "is_softmax": ("is_softmax", "layer", "head", "query"),
    "first_values": ("first_values", "layer", "head"),
    "mixed": ("mixed", "layer", "head", "query"),
    "added": ("added", "layer", "token"),
    "between": ("between", "layer", "token"),
    "normed_again": ("normed_again", "layer", "token"),
    "hidden": ("hidden", "layer", "token"),
    "fed": ("fed", "layer", "token"),
    "leaving": ("stages", "next", "token"),
    "depth": ("stages", None, "token"),
    "pooled": ("pooled",),
    "logits": ("logits",),
    "head_row": ("head_rows", "first"),
    "head_bias": ("head_biases", "first"),
    "lens_classes": ("lens_classes",),
    "lens_probabilities": ("lens_probabilities",),
    "lens_last": ("lens_last",),
}
"""By the field of `Numbers`. `layer` counts the blocks that the tensors have, `query` the rows of attention; `patch` is
the token of the patch that is shown, and `first` the most likely class."""
CLIPPED = 0.995
"""The quantile of the sizes at which pictures of tokens are clipped."""


def ends_of(walked: Walk) -> dict[str, Tensor]:
    """Return the tensors of all blocks together: those before the first and after the last."""
    found = {
        "patches": walked.patches,
        "filters": walked.projection,
        "filter_biases": walked.projection_bias,
        "projected": walked.projected,
        "prefixed": walked.prefixed,
        "prefix_tokens": walked.prefixed[: walked.layout.prefix],
        "positions": walked.positions,
        "stages": walked.tokens,
        "pooled": walked.pooled,
    }
    if walked.head is None:
        return found
    first, after_block = walked.logits.argmax(), walked.lens.softmax(dim=1)
    best = after_block.max(dim=1)
    bias = walked.logits.new_zeros(len(walked.logits)) if walked.head_bias is None else walked.head_bias
    return found | {
        "logits": walked.logits,
        "first": first,
        "head_rows": walked.head,
        "head_biases": bias,
        "lens_classes": best.indices,
        "lens_probabilities": best.values,
        "lens_last": after_block[:, first],
    }


def rows_of(walked: Walk, queries: Tensor) -> dict[str, Tensor]:
    """Return the tensors inside the block, with a leading axis for it; rows of attention for `queries` (Q,)."""
    block, rows = walked.block, walked.block.rows(queries)
    found = {
        "normed": block.normed,
        "q": block.q,
        "k": block.k,
        "scores": rows.scores,
        "weights": rows.weights,
        "keys": rows.weights.argmax(dim=-1),
        "is_softmax": rows.is_softmax,
        "first_values": block.v[:, :, 0],
        "mixed": rows.mixed,
        "added": block.added,
        "between": block.between,
        "normed_again": block.normed_again,
        "hidden": block.hidden,
        "fed": block.fed,
    }
    found |= {} if rows.bias is None else {"bias": rows.bias}
    return {name: tensor[None] for name, tensor in found.items()}


def pick(tensors: Mapping[str, Tensor], indices: Mapping[str, int]) -> dict[str, Any]:
    """Return the numbers of one token by field; a field whose tensor the model does not have is left out."""
    return {
        field: tensors[str(name)][tuple(_index(each, indices) for each in places)].tolist()
        for field, (name, *places) in PICKED.items()
        if name in tensors
    }


def _index(place: str | int | None, indices: Mapping[str, int]) -> int | slice:
    return slice(None) if place is None else indices[place] if isinstance(place, str) else place


def shown(values: Tensor) -> Tensor:
    """Scale to uint8 with 0 in the middle; the largest 0.5 % are clipped, so that the rest is visible."""
    import torch

    sizes = values.float().abs().flatten()
    place = CLIPPED * (len(sizes) - 1)  # the quantile lies between two neighbours in the order of sizes
    above = sizes.topk(len(sizes) - int(place)).values
    low, high = above[-1], above[max(len(above) - 2, 0)]
    limit = low + (high - low) * (place - int(place))
    limit = torch.where(limit > 0, limit, 1.0)
    return ((values.float() / limit).clamp(-1, 1) * 127.5 + 127.5).round().byte()
