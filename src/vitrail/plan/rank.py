"""Rank models and patch sizes for an application, a budget and the user's own images.

Every candidate is planned. Its score is the product of factors between 0 and 1, each of which is shown:

    use      1 for the application's preferred patch, 0.8 for its others, halved per octave from the nearest otherwise
    objects  tokens across a typical object, up to 2; squared, because what no token resolves is lost
    detail   the share of the images' spectrum that the grid can represent
    size     the model's size, relative to the largest that the data can train
    cost     (1 + forward FLOPs / 100 G) to the power −1/4
    memory   the largest likely training batch on the card, up to 16, as √(batch / 16)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from math import log2, prod, sqrt
from typing import TYPE_CHECKING, Any

from vitrail.config import ViTConfig
from vitrail.errors import require
from vitrail.geometry import Size, fit
from vitrail.parts import Patches
from vitrail.plan.cards import Card
from vitrail.plan.fit import largest_batch, need_bytes
from vitrail.plan.guidance import APPLICATIONS, CAPACITY, Question
from vitrail.plan.ledger import ledger
from vitrail.plan.workload import Workload
from vitrail.presets import preset

if TYPE_CHECKING:
    from vitrail.images.survey import Survey

__all__ = [
    "MODELS",
    "Candidate",
    "input_size",
    "largest_model",
    "measured",
    "preset_of",
    "rank",
    "tokens_per_object",
    "training",
]

MODELS = ("Ti", "S", "B", "L", "H")
PATCHES = (4, 8, 14, 16, 32)
ENOUGH_BATCH = 16


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A model with a patch size, planned and scored."""

    model: str
    patch: Size
    image: Size
    tokens: int
    flops_forward: int
    factors: dict[str, float]
    score: float
    config: ViTConfig

    @property
    def name(self) -> str:
        return f"{self.model}/{self.patch.height}"

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.name,
            "image": asdict(self.image),
            "tokens": self.tokens,
            "flops_forward": self.flops_forward,
            "factors": self.factors,
            "score": self.score,
        }


def rank(question: Question) -> tuple[Candidate, ...]:
    """Return every model and patch size that can be trained on the card, best first."""
    largest = largest_model(question)
    candidates = [
        candidate
        for image in _inputs(question)
        for model in MODELS[: MODELS.index(largest) + 1]
        for side in PATCHES
        if (candidate := _candidate(question, image, model, Size(side, side), largest)) is not None
    ]
    require(
        len(candidates) > 0,
        f"no model can be trained at {input_size(question)} on {question.card.name if question.card else 'any card'}; "
        "use a smaller image or a larger card",
    )
    return tuple(sorted(candidates, key=lambda candidate: -candidate.score))


def preset_of(model: str) -> str:
    """Return the name of the preset with a model's width and depth."""
    return f"{model}/14" if model == "H" else f"{model}/16"


def _candidate(question: Question, wanted: Size, model: str, patch: Size, largest: str) -> Candidate | None:
    if min(wanted) < 2 * max(patch):
        return None
    image = fit(wanted, patch, remainder="resize").fitted
    config = preset(preset_of(model), image=image, embedding=Patches(patch=patch))
    assert isinstance(config, ViTConfig)
    memory = 1.0 if question.card is None else _memory_factor(config, question.card)
    if memory == 0:  # not even one image
        return None
    flops = ledger(config).flops_forward
    factors = {
        "use": _application_factor(patch.height, APPLICATIONS[question.application].patches),
        "size": sqrt((MODELS.index(model) + 1) / (MODELS.index(largest) + 1)),
        "cost": (1 + flops / 100e9) ** -0.25,
    }
    if question.card is not None:
        factors["memory"] = memory
    if question.object_pixels is not None:
        factors["objects"] = min(1.0, tokens_per_object(question, image, patch) / 2) ** 2
    if question.survey is not None:
        factors["detail"] = 1 - _beyond_the_grid(question.survey, image, patch)
    return Candidate(
        model=model,
        patch=patch,
        image=image,
        tokens=config.tokens,
        flops_forward=flops,
        factors=factors,
        score=prod(factors.values()),
        config=config,
    )


