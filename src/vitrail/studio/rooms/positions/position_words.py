"""What is said of a kind of position: what it shows, what it has to learn, what it does on another grid."""

from __future__ import annotations

from vitrail.config import ViTConfig
from vitrail.geometry import offsets_of
from vitrail.parts import Position
from vitrail.studio.formulas import Formula, short
from vitrail.studio.rooms.positions.position_kinds import Question, grid_of, is_learned, plain_vit, position_of
from vitrail.studio.session import DEFAULT, Session

__all__ = ["about", "formulas_of", "on_new_grid_of", "parameters_of"]


def on_new_grid_of(kind: str, asked: Question, here: Session) -> str:
    position = position_of(kind, here.config(asked.weights))
    return "the window stays, whatever the grid" if position is None else position.describe().on_new_grid


def parameters_of(kind: str, asked: Question, here: Session) -> tuple[int, Formula]:
    """What the kind has to learn on the asked grid, and how that is counted."""
    config, name = here.config(asked.weights), "parameters of positions"
    position = position_of(kind, config)
    if position is None:
        tensors = here.checkpoint(asked.weights).tensors
        count = sum(tensor.numel() for name, tensor in tensors.items() if name.endswith("position.table"))
        return count, Formula(
            name=name, symbols="(2h − 1) · (2w − 1) · heads, every block", numbers=f"= {short(count)}"
        )
    depth = config.depth if isinstance(config, ViTConfig) else here.planned("default").depth
    attention = {"attention": config.attention} if kind == "own" and isinstance(config, ViTConfig) else {}
    plain = plain_vit(config, grid_of(asked), position, here, depth=depth, **attention)
    found = plain.position.learns(plain)
    return found.count, Formula(name=name, symbols=found.symbols, numbers=f"{found.numbers} = {short(found.count)}")


def formulas_of(parameters: dict[str, Formula], asked: Question, here: Session) -> list[Formula]:
    """The room's formulas, with those of the shown kinds' parameters, by the kind's words."""
    grid, config = grid_of(asked), here.config(asked.weights)
    base = config if isinstance(config, ViTConfig) else here.planned("default")
    row, column = min(asked.cell_row, grid.height - 1), min(asked.cell_column, grid.width - 1)
    prefix, offsets = base.prefix.count, offsets_of(grid)
    own = [each.model_copy(update={"name": f"{each.name}: {words}"}) for words, each in parameters.items()]
    return [
        Formula(
            name="place in the sequence",
            symbols="prefix + i · columns + j",
            numbers=f"{prefix} + {row} · {grid.width} + {column} = {prefix + row * grid.width + column}",
        ),
        *own,
        Formula(
            name="a relative bias, per head",
            symbols="(2h − 1) · (2w − 1), not 2 · N · D as is often said",
            numbers=f"{offsets.height} · {offsets.width} = {short(offsets.area)}, "
            f"not 2 · {grid.area} · {base.width} = {short(2 * grid.area * base.width)}",
        ),
        Formula(
            name="a row of 2D sines is as long as any other",
            symbols="√(D / 2)",
            numbers=f"√({base.width} / 2) = {short((base.width / 2) ** 0.5)}",
        ),
        Formula(
            name="cosine similarity",
            symbols="p · q / (|p| · |q|)",
            numbers=f"of two rows of {base.width} numbers = −1 … 1",
        ),
    ]


def about(kind: str, position: Position | None, asked: Question) -> str:
    """What one sees, in a sentence or two."""
    if position is None:
        return "A bias for every offset within a window, learned: near keys are favoured, or some direction is."
    text = position.describe().about
    if kind != "own" and is_learned(position):
        return f"{text} Untrained, as here, it is random."
    if kind == "own" and asked.weights == DEFAULT:
        return f"{text} This one began as sines of row and column, so not all of its two dimensions were learned."
    return text
