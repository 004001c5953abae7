"""One projection in three spellings, run on an image and timed; and what fresh weights make of the same image.

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
from vitrail.studio.plans import Pair

if TYPE_CHECKING:
    from torch import Tensor

    from vitrail.look.subject import Subject

__all__ = ["Measured", "measure"]

RUNS = 15


class Spelling(BaseModel):
    name: str
    code: str
    milliseconds: float
    """The median of a few runs, on this machine."""
    from_explicit: float
    """The largest difference of any value from the explicit product's."""
    from_float64: float
    """The same from the product in float64: rounding, which every order of adding has its own of."""


class Start(BaseModel):
    name: str
    rule: str
    weight_deviation: float
    token_deviation: float
    """Deviation of all values of all tokens of the image, positions not added."""


class Measured(BaseModel):
    grid: Pair
    width: int
    inputs: int
    largest: float
    """The largest value of any token, for scale."""
    runs: int
    spellings: list[Spelling]
    pixel_deviation: float
    starts: list[Start]


def measure(subject: Subject) -> Measured:
    """Run the projection three ways on the image, and the image through fresh weights."""
    import torch

    from vitrail.look.filters import projection_of
    from vitrail.nn.patches import embed_by_convolution, embed_by_matmul, embed_by_unfold
    from vitrail.nn.remainder import fit_pixels

    found, config = projection_of(subject.model), subject.model.config
    require(found.padding == 0, "a stem of several convolutions is no single projection; look at a model of patches")
    image = subject.image
    if isinstance(config, ViTConfig):
        image = fit_pixels(image, config.fit(Size(*image.shape[2:])))
    weight, bias = found.weight.detach(), None if found.bias is None else found.bias.detach()
    ways = (
        ("explicit patches", "cut_patches(x) @ W.T + b", embed_by_matmul),
        ("unfold + linear", "linear(unfold(x).mT, W, b)", embed_by_unfold),
        ("strided convolution", "conv2d(x, W, b, stride=P)", embed_by_convolution),
    )
    with torch.inference_mode():
        exact = embed_by_matmul(image.double(), weight.double(), None if bias is None else bias.double(), found.stride)
        explicit = embed_by_matmul(image, weight, bias, found.stride)
        spellings = [
            Spelling(
                name=name,
                code=code,
                milliseconds=_milliseconds(lambda way=way: way(image, weight, bias, found.stride)),
                from_explicit=_gap(way(image, weight, bias, found.stride), explicit),
                from_float64=_gap(way(image, weight, bias, found.stride), exact),
            )
            for name, code, way in ways
        ]
        starts = _starts(image, weight, bias, found.stride)
    rows = (image.shape[2] - weight.shape[2]) // found.stride.height + 1
    columns = (image.shape[3] - weight.shape[3]) // found.stride.width + 1
    return Measured(
        grid=(rows, columns),
        width=len(weight),
        inputs=weight[0].numel(),
        largest=float(exact.abs().max()),
        runs=RUNS,
        spellings=spellings,
        pixel_deviation=_deviation(image),
        starts=starts,
    )


def _starts(image: Tensor, weight: Tensor, bias: Tensor | None, stride: Size) -> list[Start]:
    """The same image through the loaded weights and through fresh ones of the same shape."""
    import torch

    from vitrail.nn.initialise import initialise
    from vitrail.nn.patches import embed_by_matmul

    tokens = embed_by_matmul(image, weight, bias, stride)
    starts = [_start("the loaded weights", "as they were learned", weight, tokens)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for name, followed_by, rule in (
            ("Xavier uniform", "linear", "before anything linear, as here"),
            ("He normal", "relu", "before a rectifier, which halves the variance"),
        ):
            fresh = torch.empty_like(weight)
            initialise(fresh, followed_by=followed_by)  # type: ignore[arg-type]
            starts.append(_start(name, rule, fresh, embed_by_matmul(image, fresh, None, stride)))
    return starts


def _start(name: str, rule: str, weight: Tensor, tokens: Tensor) -> Start:
    return Start(name=name, rule=rule, weight_deviation=_deviation(weight), token_deviation=_deviation(tokens))


def _deviation(values: Tensor) -> float:
    return float(values.std(correction=0))


def _gap(tokens: Tensor, reference: Tensor) -> float:
    return float((tokens.double() - reference.double()).abs().max())


def _milliseconds(run: Callable[[], Any]) -> float:
    run()
    spent = []
    for _ in range(RUNS):
        start = time.perf_counter()
        run()
        spent.append(1e3 * (time.perf_counter() - start))
    return median(spent)
