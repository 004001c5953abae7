"""Turn names, files and options into a job: a config, a recipe and facts about the data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.read import load
from vitrail.checkpoint.sources.names import names_weights
from vitrail.checkpoint.surgery.adapt import adapt
from vitrail.config import Config, read_config
from vitrail.data.open import open_source
from vitrail.data.source import Source
from vitrail.data.split import cut_validation, draw_fraction
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size
from vitrail.presets import preset
from vitrail.training.batches import measured
from vitrail.training.job import DataFacts, Job
from vitrail.training.recipe import Recipe, recipe_from_text, recipe_named

__all__ = ["Start", "Training", "open_checkpoint", "open_training", "prepare", "read_recipe"]

Start = Checkpoint | None


class Training(NamedTuple):
    """The images of a run: those that it is trained on, and its validation split, if it has one."""

    images: Source
    held_out: Source | None


def read_recipe(name: str | Path | Recipe) -> Recipe:
    """Return a recipe by its name, from a JSON or TOML file, or unchanged."""
    if isinstance(name, Recipe):
        return name
    path = Path(name)
    if path.suffix not in (".json", ".toml"):
        return recipe_named(str(name))
    try:
        return recipe_from_text(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise VitrailError(f"recipe {path} cannot be read ({error}); give a JSON or TOML file, or a name") from None


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Load weights of any dialect, or those of a finished run."""
    run = Path(path)
    if (run / "metrics.jsonl").is_file():
        require(
            (run / "model.safetensors").is_file(),
            f"{run} is a run that has not finished; resume it with vitrail train --resume {run}",
        )
        return load(run / "model.safetensors")
    return load(path)


def prepare(
    *,
    data: str | Path | Sequence[str | Path],
    model: str | Path | Config,
    recipe: Recipe,
    image: Size | str | None = None,
    patch: Size | str | None = None,
    epochs: float | None = None,
    teacher: str | Path | None = None,
    fraction: float = 1.0,
    validation: float = 0.0,
) -> tuple[Job, Start, Training]:
    """Return the job, the checkpoint that it starts from (if `model` is one), and the opened data.

    A preset gets the data's classes and channels; a config, also as JSON, is not changed; a checkpoint is adapted,
    also to `image` and `patch`, to fine-tune at another resolution.
    """
    size, patch = (None if side is None else Size.of(side) for side in (image, patch))
    config, checkpoint = _model(model)
    config.require_still("training")
    sources = (str(data),) if isinstance(data, str | Path) else tuple(str(each) for each in data)
    training = open_training(sources, size or config.image, fraction=fraction, validation=validation, seed=recipe.seed)
    source = training.images
    if checkpoint is None:
        keep = not isinstance(model, str | Path) or Path(model).suffix == ".json"
        config = _changed(config, source, size, patch, keep=keep)
        preprocessing = measured(source, config.image, ", ".join(sources))
    else:
        target = {"image": size or config.image, "classes": len(source.classes), "channels": source.channels}
        checkpoint, _ = adapt(checkpoint, target if patch is None else {**target, "patch": patch})
        config = checkpoint.config
        preprocessing = checkpoint.preprocessing
    if epochs is not None:
        recipe = recipe.for_epochs(epochs, len(source))
    facts = DataFacts(
        sources=sources,
        images=len(source),
        classes=source.classes,
        preprocessing=preprocessing,
        fraction=fraction,
        validation=validation,
        start=None if checkpoint is None else checkpoint.source or str(model),
        teacher=None if teacher is None else str(teacher),
    )
    return Job(config=config, recipe=recipe, data=facts), checkpoint, training


def open_training(sources: Sequence[str], image: Size, *, fraction: float, validation: float, seed: int) -> Training:
    """Open the images to train on and cut the validation split; the fraction is of what that leaves."""
    source, held_out = cut_validation(open_source(sources, image=image), validation)
    return Training(draw_fraction(source, fraction, seed), held_out)


def _model(model: str | Path | Config) -> tuple[Config, Start]:
    if not isinstance(model, str | Path):
        return model, None
    path = Path(model)
    if path.suffix == ".json":
        return read_config(path), None
    if names_weights(str(model)):
        checkpoint = open_checkpoint(model)
        return checkpoint.config, checkpoint
    return preset(str(model)), None


def _changed(config: Config, source: Source, image: Size | None, patch: Size | None, *, keep: bool) -> Config:
    if not keep:
        config = config.but(classes=len(source.classes), channels=source.channels)
    require(
        config.channels == source.channels,
        f"the model takes {config.channels} channels and the data have {source.channels}; make them agree",
    )
    if image is not None:
        config = config.but(image=image)
    return config if patch is None else config.with_patch(patch)
