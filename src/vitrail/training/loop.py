"""The training loop.

A step: a prefetched batch, forward and backward over its micro-batches, clipping, update, moving average (EMA).
All randomness is keyed by the step, so an interrupted run resumes to the same weights, bit for bit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.data.source import Source
from vitrail.errors import VitrailError, require
from vitrail.nn.block import Block
from vitrail.nn.build import build
from vitrail.nn.checkpointing import checkpoint_blocks
from vitrail.nn.compile import compiled
from vitrail.nn.mimetic import begin_mimetic
from vitrail.nn.vit import ViT
from vitrail.stop import Stop
from vitrail.training.batches import Batches, ahead, scale_at
from vitrail.training.distributed import ALONE, World
from vitrail.training.evaluate import evaluate
from vitrail.training.feature_loss import FeatureObjective
from vitrail.training.folder import RunFolder, read_metrics
from vitrail.training.job import Job
from vitrail.training.objective import Model, Objective, Teacher
from vitrail.training.optimizer import build_optimizers
from vitrail.training.precision import trained_config
from vitrail.training.random import reseed
from vitrail.training.recipe import Recipe
from vitrail.training.state import Trained, newest_state, read_state, save_state, states, sweep
from vitrail.training.tuning import tune

__all__ = ["NotFiniteError", "Outcome", "Watch", "train"]


class NotFiniteError(VitrailError):
    """Raised when the loss or the gradient is not finite; the states before are intact."""


Watch = Callable[[dict[str, Any]], None]
"""Called with each line of metrics.jsonl, and with {"note": …} for messages to the user."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended: finished, or stopped by a signal after a saved step."""

    step: int
    loss: float
    accuracy: float | None
    """On the images held out, or on the test split."""
    stopped: int | None
    """The signal's number."""
    model: Model


def train(
    job: Job,
    source: Source,
    folder: RunFolder,
    *,
    test: Source | None = None,
    start: Checkpoint | None = None,
    teacher: Checkpoint | None = None,
    save_every: int = 0,
    evaluate_every: int = 0,
    world: World = ALONE,
    watch: Watch = lambda facts: None,
    measure: Callable[[int, Model], dict[str, float]] = lambda step, model: {},
    enough: Callable[[dict[str, Any]], bool] = lambda line: False,
) -> Outcome:
    """Train until the recipe's last step, from the folder's newest state if it has one.

    `measure` returns further metrics of the model after a step, for `watch`, which is also told of notes, and during
    a test of the number of images tested ("testing") and of all ("images"). The run ends after a step for whose
    metrics `enough` returns true.
    """
    recipe, config = job.recipe, job.config
    _check(job, source)
    trained, objective = _begin(job, start, teacher, world)
    device = torch.device(world.device)
    batches = Batches(
        source,
        recipe,
        preprocessing=job.data.preprocessing,
        classes=config.classes,
        views=_views(recipe, teacher),
        rank=world.rank,
        world=world.size,
    )
    # a graph per image size: PyTorch cannot trace the gradient of resampled positions with symbolic sizes
    forward = compiled(objective, dynamic=False) if recipe.compile else objective
    damaged: set[str] = set()

    with folder.alone(world), Stop() as stop:
        if not folder.guarded:
            watch({"note": f"the file system of {folder.path} has no locks: do not start a second run in it"})
        first = _resume(folder, trained, world, watch)
        last = (read_metrics(folder.path) or [{}])[-1]
        loss: float = last.get("loss", math.nan)
        judged = f"{job.data.judged_on}_accuracy"
        accuracy: float | None = last.get(judged)
        folder.status(state="running", step=first, steps=recipe.steps, message="", damaged=[])
        watch({"step": first, "steps": recipe.steps})
        began = before = told = time.monotonic()
        until = first if last and enough(last) else recipe.steps  # it may have been killed after its last step
        done = first
        for step, parts in ahead(batches, first, until):
            for group in trained.groups():
                group["lr"] = recipe.lr_at(step) * group.get("rate", 1.0)
            size, patch = scale_at(recipe, step, config.image)
            losses, rights = [], []
            for micro, part in enumerate(parts):
                reseed("dropout", recipe.seed, step, micro, world.rank)
                with world.micro(objective, last=micro == len(parts) - 1):
                    with torch.autocast(device.type, torch.bfloat16, enabled=recipe.precision == "amp-bf16"):
                        each, right = forward(part.images.to(device), part.targets.to(device), patch)
                    (each / len(parts)).backward()
                losses.append(each.detach())
                rights.append(right)
            norm = nn.utils.clip_grad_norm_(objective.parameters(), recipe.clip or math.inf)
            loss, right, norm = world.mean(torch.stack(losses).mean(), torch.stack(rights).mean(), world.whole(norm))
            if not math.isfinite(loss) or not math.isfinite(norm):
                raise _not_finite(folder, step, loss, norm, recipe)
            for optimizer in trained.optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            _follow(trained, recipe, step)

            done = step + 1
            line: dict[str, Any] = {"step": done, "loss": loss, "accuracy": right, "lr": recipe.lr_at(step),
                                    "gradient_norm": norm}  # fmt: skip
            if recipe.images or recipe.patches:
                line |= {"image": str(size), "patch": str(patch or config.patch)}
            now = time.monotonic()
            line["images_per_second"] = round(recipe.batch / max(now - before, 1e-9), 1)
            new = {name for part in parts for name in part.damaged} - damaged
            damaged |= new
            for name in sorted(new):
                watch({"note": f"left out: {name}"})
            if test is not None and (done == recipe.steps or (evaluate_every and done % evaluate_every == 0)):
                accuracy = _test(trained, job, test, world, watch)
                line[judged] = accuracy
            line |= measure(done, trained.objective.model)  # type: ignore[arg-type]
            folder.append(line)
            watch(line)
            before = time.monotonic()  # evaluation is not part of the next step's time
            asked = world.first(stop.asked)
            ended = done == recipe.steps or world.first(1 if enough(line) else None) is not None
            if asked is not None or ended or (save_every and done % save_every == 0):
                save_state(folder.states, done, trained, rank=world.rank)
                world.wait()
            if asked is not None or ended or now - told > 1 or new:
                told = now
                remaining = (now - began) / (done - first) * (recipe.steps - done)
                folder.status(step=done, loss=loss, eta_seconds=round(remaining, 1), damaged=sorted(damaged))
            if ended:
                break
            if asked is not None:
                folder.status(state="stopped", message=f"by signal {asked}; it can be resumed")
                return Outcome(step=done, loss=loss, accuracy=accuracy, stopped=asked, model=_model(trained))
    return Outcome(step=done, loss=loss, accuracy=accuracy, stopped=None, model=_model(trained))


