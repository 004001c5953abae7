"""vitrail train: from scratch, from a checkpoint, with a teacher; alone or under torchrun."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vitrail.cli.options import Flag, Words
from vitrail.errors import VitrailError, require

if TYPE_CHECKING:
    from vitrail.train.folder import RunFolder

__all__ = ["train"]


def train(
    *,
    data: Words | None = None,
    model: str | None = None,
    config: Path | None = None,
    image: str | None = None,
    patch: str | None = None,
    recipe: str | None = None,
    teacher: str | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    batch: int | None = None,
    lr: float | None = None,
    seed: int | None = None,
    compile: Flag = False,  # noqa: A002 — torch's word
    save_every: int = 500,
    evaluate_every: int = 0,
    out: Path | None = None,
    resume: Path | None = None,
    device: str | None = None,
    shard: Literal["ddp", "fsdp"] = "ddp",
    tensorboard: Flag = False,
) -> int | None:
    """Train a model on labelled images; a run that stopped anywhere resumes bit for bit.

    The run folder gets metrics.jsonl and status.json while it runs, model.safetensors and curves.png at the end.
    Ctrl-C or SIGTERM once finishes the step and saves; twice stops at once. With torchrun in front, many processes.

    Parameters
    ----------
    data
        shapes, a folder with a folder per class, CIFAR, MNIST's IDX files, or Parquet or tar files.
    model
        A preset (cifar, S/16 …) or a config as JSON, for fresh weights; or a checkpoint or run, to fine-tune.
    config
        A config as JSON, instead of a model.
    image
        HEIGHTxWIDTH in pixels, or one number for a square: the resolution to train at, instead of the recipe's.
    patch
        HEIGHTxWIDTH in pixels, or one number for a square.
    recipe
        plain, shapes, cifar, fashion-mnist, finetune, or a JSON or TOML file.
    teacher
        A checkpoint or run to distil from, by logits unless the recipe says how.
    steps
        Updates, instead of the recipe's.
    epochs
        Passes over the data, instead of steps.
    batch
        Images per update, instead of the recipe's.
    lr
        The highest learning rate, instead of the recipe's.
    seed
        Seed of weights, order and augmentation (default: the recipe's).
    compile
        By torch.compile, which needs a C++ compiler: a minute at first, then faster steps.
    save_every
        Steps between states; 0 for the first and last only.
    evaluate_every
        Steps between looks at the test split; it is always looked at in the end.
    out
        The run's folder.
    resume
        A run's folder, to go on with it.
    device
        cpu, cuda, cuda:1 …; by default cuda where there is a card, otherwise cpu.
    shard
        Under torchrun: whole copies (ddp) or shards of the model (fsdp).
    tensorboard
        Write events for TensorBoard into the run's folder too.
    """
    from vitrail.train.distributed import find_device, world_of
    from vitrail.train.folder import RunFolder

    require((out is None) != (resume is None), "give either --out RUN for a new run or --resume RUN to go on with one")
    require(steps is None or epochs is None, "--steps and --epochs were both given; choose one")
    require(model is None or config is None, "--model and --config were both given; choose one")
    if config is not None:
        require(config.suffix == ".json" and config.is_file(), f"--config {config} is not a JSON file; write one with "
                "to_json(), or give a preset with --model")  # fmt: skip
        model = str(config)
    asked = {"image": image, "patch": patch, "teacher": teacher, "epochs": epochs}
    changes = {
        name: value
        for name, value in (
            ("steps", steps),
            ("batch", batch),
            ("lr", lr),
            ("seed", seed),
            ("compile", compile or None),
        )
        if value is not None
    }
    folder = out if out is not None else resume
    assert folder is not None
    with (
        world_of(shard, find_device(device)) as world,
        RunFolder(folder, writes=world.rank == 0).alone(world) as place,
    ):
        held = (folder / "recipe.json").is_file()
        world.wait()  # until all have looked: the first process will write it
        going_on = resume is not None or (world.restarts > 0 and held)
        if not going_on:
            require(not held, f"{folder} holds a run; go on with --resume {folder}, or choose another --out")
            require(data is not None, "no --data was given; shapes is a set that needs no files")
        return _run(place, data, model, recipe, changes, asked, world, going_on=going_on, save_every=save_every,
                    evaluate_every=evaluate_every, tensorboard=tensorboard)  # fmt: skip


def _run(
    place: RunFolder,
    data: list[str] | None,
    model: str | None,
    recipe: str | None,
    changes: dict[str, Any],
    asked: dict[str, Any],
    world: Any,
    *,
    going_on: bool,
    save_every: int,
    evaluate_every: int,
    tensorboard: bool,
) -> int | None:
    from vitrail.cli.train_view import View
    from vitrail.data.open import open_source
    from vitrail.train.finish import finish
    from vitrail.train.forecast import check_memory, forecast, free_bytes, workload_of
    from vitrail.train.job import difference, read_job, write_job
    from vitrail.train.loop import train as run
    from vitrail.train.prepare import open_checkpoint, prepare, read_recipe
    from vitrail.train.recipe import Distillation
    from vitrail.train.state import states

    folder = place.path
    held = read_job(folder) if going_on else None
    chosen = read_recipe(recipe) if recipe is not None else held.recipe if held else read_recipe("plain")
    chosen = chosen.but(**changes) if asked["image"] is None else chosen.but(**changes, images=())
    if asked["teacher"] is not None and chosen.distillation is None:
        chosen = chosen.but(distillation=Distillation())
    start = None
    if held is None or data or model or any(value is not None for value in asked.values()):
        facts = held.data if held else None
        job, start, source = prepare(
            data=data or (list(facts.sources) if facts else []),
            model=model or (facts.start if facts and facts.start else str(folder / "config.json") if held else "cifar"),
            recipe=chosen,
            image=asked["image"] or (str(held.config.image) if held else None),
            patch=asked["patch"],
            epochs=asked["epochs"],
            teacher=asked["teacher"] or (facts.teacher if facts else None),
        )
    else:
        job = type(held)(config=held.config, recipe=chosen, data=held.data)
        source = open_source(job.data.sources, image=job.config.image)
    if held is not None:
        changed = difference(held, job)
        require(
            not changed,
            f"{folder} was begun otherwise: {'; '.join(changed[:4])}; resume it as it was, or begin another with --out",
        )
        require(
            held.data.start is None or bool(states(folder / "states")),
            f"{folder} stopped before its first state, and fresh weights would not be {held.data.start}'s; "
            "remove it and begin again with --out",
        )
    teacher = None if job.data.teacher is None else open_checkpoint(job.data.teacher)
    view = View(folder, quiet=world.rank > 0, tensorboard=tensorboard)
    workload = workload_of(job.config, job.recipe, world=world.size, shard=world.shard)
    planned, free = forecast(job.config, workload), free_bytes(world.device)
    view.begin(job, planned, free)
    if planned is not None and free is not None:
        check_memory(job.config, workload, planned, free)
    if held is None and world.rank == 0:
        write_job(folder, job)
    try:
        test = open_source(job.data.sources, "test", image=job.config.image)
    except VitrailError as error:
        view.note(f"no test split: {error}")
        test = None
    with view:
        outcome = run(
            job,
            source,
            place,
            test=test,
            start=start if held is None else None,
            teacher=teacher,
            save_every=save_every,
            evaluate_every=evaluate_every,
            world=world,
            watch=view.watch,
        )
    if outcome.stopped is not None:
        view.note(f"stopped after step {outcome.step}, which is saved; go on with vitrail train --resume {folder}")
        return 128 + outcome.stopped
    finish(job, place, outcome.model)
    view.end(outcome)
    return None
