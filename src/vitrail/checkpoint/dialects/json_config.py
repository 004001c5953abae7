"""Typed access to another library's config.json: a value of another type is refused by its name and place."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from vitrail.errors import VitrailError, require
from vitrail.geometry import Size

__all__ = ["JsonConfig"]


class JsonConfig:
    """Typed access to a JSON object; a missing or null key gives the default."""

    def __init__(self, values: Mapping[str, Any], where: str = "config.json") -> None:
        self.values, self.where = values, where

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def __bool__(self) -> bool:
        return bool(self.values)

    def text(self, key: str, default: str = "") -> str:
        return self._typed(key, default, str, "text")

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key)
        require(
            value is None or isinstance(value, bool), f"{self.where} has {key} {value!r}, which is not true or false"
        )
        return default if value is None else bool(value)

    def whole(self, key: str, default: int) -> int:
        return self._typed(key, default, int, "a whole number")

    def number(self, key: str, default: float) -> float:
        value = float(self._typed(key, default, (int, float), "a number"))
        require(math.isfinite(value), f"{self.where} has {key} {value}, which is not finite; mend it")
        return value

    def numbers(self, key: str, default: tuple[float, ...]) -> tuple[float, ...]:
        value = self._typed(key, list(default), list, "a list of numbers")
        if not all(isinstance(each, int | float) and not isinstance(each, bool) for each in value):
            raise self._wrong(key, "a list of numbers")
        return tuple(float(each) for each in value)

    def size(self, key: str) -> Size | None:
        """Read 224 or [height, width]; of three numbers, as in timm's input_size, use the last two."""
        if key not in self:
            return None
        value = self.values[key]
        if type(value) is int:
            return Size.of(value)
        if not isinstance(value, list) or len(value) not in (2, 3) or not all(type(each) is int for each in value):
            raise self._wrong(key, "a size: a number, or height and width")
        return Size(*value[-2:])

    def stated(self, **keys: str) -> dict[str, int | Size]:
        """Return the values of the keys that are there, by vitrail's name: width="hidden_size"; `patch` is a size."""
        there = {name: key for name, key in keys.items() if key in self}
        return {
            name: (self.size(key) if name == "patch" else None) or self.whole(key, 0) for name, key in there.items()
        }

    def understand(self, known: Collection[str], only: Mapping[str, tuple[Any, ...]]) -> None:
        """Refuse a key that is not among the `known`, and a value of an `only` key that is not in its list.

        What is read must be understood whole: a key that nobody reads may be the one that changes the outputs.
        """
        for key, value in self.values.items():
            if value is None or key in known:
                continue
            shown = f"{self.where} has {key} {str(value)[:40]!r}"
            require(
                key in only, f"{shown}, which vitrail does not know; if the outputs do not depend on it, take it out"
            )
            require(
                any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in only[key]),
                f"{shown}, and vitrail's models have {' or '.join(map(repr, only[key]))}; it cannot be read",
            )

    def part(self, key: str) -> JsonConfig:
        return JsonConfig(self._typed(key, {}, dict, "an object"), f"{self.where}, {key}")

    def first(self, key: str) -> str:
        """Return the first of a list of names, or "" if there is none."""
        names = self._typed(key, [], list, "a list of names")
        return names[0] if names and isinstance(names[0], str) else ""

    def _typed(self, key: str, default: Any, kind: Any, name: str) -> Any:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self._wrong(key, name)
        return value

    def _wrong(self, key: str, name: str) -> VitrailError:
        return VitrailError(f"{self.where} has {key} {str(self.values[key])[:40]!r}, which is not {name}; mend it")
