"""Names of a model's classes, if its file has them."""

from __future__ import annotations

from typing import Any

from vitrail.checkpoint.formats.file import Stored
from vitrail.codec import parse_json

__all__ = ["LABELS_KEY", "read_labels"]

LABELS_KEY = "vitrail_labels"


def read_labels(stored: Stored, classes: int) -> tuple[str, ...]:
    """Read class names from vitrail's metadata, or from `id2label` in the config; empty if there are none."""
    written = stored.metadata.get(LABELS_KEY)
    found: Any = (
        parse_json(written, f"the label metadata of {stored.path}", "write it again")
        if written is not None
        else _named(stored, classes)
    )
    whole = isinstance(found, list) and len(found) == classes and all(isinstance(label, str) for label in found)
    return tuple(found) if whole else ()


def _named(stored: Stored, classes: int) -> list[Any]:
    names = stored.config.get("id2label")
    labels = [names.get(str(index)) for index in range(classes)] if isinstance(names, dict) else []
    placeholders = [f"LABEL_{index}" for index in range(classes)]  # transformers' default
    return labels if labels != placeholders else []
