"""Vector → logits.

Shapes: B images, D width, K classes.
"""

from __future__ import annotations

from torch import Tensor, nn

from vitrail.nn.mlp import linear

__all__ = ["Classifier", "build_head"]


def build_head(width: int, classes: int, *, bias: bool = True) -> nn.Linear | None:
    return linear(width, classes, bias=bias) if classes else None


class Classifier:
    """A model with a head, with two if it has a distillation token, or with none."""

    head: nn.Linear | None
    distillation_head: nn.Linear | None

    def classify(self, vector: Tensor) -> Tensor:
        """The pooled vector → logits (B, K); a distilled model returns the mean of its two heads."""
        if self.head is None:
            return vector
        if self.distillation_head is None:
            return self.head(vector)
        cls, distillation = vector.unbind(1)
        return (self.head(cls) + self.distillation_head(distillation)) / 2
