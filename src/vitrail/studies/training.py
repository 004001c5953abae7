"""Runs that a study trains: kept in a folder, and resumed by the same command."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vitrail.config import Config
from vitrail.errors import require
from vitrail.studies.findings import Watch
from vitrail.training.recipe import Recipe
from vitrail.training.run import Run
from vitrail.training.train import train

__all__ = ["train_or_resume"]


def train_or_resume(
    data: str | Sequence[str],
    config: Config,
    recipe: Recipe,
    folder: Path,
    *,
    words: str,
    watch: Watch,
    fraction: float = 1.0,
    validation: float = 0.0,
) -> Run:
    """Return the finished run; a signal stops it after a saved step and raises KeyboardInterrupt."""
    run = train(
        data,
        config,
        recipe=recipe,
        fraction=fraction,
        validation=validation,
        out=folder,
        resume=(folder / "recipe.json").is_file(),
        watch=lambda facts: watch(words, facts.get("step", 0), recipe.steps),
    )
    if run.stopped is not None:
        raise KeyboardInterrupt
    require(run.accuracy is not None, f"{data} has no images to test with; give data with a test split")
    return run
