"""The JSON of the dense room: what finer tokens cost, what the colours mean, and how the figures are computed."""

from __future__ import annotations

from pydantic import BaseModel

from vitrail.server.estimate import Estimate
from vitrail.server.formulas import Formula, short
from vitrail.server.plans import Pair
from vitrail.server.rooms.dense.fine_grid import FineGrid

__all__ = ["ColourFacts", "DenseCost", "DenseSide", "NearFacts", "colour_formulas", "cost_formulas", "cost_of"]


class DenseCost(BaseModel):
    """What a number of shifts costs for one image."""

    shifts: int
    passes: int
    apart: Pair
    """Pixels of the model's input between tokens: down, across."""
    grid: Pair
    tokens: int
    feature_bytes: int
    seconds: float | None
    """An estimate; None before the model's first pass."""


def cost_of(fine: FineGrid, estimate: Estimate) -> DenseCost:
    return DenseCost(
        shifts=fine.shifts,
        passes=fine.passes,
        apart=fine.step,
        grid=fine.grid,
        tokens=fine.grid.area,
        feature_bytes=fine.feature_bytes,
        seconds=None if estimate.seconds is None else estimate.seconds * fine.passes,
    )


def cost_formulas(fine: FineGrid, estimate: Estimate) -> list[Formula]:
    """Return how the costs of the chosen shifts are computed."""
    (rows, columns), side = fine.grid, fine.patch.height
    k = {"k": "shifts along a side"}
    formulas = [
        Formula(name="passes", symbols="k²", where=k, numbers=f"{fine.shifts}² = {fine.passes}"),
        Formula(
            name="pixels between tokens",
            symbols="P / k",
            where=k,
            numbers=f"{side} / {fine.shifts} = {fine.step.height}",
        ),
        Formula(name="tokens", symbols="h · w", numbers=f"{rows} · {columns} = {short(fine.grid.area)}"),
        Formula(
            name="features",
            symbols="4 · D · h · w",
            numbers=f"4 bytes · {fine.width} · {rows} · {columns} = {short(fine.feature_bytes)}",
        ),
    ]
    if estimate.seconds is not None:
        each, total = estimate.seconds, estimate.seconds * fine.passes
        formulas.append(
            Formula(
                name="time",
                symbols="k² · t",
                where={**k, "t": "seconds of one pass: " + estimate.basis},
                numbers=f"{fine.passes} · {each:.3f} s ≈ {total:.3f} s",
            )
        )
    return formulas


class DenseSide(BaseModel):
    """One image."""

    grid: Pair
    seen: Pair
    """Pixels that the model's windows cover."""
    original: Pair
    foreground: float | None
    """The share of the pixels that are foreground; None if the background is not removed."""


class ColourFacts(BaseModel):
    sides: list[DenseSide]
    passes: int
    shares: tuple[float, ...]
    """The share of the tokens' variance that each of the three components explains."""
    formulas: list[Formula]


def colour_formulas(shares: tuple[float, ...], tokens: int, foreground: float | None) -> list[Formula]:
    """Return how the figures of the colours are computed."""
    parts = " + ".join(f"{100 * share:.1f} %" for share in shares)
    formulas = [
        Formula(
            name="variance in three colours",
            symbols="(λ₁ + λ₂ + λ₃) / Σ λ",
            where={"λ": "eigenvalues of the tokens' covariance"},
            numbers=f"over {short(tokens)} tokens, {parts} = {100 * sum(shares):.1f} %",
        )
    ]
    if foreground is not None:
        formulas.append(
            Formula(
                name="foreground",
                symbols="pixels of the foreground / pixels",
                numbers="the side of Otsu's threshold of the first component with less of the border = "
                f"{100 * foreground:.1f} %",
            )
        )
    return formulas


class NearFacts(BaseModel):
    cell: Pair
    """Row and column of the point's token in the first image."""
    kin: list[Pair]
    """The most similar cell of each image; in the first image, of another cell than the point's."""
    cosines: list[float]
    """Their cosines."""
    formulas: list[Formula]
