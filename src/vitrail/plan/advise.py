"""Recommend a patch, embedding, positions, model and batch, with reasons and what would change the answer."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from vitrail.codec import to_plain
from vitrail.config import ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size, fit
from vitrail.parts import Adaptive, Embedding, Hierarchical, Learned, Patches, Position, Rotary
from vitrail.plan.fit import largest_batch
from vitrail.plan.guidance import APPLICATIONS, MISFITS, REASONS, Misfit, Question, Reason
from vitrail.plan.hardware import roofline
from vitrail.plan.measured import data_hunger
from vitrail.plan.rank import Candidate, input_size, largest_model, rank, tokens_per_object, training
from vitrail.plan.workload import Workload

__all__ = ["Advice", "Decision", "advise"]

ADAPTIVE = Adaptive(patches=(Size(8, 8), Size(16, 16), Size(32, 32)), threshold=0.5)
"""The adaptive patches whose tokens `vitrail.images.measure` counts."""
WORTHWHILE = 0.7
"""Adaptive patches are recommended up to this share of the regular grid's tokens."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """One decision and its reason."""

    about: str
    choice: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Advice:
    """The recommendation, its reasons, and what would change it."""

    question: Question
    ranking: tuple[Candidate, ...]
    """Best first."""
    config: ViTConfig
    """The best candidate, with the recommended embedding and positions."""
    precision: str
    workload: Workload
    """The training step that the batch is for."""
    batch: int | None
    accumulate: int | None
    max_batch: int | None
    """The largest batch that likely fits the card; None without a card."""
    decisions: tuple[Decision, ...]
    misfits: tuple[Misfit, ...]
    reasons: tuple[Reason, ...]
    """What speaks for a ViT here."""
    measured: str | None
    """What was measured here with about as many images; None if that number is unknown or far off."""
    alternatives: tuple[str, ...]
    """What else is usual for the application."""
    would_change: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        survey = self.question.survey
        return {
            "application": self.question.application,
            "model": self.ranking[0].name,
            "image": asdict(self.config.image),
            "patch": asdict(self.config.patch),
            "tokens": self.config.tokens,
            "precision": self.precision,
            "batch": self.batch,
            "accumulate": self.accumulate,
            "max_batch": self.max_batch,
            "decisions": [asdict(decision) for decision in self.decisions],
            "misfits": [{"name": m.name, "why": m.why, "instead": m.instead} for m in self.misfits],
            "reasons": [{"name": reason.name, "why": reason.why} for reason in self.reasons],
            "measured": self.measured,
            "alternatives": list(self.alternatives),
            "would_change": list(self.would_change),
            "ranking": [candidate.to_json() for candidate in self.ranking],
            "survey": None if survey is None else asdict(survey),
            "config": to_plain(self.config),
        }


