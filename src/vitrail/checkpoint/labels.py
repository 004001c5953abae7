"""What a model's outputs are called, where its file says so."""

from __future__ import annotations

from typing import Any

from vitrail.checkpoint.formats.file import Stored
from vitrail.codec import parse_json

__all__ = ["LABELS_KEY", "read_labels"]

LABELS_KEY = "vitrail_labels"


def read_labels(stored: Stored, classes: int) -> tuple[str, ...]:
    """From vitrail's metadata, or from `id2label` in a config beside the weights; empty where nothing names them."""
    written = stored.metadata.get(LABELS_KEY)
    found: Any = (
        parse_json(written, f"the label metadata of {stored.path}", "write it again")
        if written is not None
        else _named(stored, classes)
    )
    whole = isinstance(found, list) and len(found) == classes and all(isinstance(label, str) for label in found)
    return tuple(found) if whole else ()


def _named(stored: Stored, classes: int) -> list[Any]:
    held = stored.config.get("id2label")
    labels = [held.get(str(index)) for index in range(classes)] if isinstance(held, dict) else []
    placeholders = [f"LABEL_{index}" for index in range(classes)]  # what transformers writes for no names
    return labels if labels != placeholders else []
