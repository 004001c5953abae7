"""The base class of configs and their parts: a frozen dataclass that checks every field against its annotation.

`vitrail.codec` reads JSON with the same checks, so a mistake raises the same error from Python and from JSON.
Values of a compatible type are normalised: NumPy numbers to Python numbers, an int to a float, a list to a tuple, and
16, "16x8" or (16, 8) to a Size.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from html import escape
from numbers import Integral
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Self, TypeGuard, Union, get_args, get_origin, get_type_hints

from vitrail.charts.notebook import html_table, panel
from vitrail.errors import VitrailError, require, shown
from vitrail.rules import Range, number, whole_number

__all__ = ["Check", "Value", "check_of", "hints_of", "is_part", "kind_of", "one_of", "reads_itself"]

Check = Callable[[str, Any], Any]
"""(field name, value) → the value in the annotated type, or a VitrailError that begins with the field name."""


@dataclass(frozen=True, kw_only=True)
class Value:
    """A value that checks its fields when it is built. Subclasses check rules between fields in `__post_init__`."""

    def __post_init__(self) -> None:
        for name, check in _checks(type(self)):
            given = getattr(self, name)
            value = check(name, given)
            if value is not given:
                object.__setattr__(self, name, value)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.__repr__ = Value.__repr__  # in the class before @dataclass looks, which then leaves it

    def __repr__(self) -> str:
        """Return what makes an equal value: the fields that differ from their defaults."""
        fields = (f"{field.name}={getattr(self, field.name)!r}" for field in self.changed_fields())
        return f"{type(self).__name__}({', '.join(fields)})"

    def changed_fields(self) -> list[dataclasses.Field[Any]]:
        """Return the fields that have no default, or another value than it."""
        return [field for field in dataclasses.fields(self) if getattr(self, field.name) != _default(field)]

    def _repr_html_(self) -> str:
        changed = self.changed_fields()
        rows = (
            (f"<b>{field.name}</b>" if field in changed else field.name, escape(_text_of(getattr(self, field.name))))
            for field in dataclasses.fields(self)
        )
        return panel(type(self).__name__, html_table((), rows, "ll"))

    def but(self, **changes: Any) -> Self:
        """Return a validated copy with some fields changed."""
        names = [field.name for field in dataclasses.fields(self)]
        unknown = sorted(set(changes) - set(names))
        require(
            not unknown, f"{type(self).__name__} has no field {', '.join(unknown)}; its fields are {', '.join(names)}"
        )
        return dataclasses.replace(self, **changes)


def _default(field: dataclasses.Field[Any]) -> Any:
    factory = field.default_factory
    return field.default if factory is dataclasses.MISSING else factory()


def _text_of(value: Any) -> str:
    return (
        "none" if value is None else str(value) if isinstance(value, str) or reads_itself(type(value)) else repr(value)
    )


def kind_of(part: type) -> str:
    """Return the type's name in JSON: its KIND, or its name in snake case, as SinCos2d → sin_cos_2d."""
    if hasattr(part, "KIND"):
        return part.KIND
    words = re.sub(r"(?<=[a-z])(?=[A-Z0-9])", "_", part.__name__)
    return re.sub(r"(?<=[A-Z])(?=[A-Z][a-z])", "_", words).lower()


def reads_itself(option: Any) -> bool:
    """Return whether a type is a string in JSON, like Size, whose `of` reads what `str` writes."""
    return isinstance(option, type) and hasattr(option, "of")


def is_part(option: Any) -> TypeGuard[type[Value]]:
    """Return whether a type is an object in JSON."""
    return isinstance(option, type) and issubclass(option, Value) and not reads_itself(option)


@cache
def hints_of(kind: type[Value]) -> dict[str, Any]:
    """Return the annotation of every field."""
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


@cache
def _checks(kind: type[Value]) -> tuple[tuple[str, Check], ...]:
    return tuple((name, check_of(hint)) for name, hint in hints_of(kind).items())


