"""vitrail train: from scratch, from weights, with a teacher; in one process or under torchrun."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from vitrail.cli.options import Flag, Names, SizeOption, Words, checkpointing_of, tuning_of
from vitrail.errors import require
from vitrail.plan.workload import Precision

__all__ = ["train"]


def train(
    *,
    data: Words | None = None,
    model: str | None = None,
    image: SizeOption | None = None,
    patch: SizeOption | None = None,
    recipe: str | None = None,
    teacher: str | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    batch: int | None = None,
    lr: float | None = None,
    seed: int | None = None,
    precision: Precision | None = None,
    fraction: float | None = None,
    validation: float | None = None,
    freeze: Names | None = None,
    train_last: int | None = None,
    train_only: Names | None = None,
    lora: int | None = None,
    lora_on: Names | None = None,
    checkpointing: Flag = False,
    checkpoint_every: int | None = None,
    selective: Flag = False,
    compile: Flag = False,  # noqa: A002 — torch's word
    save_every: int = 500,
    evaluate_every: int = 0,
    out: Path | None = None,
    resume: Path | None = None,
    device: str | None = None,
    shard: Literal["ddp", "fsdp"] = "ddp",
    tensorboard: Flag = False,
) -> int | None:
    """Train a model on labelled images; an interrupted run resumes bit for bit.

    The run's folder gets metrics.jsonl and status.json during training, model.safetensors and curves.png at the end.
    Ctrl-C or SIGTERM finishes the step and saves; a second one stops at once. torchrun starts several processes.

    Parameters
    ----------
    data
        Dataset: shapes (drawn), a folder with a folder per class, CIFAR, MNIST's IDX files, or Parquet or tar files,
        e.g. train.tar test.tar (default: the resumed run's own).
    model
        Preset, e.g. cifar or S/16, or JSON file of a config, for fresh weights; or weights or a run, to fine-tune
        (default: cifar, or the resumed run's own).
    image
        Image size to train at, HEIGHTxWIDTH or one number for a square, e.g. 384x640 (default: the model's own).
    patch
        Patch size, e.g. 14 or 16x8 (default: the model's own).
    recipe
        plain, shapes, cifar, cifar-teacher, cifar-distilled, fashion-mnist, fashion-mnist-refine, finetune, or a JSON
        or TOML file (default: plain, or the resumed run's own).
    teacher
        Weights, or a run's folder, to distil from (default: none).
    steps
        Number of optimizer steps (default: the recipe's).
    epochs
        Passes over the data, instead of --steps (default: none).
    batch
        Images per optimizer step (default: the recipe's).
    lr
        Peak learning rate (default: the recipe's).
    seed
        Seed of weights, order and augmentation (default: the recipe's).
    precision
        fp32, or amp-bf16: mixed bfloat16, which is faster where the processor or card has it (default: the recipe's).
    fraction
        Share of the training images to use, of every class, drawn by the seed, e.g. 0.1 (default: all, or the resumed
        run's own).
    validation
        Share of the training images to hold out for making choices, e.g. 0.1: accuracies are then of these, and the
        test split is not looked at until vitrail evaluate (default: none, or the resumed run's own).
    freeze
        Parts that are not trained, by the model's own names, e.g. embedding,blocks[:8]; norms and biases name tensors
        of every part (default: the recipe's).
    train_last
        Train only the last blocks, and the norm, pool and head that follow them; 0 is these alone (default: the
        recipe's).
    train_only
        Train nothing but these parts, e.g. head, or norms,head, or biases,head (default: the recipe's).
    lora
        Train low-rank adapters of this rank in every block that is not frozen, and the head or what --train-only names
        (default: the recipe's).
    lora_on
        Layers with an adapter: qkv, out, fc1, fc2, or mlp for both of the last (default: qkv).
    checkpointing
        Keep only each block's input for backward, and recompute the rest (default: the recipe's).
    checkpoint_every
        Checkpoint only every k-th block; the others keep everything (default: 1, all blocks).
    selective
        With --checkpointing, also keep the outputs of matrix products and attention: only cheap operations run again.
    compile
        Compile the model with torch.compile, which takes a minute and a C++ compiler; steps are then faster.
    save_every
        Steps between saved states; 0 saves only the first and the last.
    evaluate_every
        Steps between evaluations on the test or validation split; 0 evaluates only at the end.
    out
        Folder of a new run (default: none; give --out or --resume).
    resume
        Folder of a run to resume (default: none).
    device
        Device to train on: cpu, cuda, cuda:1 … (default: cuda if there is a card, otherwise cpu).
    shard
        Under torchrun: copy the whole model to every process (ddp), or spread it over them (fsdp).
    tensorboard
        Also write TensorBoard events into the run's folder.
    """
    require((out is None) != (resume is None), "give either --out RUN for a new run or --resume RUN to resume one")
    require(steps is None or epochs is None, "--steps and --epochs were both given; choose one")
    from vitrail.cli.train_view import View
    from vitrail.training.train import train as run

    tuning = tuning_of(freeze=freeze, train_last=train_last, train_only=train_only, lora=lora, lora_on=lora_on)
    given = {
        "steps": steps,
        "batch": batch,
        "lr": lr,
        "seed": seed,
        "precision": precision,
        "checkpointing": checkpointing_of(
            checkpointing=checkpointing, checkpoint_every=checkpoint_every, selective=selective
        ),
        "compile": compile or None,
        "tuning": None if tuning.is_everything else tuning,
    }
    folder = out or resume
    assert folder is not None
    with View(folder, tensorboard=tensorboard) as view:
        if os.environ.get("RANK", "0") == "0":  # under torchrun, one process speaks
            view.wait("reading the data")
        trained = run(
            data,
            model,
            out=folder,
            recipe=recipe,
            changes={name: value for name, value in given.items() if value is not None},
            epochs=epochs,
            image=image,
            patch=patch,
            teacher=teacher,
            fraction=fraction,
            validation=validation,
            resume=resume is not None,
            save_every=save_every,
            evaluate_every=evaluate_every,
            device=device,
            shard=shard,
            begin=view.begin,
            watch=view.watch,
        )
    view.end(trained)
    return None if trained.stopped is None else 128 + trained.stopped
