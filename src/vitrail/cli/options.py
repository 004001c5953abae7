"""Kinds of option that several commands have."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

__all__ = ["Flag", "Words"]

Flag = Annotated[bool, Parameter(negative=())]
"""--json, without a --no-json."""
Words = Annotated[list[str], Parameter(consume_multiple=True, negative=())]
"""--data train.tar test.tar: several values after one name."""
