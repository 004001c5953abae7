"""Room 6, memory: the bytes of a step by component, whether they fit a card, and what to change first."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel

from vitrail.config import ViTConfig
from vitrail.plan.by_image import memory_by_image
from vitrail.plan.fit import on_card
from vitrail.plan.folklore import claim
from vitrail.plan.hardware import Bound, VerdictName, flash_scratch_bytes, verdicts
from vitrail.plan.ledger import ledger
from vitrail.plan.memory import COMPONENTS, is_followed
from vitrail.plan.memory import memory as plan_memory
from vitrail.plan.report import report
from vitrail.plan.timeline import Event, Phase
from vitrail.plan.timeline import timeline as plan_timeline
from vitrail.plan.workload import Workload
from vitrail.server.formulas import Formula, short
from vitrail.server.plan_formulas import batch_formula, bound_formula, peak_formula, tokens_formula
from vitrail.server.plans import Pair, PlanQuestion, card_of, described, workload_of
from vitrail.server.session import SessionDep

__all__ = ["Question", "router"]

router = APIRouter()

Question = PlanQuestion
Asked = Annotated[Question, Query()]

ABOUT = {
    "weights": "the parameters",
    "gradients": "one per parameter, until the optimizer step",
    "optimizer": "its moments, one or two per parameter",
    "activations": "tensors that forward saves for backward",
    "attention_maps": "tokens × tokens per head if attention is eager; a fused kernel saves one number per row",
    "weight_casts": "16-bit copies of the weights, cached by autocast",
    "input": "the images and labels of the batch",
    "gathered_weights": "weights of a block that were gathered from all devices, and the buffer they arrive in",
    "reduced_gradients": "buffers of gradients that devices sum, such as DDP's buckets",
    "temporary": "short-lived tensors at the peak",
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
    exact: bool
    note: str
    attention: str
    """The attention kernel that the card would run."""
    card: str
    visible_bytes: int
    verdicts: list[Verdict]
    tokens: int
    formulas: list[Formula]


@router.get("/memory")
def memory(asked: Asked, session: SessionDep) -> Answer:
    """Return the bytes by component at the peak of the step, and whether they fit the card."""
    config, target = described(asked, session), card_of(asked)
    workload = on_card(workload_of(asked), target)
    peak = plan_memory(config, workload)

    return Answer(
        peak_bytes=peak.peak_bytes,
        components=[
            Component(name=name, words=name.replace("_", " "), about=ABOUT[name], bytes=peak.bytes[name])
            for name in COMPONENTS
        ],
        exact=peak.exact,
        note=peak.note,
        attention=workload.attention,
        card=target.name,
        visible_bytes=target.visible_bytes,
        verdicts=[
            Verdict(**vars(verdict), fits=verdict.fits)
            for verdict in verdicts(peak, target, flash_scratch_bytes(config, workload))
        ],
        tokens=config.tokens,
        formulas=[peak_formula("peak", peak.bytes), tokens_formula(config), *_formulas(config, workload, peak.bytes)],
    )


def _formulas(config: ViTConfig, workload: Workload, component_bytes: dict[str, int]) -> list[Formula]:
    params = ledger(config).params
    tokens, width, m, batch = config.tokens, config.width, config.mlp.width, workload.batch
    formulas = [
        Formula(
            name="weights",
            symbols="parameters · bytes each (+ fixed tables)",
            numbers=f"{short(params)} · {workload.parameter_bytes} → {short(component_bytes['weights'])} B",
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
                numbers=f"{workload.optimizer}: {short(component_bytes['optimizer'])} B at the peak",
                folklore=claim("optimizer").words,
            ),
            Formula(
                name="saved by one block, approximately",
                symbols="(2 · eᵣ + 6 · e) · B · N · D + 2 · e · B · N · m",
                numbers=f"{each} + {2 * stored} · {batch} · {short(tokens)} · {m} = "
                + short(batch * tokens * ((2 * residual + 6 * stored) * width + 2 * stored * m))
                + " B",
            ),
        ]
    formulas.append(
        Formula(
            name="attention maps of one block",
            symbols="B · heads · N²",
            numbers=f"{batch} · {config.num_heads} · {short(tokens)}² = {short(batch * config.num_heads * tokens**2)}"
            f" values per block; {workload.attention} attention stores "
            + ("them" if workload.attention == "eager" else "none"),
        )
    )
    return formulas


class Change(BaseModel):
    """One possible change, alone and on top of the changes before it."""

    name: str
    what: str
    price: str
    alone_bytes: int
    alone_fits: bool
    together_bytes: int | None
    together_fits: bool


class Fit(BaseModel):
    max_batch: dict[VerdictName, int]
    changes: list[Change]
    step_bound: Bound | None
    notes: list[str]
    formulas: list[Formula]


@router.get("/memory/fit")
def fit(asked: Asked, session: SessionDep) -> Fit:
    """Return the largest batch, what to change first, and a lower bound on time, as `vitrail plan --json` does."""
    config, workload, target = described(asked, session), workload_of(asked), card_of(asked)
    plan = report(config, workload, target)
    formulas = [
        batch_formula(config, workload, target, plan.max_batch["likely"]),
        bound_formula(plan.step_bound, workload),
    ]
    return Fit(**plan.to_json(), formulas=formulas)


class Curve(BaseModel):
    """Memory against image size, at a constant aspect ratio."""

    images: list[Pair]
    components: dict[str, list[int]]
    needed: list[int]
    """The memory likely needed on the card."""


@router.get("/memory/curve")
def curve(asked: Asked, session: SessionDep) -> Curve:
    """Return the memory of the same step for image sides up to twice the current one."""
    samples = memory_by_image(described(asked, session), workload_of(asked), card_of(asked), points=20)
    return Curve(
        images=[sample.image for sample in samples],
        components={name: [sample.bytes[name] for sample in samples] for name in COMPONENTS},
        needed=[sample.needed_bytes or 0 for sample in samples],
    )


def _operation(event: Event) -> str:
    name = event.operation.replace("_", " ")
    return name if event.bytes > 0 else f"release of {name}"


class Timeline(BaseModel):
    """Bytes alive through a step: the highest place of every stretch of its allocations and releases."""

    note: str
    places: list[int]
    """The number of the event since the step began."""
    phases: list[Phase]
    operations: list[str]
    modules: list[str]
    components: dict[str, list[int]]


@router.get("/memory/timeline")
def timeline(asked: Asked, session: SessionDep) -> Timeline:
    """Return the bytes alive by component through the step, as `vitrail plan --timeline` draws them."""
    workload = on_card(workload_of(asked), card_of(asked))
    followed = workload.shard is None or is_followed(workload)
    points = plan_timeline(described(asked, session), workload if followed else workload.but(shard=None)).stack(300)
    return Timeline(
        note="" if followed else "Without sharding: PyTorch has no such stage to follow.",
        places=[place for place, _, _ in points],
        phases=[event.phase for _, event, _ in points],
        operations=[_operation(event) for _, event, _ in points],
        modules=[event.module for _, event, _ in points],
        components={name: [live.get(name, 0) for _, _, live in points] for name in COMPONENTS},
    )
