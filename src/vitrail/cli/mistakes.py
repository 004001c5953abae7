"""A command line that cannot be understood, in one line: the word, the rule, the remedy."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from cyclopts import App, CycloptsError, MissingArgumentError, UnknownOptionError, UnusedCliTokensError
from cyclopts.argument import Argument
from cyclopts.exceptions import UnknownCommandError

from vitrail.charts.numbers import bytes_text
from vitrail.errors import VitrailError

__all__ = ["explain", "explain_memory"]


def explain(error: CycloptsError, app: App, commands: Sequence[str]) -> str:
    """Return the mistake and what to write instead."""
    command = " ".join(error.command_chain or ())
    see = f"see vitrail {command} --help" if command else "see vitrail --help"
    match error:
        case UnknownCommandError(unused_tokens=[word, *_]):
            near = difflib.get_close_matches(word, commands, n=1)
            remedy = f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(commands)}"
            return f"{word!r} is not a command; {remedy}"
        case UnusedCliTokensError(unused_tokens=[word, *_]):
            if twice := _named_too(app[command] if command else app, error.root_input_tokens or []):
                return f"{command} takes one {twice[2:]}, and both {word!r} and {twice} were given; give one"
            return f"{command or 'vitrail'} does not take {word!r}; {see}"
        case UnknownOptionError(token=token, argument_collection=known):
            option = token.keyword or token.value
            return f"{command or 'vitrail'} has no option {option}; {_instead(option, list(known), command) or see}"
        case MissingArgumentError(argument=Argument() as argument):
            given = error.keyword or next((token.keyword for token in argument.tokens if token.keyword), None)
            subject = f"{given} needs a value" if given else f"{command} needs {argument.name}"
            return f"{subject}: {_meaning(app[command], argument.name)}; {see}"
    words = " ".join(str(error).split()).rstrip(".")
    return words if isinstance(error.__cause__, VitrailError) else f"{words}; {see}"


def explain_memory(error: MemoryError | RuntimeError) -> str | None:
    """Return what was too large for this machine's memory; None if the error is about something else."""
    words = str(error)
    if asked := re.search(r"tried to allocate (\d+) bytes", words):
        return f"{bytes_text(int(asked[1]))} at once are more than this machine's memory; ask for something smaller"
    if asked := re.search(r"Storage size calculation overflowed with sizes=(\[.*?\])", words):
        return f"a tensor of sizes {asked[1]} is larger than any memory; ask for something smaller"
    return "this machine's memory is not enough; ask for something smaller" if isinstance(error, MemoryError) else None


def _named_too(command: App, words: Sequence[str]) -> str | None:
    """Return an option among the words that is also taken without its name."""
    known = (argument for argument in command.assemble_argument_collection() if argument.index is not None)
    names = {name for argument in known for name in argument.names}
    return next((name for word in words if (name := word.partition("=")[0]) in names), None)


def _meaning(command: App, name: str) -> str:
    """Return what an argument is, in the words of the command's help, without its default."""
    known = {each.name: each for each in command.assemble_argument_collection(parse_docstring=True)}
    text = " ".join((known[name].parameter.help or "").split()).partition(" (default")[0].rstrip(".")
    return text if text[:2].isupper() else f"{text[:1].lower()}{text[1:]}"


def _instead(option: str, known: list[Argument], command: str) -> str | None:
    """Return what to write instead of an unknown option, if something is like it."""
    name = option.lstrip("-").partition("=")[0]
    positional = [argument.name for argument in known if not argument.name.startswith("-")]
    if name.replace("-", "_").upper() in positional:
        return f"write the {name} without a name: vitrail {command} {name.upper()}"
    near = difflib.get_close_matches(option, [each for argument in known for each in argument.names], n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else None
