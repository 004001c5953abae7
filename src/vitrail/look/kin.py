"""Which patch is which: the cosines between the tokens of two images, or of one image with itself.

Shapes: N patches of the first image, M of the second, K pairs, D width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.charts.notebook import Brief
from vitrail.nn.layout import Layout

__all__ = ["Buddies", "best_buddies", "cosines_of", "token_cosines", "unit_patches"]


@dataclass(frozen=True, kw_only=True, repr=False)
class Buddies(Brief):
    """Pairs of patches that are each other's nearest, the most alike first.

    >>> import torch
    >>> from vitrail.look import best_buddies
    >>> best_buddies(torch.tensor([[0.9, 0.2, 0.1], [0.8, 0.7, 0.3]])).pairs.tolist()
    [[0, 0]]
    """

    pairs: Tensor
    """(K, 2): the number of a patch of the first image, and of one of the second."""
    cosines: Tensor
    """(K,)"""


@torch.no_grad()
def token_cosines(first: tuple[Tensor, Layout], second: tuple[Tensor, Layout]) -> Tensor:
    """Tokens (1, T, D) of two images and their layouts → (N, M): the cosine of every patch with every other.

    Patches that are padding have the cosine −1.

    >>> import torch
    >>> from vitrail import load
    >>> from vitrail.look import token_cosines
    >>> model = load("default").model()
    >>> token_cosines(model.features(torch.randn(1, 3, 32, 32)), model.features(torch.randn(1, 3, 24, 40))).shape
    torch.Size([64, 60])
    """
    (one, real), (other, real_too) = (unit_patches(*each) for each in (first, second))
    return cosines_of(one, other).where(real[:, None] & real_too, -1.0)


def cosines_of(one: Tensor, other: Tensor) -> Tensor:
    """Unit vectors (N, D) and (M, D) → (N, M)."""
    return (one @ other.mT).clamp(-1, 1)


@torch.no_grad()
def best_buddies(cosines: Tensor) -> Buddies:
    """(N, M) → the pairs of which each is the other's nearest. Every patch is in one pair at most.

    >>> import torch
    >>> from vitrail.look import best_buddies
    >>> best_buddies(torch.tensor([[0.9, 0.2], [0.8, 0.7]])).cosines.tolist() == [torch.tensor(0.9).item()]
    True
    """
    nearest, back = cosines.argmax(dim=1), cosines.argmax(dim=0)
    first = (back[nearest] == torch.arange(len(nearest))).nonzero()[:, 0]
    pairs = torch.stack([first, nearest[first]], dim=1)
    found = cosines[pairs[:, 0], pairs[:, 1]]
    order = found.argsort(descending=True, stable=True)
    return Buddies(pairs=pairs[order], cosines=found[order])


def unit_patches(tokens: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """Return the patches of one image as unit vectors (N, D), and which of them are not padding."""
    patches = F.normalize(tokens[0, layout.prefix :].float(), dim=-1)
    mask = layout.patch_mask
    return patches, torch.ones(len(patches), dtype=torch.bool) if mask is None else mask[0]
