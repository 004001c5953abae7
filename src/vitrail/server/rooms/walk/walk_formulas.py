"""The formulas of a walk from pixels to logits, with the numbers of one token substituted."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.look.walk import Step, Walk
from vitrail.server.formulas import Formula, short

__all__ = ["Followed", "formulas_of"]

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


@dataclass(frozen=True, kw_only=True)
class Followed:
    """The indices whose numbers are shown."""

    token: int
    cell: int
    """The token's patch, or the patch in the middle for a prefix token."""
    key: int
    head: int
    unit: int
    corner: tuple[int, int]
    """Row and column of the patch's top left pixel."""


def formulas_of(walk: Walk, step: Step, at: Followed, pixel: int, expects: Preprocessing) -> dict[str, Formula]:
    """Return the formulas by step. `pixel` is the byte of the patch's first red pixel."""
    return {**_entrance(walk, at, pixel, expects), **_block(walk, step, at), **_exit(walk)}


def _entrance(walk: Walk, at: Followed, pixel: int, expects: Preprocessing) -> dict[str, Formula]:
    grid, prefix, unit = walk.layout.grid, walk.layout.prefix, at.unit
    channels, down, across = walk.patches.shape[1:]
    values, weights = walk.patches[at.cell].flatten(), walk.projection[unit].flatten()
    bias, value = walk.projection_bias[unit].item(), walk.projected[at.cell, unit].item()
    before, added = walk.prefixed[at.token, unit].item(), walk.positions[at.token, unit].item()
    return {
        "normalise": Formula(
            name="normalised pixel",
            symbols="x = (byte / 255 − mean) / std",
            numbers=f"({pixel} / 255 − {expects.mean[0]:g}) / {expects.std[0]:g} = {_digits(values[0].item())}",
        ),
        "patches": Formula(
            name="number of patches",
            symbols="N = (H / P) · (W / Q)",
            where=WALK,
            numbers=f"{grid.height} · {grid.width} = {short(grid.area)}",
        ),
        "flatten": Formula(
            name="values per patch",
            symbols="C · P · Q",
            where=WALK,
            numbers=f"{channels} · {down} · {across} = {short(len(values))}",
        ),
        "project": Formula(
            name=f"unit {unit} of the token",
            symbols="Σ patch · W + b",
            where={"W": "weights of the projection", "b": "its bias"},
            numbers=f"{_products(values, weights)} {_added(bias)} = {_digits(value)}",
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
            numbers=f"{prefix} + {short(grid.area)} = {short(prefix + grid.area)}",
        ),
    }


def _block(walk: Walk, step: Step, at: Followed) -> dict[str, Formula]:
    block, each, unit = walk.block, walk.block.q.shape[2], at.unit
    entering, normed, added = block.entering[at.token], block.normed[at.token], block.added[at.token]
    between, leaving = block.between[at.token, unit].item(), block.leaving[at.token, unit].item()
    score, weight = step.scores[at.key].item(), step.weights[at.key].item()
    total = step.scores.double()[step.weights > 0].exp().sum().item()
    bias = f" {_added(step.bias)}" if step.bias else ""
    power = f"e^{_digits(score)} / {_digits(total)} = " if step.is_softmax else ""
    return {
        "norm": Formula(
            name=f"unit {unit}, normalised",
            symbols="(x − mean) / std · scale + shift",
            numbers=f"({_digits(entering[unit].item())} {_added(-entering.mean().item())}) / "
            f"{_digits(entering.std(correction=0).item())} · scale + shift = {_digits(normed[unit].item())}",
        ),
        "score": Formula(
            name="score of the pair",
            symbols="q · k / √d" + (" + bias" if step.bias else ""),
            where=WALK,
            numbers=f"({_products(step.q, step.k)}) / √{each} = {_digits(step.products.sum().item())} / "
            f"{_digits(math.sqrt(each))}{bias} = {_digits(score)}",
        ),
        "softmax": Formula(name="attention weight", symbols="eˢ / Σ eˢ", numbers=f"{power}{weight:.2%}"),
        "values": Formula(
            name="first value of the head's output",
            symbols="Σ weight · v",
            numbers=f"{_products(step.weights, block.v[at.head, :, 0], largest=True)} = "
            f"{_digits(step.mixed[0].item())}",
        ),
        "residual": Formula(
            name=f"unit {unit} after attention",
            symbols="x + attention(norm(x))",
            numbers=f"{_digits(entering[unit].item())} {_added(added[unit].item())} = {_digits(between)}",
        ),
        "mlp": Formula(
            name=f"unit {unit} after the MLP",
            symbols="x + MLP(norm(x))",
            numbers=f"{_digits(between)} {_added(block.fed[at.token, unit].item())} = {_digits(leaving)}",
        ),
    }


def _exit(walk: Walk) -> dict[str, Formula]:
    if walk.head is None:
        return {}
    first = int(walk.logits.argmax())
    bias = 0.0 if walk.head_bias is None else walk.head_bias[first].item()
    logit, total = walk.logits[first].item(), walk.logits.double().exp().sum().item()
    probability = walk.logits.softmax(dim=0)[first].item()
    return {
        "logit": Formula(
            name="largest logit",
            symbols="vector · W + b",
            where={"W": "weights of the head", "b": "its bias"},
            numbers=f"{_products(walk.pooled, walk.head[first])} {_added(bias)} = {_digits(logit)}",
        ),
        "probability": Formula(
            name="probability",
            symbols="eˡ / Σ eˡ",
            numbers=f"e^{_digits(logit)} / {_digits(total)} = {probability:.2%}",
        ),
    }


def _products(left: Tensor, right: Tensor, *, largest: bool = False) -> str:
    """Write the first three products of a sum, or those with the largest left factors, and the number of products."""
    shown = (left.argsort(descending=True) if largest else range(len(left)))[:3]
    terms = " + ".join(f"{_factor(left[int(i)].item())} · {_factor(right[int(i)].item())}" for i in shown)
    return f"{terms} + … ({len(left)} products)" if len(left) > 3 else terms


def _factor(value: float) -> str:
    return f"({_digits(value)})" if value < 0 else _digits(value)


def _added(value: float) -> str:
    return f"{'−' if value < 0 else '+'} {_digits(abs(value))}"


def _digits(value: float) -> str:
    """Format with three significant digits and a true minus sign."""
    return (f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}").replace("-", "−")
