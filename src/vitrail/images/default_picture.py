"""The studio's first picture: a stained-glass window with a ship under sail, drawn by code.

Every pixel gets the number of its pane; a pane has one colour of glass, and lead is drawn where numbers change.
Coordinates are in units of the height: `x` from the middle to the right, `y` from the top down.
"""

from __future__ import annotations

import numpy as np

from vitrail.geometry import Size

__all__ = ["draw_window"]

FINER = 2
"""Supersampling factor, for smooth edges of the lead."""
SUN, HORIZON = (0.22, 0.30), 0.70
SKY = (
    (1.00, 0.80, 0.30),
    (0.98, 0.55, 0.26),
    (0.86, 0.27, 0.36),
    (0.50, 0.22, 0.58),
    (0.20, 0.26, 0.66),
    (0.08, 0.14, 0.44),
)
SEA = ((0.16, 0.66, 0.62), (0.05, 0.47, 0.58), (0.04, 0.30, 0.52), (0.05, 0.17, 0.40))
SAIL, PENNANT, HULL, GLINT = (0.98, 0.93, 0.78), (0.78, 0.08, 0.18), (0.46, 0.16, 0.10), (1.00, 0.82, 0.42)
BORDER = ((0.62, 0.07, 0.17), (0.10, 0.22, 0.55), (0.85, 0.60, 0.12), (0.06, 0.40, 0.33))
LEAD = (0.05, 0.05, 0.07)
WINDOW = Size(600, 800)


def draw_window(size: Size | int = WINDOW, seed: int = 1) -> np.ndarray:
    """Draw the window as uint8 (height, width, 3); the same seed and size give the same picture on any machine."""
    size = Size.of(size)
    random = np.random.Generator(np.random.PCG64(seed))
    height, width = size.height * FINER, size.width * FINER
    rows, columns = np.mgrid[:height, :width]
    y, x = ((rows + 0.5) / height).astype(np.float32), ((columns + 0.5 - width / 2) / height).astype(np.float32)
    pane, colour = _picture(x, y)
    pane, colour = _border(pane, colour, x, y, width / height / 2)

    shade = (0.84 + 0.32 * random.random(4096)).astype(np.float32)  # panes of one colour differ slightly
    tint = (0.06 * random.standard_normal((4096, 3))).astype(np.float32)
    from_sun = np.hypot(x - SUN[0], y - SUN[1])
    light = (
        0.80 + 0.42 * np.exp(-4 * from_sun**2) + 0.035 * np.sin(70 * y + 4 * np.sin(9 * x)) * np.sin(31 * x + 11 * y)
    )
    glass = (colour + tint[pane % 4096]) * (shade[pane % 4096] * light)[..., None]
    glass[_edges(pane, max(1, round(height / 300)))] = LEAD
    small = glass.reshape(size.height, FINER, size.width, FINER, 3).mean((1, 3))
    small += 0.010 * random.standard_normal((size.height, size.width, 1))
    return np.round(255 * np.clip(small, 0, 1)).astype(np.uint8)


def _picture(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Draw sky, sea and ship over each other; return pane numbers and colours (height, width, 3)."""
    radius, angle = np.hypot(x - SUN[0], y - SUN[1]), np.arctan2(y - SUN[1], x - SUN[0])
    ring = np.digitize(radius, (0.095, 0.17, 0.27, 0.39, 0.54, 0.72)).astype(int)
    rays = np.array([1, 16, 16, 32, 32, 32, 32])[ring]
    ray = np.floor((angle / (2 * np.pi) + 0.5 + 0.25 / rays * (ring % 2)) * rays).astype(int) % rays
    pane = ring * 64 + ray
    colour = np.array([(1.0, 0.94, 0.66), *SKY], np.float32)[ring]

    swell = y + 0.012 * np.sin(13 * x + 1) + 0.006 * np.sin(31 * x)
    band = np.floor((swell - HORIZON) / 0.05).astype(int)
    part = np.floor(x * 7 + 0.5 * (band % 2) + 0.08 * np.sin(9 * band)).astype(int)
    sea = swell > HORIZON
    depth = np.clip(band * 0.62, 0, len(SEA) - 1).astype(int)
    water = np.array(SEA, np.float32)[depth]
    glint = np.abs(x - SUN[0] + 0.03 * np.sin(40 * y)) < 0.030 + 0.012 * (band % 2)
    water = np.where(glint[..., None], np.array(GLINT, np.float32), water)
    pane = np.where(sea, 1000 + 64 * band + part + 16 + 512 * glint, pane)
    colour = np.where(sea[..., None], water, colour)

    for number, (shape, glass, strips) in enumerate(_ship(x, y)):
        pane = np.where(shape, 3000 + 128 * number + strips, pane)
        colour = np.where(shape[..., None], np.array(glass, np.float32), colour)
    return pane, colour


def _ship(x: np.ndarray, y: np.ndarray):
    """Yield shapes from back to front, with their colour and how they are cut into panes."""
    x = x + 0.14
    rows = np.floor((y - 0.10) / 0.085).astype(int)

    def sail(mast: float, top: float, foot: float, reach: float, belly: float) -> np.ndarray:
        down = np.clip((y - top) / (foot - top), 0, 1)
        edge = mast + reach * down + belly * np.sin(np.pi * down)
        return (
            (y > top)
            & (y < foot - 0.03 * np.abs(x - mast))
            & ((x - mast) * np.sign(reach) > 0.008)
            & ((edge - x) * np.sign(reach) > 0)
        )

    deck = 0.655 + 0.10 * x**2
    keel = 0.775 - 0.9 * np.clip(np.abs(x) - 0.16, 0, 1)
    hull = (y > deck) & (y < keel) & (np.abs(x) < 0.30)
    mast = (np.abs(x - 0.03) < 0.007) & (y > 0.07) & (y < 0.67)
    flag = (x > 0.037) & (x < 0.15) & (np.abs(y - 0.095 - 0.01 * np.sin(50 * x)) < 0.026 * (1 - (x - 0.037) / 0.113))
    planks = np.floor((y - deck) / 0.042).astype(int) + 8 * np.floor(x * 6 + 8).astype(int)
    yield sail(0.03, 0.13, 0.63, 0.27, 0.05), SAIL, rows
    yield sail(0.03, 0.17, 0.635, -0.30, -0.02), (0.99, 0.86, 0.60), rows + 16
    yield mast, HULL, np.zeros_like(rows)
    yield flag, PENNANT, np.zeros_like(rows)
    yield hull, HULL, planks


def _border(
    pane: np.ndarray, colour: np.ndarray, x: np.ndarray, y: np.ndarray, half: float
) -> tuple[np.ndarray, np.ndarray]:
    inset = np.minimum(np.minimum(y, 1 - y), half - np.abs(x))
    along = np.where(np.minimum(y, 1 - y) < half - np.abs(x), x + 2, y)
    step = np.floor(along / 0.0625).astype(int)
    inside = inset > 0.042
    glass = np.array(BORDER, np.float32)[(step + (x > 0)) % len(BORDER)]
    side = (x > 0) * 64 + (y > 0.5) * 128
    return np.where(inside, pane, 3840 + step + side), np.where(inside[..., None], colour, glass)


def _edges(pane: np.ndarray, reach: int) -> np.ndarray:
    """Return where the pane number differs from one within `reach` pixels to the left or above."""
    edge = np.zeros(pane.shape, bool)
    for step in range(1, reach + 1):
        edge[:, step:] |= pane[:, step:] != pane[:, :-step]
        edge[step:] |= pane[step:] != pane[:-step]
    return edge
