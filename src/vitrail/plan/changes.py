"""What to change first so that a step fits a card; every answer is computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from vitrail.checkpointing import Checkpointing
from vitrail.config import Config, ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.parts import FullAttention, Patches
from vitrail.plan.cards import Card
from vitrail.plan.fit import largest_batch, need_bytes
from vitrail.plan.hardware import kernel_on
from vitrail.plan.workload import Shard, Workload

__all__ = ["Change", "changes"]


@dataclass(frozen=True, kw_only=True)
class Change:
    """One change, with its effect alone and on top of the changes before it."""

    name: str
    what: str
    price: str
    """The cost in time or quality."""
    config: Config
    workload: Workload
    """The workload with this change alone."""
    alone_bytes: int
    alone_fits: bool
    together_bytes: int | None
    """Bytes together with the changes before it; None if those already suffice."""
    together_fits: bool


@dataclass(frozen=True)
class _Trial:
    what: str
    price: str
    config: Config
    workload: Workload


def changes(config: Config, workload: Workload, target: Card) -> tuple[Change, ...]:
    """Return changes that make the step likely fit, cheapest first and patch size last; none if it already fits.

    Changes that save nothing, or that lead to an invalid combination, are left out.
    """

    limit = target.visible_bytes
    start = together = need_bytes(config, workload, target)
    so_far = (config, workload)
    useful: list[Change] = []
    for name, propose in _PROPOSALS.items() if start > limit else ():
        enough = together <= limit
        alone, trial = propose(config, workload, target), None if enough else propose(*so_far, target)
        if name == "shard" and alone and trial:  # one row shows both, so use the same number of cards
            alone = replace(alone, what=trial.what, workload=replace(workload, shard=trial.workload.shard))
        alone_bytes, bytes_now = _need(alone, target), _need(trial, target)
        if alone is None or (alone_bytes >= start and bytes_now >= together):
            continue
        if trial is not None and bytes_now < together:
            together, so_far = bytes_now, (trial.config, trial.workload)
        useful.append(
            Change(
                name=name,
                what=alone.what,
                price=alone.price,
                config=alone.config,
                workload=alone.workload,
                alone_bytes=alone_bytes,
                alone_fits=alone_bytes <= limit,
                together_bytes=None if enough else together,
                together_fits=together <= limit,
            )
        )
    return tuple(useful)


def _need(trial: _Trial | None, target: Card) -> int:
    """Return the bytes that a trial needs; more than any card has if the combination is invalid."""
    try:
        return 2**63 if trial is None else need_bytes(trial.config, trial.workload, target)
    except VitrailError:
        return 2**63


def _batch(config: Config, workload: Workload, target: Card) -> _Trial | None:
    most = max(1, largest_batch(config, workload, target))
    if workload.batch <= most:
        return None
    if not workload.train:
        return _Trial(f"batch {most}", "more forward passes", config, replace(workload, batch=most))
    effective = workload.batch * workload.accumulate
    batch = max(size for size in range(1, most + 1) if effective % size == 0)
    smaller = replace(workload, batch=batch, accumulate=effective // batch)
    return _Trial(
        f"batch {batch}, accumulate {smaller.accumulate}",
        f"none: the effective batch stays {effective}",
        config,
        smaller,
    )


def _attention(config: Config, workload: Workload, target: Card) -> _Trial | None:
    fused = replace(workload, attention="flash")
    if workload.attention != "eager" or not isinstance(config, ViTConfig):
        return None
    if isinstance(config.attention, FullAttention):
        config = config.but(attention=FullAttention(fused=True))
    return _Trial(f"{kernel_on(target, fused)} attention", "none: the same result, faster", config, fused)


def _optimizer(config: Config, workload: Workload, target: Card) -> _Trial | None:
    if not workload.train or workload.optimizer != "adamw":
        return None
    return _Trial("fused AdamW", "none: the same update", config, replace(workload, optimizer="adamw-fused"))


def _checkpointing(config: Config, workload: Workload, target: Card) -> _Trial | None:
    if not workload.train or workload.checkpointing:
        return None
    return _Trial(
        "checkpointing", "about a third more compute", config, replace(workload, checkpointing=Checkpointing())
    )


def _precision(config: Config, workload: Workload, target: Card) -> _Trial | None:
    half = "bf16" if "bf16" in target.tflops or not target.tflops else "fp16"
    lower = {
        ("fp32", True): (f"amp-{half}", "practically none"),
        ("fp32", False): ("bf16", "about three significant digits"),
        ("amp-bf16", True): ("bf16", "small updates are rounded away"),
        ("amp-bf16", False): ("bf16", "about three significant digits"),
    }.get((workload.precision, workload.train))
    if lower is None or (lower[0] == "bf16" and half != "bf16"):
        return None
    return _Trial(f"precision {lower[0]}", lower[1], config, replace(workload, precision=lower[0]))  # type: ignore[arg-type]


def _shard(config: Config, workload: Workload, target: Card) -> _Trial | None:
    if not workload.train or (workload.shard is not None and workload.shard.kind != "ddp"):
        return None
    price = "more cards, and traffic between them"
    trials = [
        _Trial(f"fsdp over {devices} cards", price, config, replace(workload, shard=Shard("fsdp", devices)))
        for devices in (2, 4, 8)
    ]
    return next((trial for trial in trials if _need(trial, target) <= target.visible_bytes), trials[-1])


def _patch(config: Config, workload: Workload, target: Card) -> _Trial | None:
    if not isinstance(config, ViTConfig) or not isinstance(config.embedding, Patches):
        return None
    coarser = Size(*(2 * side for side in config.patch))
    try:
        config = config.with_patch(coarser)
    except VitrailError:  # the image is not divisible by it
        return None
    return _Trial(f"patch {coarser}", "fine detail: a quarter of the tokens", config, workload)


_PROPOSALS: dict[str, Callable[[Config, Workload, Card], _Trial | None]] = {
    "batch": _batch,
    "attention": _attention,
    "optimizer": _optimizer,
    "checkpointing": _checkpointing,
    "precision": _precision,
    "shard": _shard,
    "patch": _patch,
}
