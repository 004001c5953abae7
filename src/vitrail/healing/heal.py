"""Give an adapted model the original's features back, from unlabelled images alone: `vitrail.heal`."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.pixels import Image
from vitrail.errors import require
from vitrail.geometry import Size
from vitrail.healing.closed_form import FITS, Drawn
from vitrail.healing.colours import token_colours
from vitrail.healing.distil import best_of, curve_of, distil, job_of, pace
from vitrail.healing.pictures import Parts, Pictures, different, image_mark, readable, split
from vitrail.healing.report import Counts, Healing, part_changes
from vitrail.healing.score import Judge, Score
from vitrail.healing.target import Target, find_target
from vitrail.healing.work import Plan, Step, fingerprint, read_plan, write_plan
from vitrail.images.folder import image_files
from vitrail.nn.vit import ViT
from vitrail.training.distributed import World, world_of
from vitrail.training.folder import RunFolder
from vitrail.training.loop import NotFiniteError

__all__ = ["Watch", "heal"]

Watch = Callable[[dict[str, Any]], None]
"""Told of {"doing": …}, {"note": …}, {"forecast": steps, "seconds": …} and of each step's metrics."""

NEGLIGIBLE = 1e-6
"""An error below this is rounding: there is nothing to heal."""
LONGEST = 10_000
"""Minutes of distillation that can be asked for: a week."""
MOST_IMAGES = 20_000
"""Images of a folder that are used, at even steps."""


def heal(
    before: Checkpoint,
    after: Checkpoint,
    images: str | Path | Sequence[Image],
    *,
    minutes: float = 20.0,
    judge: str | Path | Sequence[Image] | None = None,
    view: Size | str | None = None,
    work: str | Path | None = None,
    seed: int = 0,
    watch: Watch = lambda facts: None,
) -> tuple[Checkpoint, Healing]:
    """Heal what surgery has lost: make `after`, which `adapt` made of `before`, give the original's features again.

    `images` is a folder or a list, without labels. Projection, positions and norm are fitted in closed form first; then
    the whole model is distilled for about `minutes` (0: not at all). Whatever does not help on images that were held
    out is left out, so that the result is never worse on them than `after`; if nothing helps, it is `after` itself.

    `judge` is a folder or a list to measure the result on (default: a tenth of `images`). `view` is the image size at
    which the original is the example (default: with the same grid if image and patch both changed, otherwise its own).
    `work` is a folder in which a healing that was stopped resumes, bit for bit, by the same call; it can be removed
    afterwards.

    >>> from vitrail import adapt, heal, load, synthesize_image
    >>> before = load("default")
    >>> after, _ = adapt(before, {"patch": 8, "image": 64})
    >>> healed, report = heal(before, after, [synthesize_image(seed) for seed in range(40)], minutes=0)
    >>> report.healed, report.after.error < report.before.error
    (True, True)
    """
    for each in (before, after):
        each.config.require_still("healing")
    require(
        0 <= minutes <= LONGEST, f"minutes {minutes} is not between 0 (no distillation) and {LONGEST:,}; give 20 or so"
    )
    with world_of("ddp") as world, _folder(work) as path:
        folder = RunFolder(path, writes=world.rank == 0)
        tell: Watch = watch if folder.writes else lambda facts: None
        with folder.alone(world):
            began = time.monotonic()
            tell({"doing": "reading images"})
            case = _open(before, after, images, judge, None if view is None else Size.of(view), seed, tell)
            return _heal(case, folder, world, minutes, began, tell)


@contextmanager
def _folder(work: str | Path | None) -> Iterator[Path]:
    if work is not None:
        yield Path(work)
        return
    with tempfile.TemporaryDirectory(prefix="vitrail-heal-") as folder:
        yield Path(folder) / "run"