def training(card: Card | None, batch: int = 1) -> Workload:
    """Return a training workload, in mixed precision of a 16-bit format that the card supports."""
    half = "amp-bf16" if card is None or not card.tflops or "bf16" in card.tflops else "amp-fp16"
    return Workload(batch=batch, train=True, precision=half)


def _application_factor(side: int, patches: tuple[int, ...]) -> float:
    if side in patches:
        return 1.0 if side == patches[0] else 0.8
    return 0.5 ** max(1.0, min(abs(log2(side / usual)) for usual in patches))


def _memory_factor(config: ViTConfig, card: Card) -> float:
    if need_bytes(config, training(card, ENOUGH_BATCH), card) <= card.visible_bytes:
        return 1.0
    return sqrt(largest_batch(config, training(card), card) / ENOUGH_BATCH)


def largest_model(question: Question) -> str:
    """Return the largest model that the application and the number of training images (default: B) justify."""
    data = question.data_size
    by_data = "B" if data is None else next(model for most, model in CAPACITY if most is None or data < most)
    return min(APPLICATIONS[question.application].largest, by_data, key=MODELS.index)


def input_size(question: Question) -> Size:
    """Return the given input size, or the smallest that keeps the images' detail, or the application's default."""
    if question.image is not None:
        return question.image
    if question.survey is None:
        side = APPLICATIONS[question.application].image
        return Size(side, side)
    lost = question.survey.lost_by_resizing
    return _shaped(question.survey, min((side for side in lost if lost[side] <= 0.05), default=max(lost)))


def measured(question: Question, survey: Callable[[Size], Survey]) -> Question:
    """Add a survey of the images to the question, at the input size that a first survey suggests."""
    first = question.image or Size(224, 224)
    surveyed = replace(question, survey=survey(first))
    wanted = input_size(surveyed)
    return surveyed if wanted == first else replace(surveyed, survey=survey(wanted))


def _inputs(question: Question) -> tuple[Size, ...]:
    """Return the input size and, for measured images, up to two larger ones, which small objects may need."""
    smallest = input_size(question)
    if question.image is not None or question.survey is None:
        return (smallest,)
    survey = question.survey
    larger = [_shaped(survey, side) for side in survey.lost_by_resizing if side <= max(survey.median)]
    return (smallest, *[size for size in larger if size.area > smallest.area][:2])


def _shaped(survey: Survey, side: int) -> Size:
    """Return a square or, if all images have one aspect ratio, a rectangle of that ratio and the same area."""
    if survey.aspect_high / survey.aspect_low > 1.05:
        return Size(side, side)
    ratio = sqrt(survey.aspect_median)
    return Size(*(max(32, round(length / 32) * 32) for length in (side / ratio, side * ratio)))


def _beyond_the_grid(survey: Survey, image: Size, patch: Size) -> float:
    """Return the share above the grid's Nyquist frequency, interpolated between measured patches in octaves.

    A patch on an image of twice the size covers the same area as half the patch on the measured one.
    """
    wanted = log2(patch.height * survey.image.height / image.height)
    points = [(log2(detail.patch.height), detail.above_nyquist_share) for detail in survey.details]
    for (low, below), (high, above) in pairwise(points):
        if wanted <= high:
            return below + (above - below) * max(0.0, wanted - low) / (high - low)
    return points[-1][1]


def tokens_per_object(question: Question, image: Size, patch: Size) -> float:
    """Return the tokens across a typical object, after resizing the stored image to the model's input."""
    native = question.native or image
    scale = max(image.height / native.height, image.width / native.width)  # cropped to shape, then resized
    return (question.object_pixels or 0) * scale / max(patch)
