"""Published results as data, each with the paper that states it: quoted, never computed here.

Most were not checked against the papers again: look there before you cite one.
"""

from __future__ import annotations

from dataclasses import dataclass

from vitrail.plan.laws import Folklore

__all__ = ["FOLKLORE", "RESULTS", "Result", "best", "results"]

_VIT = "arXiv 2010.11929, table 5"
_DEIT = "arXiv 2012.12877"
_DINOV2 = "arXiv 2304.07193, linear probe"
_FLEXI = "FlexiViT's release, arXiv 2212.08013"
_CCT = "arXiv 2104.05704"


@dataclass(frozen=True)
class Result:
    """Top-1 accuracy of one model, with the data it saw before, the image side it was tested at, and who says so."""

    model: str
    accuracy: float
    pretraining: str
    image: int
    source: str
    dataset: str = "ImageNet-1k"


RESULTS = (
    Result("B/16", 77.91, "ImageNet-1k", 384, _VIT),
    Result("B/16", 83.97, "ImageNet-21k", 384, _VIT),
    Result("B/16", 84.15, "JFT-300M", 384, _VIT),
    Result("B/32", 73.38, "ImageNet-1k", 384, _VIT),
    Result("B/32", 81.28, "ImageNet-21k", 384, _VIT),
    Result("B/32", 80.73, "JFT-300M", 384, _VIT),
    Result("L/16", 76.53, "ImageNet-1k", 384, _VIT),
    Result("L/16", 85.15, "ImageNet-21k", 384, _VIT),
    Result("L/16", 87.12, "JFT-300M", 384, _VIT),
    Result("L/32", 71.16, "ImageNet-1k", 384, _VIT),
    Result("L/32", 80.99, "ImageNet-21k", 384, _VIT),
    Result("L/32", 84.37, "JFT-300M", 384, _VIT),
    Result("H/14", 85.13, "ImageNet-21k", 384, _VIT),
    Result("H/14", 88.04, "JFT-300M", 384, _VIT),
    Result("G/14", 90.45, "JFT-3B", 518, "arXiv 2106.04560"),
    Result("Ti/16", 72.2, "ImageNet-1k", 224, _DEIT),
    Result("S/16", 79.8, "ImageNet-1k", 224, _DEIT),
    Result("B/16", 81.8, "ImageNet-1k", 224, _DEIT),
    Result("deit-Ti/16", 72.2, "ImageNet-1k", 224, _DEIT),
    Result("deit-S/16", 79.8, "ImageNet-1k", 224, _DEIT),
    Result("deit-B/16", 81.8, "ImageNet-1k", 224, _DEIT),
    Result("dinov2-S/14", 81.1, "LVD-142M", 224, _DINOV2),
    Result("dinov2-B/14", 84.5, "LVD-142M", 224, _DINOV2),
    Result("dinov2-L/14", 86.3, "LVD-142M", 224, _DINOV2),
    Result("dinov2-g/14", 86.5, "LVD-142M", 224, _DINOV2),
    Result("flexivit-S/16", 82.58, "ImageNet-1k, distilled", 240, _FLEXI),
    Result("flexivit-B/16", 84.68, "ImageNet-1k, distilled", 240, _FLEXI),
    Result("flexivit-L/16", 85.65, "ImageNet-1k, distilled", 240, _FLEXI),
    Result("ViT-Lite, 3.7 M", 91.38, "none", 32, _CCT, "CIFAR-10"),
    Result("CCT, 0.28 M", 89.17, "none", 32, _CCT, "CIFAR-10"),
)

FOLKLORE = Folklore(
    about="ViT-B/16 on ImageNet",
    said="77.9 % with JFT-300M",
    true="84.15 % with JFT-300M",
    why="77.91 % is ImageNet-1k alone, at 384 px",
)


def results(model: str) -> tuple[Result, ...]:
    """Everything published here about a model, by its preset name."""
    return tuple(result for result in RESULTS if result.model == model)


def best(model: str, dataset: str = "ImageNet-1k") -> Result | None:
    """The highest of them on one dataset, or None where nothing is recorded."""
    found = [result for result in results(model) if result.dataset == dataset]
    return max(found, key=lambda result: result.accuracy, default=None)
