"""Docstrings' examples as code blocks: a paragraph that starts with >>> is fenced for Markdown."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object


class Examples(Extension):
    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            text = obj.docstring.value
            obj.docstring.value = re.sub(r"^>>> (?:.+\n?)+", lambda found: _fenced(found[0]), text, flags=re.M)


def _fenced(example: str) -> str:
    return f"```pycon\n{example.rstrip()}\n```\n"
