"""The end of a run: the weights in vitrail's own form, and the curves as a picture."""

from __future__ import annotations

from pathlib import Path

from torch.distributed.tensor import DTensor

from vitrail.checkpoint.checkpoint import Checkpoint, Evidence
from vitrail.checkpoint.write import save
from vitrail.train.folder import RunFolder, read_metrics
from vitrail.train.job import Job
from vitrail.train.objective import Model

__all__ = ["draw_curves", "finish", "trained_checkpoint"]


def trained_checkpoint(job: Job, model: Model) -> Checkpoint:
    """The trained weights as a value; of a sharded model, gathered, so all processes must call."""
    tensors = {
        name: tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        for name, tensor in model.state_dict().items()
    }
    facts = job.data
    return Checkpoint(
        config=job.config,
        tensors={name: tensor.detach().cpu() for name, tensor in tensors.items()},
        preprocessing=facts.preprocessing,
        evidence=Evidence(config="trained by vitrail", grid="trained by vitrail"),
        labels=facts.classes if len(facts.classes) == job.config.classes else (),
    )


def finish(job: Job, folder: RunFolder, model: Model) -> None:
    checkpoint = trained_checkpoint(job, model)
    if folder.writes:
        save(checkpoint, folder.model)
        draw_curves(folder.path, folder.curves)
    folder.status(state="finished", eta_seconds=0)


def draw_curves(run: Path, picture: Path) -> None:
    """Loss, accuracy and learning rate against steps."""
    try:
        from matplotlib.figure import Figure
    except ImportError:  # pictures are an extra; metrics.jsonl has the numbers
        return
    lines = read_metrics(run)
    steps = [line["step"] for line in lines]
    figure = Figure(figsize=(10, 3.2), layout="constrained")
    loss, accuracy, rate = figure.subplots(1, 3)
    loss.plot(steps, [line["loss"] for line in lines], linewidth=0.8)
    accuracy.plot(steps, [line["accuracy"] for line in lines], linewidth=0.8, label="training batch")
    tests = [(line["step"], line["test_accuracy"]) for line in lines if "test_accuracy" in line]
    if tests:
        accuracy.plot(*zip(*tests, strict=True), "o-", markersize=3, label="test")
    accuracy.legend(loc="lower right")
    rate.plot(steps, [line["lr"] for line in lines])
    for axes, name in ((loss, "loss"), (accuracy, "accuracy"), (rate, "learning rate")):
        axes.set(xlabel="step", title=name)
        axes.grid(alpha=0.3)
    figure.savefig(picture, dpi=110)
