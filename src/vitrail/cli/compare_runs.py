"""vitrail compare-runs: run folders side by side."""

from __future__ import annotations

import shlex
from pathlib import Path

from vitrail.cli.options import Json
from vitrail.cli.tables import show, table, write_json, written
from vitrail.errors import require

__all__ = ["compare_runs"]


def compare_runs(run: Path, /, *more: Path, report: Path | None = None, json: Json = False) -> None:
    """Put runs side by side: what differs between them and what came of it, with the spread over seeds.

    Parameters
    ----------
    run
        A run's folder, finished or not.
    more
        Further run folders (default: none); runs that differ only in their seed are grouped.
    report
        Markdown file to write the report to, with the curves beside it as a PNG of the same name (default: none).
    """
    from vitrail.atomic import write_file
    from vitrail.cli.progress import counted
    from vitrail.training.experiments.compare import group_runs
    from vitrail.training.experiments.draw import draw_comparison
    from vitrail.training.experiments.report import compare_columns, compare_json, compare_markdown
    from vitrail.training.run import read_run

    require(
        report is None or report.suffix == ".md", f"--report {report} is not a Markdown file; use a name ending in .md"
    )
    paths = [run, *more]
    groups = group_runs(read_run(path) for path in counted(paths, "reading", len(paths)))
    if json:
        write_json(compare_json(groups))
    else:
        head, rows = compare_columns(groups)
        show(table("Runs side by side", head, rows, "wwrlrrrr"))
        for group in groups[1:]:
            show(f"[bold]{group.name}[/] differs from {groups[0].name}: {'; '.join(group.changes)}")
    if report is not None:
        picture = report.with_suffix(".png")
        draw_comparison(groups, picture)
        command = shlex.join(["vitrail", "compare-runs", *map(str, paths), "--report", str(report)])
        content = compare_markdown(groups, command, picture).encode()
        write_file(report, lambda file: file.write(content))
        if not json:
            written(report, picture)
