"""One training at a time in a folder: the second is refused, and nothing of the first is touched."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from command import call
from small_runs import RICH, begin, losses
from vitrail.errors import VitrailError
from vitrail.lock import lock
from vitrail.training import folder as folder_module
from vitrail.training.experiments.catalogue import experiment_named
from vitrail.training.experiments.run import run_experiment

SHORT = RICH.but(steps=2)
HOLDER = """
import sys
from pathlib import Path
from vitrail.training.distributed import ALONE
from vitrail.training.folder import RunFolder

with RunFolder(Path(sys.argv[1])).alone(ALONE):
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture(scope="module")
def holder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """A folder that another process trains in."""
    folder = tmp_path_factory.mktemp("held") / "run"
    command = [sys.executable, "-c", HOLDER, str(folder)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield folder, process
    process.kill()
    process.communicate()


def test_a_training_in_the_folder_of_another_is_refused_and_the_other_ends_as_if_alone(tmp_path: Path):
    refusals = []

    def intrude(facts: dict[str, Any]) -> None:
        if facts.get("step") == 1 and "loss" in facts:
            with pytest.raises(VitrailError, match=rf"run is in use by process {os.getpid()} on .*; wait") as no:
                begin(tmp_path / "run", SHORT)
            refusals.append(no)

    begin(tmp_path / "run", SHORT, watch=intrude)
    assert len(refusals) == 1
    begin(tmp_path / "alone", SHORT)
    assert losses(tmp_path / "run") == losses(tmp_path / "alone")
    assert not (tmp_path / "run" / ".lock").exists()


@pytest.mark.parametrize("how", ["--out", "--resume"])
def test_the_command_refuses_in_one_line(how: str, holder: tuple[Path, subprocess.Popen[str]], capsys: Any):
    folder, process = holder
    assert call("train", "--data", "shapes", "--model", "cifar", "--steps", "1", how, str(folder)) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(f"vitrail: {folder} is in use by process {process.pid} on ")
    assert shown.err.endswith("; wait until it ends, or choose another folder\n")
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert [path.name for path in folder.iterdir()] == [".lock"]


def test_a_lock_whose_process_was_killed_is_no_lock(tmp_path: Path):
    """The file stays; what held it does not."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.kill()
    assert (tmp_path / ".lock").exists()
    begin(tmp_path, SHORT)
    assert not (tmp_path / ".lock").exists()


def test_experiments_refuse_a_run_that_another_has_under_way(tmp_path: Path):
    """Experiments that share a folder share runs."""
    chosen = experiment_named("pooling")
    first = tmp_path / "runs" / f"{chosen.arms[0].run}-seed0"
    first.mkdir(parents=True)
    held = lock(first / ".lock", os.O_RDWR | os.O_CREAT)
    assert held is not None
    with pytest.raises(VitrailError, match="seed0 is in use by another process"):
        run_experiment(chosen, data=["shapes"], out=tmp_path, seeds=1, steps=1, limit=10)
    os.close(held)
    assert [path.name for path in first.iterdir()] == [".lock"]


@pytest.mark.parametrize("mistake", [["--data", "/nowhere"], []])
def test_a_run_that_is_refused_before_it_begins_leaves_no_folder(mistake: list[str], tmp_path: Path):
    assert call("train", *mistake, "--out", str(tmp_path / "run")) == 2
    assert call("train", *mistake, "--resume", str(tmp_path / "run")) == 2
    assert call("train", *mistake, "--out", str(tmp_path / ("x" * 300))) == 2
    assert not list(tmp_path.iterdir())


def test_a_disk_without_locks_is_trained_on_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def no_locks(*_: Any) -> int:
        raise OSError("Function not implemented")

    notes: list[str] = []
    monkeypatch.setattr(folder_module, "lock", no_locks)
    begin(tmp_path, SHORT, watch=lambda facts: notes.append(facts.get("note", "")))
    assert any("has no locks: do not start a second run in it" in note for note in notes)
