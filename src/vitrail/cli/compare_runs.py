"""vitrail compare-runs: run folders side by side."""

from __future__ import annotations

import shlex
from pathlib import Path

from vitrail.cli.options import Flag
from vitrail.cli.tables import show, table, write_json
from vitrail.errors import require

__all__ = ["compare_runs"]


def compare_runs(run: Path, /, *more: Path, out: Path | None = None, json: Flag = False) -> None:
    """Put runs side by side: what differs between them and what came of it, with the spread over seeds.

    Parameters
    ----------
    run
        A run's folder, finished or not.
    more
        Others; runs that differ in their seed only are taken together.
    out
        A Markdown report; the curves are drawn beside it, as a PNG of the same name.
    json
        Exact values as JSON.
    """
    from vitrail.atomic import write_file
    from vitrail.train.experiments.compare import group_runs, read_run
    from vitrail.train.experiments.draw import draw_comparison
    from vitrail.train.experiments.report import compare_columns, compare_json, compare_markdown

    require(out is None or out.suffix == ".md", f"--out {out} is not a Markdown file; use a name ending in .md")
    paths = [run, *more]
    groups = group_runs(read_run(path) for path in paths)
    if json:
        write_json(compare_json(groups))
    else:
        head, rows = compare_columns(groups)
        show(table("Runs side by side", head, rows, "llrlrrrr"))
        for group in groups[1:]:
            show(f"[bold]{group.name}[/] differs from {groups[0].name}: {'; '.join(group.changes)}")
    if out is not None:
        picture = out.with_suffix(".png")
        draw_comparison(groups, picture)
        command = shlex.join(["vitrail", "compare-runs", *map(str, paths), "--out", str(out)])
        content = compare_markdown(groups, command, picture).encode()
        write_file(out, lambda file: file.write(content))
        if not json:
            show(f"report: {out}")
