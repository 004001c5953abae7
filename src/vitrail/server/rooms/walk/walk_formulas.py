"""The formulas of a walk from pixels to logits, with the numbers of one token substituted."""

from __future__ import annotations

import math
from itertools import chain
from operator import mul
from statistics import fmean, pstdev

from vitrail.server.formulas import Formula, short
from vitrail.server.rooms.walk.walk_facts import Numbers, Vector

__all__ = ["formulas_of"]

WALK = {
    "N": "number of patches",
    "P": "height of a patch, in pixels",
    "Q": "width of a patch, in pixels",
    "T": "number of tokens",
    "q": "query of the token",
    "k": "key of the other token",
    "d": "width of a head",
}
"""The letters of this room, which counts patches and tokens apart."""


def formulas_of(numbers: Numbers) -> dict[str, Formula]:
    """Return the formulas by step."""
    return {**_entrance(numbers), **_block(numbers), **_exit(numbers)}


def _entrance(now: Numbers) -> dict[str, Formula]:
    (rows, columns), prefix, unit, sizes = now.grid, len(now.prefix), now.unit, now.shapes
    pixel, area = now.colours[0][0][0], rows * columns
    values, weights = (list(chain(*chain(*each))) for each in (now.patch, now.filter))
    before, added = now.unit_before, now.unit_position
    return {
        "normalise": Formula(
            name="normalised pixel",
            symbols="x = (byte / 255 − mean) / std",
            numbers=f"({pixel} / 255 − {now.mean:g}) / {now.std:g} = {_digits(values[0])}",
        ),
        "patches": Formula(
            name="number of patches",
            symbols="N = (H / P) · (W / Q)",
            where=WALK,
            numbers=f"{rows} · {columns} = {short(area)}",
        ),
        "flatten": Formula(
            name="values per patch",
            symbols="C · P · Q",
            where=WALK,
            numbers=f"{sizes.C} · {sizes.P} · {sizes.Q} = {short(len(values))}",
        ),
        "project": Formula(
            name=f"unit {unit} of the token",
            symbols="Σ patch · W + b",
            where={"W": "weights of the projection", "b": "its bias"},
            numbers=f"{_products(values, weights)} {_added(now.filter_bias)} = {_digits(now.projected[unit])}",
        ),
        "position": Formula(
            name=f"unit {unit} of the token",
            symbols="token + position",
            numbers=f"{_digits(before)} {_added(added)} = {_digits(before + added)}",
        ),
        "sequence": Formula(
            name="number of tokens",
            symbols="T = prefix + N",
            where=WALK,
            numbers=f"{prefix} + {short(area)} = {short(prefix + area)}",
        ),
    }


def _block(now: Numbers) -> dict[str, Formula]:
    each, unit, entering = now.shapes.d, now.unit, now.entering
    between, leaving = now.between[unit], now.leaving[unit]
    score, weight = now.scores[now.key], now.weights[now.key]
    met = (score for score, weight in zip(now.scores, now.weights, strict=True) if weight > 0)
    bias = f" {_added(now.bias)}" if now.bias else ""
    power = f"e^{_digits(score)} / {_digits(sum(map(math.exp, met)))} = " if now.is_softmax else ""
    return {
        "norm": Formula(
            name=f"unit {unit}, normalised",
            symbols="(x − mean) / std · scale + shift",
            numbers=f"({_digits(entering[unit])} {_added(-fmean(entering))}) / "
            f"{_digits(pstdev(entering))} · scale + shift = {_digits(now.normed[unit])}",
        ),
        "score": Formula(
            name="score of the pair",
            symbols="q · k / √d" + (" + bias" if now.bias else ""),
            where=WALK,
            numbers=f"({_products(now.q, now.k)}) / √{each} = {_digits(sum(map(mul, now.q, now.k)))} / "
            f"{_digits(math.sqrt(each))}{bias} = {_digits(score)}",
        ),
        "softmax": Formula(name="attention weight", symbols="eˢ / Σ eˢ", numbers=f"{power}{weight:.2%}"),
        "values": Formula(
            name="first value of the head's output",
            symbols="Σ weight · v",
            numbers=f"{_products(now.weights, now.first_values, largest=True)} = {_digits(now.mixed[0])}",
        ),
        "residual": Formula(
            name=f"unit {unit} after attention",
            symbols="x + attention(norm(x))",
            numbers=f"{_digits(entering[unit])} {_added(now.added[unit])} = {_digits(between)}",
        ),
        "mlp": Formula(
            name=f"unit {unit} after the MLP",
            symbols="x + MLP(norm(x))",
            numbers=f"{_digits(between)} {_added(now.fed[unit])} = {_digits(leaving)}",
        ),
    }


def _exit(now: Numbers) -> dict[str, Formula]:
    if now.guess is None:
        return {}
    logit, total = max(now.logits), sum(map(math.exp, now.logits))
    return {
        "logit": Formula(
            name="largest logit",
            symbols="vector · W + b",
            where={"W": "weights of the head", "b": "its bias"},
            numbers=f"{_products(now.pooled, now.head_row)} {_added(now.head_bias)} = {_digits(logit)}",
        ),
        "probability": Formula(
            name="probability",
            symbols="eˡ / Σ eˡ",
            numbers=f"e^{_digits(logit)} / {_digits(total)} = {now.guess.probabilities[0]:.2%}",
        ),
    }


def _products(left: Vector, right: Vector, *, largest: bool = False) -> str:
    """Write the first three products of a sum, or those with the largest left factors, and the number of products."""
    order = sorted(range(len(left)), key=left.__getitem__, reverse=True) if largest else range(len(left))
    terms = " + ".join(f"{_factor(left[i])} · {_factor(right[i])}" for i in order[:3])
    return f"{terms} + … ({len(left)} products)" if len(left) > 3 else terms


def _factor(value: float) -> str:
    return f"({_digits(value)})" if value < 0 else _digits(value)


def _added(value: float) -> str:
    return f"{'−' if value < 0 else '+'} {_digits(abs(value))}"


def _digits(value: float) -> str:
    """Format with three significant digits and a true minus sign."""
    return (f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}").replace("-", "−")
