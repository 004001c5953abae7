"""What a model's outputs are called, where its file says so."""

from __future__ import annotations

import json
from typing import Any

from vitrail.checkpoint.file import Stored
from vitrail.errors import VitrailError

__all__ = ["LABELS_KEY", "read_labels"]

LABELS_KEY = "vitrail_labels"


def read_labels(stored: Stored, classes: int) -> tuple[str, ...]:
    """From vitrail's metadata, or from `id2label` in a config beside the weights; empty where nothing names them."""
    written = stored.metadata.get(LABELS_KEY)
    try:
        found: Any = json.loads(written) if written is not None else _named(stored, classes)
    except ValueError as error:
        raise VitrailError(f"{stored.path} has labels that are not JSON ({error}); write it again") from None
    whole = isinstance(found, list) and len(found) == classes and all(isinstance(label, str) for label in found)
    return tuple(found) if whole else ()


def _named(stored: Stored, classes: int) -> list[Any]:
    held = stored.config.get("id2label")
    labels = [held.get(str(index)) for index in range(classes)] if isinstance(held, dict) else []
    placeholders = [f"LABEL_{index}" for index in range(classes)]  # what transformers writes for no names
    return labels if labels != placeholders else []
