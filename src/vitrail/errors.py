"""The one error that is the user's to mend.

`VitrailError` gives the value, the rule and the remedy in one line. The command line prints it and exits with 2;
anything else that escapes is a bug of ours and keeps its traceback.
"""

import re

__all__ = ["VitrailError", "one_line", "require", "shown"]


class VitrailError(ValueError):
    """Something the caller gave breaks a rule: the message says what, why and what to do."""


def require(holds: bool, message: str) -> None:
    """Raise `VitrailError(message)` unless the rule holds."""
    if not holds:
        raise VitrailError(message)


def shown(value: object) -> str:
    """A value as a message shows it: its repr, on one line and not too long.

    >>> shown("learned"), shown("a very long name " * 9)
    ("'learned'", "'a very long name a very long name a very long name a very long name…")
    """
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:68].rstrip()}…"


def one_line(text: str) -> str:
    """A message on one line: control characters, which a name from outside may hold, are escaped.

    >>> one_line("no field 'wid\\nth'")
    "no field 'wid\\\\nth'"
    """
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", lambda found: repr(found[0])[1:-1], text)
