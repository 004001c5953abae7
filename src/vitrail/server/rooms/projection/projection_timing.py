"""One projection in three implementations, timed on an image, and the same image with newly initialised weights.

Shapes: (1, C, H, W) images, (D, C, P, Q) weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from vitrail.config import ViTConfig
from vitrail.errors import require
from vitrail.geometry import Size
from vitrail.parts import ResNetStem, Stem
from vitrail.server.plans import Pair

if TYPE_CHECKING:
    from torch import Tensor

    from vitrail.look.subject import Subject

__all__ = ["Measured", "measure"]

RUNS = 15


class Implementation(BaseModel):
    name: str
    code: str
    milliseconds: float
    """The median of several runs on this machine."""
    from_explicit: float
    """The largest absolute difference from the explicit product."""
    from_float64: float
    """The largest absolute difference from the product in float64: rounding, which depends on the summation order."""


class Initialisation(BaseModel):
    name: str
    rule: str
    weight_deviation: float
    token_deviation: float
    """Standard deviation of all values of the image's tokens, without positions."""


class Measured(BaseModel):
    grid: Pair
    width: int
    inputs: int
    largest: float
    """The largest absolute value of any token."""
    runs: int
    implementations: list[Implementation]
    pixel_deviation: float
    initialisations: list[Initialisation]


def measure(subject: Subject) -> Measured:
    """Run the projection in three implementations on the image, and with newly initialised weights."""
    import torch

    from vitrail.look.filters import projection_of
    from vitrail.nn.patches import embed_by_convolution, embed_by_matmul, embed_by_unfold
    from vitrail.nn.remainder import fit_pixels

    convolution, config = projection_of(subject.model), subject.model.config
    stem = isinstance(config, ViTConfig) and isinstance(config.embedding, Stem | ResNetStem)
    require(
        not stem and not any(convolution.padding),
        "a stem of convolutions is not one projection; choose a model with patches",
    )
    image = subject.image
    if isinstance(config, ViTConfig):
        image = fit_pixels(image, config.fit(Size(*image.shape[2:])))
    weight, bias = convolution.weight.detach(), None if convolution.bias is None else convolution.bias.detach()
    stride = convolution.stride
    ways = (
        ("explicit patches", "cut_patches(x) @ W.T + b", embed_by_matmul),
        ("unfold + linear", "linear(unfold(x).mT, W, b)", embed_by_unfold),
        ("strided convolution", "conv2d(x, W, b, stride=P)", embed_by_convolution),
    )
    with torch.inference_mode():
        exact = embed_by_matmul(image.double(), weight.double(), None if bias is None else bias.double(), stride)
        explicit = embed_by_matmul(image, weight, bias, stride)
        implementations = [
            Implementation(
                name=name,
                code=code,
                milliseconds=_milliseconds(lambda way=way: way(image, weight, bias, stride)),
                from_explicit=_largest_difference(way(image, weight, bias, stride), explicit),
                from_float64=_largest_difference(way(image, weight, bias, stride), exact),
            )
            for name, code, way in ways
        ]
        initialisations = _initialisations(image, weight, bias, stride)
    rows = (image.shape[2] - weight.shape[2]) // stride.height + 1
    columns = (image.shape[3] - weight.shape[3]) // stride.width + 1
    return Measured(
        grid=(rows, columns),
        width=len(weight),
        inputs=weight[0].numel(),
        largest=float(exact.abs().max()),
        runs=RUNS,
        implementations=implementations,
        pixel_deviation=_deviation(image),
        initialisations=initialisations,
    )


def _initialisations(image: Tensor, weight: Tensor, bias: Tensor | None, stride: Size) -> list[Initialisation]:
    """Project the image with the loaded weights and with newly initialised ones of the same shape."""
    import torch

    from vitrail.nn.initialise import initialise
    from vitrail.nn.patches import embed_by_matmul

    tokens = embed_by_matmul(image, weight, bias, stride)
    rows = [_initialisation("loaded weights", "trained", weight, tokens)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for name, followed_by, rule in (
            ("Xavier uniform", "linear", "before a linear layer, as here"),
            ("He normal", "relu", "before a ReLU, which halves the variance"),
        ):
            fresh = torch.empty_like(weight)
            initialise(fresh, followed_by=followed_by)  # type: ignore[arg-type]
            rows.append(_initialisation(name, rule, fresh, embed_by_matmul(image, fresh, None, stride)))
    return rows


def _initialisation(name: str, rule: str, weight: Tensor, tokens: Tensor) -> Initialisation:
    deviations = {"weight_deviation": _deviation(weight), "token_deviation": _deviation(tokens)}
    return Initialisation(name=name, rule=rule, **deviations)


def _deviation(values: Tensor) -> float:
    return float(values.std(correction=0))


def _largest_difference(tokens: Tensor, reference: Tensor) -> float:
    return float((tokens.double() - reference.double()).abs().max())


def _milliseconds(run: Callable[[], Any]) -> float:
    run()
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - start))
    return median(times)
