"""The end of a run: the trained checkpoint, and a chart of the curves."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from torch.distributed.tensor import DTensor

from vitrail.charts.palette import BLUE, SKY, VERMILLION
from vitrail.charts.plots import plots
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.header import Evidence
from vitrail.checkpoint.write import save
from vitrail.training.folder import RunFolder, read_metrics
from vitrail.training.job import Job
from vitrail.training.objective import Model

__all__ = ["draw_curves", "finish", "trained_checkpoint"]


def trained_checkpoint(job: Job, model: Model) -> Checkpoint:
    """Return the trained weights as a checkpoint; all processes must call it if the model is sharded."""
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
    """Draw loss, accuracy and learning rate against steps."""
    if find_spec("matplotlib") is None:  # matplotlib is an extra; metrics.jsonl has the numbers
        return
    lines = read_metrics(run)
    steps = [line["step"] for line in lines]
    labels = [(name, "step", "") for name in ("Loss", "Accuracy, %", "Learning rate")]
    sheet, (loss, accuracy, rate) = plots(run.resolve().name, f"{len(lines):,} steps", labels, height=2.6, width=3.3)
    loss.plot(steps, [line["loss"] for line in lines], color=BLUE, linewidth=0.9)
    accuracy.plot(steps, [100 * line["accuracy"] for line in lines], color=SKY, linewidth=0.9, label="training batch")
    tests = [(line["step"], 100 * line["test_accuracy"]) for line in lines if "test_accuracy" in line]
    if tests:
        accuracy.plot(*zip(*tests, strict=True), "o-", color=VERMILLION, markersize=3, label="test")
    accuracy.legend(loc="lower right", fontsize=8)
    rate.plot(steps, [line["lr"] for line in lines], color=BLUE, linewidth=1.2)
    sheet.save(picture)
