"""Look inside a model: attention, rollout, head statistics, token colours, filters and positions, as tensors."""

from vitrail.look.attention_map import AttentionMap
from vitrail.look.capture import Maps, capture
from vitrail.look.cells import Cells, cells_of
from vitrail.look.filters import Filters, filter_responses, projection_filters
from vitrail.look.heads import attention_distance, head_entropy
from vitrail.look.kin import Buddies, best_buddies, token_cosines
from vitrail.look.likeness import Likeness, likeness
from vitrail.look.match import ImageMatch
from vitrail.look.pca import TokenColours, pca_colours
from vitrail.look.positions import PositionSimilarity, position_similarity
from vitrail.look.record import Recording, record
from vitrail.look.rollout import fuse_heads, rollout
from vitrail.look.tokens import norm_outliers, token_norms, tokens_after

__all__ = [
    "AttentionMap",
    "Buddies",
    "Cells",
    "Filters",
    "ImageMatch",
    "Likeness",
    "Maps",
    "PositionSimilarity",
    "Recording",
    "TokenColours",
    "attention_distance",
    "best_buddies",
    "capture",
    "cells_of",
    "filter_responses",
    "fuse_heads",
    "head_entropy",
    "likeness",
    "norm_outliers",
    "pca_colours",
    "position_similarity",
    "projection_filters",
    "record",
    "rollout",
    "token_cosines",
    "token_norms",
    "tokens_after",
]
