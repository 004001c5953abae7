"""The formulas of a walk from pixels to logits, with the numbers of one token in place."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.look.walk import Step, Walk
from vitrail.studio.formulas import Formula, short

__all__ = ["Followed", "formulas_of"]


@dataclass(frozen=True, kw_only=True)
class Followed:
    """Whose numbers they are."""

    token: int
    cell: int
    """The patch whose pixels are shown: the token's own, or the middle one if it has none."""
    key: int
    head: int
    unit: int
    corner: tuple[int, int]
    """Row and column of the patch's first pixel."""


def formulas_of(walk: Walk, step: Step, at: Followed, pixel: int, expects: Preprocessing) -> dict[str, Formula]:
    """By the stop that they belong to. `pixel` is the byte of the patch's first red pixel."""
    return {**_entrance(walk, at, pixel, expects), **_block(walk, step, at), **_exit(walk)}


def _entrance(walk: Walk, at: Followed, pixel: int, expects: Preprocessing) -> dict[str, Formula]:
    grid, prefix, unit = walk.layout.grid, walk.layout.prefix, at.unit
    channels, down, across = walk.patches.shape[1:]
    values, weights = walk.patches[at.cell].flatten(), walk.projection[unit].flatten()
    bias, value = walk.projection_bias[unit].item(), walk.projected[at.cell, unit].item()
    before, added = walk.prefixed[at.token, unit].item(), walk.positions[at.token, unit].item()
    return {
        "normalise": Formula(
            name="a pixel, normalised",
            symbols="x = (byte / 255 − mean) / deviation",
            numbers=f"({pixel} / 255 − {expects.mean[0]:g}) / {expects.std[0]:g} = {_said(values[0].item())}",
        ),
        "patches": Formula(
            name="how many patches",
            symbols="N = (H / P) · (W / Q)",
            numbers=f"{grid.height} · {grid.width} = {short(grid.area)}",
        ),
        "flatten": Formula(
            name="numbers in a patch",
            symbols="C · P · Q",
            numbers=f"{channels} · {down} · {across} = {short(len(values))}",
        ),
        "project": Formula(
            name=f"unit {unit} of the token",
            symbols="Σ patch · W + b",
            numbers=f"{_products(values, weights)} {_added(bias)} = {_said(value)}",
        ),
        "position": Formula(
            name=f"unit {unit} of the token",
            symbols="token + position",
            numbers=f"{_said(before)} {_added(added)} = {_said(before + added)}",
        ),
        "sequence": Formula(
            name="how many tokens",
            symbols="T = prefix + N",
            numbers=f"{prefix} + {short(grid.area)} = {short(prefix + grid.area)}",
        ),
    }


def _block(walk: Walk, step: Step, at: Followed) -> dict[str, Formula]:
    block, each, unit = walk.block, walk.block.q.shape[2], at.unit
    entering, normed = block.entering[at.token], block.normed[at.token]
    between, leaving = block.between[at.token, unit].item(), block.leaving[at.token, unit].item()
    score, weight = step.scores[at.key].item(), step.weights[at.key].item()
    total = step.scores.double()[step.weights > 0].exp().sum().item()
    bias = f" {_added(step.bias)}" if step.bias else ""
    power = f"e^{_said(score)} / {_said(total)} = " if step.is_softmax else ""
    return {
        "norm": Formula(
            name=f"unit {unit}, normalised",
            symbols="(x − mean) / deviation · scale + shift",
            numbers=f"({_said(entering[unit].item())} {_added(-entering.mean().item())}) / "
            f"{_said(entering.std(correction=0).item())} · scale + shift = {_said(normed[unit].item())}",
        ),
        "score": Formula(
            name="the pair's score",
            symbols="q · k / √d" + (" + bias" if step.bias else ""),
            numbers=f"({_products(step.q, step.k)}) / √{each} = {_said(step.products.sum().item())} / "
            f"{_said(math.sqrt(each))}{bias} = {_said(score)}",
        ),
        "softmax": Formula(name="its share of the row", symbols="eˢ / Σ eˢ", numbers=f"{power}{weight:.2%}"),
        "values": Formula(
            name="the first number of the head's answer",
            symbols="Σ share · v",
            numbers=f"{_products(step.weights, block.v[at.head][:, 0], largest=True)} = {_said(step.mixed[0].item())}",
        ),
        "residual": Formula(
            name=f"unit {unit} after attention",
            symbols="x + attention(norm(x))",
            numbers=f"{_said(entering[unit].item())} {_added(block.added[at.token, unit].item())} = {_said(between)}",
        ),
        "mlp": Formula(
            name=f"unit {unit} after the MLP",
            symbols="x + MLP(norm(x))",
            numbers=f"{_said(between)} {_added(block.fed[at.token, unit].item())} = {_said(leaving)}",
        ),
    }


def _exit(walk: Walk) -> dict[str, Formula]:
    if walk.head is None:
        return {}
    first = int(walk.logits.argmax())
    bias = 0.0 if walk.head_bias is None else walk.head_bias[first].item()
    logit, total = walk.logits[first].item(), walk.logits.double().exp().sum().item()
    chance = walk.logits.softmax(dim=0)[first].item()
    return {
        "logit": Formula(
            name="the largest logit",
            symbols="vector · W + b",
            numbers=f"{_products(walk.pooled, walk.head[first])} {_added(bias)} = {_said(logit)}",
        ),
        "probability": Formula(
            name="its probability",
            symbols="eˡ / Σ eˡ",
            numbers=f"e^{_said(logit)} / {_said(total)} = {chance:.2%}",
        ),
    }


def _products(left: Tensor, right: Tensor, *, largest: bool = False) -> str:
    """The first products of a sum, or those with the largest factor at the left, and how many there are."""
    shown = (left.argsort(descending=True) if largest else range(len(left)))[:3]
    terms = " + ".join(f"{_factor(left[int(i)].item())} · {_factor(right[int(i)].item())}" for i in shown)
    return f"{terms} + … ({len(left)} products)" if len(left) > 3 else terms


def _factor(value: float) -> str:
    return f"({_said(value)})" if value < 0 else _said(value)


def _added(value: float) -> str:
    return f"{'−' if value < 0 else '+'} {_said(abs(value))}"


def _said(value: float) -> str:
    """Three digits, and a true minus."""
    return (f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}").replace("-", "−")
