"""What a person sees of a run: the forecast, a line that moves, notes, and the result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from vitrail.charts.numbers import bytes_text, count_text
from vitrail.cli.progress import LiveView
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.plan.workload import Memory
from vitrail.training.job import Job
from vitrail.training.run import Run

__all__ = ["View"]


class View(LiveView):
    """A run; nothing is shown in a process that is not told of its begin."""

    def __init__(self, folder: Path, *, tensorboard: bool) -> None:
        columns = MofNCompleteColumn(), BarColumn(), TimeRemainingColumn(), TextColumn("{task.description}")
        super().__init__(TextColumn("[bold]step[/]"), *columns)
        self.folder, self.tensorboard = folder, tensorboard
        self.begun, self.events = False, None

    def begin(self, job: Job, planned: Memory | None, free: int | None) -> None:
        self.begun, self.events = True, _events(self.folder) if self.tensorboard else None
        config, recipe, facts = job.config, job.recipe, job.data
        images = f"{facts.images:,} images, {len(facts.classes)} classes"
        images += f", {facts.fraction:.3g} of each class drawn by the seed" if facts.fraction < 1 else ""
        images += f"; {facts.validation:.3g} of the training images held out to validate on" if facts.validation else ""
        self.say("data", f"{', '.join(facts.sources)}: {images}")
        grid: Size = config.grid
        self.say("model", f"image {config.image}, grid {grid}" + (f", from {facts.start}" if facts.start else ""))
        self.say("recipe", f"{recipe.steps:,} steps of {recipe.batch}, lr {recipe.lr:g}, seed {recipe.seed}")
        if not recipe.tuning.is_everything:
            self.say("trained", f"{recipe.tuning}")
        if planned is None:
            self.say("memory", "no forecast: the planner does not know this kind of model")
        else:
            parts = sorted(planned.bytes.items(), key=lambda item: -item[1])[:3]
            largest = ", ".join(f"{name.replace('_', ' ')} {bytes_text(size)}" for name, size in parts if size)
            of = f" of {bytes_text(free)} free" if free is not None else ""
            self.say("memory", f"forecast {bytes_text(planned.peak_bytes)} at its highest{of} ({largest})")

    def watch(self, facts: dict[str, Any]) -> None:
        if "note" in facts:
            self.note(facts["note"])
            return
        if "testing" in facts:
            self.bar.update(self.task, description=f"testing, {facts['testing']:,} of {facts['images']:,} images")
            return
        if "loss" not in facts:
            self.start()
            self.bar.update(self.task, total=facts["steps"], completed=facts["step"])
            return
        words = f"loss {facts['loss']:.4f}  {count_text(facts['images_per_second'])} images/s"
        self.bar.update(self.task, completed=facts["step"], description=words)
        for split in ("test", "validation"):
            if f"{split}_accuracy" in facts:
                self.note(f"step {facts['step']}: {split} accuracy {facts[f'{split}_accuracy']:.2%}")
        if self.events is not None:
            for name, value in facts.items():
                if isinstance(value, float):
                    self.events.add_scalar(name, value, facts["step"])

    def end(self, run: Run) -> None:
        if not self.begun:  # another process of the run shows it
            return
        if run.stopped is not None:
            self.note(
                f"stopped after step {run.step}, which is saved; resume with vitrail train --resume {self.folder}"
            )
            return
        accuracy = "" if run.accuracy is None else f", {run.job.data.judged_on} accuracy {run.accuracy:.2%}"
        self.say("finished", f"step {run.step}, loss {run.loss or 0:.4f}{accuracy}")
        self.say("weights", f"{self.folder / 'model.safetensors'}")
        if run.job.recipe.tuning.lora is not None:
            self.say("adapters", f"merged into the weights; alone in {self.folder / 'adapters.safetensors'}")
        if (self.folder / "curves.png").is_file():
            self.say("curves", f"{self.folder / 'curves.png'}")
        self.say("next", f"vitrail evaluate {self.folder}, or vitrail classify PHOTO --weights {self.folder}")

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        if self.events is not None:
            self.events.close()


def _events(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise VitrailError("--tensorboard needs the tensorboard package; pip install 'vitrail[tensorboard]'") from None
    return SummaryWriter(str(folder))
