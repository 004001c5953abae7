"""Convert values to and from plain JSON: a part stores its type as "kind", a Size is "384x640".

Reading is strict: an unknown key, a missing key or a wrong value raises an error that names its path, with the same
message as in Python (`vitrail.value`). Parsing is strict too: untrusted text is limited in length, and duplicate keys
and integers beyond 64 bits are refused.
"""

from __future__ import annotations

import dataclasses
import json
import math
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from vitrail.errors import VitrailError, require
from vitrail.value import Value, check_of, hints_of, is_part, kind_of, one_of, reads_itself

__all__ = ["LONGEST_JSON", "from_plain", "parse_json", "to_plain"]

T = TypeVar("T")
LONGEST_JSON = 8 * 2**20
"""Bytes. A config with 21,843 class names has 3 MB; parsing 100 MB takes half a minute and gigabytes of memory."""
MOST_DIGITS = 19
"""Digits of the longest integer that is read: 64 bits. Python itself refuses to convert more than 4,300."""


def parse_json(text: str | bytes, name: str, remedy: str) -> Any:
    """Parse untrusted JSON; `name` and `remedy` are used in error messages.

    >>> parse_json('{"width": 12, "width": 24}', "config.json", "remove one")
    Traceback (most recent call last):
    vitrail.errors.VitrailError: config.json has the key 'width' twice; remove one
    """
    require(
        len(text) <= LONGEST_JSON,
        f"{name} has {len(text):,} bytes of JSON, and at most {LONGEST_JSON:,} are read; {remedy}",
    )

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        unique_pairs: dict[str, Any] = {}
        for key, value in pairs:
            require(key not in unique_pairs, f"{name} has the key {key[:60]!r} twice; {remedy}")
            unique_pairs[key] = value
        return unique_pairs

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


def to_plain(value: Any) -> Any:
    """Convert to a value that `json.dumps` accepts and `from_plain` reads back.

    >>> from vitrail.parts import SinCos2d
    >>> to_plain(SinCos2d())
    {'kind': 'sin_cos_2d', 'layout': 'interleaved', 'temperature': 10000.0}
    """
    if reads_itself(type(value)):
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
    """Read a value of the expected type from what `to_plain` returned."""
    return _read(data, expected, path)


def _read(data: Any, expected: Any, path: str) -> Any:
    options = get_args(expected) if get_origin(expected) in (Union, UnionType) else (expected,)
    parts = {kind_of(option): option for option in options if is_part(option)}
    if parts and isinstance(data, dict):
        return _read_part(data, parts, path)
    [option, *_] = [option for option in options if option is not NoneType]
    if get_origin(option) is tuple and isinstance(data, list):
        return tuple(_read(item, get_args(option)[0], f"{path}[{index}]") for index, item in enumerate(data))
    if data == "inf" and get_origin(option) is Annotated:
        data = math.inf
    return check_of(expected)(path, data)


def _read_part(data: dict[str, Any], parts: dict[str, type[Value]], path: str) -> Value:
    given = data.get("kind", next(iter(parts)) if len(parts) == 1 else None)
    part = parts[one_of(f"{path}.kind", given, tuple(parts))]
    hints = hints_of(part)
    unknown = sorted(set(data) - {"kind", *hints})
    require(not unknown, f"{path} has unknown key {', '.join(unknown)}; it takes {', '.join(hints) or 'none'}")
    missing = [field.name for field in dataclasses.fields(part) if _is_required(field) and field.name not in data]
    require(not missing, f"{path} is incomplete without {', '.join(missing)}; it takes {', '.join(hints)}")
    return part(**{name: _read(data[name], hint, f"{path}.{name}") for name, hint in hints.items() if name in data})


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
