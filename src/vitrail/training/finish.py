"""The end of a run: the trained checkpoint, and a chart of the curves."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

from torch import Tensor
from torch.distributed.tensor import DTensor

from vitrail.atomic import write_file
from vitrail.charts.palette import BLUE, SKY, VERMILLION
from vitrail.charts.plots import plots
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.formats.safetensors import write_safetensors
from vitrail.checkpoint.header import Evidence
from vitrail.checkpoint.write import save
from vitrail.codec import to_plain
from vitrail.nn.lora import merged
from vitrail.training.folder import RunFolder, read_metrics
from vitrail.training.job import Job
from vitrail.training.objective import Model
from vitrail.tuning import Lora

__all__ = ["draw_curves", "finish", "trained_checkpoint", "whole_tensors"]


def whole_tensors(model: Model) -> dict[str, Tensor]:
    """Return the model's tensors by name; all processes must call it if the model is sharded."""
    tensors = {
        name: tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        for name, tensor in model.state_dict().items()
    }
    return {name: tensor.detach().cpu() for name, tensor in tensors.items()}


def trained_checkpoint(job: Job, tensors: dict[str, Tensor]) -> Checkpoint:
    """Return the trained weights as a checkpoint, with adapters merged into the layers that they belong to."""
    facts, lora = job.data, job.recipe.tuning.lora
    return Checkpoint(
        config=job.config,
        tensors=tensors if lora is None else merged(tensors, lora.scale),
        preprocessing=facts.preprocessing,
        evidence=Evidence(config="trained by vitrail", grid="trained by vitrail"),
        labels=facts.classes if len(facts.classes) == job.config.classes else (),
    )


def finish(job: Job, folder: RunFolder, model: Model) -> None:
    tensors = whole_tensors(model)
    if folder.writes:
        if job.recipe.tuning.lora is not None:
            _save_adapters(folder.adapters, job.recipe.tuning.lora, tensors)
        save(trained_checkpoint(job, tensors), folder.model)
        draw_curves(folder.path, folder.curves, job.data.judged_on)
    folder.status(state="finished", eta_seconds=0)


def _save_adapters(path: Path, lora: Lora, tensors: dict[str, Tensor]) -> None:
    """Write the adapters alone, as they were before they were merged."""
    own = {name: tensor for name, tensor in tensors.items() if name.endswith((".lora_a", ".lora_b"))}
    facts = {"lora": json.dumps(to_plain(lora))}
    write_file(path, lambda file: write_safetensors(file, own, facts))


def draw_curves(run: Path, picture: Path, judged_on: str = "test") -> None:
    """Draw loss, accuracy and learning rate against steps."""
    if find_spec("matplotlib") is None:  # matplotlib is an extra; metrics.jsonl has the numbers
        return
    lines = read_metrics(run)
    steps = [line["step"] for line in lines]
    labels = [(name, "step", "") for name in ("Loss", "Accuracy, %", "Learning rate")]
    sheet, (loss, accuracy, rate) = plots(run.resolve().name, f"{len(lines):,} steps", labels, height=2.6, width=3.3)
    loss.plot(steps, [line["loss"] for line in lines], color=BLUE, linewidth=0.9)
    accuracy.plot(steps, [100 * line["accuracy"] for line in lines], color=SKY, linewidth=0.9, label="training batch")
    name = f"{judged_on}_accuracy"
    tests = [(line["step"], 100 * line[name]) for line in lines if name in line]
    if tests:
        accuracy.plot(*zip(*tests, strict=True), "o-", color=VERMILLION, markersize=3, label=judged_on)
    accuracy.legend(loc="lower right", fontsize=8)
    rate.plot(steps, [line["lr"] for line in lines], color=BLUE, linewidth=1.2)
    sheet.save(picture)
