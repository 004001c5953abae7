"""vitrail train: from scratch, from a checkpoint, with a teacher; alone or under torchrun."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from vitrail.cli.options import Flag, Words
from vitrail.errors import require

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
    from vitrail.cli.train_view import View
    from vitrail.train.runs import run

    require((out is None) != (resume is None), "give either --out RUN for a new run or --resume RUN to go on with one")
    require(steps is None or epochs is None, "--steps and --epochs were both given; choose one")
    require(model is None or config is None, "--model and --config were both given; choose one")
    if config is not None:
        require(config.suffix == ".json" and config.is_file(), f"--config {config} is not a JSON file; write one with "
                "to_json(), or give a preset with --model")  # fmt: skip
    given = {"steps": steps, "batch": batch, "lr": lr, "seed": seed, "compile": compile or None}
    folder = out or resume
    assert folder is not None
    with View(folder, tensorboard=tensorboard) as view:
        outcome = run(
            data,
            model or config,
            out=folder,
            recipe=recipe,
            changes={name: value for name, value in given.items() if value is not None},
            epochs=epochs,
            image=image,
            patch=patch,
            teacher=teacher,
            resume=resume is not None,
            save_every=save_every,
            evaluate_every=evaluate_every,
            device=device,
            shard=shard,
            begin=view.begin,
            watch=view.watch,
        )
    view.end(outcome)
    return None if outcome.stopped is None else 128 + outcome.stopped
