"""Pictures of the weights alone: filters and positions."""

from __future__ import annotations

from vitrail.charts.sheet import Sheet
from vitrail.config import MobileConfig
from vitrail.geometry import Size
from vitrail.look.draw import draw_filters, draw_positions
from vitrail.look.filters import projection_filters
from vitrail.look.positions import position_similarity
from vitrail.look.subject import Subject
from vitrail.look.views.words import times

__all__ = ["view_filters", "view_positions"]


def view_filters(subject: Subject) -> Sheet:
    """Draw the filters of the projection and the principal filters."""
    filters = projection_filters(subject.model)
    count, channels, height, width = filters.filters.shape
    facts = f"{count} filters of {height}×{width}×{channels} · effective rank {filters.effective_rank:.1f}"
    return draw_filters(
        filters,
        title=f"Filters: {filters.stage}",
        subtitle=f"{subject.words} · {facts} · each scaled to its largest value, zero is grey",
    )


def view_positions(subject: Subject, *, layer: int | None = None, head: int | None = None) -> Sheet:
    """Draw the position similarity on the image's grid, as a grid of grids."""
    config = subject.model.config
    grid = None if isinstance(config, MobileConfig) else config.fit(Size(*subject.image.shape[2:])).grid
    similarity = position_similarity(subject.model, grid=grid, layer=layer or 0, head=head)
    return draw_positions(
        similarity,
        title=f"Positions: {similarity.kind}, {times(similarity.grid)}",
        subtitle=f"{subject.words} · each tile shows the similarity of one patch to all patches",
    )
