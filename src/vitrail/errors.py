"""The exception for mistakes that a user can fix.

`VitrailError` states the value, the rule and the remedy in one line. The command line prints it and exits with 2;
any other exception that escapes is a bug and keeps its traceback.
"""

import re

__all__ = ["VitrailError", "one_line", "require", "shown"]


class VitrailError(ValueError):
    """Raised when an argument breaks a rule: the message says what is wrong, why, and what to do.

    >>> from vitrail import ViTConfig
    >>> ViTConfig(width=770)
    Traceback (most recent call last):
    vitrail.errors.VitrailError: width 770 is not divisible by num_heads 12; try 768 or 780
    """


def require(condition: bool, message: str) -> None:
    """Raise `VitrailError(message)` unless the condition is true."""
    if not condition:
        raise VitrailError(message)


def shown(value: object) -> str:
    """Format a value for an error message: its repr, on one line and shortened.

    >>> shown("learned"), shown("a very long name " * 9)
    ("'learned'", "'a very long name a very long name a very long name a very long name…")
    """
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:68].rstrip()}…"


def one_line(text: str) -> str:
    """Escape control characters, which an untrusted name may contain, so that a message stays on one line.

    >>> one_line("no field 'wid\\nth'")
    "no field 'wid\\\\nth'"
    """
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", lambda match: repr(match[0])[1:-1], text)
