"""Text and positions that the views share."""

from __future__ import annotations

from vitrail.config import MobileConfig
from vitrail.geometry import Size
from vitrail.look.cells import Cells, cells_of
from vitrail.look.subject import Subject
from vitrail.nn.layout import Layout

__all__ = ["cells_on", "has_cls", "prefix_names", "style", "times"]


def has_cls(subject: Subject) -> bool:
    config = subject.model.config
    return not isinstance(config, MobileConfig) and config.prefix.cls


def prefix_names(subject: Subject) -> list[str]:
    config = subject.model.config
    return [] if isinstance(config, MobileConfig) else list(config.prefix.names)


def cells_on(subject: Subject, layout: Layout) -> Cells:
    return cells_of(subject.model.config, layout.grid, subject.photo.seen)


def style(smooth: bool) -> str:
    return "drawn smooth (bilinear)" if smooth else "one square per token"


def times(size: Size) -> str:
    return f"{size.height}×{size.width}"
