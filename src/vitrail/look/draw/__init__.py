"""Draw maps as PNG, SVG or PDF. matplotlib is an optional dependency and is imported on use."""

from vitrail.look.draw.charts import draw_distance
from vitrail.look.draw.grids import draw_filters, draw_positions
from vitrail.look.draw.overlay import Photo, draw_focus, draw_heads, upsample
from vitrail.look.draw.tokens import draw_patches, draw_quadtree, draw_tokens

__all__ = [
    "Photo",
    "draw_distance",
    "draw_filters",
    "draw_focus",
    "draw_heads",
    "draw_patches",
    "draw_positions",
    "draw_quadtree",
    "draw_tokens",
    "upsample",
]