@cache
def check_of(expected: Any) -> Check:
    """Return the check for an annotation.

    >>> check_of(Literal["index", "normalised"])("coordinates", "normalized")
    Traceback (most recent call last):
    vitrail.errors.VitrailError: coordinates 'normalized' is not one of index, normalised; did you mean 'normalised'?
    """
    origin, arguments = get_origin(expected), get_args(expected)
    if origin in (Union, UnionType):
        return _union_check(arguments)
    if origin is Literal:
        return lambda place, value: one_of(place, value, arguments)
    if origin is tuple and arguments[1:] == (...,):
        return _tuple_check(arguments[0])
    if origin is dict:
        return _dict_check(*arguments)
    if origin is Callable:
        return _function
    if origin is Annotated and isinstance(arguments[1], Range):
        return _number_check(*arguments)
    if expected is bool:
        return _truth
    if expected is str:
        return _text
    if isinstance(expected, type) and expected not in (int, float):
        return _text_check(expected) if reads_itself(expected) else _instance_check((expected,))
    raise TypeError(f"{expected} cannot annotate a value's field; a number needs a range, like PositiveInt")


def one_of(place: str, value: Any, options: tuple[Any, ...]) -> Any:
    """Return the option that equals the value, or raise an error that suggests the nearest; True is not 1."""
    if type(value) is str and value in options:
        return value
    for option in options:
        kind = str if isinstance(option, str) else Integral
        if isinstance(value, kind) and not isinstance(value, bool) and value == option:
            return option
    near = _nearest(value, [option for option in options if isinstance(option, str)])
    remedy = f"did you mean {near!r}?" if near else "choose one of them"
    raise VitrailError(f"{place} {shown(value)} is not one of {', '.join(map(str, options))}; {remedy}")


def _nearest(value: Any, names: list[str]) -> str | None:
    from difflib import get_close_matches  # only needed for an error

    text = value if isinstance(value, str) else getattr(value, "__name__", "")
    lowered = {name.lower(): name for name in names}
    return next((lowered[near] for near in get_close_matches(text.lower(), lowered, n=1)), None)


def _union_check(options: tuple[Any, ...]) -> Check:
    parts = tuple(option for option in options if is_part(option))
    others = [option for option in options if option is not NoneType and option not in parts]
    if bool(parts) + len(others) != 1:
        raise TypeError(f"{options} are ambiguous; a field takes either parts or one other type, and optionally None")
    check = _instance_check(parts) if parts else check_of(others[0])
    return (lambda place, value: None if value is None else check(place, value)) if NoneType in options else check


def _instance_check(kinds: tuple[type, ...]) -> Check:
    def check(place: str, value: Any) -> Any:
        if isinstance(value, kinds):
            return value
        names = {kind.__name__: kind for kind in kinds}
        near = _nearest(value, list(names))
        kind = names[near] if near else kinds[0]
        how = f'{kind.__name__}(...), or {{"kind": "{kind_of(kind)}"}} in JSON' if is_part(kind) else "one"
        rule = f"one of {', '.join(names)}" if len(names) > 1 else f"a {kind.__name__}"
        remedy = f"did you mean {how}?" if near else f"give {how}"
        raise VitrailError(f"{place} {shown(value)} is not {rule}; {remedy}")

    return check


def _text_check(kind: Any) -> Check:
    def check(place: str, value: Any) -> Any:
        if type(value) is kind:
            return value
        try:
            return kind.of(value)
        except VitrailError as error:
            raise VitrailError(f"{place}: {error}") from None

    return check


def _tuple_check(inner: Any) -> Check:
    check = check_of(inner)

    def each(place: str, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, tuple | list):
            raise VitrailError(f"{place} {shown(value)} is not a list or a tuple; give one")
        try:
            return tuple([check(place, item) for item in value])
        except VitrailError:  # check again, to name the index
            return tuple(check(f"{place}[{index}]", item) for index, item in enumerate(value))

    return each


def _dict_check(key_type: Any, value_type: Any) -> Check:
    check_key, check_value = check_of(key_type), check_of(value_type)

    def each(place: str, value: Any) -> dict[Any, Any]:
        if not isinstance(value, dict):
            raise VitrailError(f"{place} {shown(value)} is not a dict; give one")
        return {check_key(f"{place} key", key): check_value(f"{place}.{key}", item) for key, item in value.items()}

    return each


def _number_check(kind: type, within: Range) -> Check:
    return lambda place, value: (whole_number if kind is int else number)(place, value, within)


def _truth(place: str, value: Any) -> bool:
    if type(value) is bool:
        return value
    if type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise VitrailError(f"{place} {shown(value)} is not True or False; use one of the two")


def _text(place: str, value: Any) -> str:
    if isinstance(value, str):
        return str(value)
    raise VitrailError(f"{place} {shown(value)} is not text; give a string")


def _function(place: str, value: Any) -> Any:
    if callable(value):
        return value
    raise VitrailError(f"{place} {shown(value)} is not a function; give one")
