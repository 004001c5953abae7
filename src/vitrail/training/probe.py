"""Probes of frozen features: accuracy of a linear classifier and of nearest neighbours.

Shapes: N images, D width, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.checkpoint.sources.names import names_weights
from vitrail.checkpoint.surgery.adapt import adapt
from vitrail.data.open import open_source
from vitrail.data.source import Source
from vitrail.errors import require
from vitrail.geometry import Size
from vitrail.nn.build import build
from vitrail.presets import preset
from vitrail.training.batches import in_order, measured
from vitrail.training.evaluate import evenly
from vitrail.training.objective import Model
from vitrail.training.prepare import open_checkpoint

__all__ = ["LinearClassifier", "Probe", "extract", "fit_linear", "linear_probe", "nearest_neighbours", "probe"]


@dataclass(frozen=True, kw_only=True)
class Probe:
    """Test accuracies of both probes, and what they were measured on."""

    linear: float
    nearest: float
    neighbours: int
    train_images: int
    test_images: int
    width: int
    image: Size
    classes: int
    fresh: bool
    """Whether the weights were a preset's fresh ones."""


def probe(
    model: str | Path,
    data: str | Path | Sequence[str | Path],
    *,
    image: Size | str | None = None,
    limit: int = 10_000,
    neighbours: int = 20,
    seed: int = 0,
) -> Probe:
    """Probe the frozen features of weights, of a run, or of a preset with fresh weights, on a test split."""
    require(limit > 0 and neighbours > 0, f"limit {limit} and neighbours {neighbours} must be 1 or more")
    checkpoint = open_checkpoint(model) if names_weights(str(model)) else None
    config = preset(str(model)) if checkpoint is None else checkpoint.config
    config.require_still("probing")
    size = config.image if image is None else Size.of(image)
    fitted, judged = (open_source(data, split, image=size) for split in ("train", "test"))
    if checkpoint is None:
        torch.manual_seed(seed)
        built = build(config.but(image=size, channels=fitted.channels))
        preprocessing = measured(fitted, size)
    else:
        adapted, _ = adapt(checkpoint, {"image": size, "channels": fitted.channels})
        built, preprocessing = adapted.model(), adapted.preprocessing
    few = (evenly(each, limit) for each in (fitted, judged))
    train, test = (extract(built, each, preprocessing) for each in few)
    classes = len(fitted.classes)
    return Probe(
        linear=linear_probe(train, test, classes),
        nearest=nearest_neighbours(train, test, classes, k=neighbours),
        neighbours=neighbours,
        train_images=len(train[1]),
        test_images=len(test[1]),
        width=train[0].shape[1],
        image=size,
        classes=classes,
        fresh=checkpoint is None,
    )


@torch.no_grad()
def extract(model: Model, source: Source, preprocessing: Preprocessing, *, batch: int = 128) -> tuple[Tensor, Tensor]:
    """Return pooled vectors (N, D), before any head, and labels (N,); damaged images are left out."""
    training, device = model.training, next(model.parameters()).device
    model.eval()
    vectors, labels = [], []
    for pixels, own, _ in in_order(source, preprocessing, batch):
        vector = model.vector(preprocessing.normalise(pixels.to(device)))
        vectors.append(vector.flatten(1).cpu())
        labels.append(own)
    model.train(training)
    require(len(vectors) > 0, "no image could be read; check the data")
    return torch.cat(vectors), torch.cat(labels)


@dataclass(frozen=True, kw_only=True)
class LinearClassifier:
    """Logistic regression on standardised features, in float64."""

    centre: Tensor
    spread: Tensor
    weight: Tensor
    """(D, K)."""
    bias: Tensor

    def logits(self, features: Tensor) -> Tensor:
        """(N, D) → (N, K)."""
        return (features.double() - self.centre) / self.spread @ self.weight + self.bias


def fit_linear(features: Tensor, labels: Tensor, classes: int, *, penalty: float = 1e-3) -> LinearClassifier:
    """Fit logistic regression by L-BFGS. It starts from the closed form of least squares: few iterations suffice."""
    centre, spread = features.double().mean(0), features.double().std(0).clamp(min=1e-6)
    x = (features.double() - centre) / spread
    one_hot = F.one_hot(labels, classes).double()
    gram = x.T @ x / len(x) + penalty * torch.eye(x.shape[1], dtype=torch.float64)
    weight = torch.linalg.solve(gram, x.T @ (one_hot - 1 / classes) / len(x)).contiguous().requires_grad_()  # (D, K)
    bias = torch.zeros(classes, dtype=torch.float64, requires_grad=True)
    solver = torch.optim.LBFGS([weight, bias], max_iter=200, tolerance_change=1e-9, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        solver.zero_grad()
        value = F.cross_entropy(x @ weight + bias, labels) + penalty / 2 * weight.square().sum()
        value.backward()
        return value

    solver.step(loss)  # type: ignore[arg-type]
    return LinearClassifier(centre=centre, spread=spread, weight=weight.detach(), bias=bias.detach())


def linear_probe(
    train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], classes: int, *, penalty: float = 1e-3
) -> float:
    """Return the test accuracy of logistic regression on the training features."""
    held, answers = test
    fitted = fit_linear(*train, classes, penalty=penalty)
    return (fitted.logits(held).argmax(1) == answers).double().mean().item()


def nearest_neighbours(
    train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], classes: int, *, k: int = 20, temperature: float = 0.07
) -> float:
    """Test accuracy of k nearest neighbours by cosine, with votes exp(cosine / temperature) (arXiv 2104.14294)."""
    (features, labels), (held, answers) = train, test
    x, y = (F.normalize(part.float(), dim=1) for part in (features, held))
    right = 0
    for some, own in zip(y.split(1024), answers.split(1024), strict=True):
        cosine, near = (some @ x.T).topk(min(k, len(x)), dim=1)
        votes = torch.zeros(len(some), classes).scatter_add_(1, labels[near], (cosine / temperature).exp())
        right += int((votes.argmax(1) == own).sum())
    return right / len(held)
