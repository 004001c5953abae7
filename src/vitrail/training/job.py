"""A job: config, recipe and facts about the data, which determine a run's weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from vitrail.atomic import write_json_file
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.codec import from_plain, parse_json, to_plain
from vitrail.config import Config, config_from_json
from vitrail.errors import VitrailError, require
from vitrail.rules import NonNegativeInt, Range, Rate
from vitrail.training.recipe import Recipe, recipe_from_text
from vitrail.value import Value

__all__ = ["DataFacts", "Job", "check_same", "difference", "read_job", "write_job"]


@dataclass(frozen=True, kw_only=True)
class DataFacts(Value):
    """Facts about the data when the run started."""

    sources: tuple[str, ...]
    images: NonNegativeInt
    """Images that are trained on."""
    classes: tuple[str, ...]
    preprocessing: Preprocessing
    fraction: Annotated[float, Range("(0, 1]", "0.1 is a tenth of the images")] = 1.0
    """Share of the training images, of every class, drawn by the recipe's seed."""
    validation: Rate = 0.0
    """Share of the training images that is held out to make choices on; the test split is then not looked at."""
    start: str | None = None
    """The checkpoint that the run started from; None for fresh weights."""
    teacher: str | None = None

    @property
    def judged_on(self) -> Literal["test", "validation"]:
        """The split that the run's accuracies are of."""
        return "validation" if self.validation else "test"


@dataclass(frozen=True, kw_only=True)
class Job(Value):
    config: Config
    recipe: Recipe
    data: DataFacts


def write_job(folder: Path, job: Job) -> None:
    for name in ("config", "data", "recipe"):  # the recipe last: its existence marks a run
        write_json_file(folder / f"{name}.json", to_plain(getattr(job, name)))


def read_job(folder: Path) -> Job:
    config, recipe, data = (_text(folder / name) for name in ("config.json", "recipe.json", "data.json"))
    facts = parse_json(data, str(folder / "data.json"), "restore it, or start again")
    return Job(
        config=config_from_json(config), recipe=recipe_from_text(recipe), data=from_plain(facts, DataFacts, "data")
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise VitrailError(f"{path} cannot be read ({error}), so {path.parent} is not a run; check the path") from None


def difference(before: Job, after: Job) -> list[str]:
    """Return the differences between two jobs, one line each: "recipe.lr 0.001 → 0.01"."""
    old, new = (_flat(to_plain(job), "") for job in (before, after))
    return [
        f"{name.removeprefix('.')} {old.get(name, 'nothing')} → {new.get(name, 'nothing')}"
        for name in {**old, **new}
        if old.get(name) != new.get(name)
    ]


def check_same(folder: Path, held: Job, job: Job) -> None:
    """Raise VitrailError if the job differs from the folder's."""
    changed = difference(held, job)
    require(
        not changed,
        f"{folder} has another job: {'; '.join(changed[:4])}; resume it without changes, or choose another --out",
    )


def _flat(value: Any, name: str) -> dict[str, Any]:
    if isinstance(value, dict):
        return {key: item for part in value for key, item in _flat(value[part], f"{name}.{part}").items()}
    return {name: value}
