"""Draw a model's view of an image: one function per picture of `vitrail look`."""

from vitrail.look.views.attention import view_attention, view_distance, view_rollout
from vitrail.look.views.tokens import view_adaptive, view_patches, view_pca
from vitrail.look.views.weights import view_filters, view_positions

__all__ = [
    "view_adaptive",
    "view_attention",
    "view_distance",
    "view_filters",
    "view_patches",
    "view_pca",
    "view_positions",
    "view_rollout",
]
