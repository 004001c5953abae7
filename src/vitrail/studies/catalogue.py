"""The studies by name: a question, what is compared, and how it is run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.errors import require

if TYPE_CHECKING:
    from vitrail.studies.findings import Findings, Watch

__all__ = ["STUDIES", "Request", "Study"]


@dataclass(frozen=True, kw_only=True)
class Request:
    """How a study is run; what is None has the study's own default."""

    out: Path
    data: Sequence[str] | None = None
    weights: Sequence[str] = ("default",)
    seeds: int = 3
    steps: int | None = None
    limit: int | None = None
    watch: Watch = lambda what, done, total: None

    def __post_init__(self) -> None:
        require(self.seeds > 0, f"seeds {self.seeds} is not a positive number; 3 gives error bars")
        require(self.steps is None or self.steps > 0, f"steps {self.steps} is not a positive number; give 1 or more")
        require(self.limit is None or self.limit > 1, f"limit {self.limit} is too few images; use 100 or more")

    def settings(self, *names: str) -> dict[str, Any]:
        """Return the fields of these names that are not None, as keyword arguments."""
        named = {name: getattr(self, name) for name in ("out", "seeds", "watch", *names)}
        return {name: value for name, value in named.items() if value is not None}

    def need_data(self, remedy: str) -> Sequence[str]:
        require(self.data is not None, f"no --data was given; {remedy}")
        assert self.data is not None
        return self.data


@dataclass(frozen=True, kw_only=True)
class Study:
    name: str
    question: str
    compared: str
    run: Callable[[Request], Findings]


def _layers(request: Request) -> Findings:
    from vitrail.studies.layers import study_layers

    data = request.need_data("fetch a dataset with vitrail data fetch cifar10 --out cifar10")
    return study_layers(request.weights, data, **request.settings("limit"))


def _adaptive(request: Request) -> Findings:
    from vitrail.studies.adaptive import study_adaptive

    data = request.need_data("fetch a dataset with vitrail data fetch cifar10 --out cifar10")
    require(request.limit is None, "adaptive trains on all images and tests on all; leave --limit out")
    return study_adaptive(data, **request.settings("steps"))


def _data_hunger(request: Request) -> Findings:
    from vitrail.studies.data_hunger import study_data_hunger

    data = request.need_data("fetch a dataset with vitrail data fetch cifar10 --out cifar10")
    require(request.limit is None, "data-hunger draws its own shares of the images; leave --limit out")
    return study_data_hunger(data, **request.settings("steps"))


def _fashion_choices(request: Request) -> Findings:
    from vitrail.studies.fashion_choices import study_fashion_choices

    data = request.need_data("fetch the images with vitrail data fetch fashion-mnist --out fashion-mnist")
    require(request.limit is None, "fashion-choices cuts its own validation split; leave --limit out")
    return study_fashion_choices(data, **request.settings("steps"))


def _shapes(request: Request) -> Findings:
    from vitrail.studies.shapes import study_shapes

    return study_shapes(**request.settings("limit", "steps"))


def _vocabulary(request: Request) -> Findings:
    from vitrail.studies.vocabulary import study_vocabulary

    data = request.need_data("give a folder of images")
    require(
        len(data) == 1 and len(request.weights) == 1, "vocabulary takes one folder and one model; run it once for each"
    )
    return study_vocabulary(request.weights[0], data[0], **request.settings("limit"))


STUDIES = {
    study.name: study
    for study in (
        Study(
            name="adaptive",
            question="Which patches should be small: where a network says, where detail is, or anywhere?",
            compared="a selector trained with a token budget, the detail score, random places; two and three sizes",
            run=_adaptive,
        ),
        Study(
            name="data-hunger",
            question="How much data does a ViT need beside a CNN of its size?",
            compared="a ViT, one with a convolutional stem, and a ResNet on 1 to 100 % of the images",
            run=_data_hunger,
        ),
        Study(
            name="fashion-choices",
            question="Which settings for Fashion-MNIST, judged on images held out of training?",
            compared="labels, movement, pooling, stem and learning rate of the Fashion-MNIST recipe",
            run=_fashion_choices,
        ),
        Study(
            name="layers",
            question="Are early layers local and late ones global, and how soon can classes be read?",
            compared="every block of trained models: linear probes, attention distance",
            run=_layers,
        ),
        Study(
            name="shapes",
            question="Does a random, frozen front end separate four shapes?",
            compared="CLS token, mean and maximum of the patches, before and after the encoder, random and trained",
            run=_shapes,
        ),
        Study(
            name="vocabulary",
            question="Do similar patches get similar tokens?",
            compared="patches of a folder as pixels and as tokens, after every block, and their clusters",
            run=_vocabulary,
        ),
    )
}
