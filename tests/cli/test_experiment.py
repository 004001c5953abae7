"""experiment as people run it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from command import call
from vitrail.studies.catalogue import STUDIES
from vitrail.training.experiments.catalogue import EXPERIMENTS


def test_without_a_name_the_experiments_are_listed(capsys: pytest.CaptureFixture[str]):
    assert call("experiment", "--json") == 0
    assert [each["name"] for each in json.loads(capsys.readouterr().out)] == [*EXPERIMENTS, *STUDIES]
    assert call("experiment") == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in (*EXPERIMENTS, *STUDIES))


def test_an_experiment_leaves_a_report_that_names_its_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    small = ["--data", "shapes", "--seeds", "1", "--steps", "1", "--limit", "8", "--out", str(tmp_path)]
    assert call("experiment", "pooling", *small) == 0
    assert "CLS token" in capsys.readouterr().out
    command = f"vitrail experiment pooling --data shapes --seeds 1 --steps 1 --limit 8 --out {tmp_path}"
    assert f"    {command}\n" in (tmp_path / "pooling.md").read_text()
    assert json.loads((tmp_path / "pooling.json").read_text())["command"] == command
    assert (tmp_path / "pooling.png").is_file()
    assert call("experiment", "pooling", *small, "--json") == 0
    assert json.loads(capsys.readouterr().out) == json.loads((tmp_path / "pooling.json").read_text())


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["position"], "try positions"),
        (["pooling"], "vitrail data fetch cifar10"),
        (["pooling", "--data", "shapes", "--steps", "1", "--epochs", "1"], "choose one"),
        (["pooling", "--data", "shapes", "--seeds", "0"], "seeds 0 is not a positive"),
        (["pooling", "--data", "nowhere"], "nowhere does not exist"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]):
    assert call("experiment", *arguments) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("vitrail: ")
    assert line in error
