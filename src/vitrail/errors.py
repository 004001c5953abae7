"""The one error that is the user's to mend.

`VitrailError` gives the value, the rule and the remedy in one line. The command line prints it and exits with 2;
anything else that escapes is a bug of ours and keeps its traceback.
"""

__all__ = ["VitrailError", "require", "shown"]


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
