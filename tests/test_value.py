"""Laws of all values: every field of every subclass of Value that the package defines, found by walking its modules."""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import pytest

import vitrail
from vitrail import parts
from vitrail.checkpointing import Checkpointing
from vitrail.codec import from_plain, to_plain
from vitrail.config import MobileStage, ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.plan.workload import Shard, Workload
from vitrail.rules import Range, number
from vitrail.training.recipe import Recipe, recipe_from_text
from vitrail.value import Value


def _subclasses(kind: type[Value]) -> Iterator[type[Value]]:
    for found in kind.__subclasses__():
        yield found
        yield from _subclasses(found)


for _module in pkgutil.walk_packages(vitrail.__path__, "vitrail."):
    if not _module.name.endswith("__main__"):
        importlib.import_module(_module.name)
VALUES = sorted(
    {kind for kind in _subclasses(Value) if kind.__module__.startswith("vitrail.") and dataclasses.fields(kind)},
    key=lambda kind: (kind.__module__, kind.__qualname__),
)


@cache
def _hints(kind: type[Value]) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


FIELDS = [pytest.param(kind, name, id=f"{kind.__name__}.{name}") for kind in VALUES for name in _hints(kind)]


def _allows(hint: Any, value: Any) -> bool:
    """What an annotation means, spelt once more: the reference that the checks are held to."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_allows(option, value) for option in arguments)
    if origin is Literal:
        return any(type(value) is type(option) and value == option for option in arguments)
    if origin is tuple:
        return isinstance(value, tuple | list) and all(_allows(arguments[0], item) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(
            _allows(arguments[0], key) and _allows(arguments[1], item) for key, item in value.items()
        )
    if origin is Annotated:
        kind, within = arguments
        own = value.item() if isinstance(value, np.number) else value
        return type(own) in {kind, int} and within.low <= own <= within.high
    if origin is Callable:
        return callable(value)
    if hint is Size and not isinstance(value, Size):
        pair = value if isinstance(value, tuple | list) else (value, value)
        own = [side.item() if isinstance(side, np.integer) else side for side in pair]
        sides = len(own) == 2 and all(type(side) is int and 0 < side < 10**9 for side in own)
        return sides or (isinstance(value, str) and value == "16x8")
    if hint is Shard and isinstance(value, str):
        return value == "fsdp:8"
    if hint is Checkpointing and isinstance(value, bool):
        return True
    return isinstance(value, hint)


def _sample(hint: Any) -> Any:
    """Some value that an annotation allows."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is tuple:
        return (_sample(arguments[0]),)
    if origin in (Union, UnionType):
        return None if NoneType in arguments else _sample(arguments[0])
    if isinstance(hint, type) and issubclass(hint, Value):
        return _valid(hint)
    given = get_args(hint) if origin is Literal else (1, 0.5, False, "text", {}, Size(16, 16), len)
    return next(value for value in given if _allows(hint, value))


@cache
def _valid(kind: type[Value]) -> Value:
    """The smallest that can be built: the required fields alone."""
    required = [field.name for field in dataclasses.fields(kind) if field.default is field.default_factory]
    return kind(**{name: _sample(_hints(kind)[name]) for name in required})


def _literals(hint: Any) -> list[str]:
    if get_origin(hint) is Literal:
        return [option for option in get_args(hint) if isinstance(option, str)]
    return [option for inner in get_args(hint) for option in _literals(inner)]