@dataclass(frozen=True, kw_only=True)
class _Case:
    """What is healed, with what."""

    before: Checkpoint
    after: Checkpoint
    target: Target
    pictures: Pictures
    parts: Parts
    choose: Judge
    judge: Judge
    drawn: Drawn
    mark: str
    notes: tuple[str, ...]
    base: Score
    judge_seconds: float


def _open(
    before: Checkpoint,
    after: Checkpoint,
    images: str | Path | Sequence[Image],
    judge: str | Path | Sequence[Image] | None,
    view: Size | None,
    seed: int,
    tell: Watch,
) -> _Case:
    target = find_target(before, after, view)
    own, theirs = after.preprocessing, target.original.preprocessing
    least = Size(*(max(sides) for sides in zip(own.image, theirs.image, strict=True)))

    def pictures(given: str | Path | Sequence[Image]) -> tuple[Pictures, list[bytes], list[str]]:
        listed = image_files(given, limit=MOST_IMAGES) if isinstance(given, str | Path) else list(given)
        good, failed = readable(listed)
        found = different(good)
        notes = [f"left out: {line}" for line in failed]
        if len(found) < len(good):
            notes.append(f"{len(good) - len(found):,} of {len(good):,} images are copies of others, and were left out")
        marks = [image_mark(image) for image in found]
        return Pictures(found, least=least, channels=max(own.channels, theirs.channels)), marks, notes

    held, marks, notes = pictures(images)
    parts = split(held, judging=judge is None)
    judged = parts.judging
    if judge is not None:
        judged, more, said = pictures(judge)
        learned = set(marks)
        both = sum(mark in learned for mark in more)
        require(
            both == 0,
            f"{both:,} of {len(more):,} images to judge on are also images to heal with; give others",
        )
        marks, notes = marks + more, notes + said
    choosing, judging = (Judge(part, own, target.original) for part in (parts.choosing, judged))
    notes += [f"left out: {line}" for line in (*choosing.damaged, *judging.damaged)]
    for line in notes:
        tell({"note": line})
    tell({"doing": "measuring what surgery lost"})
    began = time.monotonic()
    base = choosing(_model(after))
    require(
        math.isfinite(base.error),
        "the features of the adapted model or of the original are not finite on these images; look for NaN in the "
        "weights with vitrail inspect",
    )
    return _Case(
        before=before,
        after=after,
        target=target,
        pictures=held,
        parts=parts,
        choose=choosing,
        judge=judging,
        drawn=Drawn(parts.training, own, seed),
        mark=fingerprint(before, after, marks, seed=seed, view=str(target.image)),
        notes=tuple(notes),
        base=base,
        judge_seconds=time.monotonic() - began,
    )


def _heal(
    case: _Case, folder: RunFolder, world: World, minutes: float, began: float, tell: Watch
) -> tuple[Checkpoint, Healing]:
    if case.base.error < NEGLIGIBLE:
        return case.after, _report(case, case.after, (), began, "it gives the original's features already")
    held = read_plan(folder.path, case.mark, case.after)
    world.wait()  # until all have read it: the first process will write it
    if held is None:
        current, fits = _fitted(case, tell)
        spent = time.monotonic() - began
        tell({"doing": "measuring the time of a step"})
        steps = 0 if minutes == 0 else pace(current, case.target, case.judge_seconds).steps_in(60 * minutes - spent)
        (steps,) = world.sum(steps if world.rank == 0 else 0)  # the first process decides
        plan = Plan(fingerprint=case.mark, fits=fits, steps=steps, seconds=spent)
        if folder.writes:
            write_plan(folder.path, plan, current.tensors)
    else:
        plan, current = held
        began -= plan.seconds
    steps, notes = list(plan.fits), []
    if minutes and not plan.steps:
        notes.append(f"{minutes:g} minutes are too few for distillation; give more, or 0 for the closed form alone")
    if plan.steps:
        stopped = None
        tell({"forecast": plan.steps, "seconds": max(0.0, 60 * minutes - plan.seconds)})
        try:
            stopped = _distilled(case, current, plan, folder, world, tell)
        except NotFiniteError as error:
            notes.append(str(error))
        if stopped is not None:
            return case.after, _stopped(case, stopped, began)
        found = best_of(folder.path, case.after)
        if found is not None:
            candidate, step = found
            error = case.choose(_model(candidate)).error
            kept = error < min((each.error for each in steps if each.kept), default=case.base.error)
            steps.append(Step(name=f"distillation, step {step:,} of {plan.steps:,}", error=error, kept=kept))
            current = candidate if kept else current
    report = _report(case, current, tuple(steps), began, "")
    report = replace(report, curve=tuple(curve_of(folder.path)), notes=(*report.notes, *notes))
    return (current if report.healed else case.after), report


