"""What people say → a job: names, files and options become a config, a recipe and facts about the data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vitrail.checkpoint.bundled import names_weights
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.read import load
from vitrail.checkpoint.surgery.adapt import adapt
from vitrail.config import Config, ViTConfig, config_from_json
from vitrail.data.open import open_source
from vitrail.data.source import Source
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size
from vitrail.presets import preset
from vitrail.train.batches import statistics
from vitrail.train.job import DataFacts, Job
from vitrail.train.recipe import Recipe, recipe_from_text, recipe_named

__all__ = ["Start", "open_checkpoint", "prepare", "read_recipe"]

Start = Checkpoint | None


def read_recipe(name: str) -> Recipe:
    """A recipe by its name, or from a JSON or TOML file."""
    path = Path(name)
    if path.suffix not in (".json", ".toml"):
        return recipe_named(name)
    try:
        return recipe_from_text(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise VitrailError(f"recipe {path} cannot be read ({error}); give a JSON or TOML file, or a name") from None


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Weights of any dialect, or those of a finished run by its folder."""
    path = Path(path)
    if (path / "metrics.jsonl").is_file():
        require(
            (path / "model.safetensors").is_file(),
            f"{path} is a run that has not finished; go on with vitrail train --resume {path}",
        )
        path = path / "model.safetensors"
    return load(path)


def prepare(
    *,
    data: Sequence[str],
    model: str,
    recipe: Recipe,
    image: str | None = None,
    patch: str | None = None,
    epochs: float | None = None,
    teacher: str | None = None,
) -> tuple[Job, Start, Source]:
    """The job, the checkpoint it starts from if `model` is one, and the opened data.

    A preset takes the data's classes and channels; a config as JSON is taken at its word; a checkpoint is adapted, to
    `image` and `patch` too: that is fine-tuning at a target resolution.
    """
    size = None if image is None else Size.of(image)
    config, checkpoint = _model(model)
    source = open_source(data, image=size or config.image)
    if checkpoint is None:
        config = _changed(config, source, size, patch, keep=Path(model).suffix == ".json")
        mean, std = statistics(source)
    else:
        changes = {"image": size or config.image, "classes": len(source.classes), "channels": source.channels}
        if patch is not None:
            changes["patch"] = Size.of(patch)
        if not (isinstance(config, ViTConfig) and config.classes == len(source.classes)):
            changes["classes"] = len(source.classes)
        checkpoint, _ = adapt(checkpoint, changes)
        config = checkpoint.config
        mean, std = checkpoint.preprocessing.mean, checkpoint.preprocessing.std
    if epochs is not None:
        require(epochs > 0, f"epochs {epochs} is not above 0; give a part of one or more")
        recipe = recipe.but(steps=max(1, round(epochs * len(source) / recipe.batch)))
    facts = DataFacts(
        sources=tuple(str(each) for each in data),
        images=len(source),
        classes=source.classes,
        mean=mean,
        std=std,
        start=None if checkpoint is None else model,
        teacher=teacher,
    )
    return Job(config=config, recipe=recipe, data=facts), checkpoint, source


def _model(name: str) -> tuple[Config, Start]:
    path = Path(name)
    if path.suffix == ".json" and path.is_file():
        return config_from_json(path.read_text(encoding="utf-8")), None
    if names_weights(name):
        checkpoint = open_checkpoint(path)
        return checkpoint.config, checkpoint
    return preset(name), None


def _changed(config: Config, source: Source, image: Size | None, patch: str | None, *, keep: bool) -> Config:
    if not keep:
        config = config.but(classes=len(source.classes), channels=source.channels)
    require(
        config.channels == source.channels,
        f"the model takes {config.channels} channels and the data have {source.channels}; make them agree",
    )
    if image is not None:
        config = config.but(image=image)
    return config if patch is None else config.with_patch(Size.of(patch))
