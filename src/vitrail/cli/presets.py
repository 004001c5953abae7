"""vitrail presets: the models that are known by name."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from vitrail.charts.numbers import count_text, number_text
from vitrail.cli.options import Json
from vitrail.cli.tables import plain, show, table, write_json
from vitrail.config import Config, ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.plan.ledger import ledger
from vitrail.presets import PRESETS

__all__ = ["presets"]


@dataclass(frozen=True, kw_only=True)
class Row:
    name: str
    kind: str
    image: Size
    frames: int
    """Frames of a clip; 1 for still images."""
    patch: Size
    tubelet: int
    """Frames that a patch is deep."""
    width: int | None
    """None for models of stages, as depth and num_heads are."""
    depth: int | None
    num_heads: int | None
    classes: int
    params: int
    flops_forward: int


def presets(word: str | None = None, /, *, json: Json = False) -> None:
    """List the models that are known by name: sizes, parameters and FLOPs.

    Parameters
    ----------
    word
        Show only names that contain this, e.g. dinov2 or /14 (default: all).
    """
    named = {name: config for name, config in PRESETS.items() if word is None or word.lower() in name.lower()}
    if not named:
        raise VitrailError(f"no preset's name contains {word!r}; try dinov2, clip or /14, or give no word, for all")
    rows = [_row(name, config) for name, config in named.items()]
    if json:
        write_json([plain(asdict(row) | {"image": row.image, "patch": row.patch}) for row in rows])
        return
    lines = [
        (
            row.name,
            f"{row.frames}x{row.image}" if row.frames > 1 else str(row.image),
            f"{row.tubelet}x{row.patch}" if row.frames > 1 else str(row.patch),
            *("–" if number is None else f"{number:,}" for number in (row.width, row.depth, row.num_heads)),
            count_text(row.params),
            number_text(row.flops_forward / 1e9),
        )
        for row in rows
    ]
    headings = ("preset", "image", "patch", "width", "depth", "heads", "params", "GFLOP")
    caption = "GFLOP: forward, an image or a clip, two per multiply-add; –: each stage has its own"
    show(table("", headings, lines, "lllrrrrr", caption=caption), "plan one with: vitrail plan NAME")


def _row(name: str, config: Config) -> Row:
    books, vit = ledger(config), config if isinstance(config, ViTConfig) else None
    return Row(
        name=name,
        kind=type(config).__name__.removesuffix("Config"),
        image=config.image,
        frames=config.frames,
        patch=config.patch,
        tubelet=config.frames // config.steps,
        width=vit.width if vit else None,
        depth=vit.depth if vit else None,
        num_heads=vit.num_heads if vit else None,
        classes=config.classes,
        params=books.params,
        flops_forward=books.flops_forward,
    )