# ── before the first step ───────────────────────────────────────────────────────────────────────────────────────


def _check(job: Job, source: Source) -> None:
    prepared = job.data.preprocessing.image
    require(
        prepared == job.config.image,
        f"the data are prepared at {prepared} and the model takes {job.config.image}; give both the same image",
    )
    config, recipe = job.config, job.recipe
    require(
        config.classes >= len(source.classes),
        f"label {len(source.classes) - 1} ({''.join(source.classes[-1:])}) is out of range for a model of "
        f"{config.classes} classes; the data have {len(source.classes)}: use that many",
    )
    require(
        len(source) == job.data.images,
        f"the data have {len(source):,} images and had {job.data.images:,} when the run began; restore them",
    )
    for image in recipe.images:
        config.but(image=image)
        for patch in recipe.patches:
            require(
                image.height % patch.height == 0 and image.width % patch.width == 0,
                f"image {image} of the recipe is not divisible by its patch {patch}; drop one of the two",
            )


def _begin(job: Job, start: Checkpoint | None, teacher: Checkpoint | None, world: World) -> tuple[Trained, nn.Module]:
    """Build the model, fresh or from a checkpoint, and its optimizer, sharded for this process."""
    recipe, device = job.recipe, world.device
    config = trained_config(job.config, recipe, device)
    reseed("weights", recipe.seed)
    begun = start if start is None or config == job.config else replace(start, config=config)
    model = (build(config) if begun is None else begun.model(dtype=torch.float32)).to(device).train()
    if recipe.mimetic and start is None:
        require(isinstance(model, ViT), f"mimetic is for a plain ViT, not for a {type(model).__name__}; leave it out")
        begin_mimetic(model)  # type: ignore[arg-type]
    tune(model, recipe.tuning)
    objective = _objective(model, job, teacher, device).to(device)
    if recipe.checkpointing:
        blocks = [(path, part) for path, part in model.named_modules() if isinstance(part, Block)]
        checkpoint_blocks(blocks, recipe.checkpointing)
    require(
        recipe.optimizer != "muon" or world.size == 1 or world.shard == "ddp",
        "muon needs whole matrices, and --shard fsdp splits them; use --shard ddp, or optimizer adamw",
    )
    shared = world.share(objective)
    trained = Trained(objective, build_optimizers(objective, recipe), None)
    if recipe.ema is not None:
        trained.mean = {name: p.detach().clone() for name, p in trained.parameters()}
    return trained, shared


