"""What vitrail adapt --heal shows: a forecast, a moving line, and the result."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.cli.tables import show, table

if TYPE_CHECKING:
    from vitrail.checkpoint.checkpoint import Checkpoint
    from vitrail.geometry import Size
    from vitrail.healing.report import Healing

__all__ = ["remove_work", "run_healing", "show_healing", "work_folder"]


def work_folder(out: Path) -> Path:
    """Return the folder in which healing resumes: beside the output, until that is written."""
    return out.with_name(f"{out.name}.healing")


def run_healing(
    before: Checkpoint,
    after: Checkpoint,
    images: Path,
    out: Path,
    *,
    minutes: float,
    judge: Path | None,
    view: Size | None,
    seed: int,
    quiet: bool,
) -> tuple[Checkpoint, Healing]:
    """Heal with a moving line; what stays is the forecast."""
    from vitrail.cli.progress import working
    from vitrail.healing.heal import heal

    state: dict[str, Any] = {}
    quiet = quiet or os.environ.get("RANK", "0") != "0"
    with working("healing") as tell:

        def watch(facts: dict[str, Any]) -> None:
            if "forecast" in facts:
                state["steps"] = facts["forecast"]
                if not quiet:
                    spent = f"about {facts['seconds'] / 60:.0f} minutes, or less if it stops improving"
                    show(f"[dim]Distils {facts['forecast']:,} steps: {spent}. Stopped, the same command resumes it.[/]")
            if "doing" in facts:
                tell(f"healing: {facts['doing']}")
            if "error" in facts:
                state["error"] = f", error {facts['error']:.5f}"
            if "loss" in facts:
                words = f"healing: step {facts['step']:,} of {state.get('steps', 0):,}{state.get('error', '')}"
                tell(words, facts["step"], state.get("steps"))

        return heal(
            before,
            after,
            images,
            minutes=minutes,
            judge=judge,
            view=view,
            work=work_folder(out),
            seed=seed,
            watch=watch,
        )


def remove_work(out: Path) -> None:
    shutil.rmtree(work_folder(out), ignore_errors=True)


def show_healing(healing: Healing) -> None:
    from rich.markup import escape

    from vitrail.healing.report import score_rows

    rows = list(score_rows(healing.before, healing.after))
    images = healing.images
    caption = (
        f"{healing.reason}; {images.judging:,} images judged, {images.choosing:,} chosen by, "
        f"{images.training:,} learned from"
    )
    title = f"{'Healed' if healing.healed else 'Not healed'}: {healing.target}"
    show(table(title, ("with the original", "before", "after"), rows, "lrr", caption=caption))
    if healing.steps:
        steps = [(step.name, f"{step.error:.5f}", "kept" if step.kept else "left out") for step in healing.steps]
        show(table("Steps, with the error (1 − cosine) on images held out", ("", "error", ""), steps, "wrl"))
    for note in healing.notes:
        show(f"[yellow]![/] {escape(note)}")
