"""Room 6, memory: where the bytes of a step go, against a card, and what to change first."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel

from vitrail.config import ViTConfig
from vitrail.plan.by_image import memory_by_image
from vitrail.plan.fit import on_card
from vitrail.plan.hardware import Bound, VerdictName, flash_scratch_bytes, verdicts
from vitrail.plan.ledger import ledger
from vitrail.plan.memory import COMPONENTS
from vitrail.plan.memory import memory as held
from vitrail.plan.report import report
from vitrail.plan.workload import Workload
from vitrail.studio.formulas import Formula, short
from vitrail.studio.plans import Pair, PlanQuestion, card_of, described, workload_of
from vitrail.studio.session import Here

__all__ = ["Question", "router"]

router = APIRouter()

Question = PlanQuestion
Asked = Annotated[Question, Query()]

ABOUT = {
    "weights": "the parameters, as they are stored",
    "gradients": "one per parameter, until the optimizer has used it",
    "optimizer": "its moments, one or two per parameter",
    "activations": "what forward keeps for backward",
    "attention_maps": "tokens × tokens per head where attention is eager; a fused kernel keeps one number a row",
    "weight_casts": "16-bit copies of the weights, which autocast keeps",
    "input": "the images and labels of the batch",
    "temporary": "what lives for a moment at the peak",
}


class Component(BaseModel):
    name: str
    words: str
    about: str
    bytes: int


class Verdict(BaseModel):
    name: VerdictName
    fits: bool
    needed_bytes: int
    free_bytes: int


class Answer(BaseModel):
    peak_bytes: int
    components: list[Component]
    phase_peaks: dict[str, int]
    exact: bool
    note: str
    attention: str
    """The kernel that the card would run."""
    card: str
    visible_bytes: int
    verdicts: list[Verdict]
    tokens: int
    formulas: list[Formula]


@router.get("/memory")
def memory(asked: Asked, here: Here) -> Answer:
    """Bytes by component at the step's peak, and whether they fit."""
    config, target = described(asked, here), card_of(asked)
    workload = on_card(workload_of(asked), target)
    found = held(config, workload)
    said = verdicts(found, target, flash_scratch_bytes(config, workload))
    return Answer(
        peak_bytes=found.peak_bytes,
        components=[
            Component(name=name, words=name.replace("_", " "), about=ABOUT[name], bytes=found.bytes[name])
            for name in COMPONENTS
        ],
        phase_peaks=found.phase_peaks,
        exact=found.exact,
        note=found.note,
        attention=workload.attention,
        card=target.name,
        visible_bytes=target.visible_bytes,
        verdicts=[
            Verdict(name=v.name, fits=v.fits, needed_bytes=v.needed_bytes, free_bytes=v.free_bytes) for v in said
        ],
        tokens=config.tokens,
        formulas=_formulas(config, workload, found.bytes),
    )


def _formulas(config: ViTConfig, workload: Workload, found: dict[str, int]) -> list[Formula]:
    params = ledger(config).params
    tokens, width, m, batch = config.tokens, config.width, config.mlp.width, workload.batch
    formulas = [
        Formula(
            name="weights",
            symbols="parameters · bytes each (and fixed tables)",
            numbers=f"{short(params)} · {workload.parameter_bytes} → {short(found['weights'])} B",
        )
    ]
    if workload.train:
        stored = 4 if workload.precision == "fp32" else 2
        residual = 2 if workload.precision == "bf16" else 4
        each = f"({2 * residual} + {6 * stored}) · {batch} · {short(tokens)} · {width}"
        formulas += [
            Formula(
                name="optimizer",
                symbols="moments · parameters · bytes each",
                numbers=f"{workload.optimizer}: {short(found['optimizer'])} B at the peak",
            ),
            Formula(
                name="kept by one block, roughly",
                symbols="(2 · eᵣ + 6 · e) · B · N · D + 2 · e · B · N · m",
                numbers=f"{each} + {2 * stored} · {batch} · {short(tokens)} · {m} = "
                + short(batch * tokens * ((2 * residual + 6 * stored) * width + 2 * stored * m))
                + " B",
            ),
        ]
    formulas.append(
        Formula(
            name="an attention map, if it were kept",
            symbols="B · heads · N²",
            numbers=f"{batch} · {config.num_heads} · {short(tokens)}² = {short(batch * config.num_heads * tokens**2)}"
            f" values a block; {workload.attention} attention keeps "
            + ("them" if workload.attention == "eager" else "none"),
        )
    )
    return formulas


class Batches(BaseModel):
    """The largest batch, by how much room the card is expected to leave."""

    optimistic: int
    likely: int
    safe: int


class Change(BaseModel):
    """One thing to change, on its own and on top of the changes before it."""

    name: str
    what: str
    price: str
    alone_bytes: int
    alone_fits: bool
    together_bytes: int | None
    together_fits: bool


class Fit(BaseModel):
    max_batch: Batches
    changes: list[Change]
    step_bound: Bound | None
    notes: list[str]


@router.get("/memory/fit")
def fit(asked: Asked, here: Here) -> Fit:
    """The part of `vitrail plan --json` on fitting: the largest batch, what to change first, and a bound on time."""
    return Fit(**report(described(asked, here), workload_of(asked), card_of(asked)).to_json())


class Curve(BaseModel):
    """Memory against image size, at the image's shape."""

    images: list[Pair]
    components: dict[str, list[int]]
    needed: list[int]
    """What the card would likely take."""


@router.get("/memory/curve")
def curve(asked: Asked, here: Here) -> Curve:
    """The same step on smaller and larger images, up to twice the side."""
    samples = memory_by_image(described(asked, here), workload_of(asked), card_of(asked), points=20)
    return Curve(
        images=[tuple(sample.image) for sample in samples],
        components={name: [sample.memory.bytes[name] for sample in samples] for name in COMPONENTS},
        needed=[sample.needed_bytes for sample in samples],
    )
