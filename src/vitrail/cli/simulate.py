"""vitrail simulate: what is lost when positions go to another grid, and which kind survives which change."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from vitrail.cli.options import Architecture, FromImage, Json, NumHeads, SizeOption, several
from vitrail.cli.tables import show, table, write_json, written
from vitrail.errors import require
from vitrail.geometry import Size

if TYPE_CHECKING:
    from torch import Tensor

    from vitrail.checkpoint.assess.kind_transfer import Survival
    from vitrail.checkpoint.assess.simulate import Simulation
    from vitrail.checkpoint.surgery.resample import Method

__all__ = ["simulate"]

TABLES = {"trained": "the file's own table", "power 1/f²": "a stand-in table, with power 1/f²"}


def simulate(
    *,
    from_grid: SizeOption | None = None,
    to_grid: SizeOption = Size(24, 24),
    method: Annotated[tuple[str, ...] | None, several(str, "timm,exact")] = None,
    bands: int = 4,
    weights: str | None = None,
    from_image: FromImage = None,
    num_heads: NumHeads = None,
    architecture: Architecture = None,
    chart: Path | None = None,
    seed: int = 0,
    json: Json = False,
) -> None:
    """Show what positions lose between two grids, and which kind survives the change.

    Parameters
    ----------
    from_grid
        Grid of the positions, ROWSxCOLUMNS, e.g. 14x14 (default: the weights' own, or 14x14).
    to_grid
        Grid to resample them to, ROWSxCOLUMNS.
    method
        How positions are resampled, e.g. timm,exact: any of timm, huggingface, dinov2, torchvision, big_vision,
        siglip2, bilinear, area and exact (default: all).
    bands
        Number of frequency bands to report.
    weights
        Weights whose learned table of positions is resampled (default: a synthetic table with power 1/f²).
    chart
        File to draw into: .svg for errors by frequency, .png for maps of one component (default: none).
    seed
        Seed of the synthetic tables.
    """
    from vitrail.checkpoint.assess.kind_transfer import learned_table, survival, survival_of
    from vitrail.checkpoint.assess.simulate import known_table
    from vitrail.checkpoint.assess.simulate import simulate as run
    from vitrail.checkpoint.read import load
    from vitrail.checkpoint.surgery.resample import METHODS, method_of
    from vitrail.cli.progress import counted, working

    if chart is not None:
        ending = chart.suffix or "nothing"
        require(ending in (".svg", ".png"), f"chart {chart} ends in {ending}; use .svg for bands or .png for maps")
    trained, kinds = None, []
    if weights is not None:
        require(from_grid is None, f"--from-grid {from_grid} and --weights were both given; choose one")
        checkpoint = load(weights, from_image=from_image, num_heads=num_heads, architecture=architecture)
        checkpoint.config.require_still("simulate")
        old, trained = checkpoint.config.position_grid, learned_table(checkpoint)
        kinds = [survival_of(checkpoint, to_grid, method=method_of(method[0]) if method else None)]
    else:
        old = from_grid or Size(14, 14)
    methods: list[Method] = [method_of(name) for name in method] if method else list(METHODS)
    found = [
        run(old, to_grid, each, table=trained, bands=bands) for each in counted(methods, "resampling", len(methods))
    ]
    with working("comparing kinds of positions"):
        stand_ins = survival(old, to_grid, method=methods[0], seed=seed)
    if chart is not None:
        _draw(chart, found, trained if trained is not None else known_table(old, 1, seed=seed))
    if json:
        write_json({"methods": found, "trained": kinds, "kinds": stand_ins})
    else:
        _show(found, kinds, stand_ins)
        if chart is not None:
            written(chart)


def _draw(path: Path, found: Sequence[Simulation], table: Tensor) -> None:
    from vitrail.atomic import write_file
    from vitrail.checkpoint.assess.transfer_picture import band_chart, component_maps

    data = band_chart(found).encode() if path.suffix == ".svg" else component_maps(found, table)
    write_file(path, lambda file: file.write(data))


def _show(found: Sequence[Simulation], trained: Sequence[Survival], stand_ins: Sequence[Survival]) -> None:
    first = found[0]
    names = [f"{band.low:.0%}–{band.high:.0%}" for band in first.bands]
    energy = ("[dim]energy there[/]", "", "", *(f"[dim]{band.energy:.1%}[/]" for band in first.bands))
    rows = [
        (each.method, f"{each.error:.1%}", f"{each.round_trip:.1%}", *(f"{band.error:.1%}" for band in each.bands))
        for each in sorted(found, key=lambda each: each.error)
    ]
    show(
        table(
            f"Positions from {first.old} to {first.new} ({TABLES[first.table]})",
            ("method", "error", "there and back", *names),
            [*rows, energy],
            "lrr" + "r" * len(names),
            caption="relative to the exact table at the new centres; bands: shares of the old grid's finest frequency",
        )
    )
    kinds = [(f"{each.kind}, the file's own", each) for each in trained] + [(each.kind, each) for each in stand_ins]
    others = "; others than the file's own are stand-ins" if trained else "; of stand-ins, not of trained weights"
    show(
        table(
            "Which kind survives",
            ("position", "same place", "same step", "unseen pairs", "on the new grid"),
            [
                (name, f"{each.place:.3f}", f"{each.step:.3f}", f"{each.unseen:.1%}", each.on_new_grid)
                for name, each in kinds
            ],
            "lrrrw",
            caption="correlation of likeness before and after. place: the same scene gets more pixels; "
            f"step: the same scale gets a wider field{others}",
        )
    )
