"""compare-runs as people run it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command import call
from small_runs import RICH, begin, job_of
from vitrail.training.job import write_job


def test_runs_are_compared_on_the_terminal_in_a_report_and_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    runs = []
    for seed in (0, 1):
        folder = tmp_path / f"run-{seed}"
        folder.mkdir()
        write_job(folder, job_of(RICH.but(seed=seed, steps=2)))
        begin(folder, RICH.but(seed=seed, steps=2))
        runs.append(str(folder))
    report = tmp_path / "report.md"
    assert call("compare-runs", *runs, "--report", str(report)) == 0
    assert "run-0 +1" in capsys.readouterr().out
    assert f"    vitrail compare-runs {' '.join(runs)} --report {report}" in report.read_text()
    assert report.with_suffix(".png").is_file()
    assert call("compare-runs", *runs, "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert [each["step"] for each in found["runs"]] == [2, 2]

    assert call("compare-runs", runs[0], str(tmp_path / "nowhere")) == 2
    assert "is not a run" in capsys.readouterr().err
    assert call("compare-runs", runs[0], "--report", "report.txt") == 2
    assert "not a Markdown file" in capsys.readouterr().err
