from __future__ import annotations

import subprocess
import sys

import pytest

from command import call
from vitrail import __version__
from vitrail.cli import COMMANDS, app, main
from vitrail.cli.mistakes import explain_memory


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
        (["dmeo"], "'dmeo' is not a command; did you mean 'demo'?"),
        (["demo", "--nope"], "demo has no option --nope; see vitrail demo --help"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments: list[str], line: str):
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("vitrail: ")
    assert line in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("zzz", f"'zzz' is not a command; use one of {', '.join(COMMANDS)}"),
        ("laws B/16", "laws does not take 'B/16'; see vitrail laws --help"),
        ("plan --gpuu t4", "plan has no option --gpuu; did you mean --gpu?"),
        ("inspect --weights w", "inspect has no option --weights; write the weights without a name: vitrail inspect W"),
        (
            "plan --model qwen25-vl",
            "model 'qwen25-vl' is not a preset; of vision-language models, vitrail plan takes qwen2.5-vl, qwen2-vl",
        ),
        ("plan B/16 --model=L/16", "plan takes one model, and both 'B/16' and --model were given; give one"),
        ("plan B/16 --module timm:vit_tiny_patch16_224", "--module was given with MODEL B/16, which it does not take"),
        ("plan --gpu", "--gpu needs a value: card by name, e.g. rtx-4090, or by memory, e.g. 24GiB; see vitrail plan"),
        ("look", "look needs --out: file to draw into: .png, .svg or .pdf; see vitrail look --help"),
        (
            "search",
            "search needs VECTORS: folder that vitrail embed wrote, finished or not; a path, s3:// or gs://; "
            "see vitrail search --help",
        ),
        ("demo --seed", "--seed needs a value: seed of the drawn image and of the weights; see vitrail demo --help"),
        ("demo --seed x", 'Invalid value for --seed: unable to convert "x" into int; see vitrail demo --help'),
        ("demo --seed=-1", "seed -1 is negative; give 0 or more"),
        (
            "plan --depth 99999999999999999999",
            'Invalid value "99999999999999999999" for --depth. 99999999999999999999 is beyond 64 bits; give a smaller',
        ),
        (
            "adapt default never.pth --channels 9000000000000000000",
            "a tensor of sizes [96, 9000000000000000000, 4, 4] is larger than any memory; ask for something smaller",
        ),
        ("experiment data-hunger --data cifar10 --steps 0", "steps 0 is not a positive number; give 1 or more"),
    ],
)
def test_a_mistake_names_the_word_the_rule_and_the_remedy(arguments: str, line: str, capsys):
    assert call(*arguments.split()) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"vitrail: {line}")
    assert shown.err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (MemoryError(), "this machine's memory is not enough; ask for something smaller"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 6144000000000 bytes."),
            "5,722 GiB at once are more than this machine's memory; ask for something smaller",
        ),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), None),
    ],
)
def test_what_does_not_fit_memory_is_told_from_a_fault(error: MemoryError | RuntimeError, line: str | None):
    assert explain_memory(error) == line


def test_the_demo_shows_shape_norm_row_and_times(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stop:
        main(["demo"])
    shown = capsys.readouterr().out
    assert stop.value.code == 0
    for part in ("(1, 197, 768)", "CLS norm", "position of patch (1, 3)", "norm 19.5959", "attention", "MLP"):
        assert part in shown
