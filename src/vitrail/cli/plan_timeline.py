"""vitrail plan --timeline: bytes alive through a step, as a chart or as a snapshot for PyTorch's memory viewer."""

from __future__ import annotations

from pathlib import Path

from vitrail.errors import require
from vitrail.plan.cards import Card
from vitrail.plan.timeline import Timeline

__all__ = ["check_timeline", "write_timeline"]

PICTURES = (".png", ".svg", ".pdf")


def check_timeline(path: Path | None) -> None:
    """Refuse a file that cannot be written before anything is computed."""
    require(
        path is None or path.suffix.lower() in (*PICTURES, ".pickle"),
        f"--timeline {str(path)!r} does not end in {', '.join(PICTURES)} or .pickle; name a picture, or a snapshot",
    )


def write_timeline(timeline: Timeline, target: Card | None, path: Path, *, title: str, subtitle: str) -> None:
    if path.suffix.lower() == ".pickle":
        from vitrail.plan.snapshot import write_snapshot

        write_snapshot(timeline, path)
    else:
        from vitrail.cli.plan_charts import timeline_chart

        timeline_chart(timeline, target, path, title=title, subtitle=subtitle)