def _fitted(case: _Case, tell: Watch) -> tuple[Checkpoint, tuple[Step, ...]]:
    """Try the fits in turn, and keep those that help on the images to choose by."""
    current, error, steps = case.after, case.base.error, []
    for name, fit in FITS.items():
        tell({"doing": f"fitting: {name}"})
        candidate = fit(case.before, current, case.target, case.drawn)
        if candidate is None:
            continue
        found = case.choose(_model(candidate)).error
        kept = found < error
        steps.append(Step(name=name, error=min(found, 2.0), kept=kept))
        if kept:
            current, error = candidate, found
    return current, tuple(steps)


def _distilled(case: _Case, start: Checkpoint, plan: Plan, folder: RunFolder, world: World, tell: Watch) -> int | None:
    """Distil, or go on with it; return the number of the signal that stopped it."""
    images = case.parts.training
    error = min((each.error for each in plan.fits if each.kept), default=case.base.error)
    job = job_of(start, case.target, images=len(images), steps=plan.steps, seed=case.drawn.seed, error=error)
    outcome = distil(job, images, start, case.target, case.choose, folder, world=world, watch=tell)
    return outcome.stopped


def _stopped(case: _Case, signal: int, began: float) -> Healing:
    """Report at once, by the images that were measured already."""
    return Healing(
        target=str(case.target),
        before=case.base,
        after=case.base,
        healed=False,
        reason=f"it was stopped by signal {signal}; the same call resumes it",
        images=_counts(case),
        seconds=time.monotonic() - began,
        stopped=signal,
        notes=_notes(case),
    )


def _counts(case: _Case) -> Counts:
    training = len(set(case.parts.training.indices.tolist()) - case.pictures.damaged.keys())
    return Counts(training=training, choosing=len(case.choose.images), judging=len(case.judge.images))


def _notes(case: _Case) -> tuple[str, ...]:
    """What was said at the beginning, and the images whose damage was found when they were learned from."""
    damaged = (f"left out: {line}" for line in case.pictures.damaged.values())
    return tuple(dict.fromkeys((*case.notes, *damaged)))


def _report(case: _Case, current: Checkpoint, steps: tuple[Step, ...], began: float, reason: str) -> Healing:
    """Judge the result; one that is not better than what was given is not used."""
    before = case.judge(_model(case.after))
    after = before if current is case.after else case.judge(_model(current))
    healed = after.error < before.error
    if not reason:
        reason = (
            f"the error (1 − cosine) fell to {after.error / before.error:.1%} of what surgery had left"
            if healed
            else "nothing helped on images that were held out, so that the weights are those that were given"
        )
    chosen = current if healed else case.after
    return Healing(
        target=str(case.target),
        before=before,
        after=after if healed else before,
        healed=healed,
        reason=reason,
        steps=steps,
        images=_counts(case),
        parts=part_changes(case.after.tensors, chosen.tensors),
        seconds=time.monotonic() - began,
        notes=_notes(case),
        colours=token_colours(case.judge, case.after, chosen),
    )


def _model(checkpoint: Checkpoint) -> ViT:
    model = checkpoint.model(dtype=torch.float32, shared=True)
    assert isinstance(model, ViT)
    return model