def _candidates(hint: Any) -> list[Any]:
    """Right and wrong values of every sort, and the annotation's own words, right, misspelt and in capitals."""
    words = [spelt for word in _literals(hint) for spelt in (word, f"{word}x", word[:-1], word.upper())]
    scalars = [None, True, False, 0, 1, 2, 3, -1, 10**400, 0.5, 1.5, -0.5, math.nan, math.inf, -math.inf]
    numpy = [
        np.int64(3),
        np.int32(-3),
        np.float32(0.25),
        np.float64(math.nan),
        np.array([1, 2]),
        np.zeros(()),
        np.str_("a"),
    ]
    texts = ["", "nonsense", "0.1", "16x8", "fsdp:8", "two\nlines", b"bytes"]
    many = [(), [], [1, 2], (1, 2), (0.5,), [True], ["a"], [None], {}, {"kind": "prefix"}, {"fp32": 1}, {"fp32": "1"}]
    sizes = [Size(16, 8), [Size(16, 8)], (16, 8, 4), [(16, 8), 32]]
    values = [_valid(kind) for kind in VALUES]
    return [*words, *scalars, *numpy, *texts, *many, *sizes, *values, [*values[:1]], object(), int, parts.MeanPool, len]


@pytest.mark.parametrize(("kind", "name"), FIELDS)
def test_a_field_refuses_what_its_annotation_does_not_allow_and_keeps_what_it_does(kind: type[Value], name: str):
    hint, refused = _hints(kind)[name], 0
    for candidate in _candidates(hint):
        if not _allows(hint, candidate):
            with pytest.raises(VitrailError) as error:
                _valid(kind).but(**{name: candidate})
            message = str(error.value)
            assert message.startswith(name)
            assert message[len(name)] in " [.:"
            assert "; " in message
            assert "\n" not in message
            assert len(message) < 400
            refused += 1
            continue
        try:
            value = _valid(kind).but(**{name: candidate})
        except VitrailError:  # a rule between fields
            continue
        if callable(candidate):
            continue  # JSON has no functions
        again = from_plain(json.loads(json.dumps(to_plain(value))), kind)
        assert again == value
        assert repr(again) == repr(value)  # 1 == 1.0 == True: every field is of its own type
    assert refused > 10


@pytest.mark.parametrize(("kind", "name"), [field for field in FIELDS if field.values[0] not in (Shard, Checkpointing)])
def test_json_is_refused_in_the_words_that_python_is(kind: type[Value], name: str):
    hint = _hints(kind)[name]
    for candidate in _candidates(hint):
        if _allows(hint, candidate) or isinstance(candidate, dict | Value):
            continue
        try:
            given = json.loads(json.dumps(candidate))
        except TypeError:
            continue
        with pytest.raises(VitrailError) as python:
            _valid(kind).but(**{name: given})
        with pytest.raises(VitrailError) as plain:
            from_plain({**to_plain(_valid(kind)), name: given}, kind, "here")
        assert str(plain.value) == f"here.{python.value}"


def test_what_the_package_exports_as_a_description_is_a_value():
    found = [getattr(vitrail, name) for name in vitrail.__all__]
    plain = {kind.__name__ for kind in found if isinstance(kind, type) and dataclasses.is_dataclass(kind)}
    values = {kind.__name__ for kind in VALUES} | {kind.__name__ for kind in _subclasses(Value)}
    assert plain - values == {
        "Size",
        "Checkpoint",
        "Run",
    }  # a size checks itself; the others are results, not descriptions
    assert len(VALUES) > 30


@pytest.mark.parametrize(
    ("interval", "inside", "outside"),
    [
        ("[0, 1)", (0.0, 0.5, 1 - 2**-53), (-5e-324, 1.0)),
        ("(0, 1]", (5e-324, 1.0), (0.0, 1 + 2**-52)),
        ("(0, inf)", (5e-324, 1.7e308), (0.0, math.inf)),
        ("[0, inf]", (0.0, math.inf), (-5e-324, -math.inf)),
        ("(-inf, inf)", (-1.7e308, 1.7e308), (-math.inf, math.inf)),
        ("[0, 8]", (0, 8), (-1, 9)),
    ],
)
def test_a_range_holds_what_its_interval_does(interval: str, inside: tuple, outside: tuple):
    within = Range(interval, "remedy")
    assert [number("x", value, within) for value in inside] == list(inside)
    for value in (*outside, math.nan):
        with pytest.raises(VitrailError, match=r"^x .* is not a .*; remedy$"):
            number("x", value, within)


