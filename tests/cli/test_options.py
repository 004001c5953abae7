"""Every option says what it is and what its default is, and means the same in every command."""

from __future__ import annotations

import inspect
from collections import defaultdict
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
from cyclopts.argument import Argument

from command import call
from vitrail.cli import COMMANDS, app
from vitrail.geometry import Size

DIFFERENT = {
    "--device": "a training may name one of several cards (cuda:1); the workers of embed take turns on one kind",
    "--engine": "embed also runs on a Ray cluster, which bench does not time; serve has no images to calibrate int8 on",
    "--out": "embed also writes to a store, by URL",
    "--shard": "plan is asked for KIND:DEVICES; torchrun tells train the number of devices",
}
"""Options whose type may differ between commands, and why."""


def arguments(command: str) -> list[Argument]:
    return list(app[command].assemble_argument_collection(parse_docstring=True))


def is_option(argument: Argument) -> bool:
    return argument.name.startswith("--")


def element(hint: Any) -> Any:
    """The type of one value: of a list its items', of a choice its words, without None."""
    kinds = [kind for kind in get_args(hint) if kind is not type(None)]
    if get_origin(hint) in (list, tuple) and (get_origin(hint) is list or kinds[-1] is Ellipsis):
        return element(kinds[0])
    return element(kinds[0]) if type(None) in get_args(hint) and len(kinds) == 1 else hint


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_has_help_and_a_stated_default(command: str):
    for argument in arguments(command):
        text, default = argument.parameter.help or "", argument.field_info.default
        assert text.endswith((".", "…")), f"{argument.name}: {text!r} is not a sentence"
        if argument.required or argument.hint is bool:  # a flag is off unless it is given
            continue
        shown = default not in (None, inspect.Parameter.empty)  # cyclopts shows it
        assert shown != ("default: " in text), f"{argument.name} must say its default once: {text!r}"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_flag_has_no_negative_twin(command: str):
    for argument in arguments(command):
        assert not argument.negatives, f"{argument.name} also has {argument.negatives}"


def test_an_option_has_one_type_in_all_commands():
    kinds: dict[str, dict[Any, list[str]]] = defaultdict(lambda: defaultdict(list))
    for command in COMMANDS:
        for argument in arguments(command):
            if is_option(argument):
                kinds[argument.name][element(argument.hint)].append(command)
    several = {name: dict(found) for name, found in kinds.items() if len(found) > 1}
    assert sorted(several) == sorted(DIFFERENT), several


def test_an_image_option_is_a_size_and_a_photograph_is_positional():
    for command in COMMANDS:
        for argument in arguments(command):
            if argument.name == "--image":
                assert element(argument.hint) is Size, command
            assert argument.name not in ("--photo", "--photos", "--picture"), command


def test_weights_are_what_a_command_is_about_or_an_option_where_images_are():
    for command in COMMANDS:
        names = {argument.name for argument in arguments(command)}
        subject = names & {"WEIGHTS", "MODEL", "MODELS", "RUN"}
        assert not (subject and names & {"--weights", "--model"}), f"{command} takes weights in two ways: {names}"
        assert "--config" not in names, f"{command}: a config's JSON file is one of the things that a model may be"


def test_a_chart_is_a_picture_of_what_is_printed_and_out_is_what_a_command_makes():
    for command in COMMANDS:
        known = {argument.name: argument for argument in arguments(command)}
        assert not {"--chart", "--out"} <= known.keys(), f"{command} has two files to write a picture to"
        if chart := known.get("--chart"):
            assert chart.hint == Path | None, command
            assert ".png" in (chart.parameter.help or ""), command


def test_positional_arguments_are_not_options_too_but_for_the_model_that_is_planned():
    for command in COMMANDS:
        for argument in arguments(command):
            names = argument.names if argument.name != "MODEL" or command == "plan" else ()
            assert len(argument.names) == 1 or set(names) == {"MODEL", "--model"}, f"{command}: {argument.names}"


def test_words_arrive_as_values():
    _, bound, _ = app.parse_args("evaluate run --image 24,32x48 --batch 7", exit_on_error=False)
    assert bound.arguments == {"run": Path("run"), "image": (Size(24, 24), Size(32, 48)), "batch": 7}


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("bench", "w", "--batch", "1,two"), "--batch: '1,two' is not a list of numbers; write 1,8,64"),
        (("plan", "--image", "big"), "--image: size 'big' is not HEIGHTxWIDTH; write 384x640, or 224 for a square"),
        (("look", "--out", "x.png", "--query", "5"), "--query: query '5' is not ROWxCOLUMN; write 5x7"),
    ],
)
def test_a_value_that_is_refused_is_one_line_with_a_remedy(arguments: tuple[str, ...], line: str, capsys):
    assert call(*arguments) == 2
    error = capsys.readouterr().err
    assert line in error
    assert error.count("\n") == 1
    assert "--help" not in error
