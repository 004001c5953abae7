"""A training run, from options to the weights in its folder: `vitrail.train`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from vitrail.config import Config
from vitrail.data.open import HELD_OUT, open_source
from vitrail.data.source import Source, Subset
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size
from vitrail.plan.workload import Memory
from vitrail.training import loop
from vitrail.training.distributed import find_device, world_of
from vitrail.training.finish import finish
from vitrail.training.folder import RunFolder
from vitrail.training.forecast import check_memory, forecast, free_bytes, workload_of
from vitrail.training.job import Job, check_same, read_job, write_job
from vitrail.training.loop import Watch
from vitrail.training.precision import trained_config
from vitrail.training.prepare import open_checkpoint, open_training, prepare, read_recipe
from vitrail.training.recipe import Distillation, Recipe
from vitrail.training.run import Run, read_run
from vitrail.training.state import states

__all__ = ["train"]


def train(
    data: str | Path | Sequence[str | Path] | None = None,
    model: str | Path | Config | None = None,
    *,
    out: str | Path,
    recipe: str | Path | Recipe | None = None,
    changes: Mapping[str, Any] | None = None,
    epochs: float | None = None,
    image: Size | str | None = None,
    patch: Size | str | None = None,
    teacher: str | Path | None = None,
    fraction: float | None = None,
    validation: float | None = None,
    resume: bool = False,
    save_every: int = 500,
    evaluate_every: int = 0,
    device: str | None = None,
    shard: Literal["ddp", "fsdp"] = "ddp",
    begin: Callable[[Job, Memory | None, int | None], None] = lambda job, planned, free: None,
    watch: Watch = lambda facts: None,
) -> Run:
    """Train a model on labelled images into the folder `out`, in one process or under torchrun.

    `data` is what `open_source` reads. `model` is a preset's name or a config for fresh weights, or weights or a run's
    folder to fine-tune (default: cifar). `recipe` is a name, a file or a value (default: plain), and `changes` are
    fields of it to set: {"steps": 100, "lr": 1e-3}, or {"tuning": Tuning(last=4)} to train a part. `epochs` are passes
    over the data, instead of steps. `image` and `patch` are sizes to train at, and `teacher` is weights or a run to
    distil from. `fraction` is the share of the training images that is used, of every class, drawn by the seed.
    `validation` is the share that is held out to make choices on; accuracies are then of these images, and the test
    split is not looked at.

    With `resume`, the run in `out` is resumed; options that are given must be those that it was started with. A signal
    stops the run after saving a step; the result says its number. `begin` is called with the job, the forecast of its
    memory and the free bytes; `watch` as in `vitrail.training.loop.train`; both in the first process only.

    >>> from vitrail import preset, synthesize_image, train
    >>> small = preset("cifar-small", depth=1, classes=4)
    >>> run = train("shapes", small, out="run", changes={"steps": 2, "batch": 8})
    >>> run.step, run.finished, run.checkpoint().labels
    (2, True, ('circle', 'square', 'triangle', 'star'))
    """
    folder = Path(out)
    with (
        world_of(shard, find_device(device)) as world,
        RunFolder(folder, writes=world.rank == 0).alone(world) as place,
    ):
        holds = (folder / "recipe.json").is_file()
        world.wait()  # until all have checked: the first process will write it
        held = read_job(folder) if resume or (world.restarts > 0 and holds) else None
        if held is None:
            require(not holds, f"{folder} has a run; resume it with --resume {folder}, or choose another --out")
            require(data is not None, "no --data was given; give a dataset, or shapes, which needs no files")
        chosen = read_recipe(recipe or (held.recipe if held else "plain")).but(**(changes or {}))
        if image is not None:
            chosen = chosen.but(images=())
        if teacher is not None and chosen.distillation is None:
            chosen = chosen.but(distillation=Distillation())
        if held is None or any(
            each is not None for each in (data, model, epochs, image, patch, teacher, fraction, validation)
        ):
            job, start, training = prepare(
                data=data or (held.data.sources if held else ()),
                model=model or (held.data.start or held.config if held else "cifar"),
                recipe=chosen,
                image=image or (held.config.image if held else None),
                patch=patch,
                epochs=epochs,
                teacher=teacher or (held.data.teacher if held else None),
                fraction=fraction if fraction is not None else (held.data.fraction if held else 1.0),
                validation=validation if validation is not None else (held.data.validation if held else 0.0),
            )
        else:
            job, start = Job(config=held.config, recipe=chosen, data=held.data), None
            training = open_training(
                job.data.sources,
                job.config.image,
                fraction=job.data.fraction,
                validation=job.data.validation,
                seed=job.recipe.seed,
            )
        if held is not None:
            check_same(folder, held, job)
            require(
                held.data.start is None or bool(states(place.states)),
                f"{folder} stopped before its first state, and fresh weights would not be {held.data.start}'s; "
                "remove it and start again with --out",
            )
        job.recipe.tuning.on(job.config)  # refuses names that the model does not have
        taught = None if job.data.teacher is None else open_checkpoint(job.data.teacher)
        workload = workload_of(job.config, job.recipe, world=world.size, shard=world.shard)
        planned = forecast(trained_config(job.config, job.recipe, world.device), workload)
        free = free_bytes(world.device)
        if place.writes:
            begin(job, planned, free)
        if planned is not None and free is not None:
            check_memory(job.config, workload, planned, free)
        if held is None and place.writes:
            write_job(folder, job)
        tell: Watch = watch if place.writes else lambda facts: None
        if not job.recipe.tuning.is_everything and job.data.start is None:
            tell({"note": "what is frozen has fresh, random weights: give --model the weights to start from"})
        test = _open_test(job, tell) if training.held_out is None else training.held_out
        outcome = loop.train(
            job,
            training.images,
            place,
            test=test,
            start=start if held is None else None,
            teacher=taught,
            save_every=save_every,
            evaluate_every=evaluate_every,
            world=world,
            watch=tell,
        )
        if outcome.stopped is None:
            finish(job, place, outcome.model)
        return replace(read_run(folder), stopped=outcome.stopped)


def _open_test(job: Job, tell: Watch) -> Source | None:
    try:
        test = open_source(job.data.sources, "test", image=job.config.image)
    except VitrailError as error:
        tell({"note": f"no test split: {error}"})
        return None
    if isinstance(test, Subset):
        share = f"{len(test):,} of {len(test.source):,} images, every {HELD_OUT}th"
        tell({"note": f"held out for testing: {share}, since the data have no test split"})
    return test
