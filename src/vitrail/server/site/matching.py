"""A graph that matches two images from what the graph of a model gives for each, for any model and size.

Shapes: N patches and T tokens of the first image, M and S of the second, D width, V values of a vector.
"""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.look.kin import cosines_of, unit_patches
from vitrail.look.likeness import split_cosine, token_shares
from vitrail.look.record import Recording
from vitrail.server.site.operators import OPSET, operators

__all__ = ["MATCH_OUTPUTS", "match_graph", "matched_tokens"]

MATCH_OUTPUTS = (
    "cross", "own0", "own1", "range", "nearest0", "nearest1", "cosines0", "cosines1", "parts0", "parts1",
    "score", "vectors",
)  # fmt: skip


def matched_tokens(recording: Recording) -> dict[str, Tensor]:
    """Return what is matched: the patches after every layer as unit vectors, and the tokens' shares in the vector."""
    layers = [*enumerate(recording.blocks), (-1, recording.features)]
    found = {f"unit{layer}": unit_patches(*after)[0] for layer, after in layers}
    return {**found, "shares-of-tokens": token_shares(recording).float()}


class Matching(nn.Module):
    def forward(
        self, first: Tensor, second: Tensor, shares0: Tensor, shares1: Tensor, vector0: Tensor, vector1: Tensor
    ) -> tuple[Tensor, ...]:
        cosines = cosines_of(first, second)  # (N, M)
        planes = [cosines, cosines_of(first, first), cosines_of(second, second)]
        low = torch.stack([each.amin() for each in planes]).amin()
        high = torch.stack([each.amax() for each in planes]).amax()
        levels = [((each - low) * (255 / (high - low))).round().to(torch.uint8) for each in planes]
        score, parts0, parts1 = split_cosine(shares0.double(), shares1.double())
        return (
            *levels,
            torch.stack([low, high]),
            cosines.argmax(dim=1).int(),
            cosines.argmax(dim=0).int(),
            cosines.amax(dim=1),
            cosines.amax(dim=0),
            parts0.float(),
            parts1.float(),
            score.float(),
            F.cosine_similarity(vector0.double(), vector1.double(), dim=0).float(),
        )


@torch.no_grad()
def match_graph() -> bytes:
    """Return the graph: two images' patches, shares and vectors to `MATCH_OUTPUTS`."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"first": (5, 8), "second": (7, 8), "shares0": (6, 8), "shares1": (9, 8), "vector0": (8,), "vector1": (8,)}
    inputs = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    axes = {name: [0, 1][: len(shape)] for name, shape in shapes.items()}
    axes |= {name: [0, 1] for name in MATCH_OUTPUTS[:3]} | {name: [0] for name in MATCH_OUTPUTS[4:10]}
    with tempfile.TemporaryDirectory(prefix="vitrail-") as scratch, warnings.catch_warnings(), operators():
        path = Path(scratch, "match.onnx")
        warnings.simplefilter("ignore")  # the tracer warns about every constant that it keeps
        torch.onnx.export(
            Matching().eval(),
            tuple(inputs.values()),
            path,
            dynamo=False,
            opset_version=OPSET,
            input_names=list(inputs),
            output_names=list(MATCH_OUTPUTS),
            dynamic_axes=axes,
        )
        return path.read_bytes()
