"""The colours of all charts.

Series use Okabe and Ito's colours, which are distinguishable with any colour vision; ordered values use viridis from
dark to light, which keeps its order in greyscale.
"""

from __future__ import annotations

__all__ = [
    "BLUE", "BROWN", "DIVERGING", "FAINT", "GREEN", "GREY", "HEAT", "INK", "MARK", "ORANGE", "PAPER", "PINK", "RED",
    "RULE", "SERIES", "SILVER", "SKY", "VERMILLION", "VIOLET", "YELLOW",
]  # fmt: skip

INK, GREY, RULE, FAINT, PAPER = "#1d2733", "#66727f", "#aab3bb", "#e9ecef", "#ffffff"
RED, MARK = "#b3001b", "#19e3ff"
"""For a limit, and for a mark on a photograph."""

BLUE, ORANGE, GREEN, PINK, SKY = "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9"
VERMILLION, SILVER, VIOLET, YELLOW, BROWN = "#d55e00", "#999999", "#7b4fa3", "#f0e442", "#7a4a26"
SERIES = (BLUE, ORANGE, GREEN, PINK, SKY, VERMILLION, SILVER, VIOLET, YELLOW)

HEAT = ("#440154", "#3b528b", "#21918c", "#5ec962", "#fde725")
"""Five evenly spaced stops of viridis, for drawing without matplotlib."""
DIVERGING = ("#053061", "#2166ac", "#4393c3", "#92c5de", "#f7f7f7", "#f4a582", "#d6604d", "#b2182b", "#67001f")
"""From blue below the middle to red above it: stops of ColorBrewer's RdBu."""
