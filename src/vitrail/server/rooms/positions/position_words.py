"""Descriptions of a kind of position: what its map shows, its parameters, and its behaviour on another grid."""

from __future__ import annotations

from vitrail.config import ViTConfig
from vitrail.geometry import offsets_of
from vitrail.parts import Position, RelativeMlp
from vitrail.plan.folklore import claim
from vitrail.server.formulas import Formula, short
from vitrail.server.rooms.positions.position_kinds import (
    Measured,
    Question,
    grid_of,
    is_learned,
    plain_base,
    plain_vit,
    position_of,
)
from vitrail.server.session import DEFAULT, Session

__all__ = ["about", "formulas_of", "measured_formulas", "on_new_grid_of", "parameters_of"]


def on_new_grid_of(kind: str, asked: Question, session: Session) -> str:
    position = position_of(kind, session.config(asked.weights))
    return "the windows stay the same" if position is None else position.describe().on_new_grid


def parameters_of(kind: str, asked: Question, session: Session) -> tuple[int, Formula]:
    """Return the number of learned parameters on the chosen grid, and its formula."""
    config, name = session.config(asked.weights), "position parameters"
    position = position_of(kind, config)
    if position is None:
        tensors = session.checkpoint(asked.weights).tensors
        count = sum(tensor.numel() for name, tensor in tensors.items() if ".position." in name)
        each = (
            "m · (3 + heads)"
            if isinstance(getattr(config, "position", None), RelativeMlp)
            else "(2h − 1) · (2w − 1) · heads"
        )
        return count, Formula(name=name, symbols=f"{each}, summed over blocks", numbers=f"= {short(count)}")
    depth = plain_base(config, session).depth
    attention = {"attention": config.attention} if kind == "own" and isinstance(config, ViTConfig) else {}
    plain = plain_vit(config, grid_of(asked, session), position, session, depth=depth, **attention)
    learned = plain.position.learns(plain)
    return learned.count, Formula(
        name=name, symbols=learned.symbols, numbers=f"{learned.numbers} = {short(learned.count)}"
    )


def formulas_of(parameters: dict[str, Formula], asked: Question, session: Session) -> list[Formula]:
    """Return the room's formulas, including the parameter formulas of the shown kinds."""
    grid, config = grid_of(asked, session), session.config(asked.weights)
    base = plain_base(config, session)
    row, column = min(asked.cell_row, grid.height - 1), min(asked.cell_column, grid.width - 1)
    prefix, offsets = base.prefix.count, offsets_of(grid)
    own = [each.model_copy(update={"name": f"{each.name}: {words}"}) for words, each in parameters.items()]
    return [
        Formula(
            name="index in the sequence",
            symbols="prefix + i · columns + j",
            numbers=f"{prefix} + {row} · {grid.width} + {column} = {prefix + row * grid.width + column}",
        ),
        *own,
        Formula(
            name="relative bias, per head",
            symbols="(2h − 1) · (2w − 1)",
            numbers=f"{offsets.height} · {offsets.width} = {short(offsets.area)}",
            folklore=claim("relative-bias").words,
        ),
        Formula(
            name="norm of every row of 2D sines",
            symbols="√(D / 2)",
            numbers=f"√({base.width} / 2) = {short((base.width / 2) ** 0.5)}",
        ),
        Formula(
            name="cosine similarity",
            symbols="p · q / (|p| · |q|)",
            numbers=f"for two rows of {base.width} numbers = −1 … 1",
        ),
    ]


def measured_formulas(measured: Measured) -> list[Formula]:
    """Return how the statistics of the similarities are measured."""
    grid = measured.grid
    pairs = grid.area * (grid.area - 1)
    over = f"over the {short(pairs)} pairs of different patches of a {grid} grid"
    s, d = "similarity of a pair", "its distance"
    curve = (
        []
        if measured.curve is None
        else [
            Formula(
                name="distance correlation",
                symbols="cov(s, d) / √(var(s) · var(d))",
                where={"s": s, "d": d},
                numbers=f"{over} = {measured.curve.correlation:.2f}",
            )
        ]
    )
    return [
        *curve,
        Formula(
            name="explained by offset",
            symbols="1 − Σ (s − mean of its offset)² / Σ (s − mean of all)²",
            where={"s": s},
            numbers=f"{over}, which have {short(offsets_of(grid).area - 1)} offsets = {measured.share:.2%}",
        ),
    ]


def about(kind: str, position: Position | None, asked: Question) -> str:
    """Describe what the map shows, in a sentence or two."""
    if position is None:
        return "A learned bias for every offset within a window: it favours near keys, or a direction."
    text = position.describe().about
    if kind != "own" and is_learned(position):
        return f"{text} Here it is untrained, and therefore random."
    if kind == "own" and asked.weights == DEFAULT:
        return f"{text} This one was initialised with 2D sines."
    return text
