"""What must be known before an adapted model is relied on, in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.projection import ProjectionLoss
from vitrail.checkpoint.report import Change
from vitrail.config import Config, PyramidConfig, ViTConfig
from vitrail.geometry import Size, windows_divide
from vitrail.parts import Learned, Position, RelativeBias, Rotary, WindowedAttention

__all__ = ["caveats", "on_new_grid"]

WORTH_SAYING = 0.01
"""A predicted loss above this is named."""


def caveats(
    checkpoint: Checkpoint, target: Config, changes: Sequence[Change], loss: ProjectionLoss | None
) -> tuple[str, ...]:
    return tuple(_sentences(checkpoint, target, changes, loss))


def on_new_grid(position: Position) -> str:
    """What becomes of positions, for the coordinates that these have."""
    match position:
        case Rotary(coordinates="index"):
            return "recomputed: indices go on, beyond those of training on a larger grid"
        case Rotary():
            return "recomputed: coordinates stay between −1 and 1, so they interpolate"
        case Learned():
            return "resampled, and their finest detail is not kept"
        case RelativeBias(convention="timm"):
            return "resampled: near offsets keep their biases, counted in patches, and far ones are spread"
        case RelativeBias():
            return "resampled: offsets are stretched with the grid"
        case _:
            return position.on_new_grid


def _sentences(
    checkpoint: Checkpoint, target: Config, changes: Iterable[Change], loss: ProjectionLoss | None
) -> Iterator[str]:
    source = checkpoint.config
    moved = source.grid != target.grid
    if isinstance(source, ViTConfig) and isinstance(target, ViTConfig):
        if moved:
            kind = type(source.position).__name__
            yield f"positions ({kind}) go from grid {source.grid} to {target.grid}: {on_new_grid(source.position)}"
        if target.prefix.registers > source.prefix.registers:
            yield "the new registers are untrained and every token attends to them: fine-tune"
        if type(source.pool) is not type(target.pool):
            old, new = type(source.pool).__name__, type(target.pool).__name__
            yield f"the vector is pooled by {new}, and what reads it was trained on {old}: fine-tune"
    yield from _padded_windows(source, target)
    if loss is not None and loss.natural > WORTH_SAYING:
        better = f" ({loss.least:.0%} with projection natural)" if loss.least < 0.9 * loss.natural else ""
        yield (
            f"the patch projection {loss.old} → {loss.new} ({loss.how}) loses detail: tokens are off by "
            f"{loss.natural:.0%} on photographs{better}, {loss.white:.0%} on noise, and nothing undoes it; fine-tune"
        )
    if any(change.status == "missing" and change.name.startswith("head.") for change in changes):
        yield "the head is new and zero: logits say nothing until it is trained"
    if moved and checkpoint.extra:
        names = ", ".join(list(checkpoint.extra)[:3])
        yield f"{len(checkpoint.extra)} tensors that the model has no place for are carried as they were ({names} …)"


def _padded_windows(source: Config, target: Config) -> Iterator[str]:
    """What fills windows that stick out of the new grids."""
    windows = _windows(target)
    if windows is None or windows == _windows(source):
        return
    window, grids, padding = windows
    odd = ", ".join(str(grid) for grid in grids if not windows_divide(grid, window))
    if not odd:
        return
    how = {
        "masked": "the padding is masked and changes nothing; timm's Swin would let zeros take part",
        "zeros": "zeros take part in attention, as in timm's Swin",
    }[padding]
    yield f"windows of {window} do not divide grid {odd}: {how} (window_padding {padding!r})"


def _windows(config: Config) -> tuple[Size, tuple[Size, ...], str] | None:
    """The window, the grids that it is laid over, and what it is padded with; None without windows."""
    if isinstance(config, PyramidConfig):
        return config.window, config.grids, config.window_padding
    if isinstance(config, ViTConfig) and isinstance(config.attention, WindowedAttention):
        return config.attention.window, (config.grid,), config.attention.window_padding
    return None
