"""Measure whether a table of positions reflects the two dimensions of the image.

Shapes: N patches of a grid, D width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.geometry import Size
from vitrail.nn.positions import LearnedTable
from vitrail.training.objective import Model

__all__ = ["position_structure", "structure_of"]


def position_structure(table: Tensor, grid: Size) -> float:
    """Correlation, over all pairs of patches, of the cosine of their rows with their distance on the grid.

    (N, D), prefix rows apart → −1 … 1: negative where near patches are alike, about 0 for random rows.
    """
    rows = F.normalize(table.detach().double(), dim=1)
    places = torch.cartesian_prod(torch.arange(grid.height), torch.arange(grid.width)).double()
    first, second = torch.triu_indices(grid.area, grid.area, offset=1)
    alike = (rows @ rows.T)[first, second]
    distance = torch.cdist(places, places)[first, second]
    return torch.corrcoef(torch.stack([alike, distance]))[0, 1].item()


def structure_of(model: Model) -> dict[str, float]:
    """Return the structure of a model's learned table, if it has one."""
    position = getattr(model, "position", None)
    if not isinstance(position, LearnedTable):
        return {}
    grid = model.config.grid
    return {"position_structure": position_structure(position.table[-grid.area :], grid)}
