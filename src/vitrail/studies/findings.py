"""What a study found, as rows of mean ± deviation, sentences and a figure; as Markdown and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitrail.atomic import write_json_file
from vitrail.data.open import open_source
from vitrail.data.source import Source, Split, Subset
from vitrail.geometry import Size
from vitrail.studies.catalogue import Study
from vitrail.training.experiments.compare import Spread
from vitrail.training.experiments.report import markdown_table

__all__ = [
    "Column",
    "Findings",
    "Kept",
    "Row",
    "Watch",
    "drawn_splits",
    "findings_json",
    "findings_markdown",
    "findings_rows",
    "rank_correlation",
]

Watch = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


class Kept:
    """Results of finished parts in a file, so that an interrupted study goes on where it stopped."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self._path, self._settings = path, settings
        self._held: dict[str, Any] = json.loads(path.read_bytes()) if path.is_file() else {}

    def __call__(self, part: str, compute: Callable[[], Any]) -> Any:
        """Return a part's result as JSON has it: the stored one if it was computed with the same settings."""
        key = json.dumps([part, self._settings], sort_keys=True)
        if key not in self._held:
            self._held[key] = compute()
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_json_file(self._path, self._held)
        return self._held[key]


class Column(NamedTuple):
    """How a measure is shown."""

    heading: str
    digits: int = 2
    scale: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Row:
    label: str
    spreads: dict[str, Spread]


@dataclass(frozen=True, kw_only=True)
class Findings:
    about: str
    """What was measured, on which images, how often."""
    columns: dict[str, Column]
    rows: tuple[Row, ...]
    answers: tuple[str, ...]
    """What follows from the rows, in sentences whose numbers are computed."""
    draw: Callable[[Path], None]
    """Draw the figure into a file."""


def drawn_splits(data: str | Sequence[str], image: Size, *, seed: int, limit: int) -> tuple[Source, Source]:
    """Return at most `limit` images of the training split and half as many of the test split, drawn by the seed."""
    random = np.random.default_rng(seed)
    found = []
    splits: tuple[tuple[Split, int], ...] = (("train", limit), ("test", max(1, limit // 2)))
    for split, most in splits:
        source = open_source(data, split, image=image)
        chosen = random.permutation(len(source))[: min(most, len(source))]
        found.append(Subset(source, np.sort(chosen)))
    return found[0], found[1]


def rank_correlation(first: Tensor, second: Tensor) -> float:
    """Return Spearman's correlation of two series without ties.

    >>> import torch
    >>> round(rank_correlation(torch.tensor([1, 2, 3]), torch.tensor([0.1, 0.5, 9.0])), 6)
    1.0
    """
    ranks = torch.stack([each.double().argsort().argsort().double() for each in (first, second)])
    return torch.corrcoef(ranks)[0, 1].item()


def findings_rows(found: Findings) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows."""
    rows = [[row.label, *_texts(row, found.columns.items())] for row in found.rows]
    return ["", *(column.heading for column in found.columns.values())], rows


def _texts(row: Row, columns: Iterable[tuple[str, Column]]) -> list[str]:
    held = [(row.spreads.get(name), column) for name, column in columns]
    return ["–" if value is None else value.text(column.digits, column.scale) for value, column in held]


def findings_markdown(study: Study, found: Findings, command: str, picture: Path) -> str:
    head, rows = findings_rows(found)
    return "\n".join(
        [
            f"# {study.name}: {study.question}",
            "",
            f"    {command}",
            "",
            found.about,
            "",
            *markdown_table(head, rows),
            "",
            *(f"- {answer}" for answer in found.answers),
            "",
            f"![{study.name}]({picture.name})",
            "",
        ]
    )


def findings_json(study: Study, found: Findings, command: str) -> dict[str, Any]:
    return {
        "experiment": study.name,
        "question": study.question,
        "command": command,
        "about": found.about,
        "rows": [
            {"label": row.label, "measures": {name: asdict(value) for name, value in row.spreads.items()}}
            for row in found.rows
        ],
        "answers": list(found.answers),
    }