def _objective(model: Model, job: Job, teacher: Checkpoint | None, device: str) -> nn.Module:
    recipe = job.recipe
    if teacher is not None and _views(recipe, teacher) is not None:
        taught = teacher.model(device=device, dtype=torch.float32).requires_grad_(False)
        return FeatureObjective(model, taught)
    taught = None
    if teacher is not None and recipe.distillation is not None:
        taught = Teacher(teacher, job.data.preprocessing, device, resize=recipe.distillation.resize)
    return Objective(model, distillation=recipe.distillation, teacher=taught, token_budget=recipe.token_budget)


def _views(recipe: Recipe, teacher: Checkpoint | None) -> Preprocessing | None:
    """Return how images are prepared for a teacher whose patches are distilled; None in all other runs."""
    chosen = recipe.distillation
    if teacher is None or chosen is None or chosen.what != "patches":
        return None
    return teacher.preprocessing.but(image=chosen.view or teacher.config.image)


def _resume(folder: RunFolder, trained: Trained, world: World, watch: Watch) -> int:
    """Read the newest intact state; a new run saves its initial one."""
    if not states(folder.states):
        world.wait()
        save_state(folder.states, 0, trained, rank=world.rank)
        world.wait()
        return 0
    if world.rank == 0:
        sweep(folder.states)
    step, path, passed = newest_state(folder.states)
    for line in passed:
        watch({"note": f"{line}; resuming from {path}"})
    read_state(path, trained)
    folder.rewind(step)
    world.wait()
    return step


# ── in a step ───────────────────────────────────────────────────────────────────────────────────────────────────


@torch.no_grad()
def _follow(trained: Trained, recipe: Recipe, step: int) -> None:
    """Update the moving average of the weights, with a smaller decay in the first steps."""
    if trained.mean is None or recipe.ema is None:
        return
    decay = min(recipe.ema, (1 + step) / (10 + step))
    for name, parameter in trained.parameters():
        _local(trained.mean[name]).lerp_(_local(parameter), 1 - decay)


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor  # type: ignore[operator]


def _not_finite(folder: RunFolder, step: int, loss: float, norm: float, recipe: Recipe) -> NotFiniteError:
    what = f"loss is {loss}" if not math.isfinite(loss) else f"the gradient's norm is {norm}"
    last, path, _ = newest_state(folder.states)
    message = (
        f"{what} at step {step + 1} (lr {recipe.lr_at(step):.3g}); the last good state, of step {last}, is {path}: "
        "lower lr, clip, or lengthen the warm-up"
    )
    folder.status(state="failed", message=message)
    return NotFiniteError(message)


@torch.no_grad()
def _model(trained: Trained) -> Model:
    """Return the model with its final weights: the moving average, if there is one."""
    model: Model = trained.objective.model  # type: ignore[assignment]
    if trained.mean is not None:
        for name, parameter in trained.parameters():
            _local(parameter).copy_(_local(trained.mean[name]))
    return model.eval()


def _test(trained: Trained, job: Job, test: Source, world: World, watch: Watch) -> float:
    """Return the test accuracy, of the moving average if there is one."""
    model: Model = trained.objective.model  # type: ignore[assignment]
    held = _exchange(trained)
    # sharded processes gather weights together, so all must evaluate the same images
    rank, size = (0, 1) if world.shard == "fsdp" else (world.rank, world.size)
    score = evaluate(
        model,
        test,
        preprocessing=job.data.preprocessing,
        rank=rank,
        world=size,
        forward=trained.objective.logits,  # type: ignore[arg-type]
        watch=lambda done: watch({"testing": done, "images": len(test)}),
    )
    world.reshard(trained.objective)
    _exchange(trained, held)
    right, images = world.sum(score.right, score.images)
    return right / images


@torch.no_grad()
def _exchange(trained: Trained, held: dict[str, Tensor] | None = None) -> dict[str, Tensor] | None:
    """Swap the moving average, or the `held` tensors, into the weights; return the weights that were there."""
    new = trained.mean if held is None else held
    if new is None:
        return None
    before = {name: _local(p).clone() for name, p in trained.parameters()}
    for name, parameter in trained.parameters():
        _local(parameter).copy_(_local(new[name]))
    return before