def test_a_number_says_its_range():
    @dataclass(frozen=True, kw_only=True)
    class Bare(Value):
        depth: int = 1

    with pytest.raises(TypeError, match="a number needs a range, like PositiveInt"):
        Bare()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: parts.Rotary(coordinates="normalized"),  # pyright: ignore[reportArgumentType]
            "coordinates 'normalized' is not one of index, normalised; did you mean 'normalised'?",
        ),
        (
            lambda: Recipe(optimizer="Muon"),  # pyright: ignore[reportArgumentType]
            "optimizer 'Muon' is not one of adamw, muon; did you mean 'muon'?",
        ),
        (
            lambda: Recipe(precision="bf16"),  # pyright: ignore[reportArgumentType]
            "precision 'bf16' is not one of fp32, amp-bf16; did you mean 'amp-bf16'?",
        ),
        (
            lambda: ViTConfig(qkv_bias=True),  # pyright: ignore[reportArgumentType]
            "qkv_bias True is not one of all, no_key, none; choose one of them",
        ),
        (
            lambda: ViTConfig(pool=parts.MeanPool),  # pyright: ignore[reportArgumentType]
            "pool <class 'vitrail.parts.pools.MeanPool'> is not one of ClsPool, MeanPool, MaxPool, ClsMeanPool, "
            'AttentionPool; did you mean MeanPool(...), or {"kind": "mean_pool"} in JSON?',
        ),
        (
            lambda: ViTConfig(embedding=8),  # pyright: ignore[reportArgumentType]
            f"embedding 8 is not one of {', '.join(kind.__name__ for kind in get_args(parts.Embedding))}; "
            'give Patches(...), or {"kind": "patches"} in JSON',
        ),
        (lambda: ViTConfig(norm_eps=-1), "norm_eps -1.0 is not a number of 0 or more; 1e-6 is usual"),
        (lambda: Recipe(lr=math.inf), "lr inf is not a finite number above 0; 0.001 is usual"),
        (
            lambda: Recipe(augment=9),
            "augment 9 is not a whole number of 0 or more and at most 8; 2 is usual, 0 is none",
        ),
        (lambda: parts.Stem(widths=(48, 0)), "widths[1] 0 is not a positive whole number; give 1 or more"),
        (
            lambda: parts.Prefix(cls=5),  # pyright: ignore[reportArgumentType]
            "cls 5 is not True or False; use one of the two",
        ),
        (
            lambda: MobileStage(width=8, stride=True),  # pyright: ignore[reportArgumentType]
            "stride True is not one of 1, 2; choose one of them",
        ),
        (
            lambda: Workload(shard="mine:8"),  # pyright: ignore[reportArgumentType]
            "shard: shard 'mine' is not one of ddp, zero1, zero2, fsdp, tensor; choose one of them",
        ),
        (lambda: Recipe().but(learning_rate=1), "Recipe has no field learning_rate; its fields are steps, batch"),
    ],
)
def test_a_message_gives_the_field_the_value_what_is_allowed_and_the_nearest(make: Callable[[], Any], message: str):
    with pytest.raises(VitrailError) as error:
        make()
    assert str(error.value).startswith(message)


def test_a_part_of_the_wrong_place_is_refused():
    with pytest.raises(VitrailError, match=r"pool Learned\(\) is not one of ClsPool"):
        ViTConfig(pool=parts.Learned())  # pyright: ignore[reportArgumentType]


def test_infinity_is_a_threshold_and_nothing_else():
    coarsest = parts.Adaptive(threshold=math.inf)
    assert from_plain(json.loads(json.dumps(to_plain(coarsest))), parts.Adaptive) == coarsest
    with pytest.raises(VitrailError, match=r"recipe\.lr inf is not a finite number above 0"):
        recipe_from_text('{"lr": "inf"}')


def test_the_kind_of_an_only_part_may_be_left_out():
    recipe = recipe_from_text('steps = 10\n[distillation]\nwhat = "features"')
    assert recipe.distillation is not None
    assert recipe.distillation.what == "features"
