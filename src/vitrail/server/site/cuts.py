"""Graphs of the functions that cut an image, for pictures of any size and patches of any size.

Shapes: h×w cells of P×Q pixels, C channels. Pixels (h·P, w·Q, C) are cells (h, P, w, Q, C) as they lie in memory.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from vitrail.server.rooms.tokens.cells import detail_of, pyramid_means, quadtree_of
from vitrail.server.rooms.tokens.cuts import PYRAMID
from vitrail.server.site.operators import OPSET, operators

__all__ = ["cut_graphs"]


class Adaptive(nn.Module):
    def forward(self, cells: Tensor, threshold: Tensor) -> tuple[Tensor, ...]:
        leaves = quadtree_of(detail_of(cells), threshold)
        return leaves.levels, leaves.dense, leaves.counts


class Pyramid(nn.Module):
    def forward(self, cells: Tensor) -> tuple[Tensor, ...]:
        return tuple(pyramid_means(cells))


@torch.no_grad()
def cut_graphs() -> dict[str, bytes]:
    """Return the graphs by name: from `cells`, uint8, and a `threshold`, to the arrays that the tokens room sends."""
    cells = torch.randint(256, (8, 3, 16, 5, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    adaptive = {"cells": cells, "threshold": torch.tensor(0.5)}
    return {
        "cut-adaptive": _graph(Adaptive(), adaptive, ["levels", "dense"], ["counts"]),
        "cut-pyramid": _graph(Pyramid(), {"cells": cells}, [f"level{side}" for side in PYRAMID]),
    }


def _graph(module: nn.Module, inputs: dict[str, Tensor], maps: list[str], others: Sequence[str] = ()) -> bytes:
    """Trace a module; the first outputs are maps of the cells."""
    with tempfile.TemporaryDirectory(prefix="vitrail-") as scratch, warnings.catch_warnings(), operators():
        path = Path(scratch, "cut.onnx")
        warnings.simplefilter("ignore")  # the tracer warns about every constant that it keeps
        torch.onnx.export(
            module.eval(),
            tuple(inputs.values()),
            path,
            dynamo=False,
            opset_version=OPSET,
            input_names=list(inputs),
            output_names=[*maps, *others],
            dynamic_axes={"cells": [0, 1, 2, 3], **{name: [0, 1] for name in maps}},
        )
        return path.read_bytes()
