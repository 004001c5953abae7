from __future__ import annotations

import subprocess
import sys

import pytest

from vitrail import __version__
from vitrail.cli import COMMANDS, app, main


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "vitrail", *arguments], capture_output=True, text=True)


def test_the_version_is_the_packages():
    assert run("--version").stdout.strip() == __version__


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_helps(command: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert f"Usage: vitrail {command}" in shown


@pytest.mark.parametrize("command", COMMANDS)
def test_the_overview_says_what_the_commands_own_help_says(command: str):
    docstring = app[command].default_command.__doc__  # type: ignore[union-attr]
    assert docstring.splitlines()[0] == COMMANDS[command]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["demo", "--seed", "x"], 'Invalid value for --seed: unable to convert "x" into int'),
        (["dmeo"], 'Unknown command "dmeo". Did you mean "demo"?'),
        (["demo", "--nope"], "Unknown option: --nope"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments: list[str], line: str):
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("vitrail: ")
    assert line in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_demo_shows_shape_norm_row_and_times(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stop:
        main(["demo"])
    shown = capsys.readouterr().out
    assert stop.value.code == 0
    for part in ("(1, 197, 768)", "CLS norm", "position of patch (1, 3)", "norm 19.5959", "attention", "MLP"):
        assert part in shown