def advise(question: Question) -> Advice:
    """Rank models and patch sizes, decide the rest, and find out what would change the answer."""
    ranking = rank(question)
    best = ranking[0]
    embedding, about_embedding = _embedding(question, best)
    position, about_position = _position(question)
    config = _settle(best.config, embedding, position)
    workload = replace(training(question.card), adaptive_tokens=_adaptive_tokens(question, config))
    most = None if question.card is None else largest_batch(config, workload, question.card)
    batch = None if most is None else 1 << (min(most, 256).bit_length() - 1)
    effective = max(batch or 1, min(256, (question.data_size or 256_000) // 100))
    decisions = (
        Decision(about="image", choice=str(config.image), why=_why_image(question, best)),
        Decision(about="patch", choice=str(best.patch), why=_why_patch(question, best)),
        about_embedding,
        about_position,
        Decision(about="model", choice=best.name, why=_why_model(question, best)),
    )
    return Advice(
        question=question,
        ranking=ranking,
        config=config,
        precision=workload.precision,
        workload=workload,
        batch=batch,
        accumulate=None if batch is None else max(1, effective // batch),
        max_batch=most,
        decisions=decisions,
        misfits=_misfits(question, best),
        reasons=tuple(reason for reason in REASONS if reason.applies(question)),
        measured=None if question.data_size is None else data_hunger(question.data_size),
        alternatives=APPLICATIONS[question.application].alternatives,
        would_change=_would_change(question, best, about_embedding.choice),
    )


# ── decisions ───────────────────────────────────────────────────────────────────────────────────────────────────


def _embedding(question: Question, best: Candidate) -> tuple[Embedding, Decision]:
    application, side, width = APPLICATIONS[question.application], best.patch.height, best.config.width
    survey = question.survey
    kind, why = application.embedding, application.why
    if survey is not None and survey.adaptive_tokens is not None:
        share = survey.adaptive_tokens / fit(survey.image, Size(8, 8), remainder="resize").grid.area
        if share <= WORTHWHILE and max(best.image) >= 512:
            kind, why = "adaptive", f"measured: {share:.0%} of the tokens of a regular 8-pixel grid cover these images"
        elif kind == "adaptive":
            kind, why = "patches", f"measured: adaptive patches would still need {share:.0%} of the regular tokens"
    if kind == "hierarchical" and side in (8, 16, 32):
        levels = {8: 1, 16: 2, 32: 3}[side]
        widths = tuple(width // 2 ** (levels - level) for level in range(levels))
        return Hierarchical(finest=Size(4, 4), widths=widths), Decision(about="embedding", choice=kind, why=why)
    if kind == "overlapping" and side >= 8:
        stride = Size(side * 3 // 4, side * 3 // 4)
        return Patches(patch=best.patch, stride=stride), Decision(about="embedding", choice=kind, why=why)
    if kind == "adaptive" and min(best.image) >= 2 * max(ADAPTIVE.patches[-1]):
        return ADAPTIVE, Decision(about="embedding", choice=kind, why=why)
    if kind != "patches":
        why = f"{kind} patches are not possible with patch {side} at this image size"
    return Patches(patch=best.patch), Decision(about="embedding", choice="patches", why=why)


def _position(question: Question) -> tuple[Position, Decision]:
    survey = question.survey
    if survey is not None and survey.aspect_high / survey.aspect_low > 1.3:
        low, high = f"{survey.aspect_low:.2f}", f"{survey.aspect_high:.2f}"
        why = f"measured: aspect ratios range from {low} to {high}, and rotary positions need no resampling"
        return Rotary(), Decision(about="positions", choice="rotary", why=why)
    if question.application == "detection":
        why = "detectors run at many image sizes, and rotary positions need no resampling"
        return Rotary(), Decision(about="positions", choice="rotary", why=why)
    why = "one image size: pretrained weights usually have a learned table, which is resampled if the size changes"
    return Learned(), Decision(about="positions", choice="learned", why=why)


def _settle(config: ViTConfig, embedding: Embedding, position: Position) -> ViTConfig:
    """Set the embedding and positions, and the nearest image size that the embedding divides."""
    image = embedding.fit(config.image, "resize").fitted
    return config.but(embedding=embedding, position=position, image=image)


def _adaptive_tokens(question: Question, config: ViTConfig) -> int | None:
    """Return the measured tokens of adaptive patches, or the maximum; None for a regular grid."""
    if not isinstance(config.embedding, Adaptive):
        return None
    survey = question.survey
    measured = survey is not None and survey.image == config.image
    return (survey.adaptive_tokens if survey is not None and measured else None) or config.grid.area


def _why_image(question: Question, best: Candidate) -> str:
    if question.image is not None:
        return "given"
    if question.survey is None:
        return f"usual for {question.application}; set the model's input, or measure your own images"
    lost = question.survey.lost_by_resizing
    if min(lost.values()) > 0.05:
        return f"measured: even {max(lost)} px loses {lost[max(lost)]:.1%} of the images' variance; consider tiles"
    if best.image.area > input_size(question).area * 1.2:
        return "measured: a smaller input keeps the images' variance, but objects need more tokens"
    return "measured: the smallest usual size that keeps 95 % of the images' variance"


def _why_patch(question: Question, best: Candidate) -> str:
    reasons = []
    if question.object_pixels is not None:
        across = tokens_per_object(question, best.image, best.patch)
        reasons.append(f"{across:.1f} tokens across an object of {question.object_pixels} px")
    if "detail" in best.factors:
        reasons.append(f"measured: the grid represents {best.factors['detail']:.0%} of the images' spectrum")
    if best.factors["use"] == 1:
        reasons.append(f"the usual choice for {question.application}")
    return "; ".join(reasons) or "the best balance of detail and cost"


def _why_model(question: Question, best: Candidate) -> str:
    largest = largest_model(question)
    if best.model != largest:
        return f"models up to {largest} were considered, but their cost or memory outweighs the benefit here"
    if question.data_size is None:
        return "the largest model to start with; the number of training images would give a better answer"
    return f"the largest model that {question.data_size:,} images and {question.application} justify"


def _misfits(question: Question, best: Candidate) -> tuple[Misfit, ...]:
    misfits = [misfit for misfit in MISFITS if misfit.applies(question)]
    if question.card is not None and question.images_per_second is not None:
        work = replace(training(question.card), train=False)
        bound = roofline(question.card, work, flops=best.flops_forward, traffic_bytes=0)
        if bound is not None and bound.seconds * question.images_per_second > 0.5:
            speed = f"{1 / bound.seconds:,.0f} images per second is the card's upper bound"
            misfits.append(
                Misfit(
                    name="too slow",
                    applies=lambda _: True,
                    why=f"{speed} for {best.name} at {best.image}; real runs reach at most half of it",
                    instead="a smaller model, a larger patch, or a convolutional network",
                )
            )
    return tuple(misfits)


# ── what would change the answer ────────────────────────────────────────────────────────────────────────────────


def _would_change(question: Question, best: Candidate, embedding: str) -> tuple[str, ...]:
    """Rank again with each input halved or doubled, and list where the answer differs."""
    differences = []
    for label, varied in _variations(question):
        try:
            other = rank(varied)[0]
        except VitrailError:
            differences.append(f"{label}: no model would fit")
            continue
        kind = _embedding(varied, other)[1].choice
        if (other.model, other.patch) != (best.model, best.patch):
            differences.append(f"{label}: {other.name} at {other.image}")
        elif kind != embedding:
            differences.append(f"{label}: {kind} embedding")
    return tuple(differences)


def _variations(question: Question) -> list[tuple[str, Question]]:
    pixels, data, card = question.object_pixels, question.data_size, question.card
    sizes = (8, 16) if pixels is None else (max(1, pixels // 2), 2 * pixels)
    counts = (5_000, 500_000) if data is None else (max(1, data // 10), 10 * data)
    varied = [(f"objects of {size} px", replace(question, object_pixels=size)) for size in sizes]
    varied += [(f"{count:,} images", replace(question, data_size=count)) for count in counts]
    if card is not None:
        for words, visible in (
            ("half the memory", card.visible_bytes // 2),
            ("twice the memory", card.visible_bytes * 2),
        ):
            varied.append((words, replace(question, card=replace(card, visible_bytes=visible))))
    if question.survey is None:
        image = input_size(question)
        larger = Size(2 * image.height, 2 * image.width)
        varied.append((f"images of {larger}", replace(question, image=larger)))
    return varied
