"""Frozen dataclasses ↔ plain JSON values: a part carries its type as "kind", a Size is "384x640".

Reading is strict: an unknown key, a missing one or a wrong type is an error that names its place. So is parsing: text
that others wrote is bounded in length, names a key once, and holds no whole number beyond 64 bits.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from types import NoneType, UnionType
from typing import Any, Literal, TypeGuard, TypeVar, Union, get_args, get_origin, get_type_hints

from vitrail.errors import VitrailError, require
from vitrail.geometry import Size

__all__ = ["LONGEST_JSON", "from_plain", "parse_json", "to_plain"]

T = TypeVar("T")
LONGEST_JSON = 8 * 2**20
"""Bytes. A config with 21,843 names of classes has 3 MB; 100 MB take half a minute and gigabytes to parse."""
MOST_DIGITS = 19
"""Of a whole number: 64 bits. Python itself refuses to convert more than 4,300."""


def parse_json(text: str | bytes, name: str, remedy: str) -> Any:
    """Parse JSON that others wrote; `name` and `remedy` go into the error.

    >>> parse_json('{"width": 12, "width": 24}', "config.json", "mend it")
    Traceback (most recent call last):
    vitrail.errors.VitrailError: config.json names 'width' twice, so what it means is open to doubt; mend it
    """
    require(
        len(text) <= LONGEST_JSON,
        f"{name} has {len(text):,} bytes of JSON, and at most {LONGEST_JSON:,} are read; {remedy}",
    )

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            require(key not in found, f"{name} names {key[:60]!r} twice, so what it means is open to doubt; {remedy}")
            found[key] = value
        return found

    def whole(digits: str) -> int:
        count = len(digits.lstrip("-"))
        require(
            count <= MOST_DIGITS,
            f"{name} has a whole number of {count:,} digits, and at most {MOST_DIGITS} are read; {remedy}",
        )
        return int(digits)

    try:
        return json.loads(text, parse_int=whole, object_pairs_hook=unique)
    except VitrailError:
        raise
    except (ValueError, RecursionError) as error:
        raise VitrailError(f"{name} is not JSON ({error}); {remedy}") from None


def kind_of(part: type) -> str:
    """The type's name in JSON: its own KIND, or its name in words, SinCos2d → sin_cos_2d."""
    if hasattr(part, "KIND"):
        return part.KIND
    words = re.sub(r"(?<=[a-z])(?=[A-Z0-9])", "_", part.__name__)
    return re.sub(r"(?<=[A-Z])(?=[A-Z][a-z])", "_", words).lower()


def to_plain(value: Any) -> Any:
    """A value that `json.dumps` takes and `from_plain` gives back.

    >>> from vitrail.parts import SinCos2d
    >>> to_plain(SinCos2d())
    {'kind': 'sin_cos_2d', 'layout': 'interleaved', 'temperature': 10000.0}
    """
    if isinstance(value, Size):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"kind": kind_of(type(value)), **fields}
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    if isinstance(value, float) and math.isinf(value):
        return "inf"  # JSON has no infinity, and an infinite threshold is meaningful
    return value


def from_plain(data: Any, expected: type[T] | Any, path: str = "config") -> T:
    """Read what `to_plain` wrote, as a value of the expected type."""
    return _read(data, expected, path)


def _read(data: Any, expected: Any, path: str) -> Any:
    origin = get_origin(expected)
    if origin in (Union, UnionType):
        return _read_union(data, get_args(expected), path)
    if origin is Literal:
        options = get_args(expected)
        require(data in options, f"{path} is {data!r}; it must be one of {', '.join(map(str, options))}")
        return data
    if origin is tuple:
        require(isinstance(data, list), f"{path} is {data!r}; it must be a list")
        return tuple(_read(item, get_args(expected)[0], f"{path}[{i}]") for i, item in enumerate(data))
    if expected is Size:
        require(isinstance(data, str | int), f"{path} is {data!r}; write a size as '384x640'")
        return Size.of(data)
    if isinstance(expected, type) and dataclasses.is_dataclass(expected):
        return _read_dataclass(data, expected, path)
    if expected is float:
        number = math.inf if data == "inf" else data
        require(
            isinstance(number, int | float) and not isinstance(number, bool),
            f"{path} is {data!r}; it must be a number",
        )
        return _float(number, path)
    if (expected is not bool and isinstance(data, bool)) or not isinstance(data, expected):
        raise VitrailError(f"{path} is {data!r}; it must be {expected.__name__}")
    return data


def _float(number: float, path: str) -> float:
    try:
        return float(number)
    except OverflowError:  # of a whole number, which TOML does not bound
        raise VitrailError(f"{path} is beyond the largest number, 1.8e308; lower it") from None


def _read_union(data: Any, options: tuple[Any, ...], path: str) -> Any:
    if data is None and NoneType in options:
        return None
    parts: dict[Any, type] = {kind_of(option): option for option in options if _is_part(option)}
    if parts and isinstance(data, dict):
        kind = data.get("kind")
        require(kind in parts, f"{path}.kind is {kind!r}; it must be one of {', '.join(parts)}")
        return _read_dataclass(data, parts[kind], path)
    scalars = [option for option in options if option is not NoneType and option not in parts.values()]
    require(len(scalars) == 1, f"{path} is {data!r}; it must be an object with a kind of {', '.join(parts)}")
    return _read(data, scalars[0], path)


def _is_part(option: Any) -> TypeGuard[type]:
    return isinstance(option, type) and dataclasses.is_dataclass(option) and option is not Size


def _read_dataclass(data: Any, expected: type, path: str) -> Any:
    require(isinstance(data, dict), f"{path} is {data!r}; it must be an object with a kind of {kind_of(expected)}")
    kind = data.get("kind", kind_of(expected))
    require(kind == kind_of(expected), f"{path}.kind is {kind!r}; it must be {kind_of(expected)}")
    names = [field.name for field in dataclasses.fields(expected)]
    unknown = sorted(set(data) - {"kind", *names})
    require(not unknown, f"{path} has unknown key {', '.join(unknown)}; it takes {', '.join(names) or 'none'}")
    hints = get_type_hints(expected)
    given = {name: _read(data[name], hints[name], f"{path}.{name}") for name in names if name in data}
    try:
        return expected(**given)
    except TypeError as error:  # a field without a default is missing
        raise VitrailError(f"{path} is incomplete ({error}); it takes {', '.join(names)}") from None
