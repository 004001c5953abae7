"""Which place is which under known homographies: best buddies of a ViT's patches beside OpenCV's ORB.

    vitrail weights fetch dinov2-S/14 && python benchmarks/match.py [--weights dinov2-S/14] [--image 448] [--json]

Real photographs (scikit-image's) are warped by drawn homographies, so that the true place of every point is known. In
"other light" the second image is also darker, blurred and noisy; in "turned" it is turned by 90 to 180 degrees. A point
is correct within one patch of the model, in pixels of the photograph, for all. ORB's matches are cross-checked, as best
buddies are: each is the other's nearest. Coverage is the share of a 12×12 grid of cells, of those that both images
show, with at least one correct point. Tokens are compared after the middle layer, and as the model's features.
"""

from __future__ import annotations

import argparse
from statistics import mean

import cv2
import numpy as np
import skimage.data
from measure import arguments, finish
from numpy.typing import NDArray

from vitrail.checkpoint.read import load
from vitrail.geometry import Size
from vitrail.look.match import Seen, Viewer, match_seen

PHOTOS = ("astronaut", "chelsea", "coffee", "rocket", "hubble_deep_field", "immunohistochemistry")
SIDE = 448
CELLS = 12
Points = NDArray[np.float64]
"""(n, 2): column and row, in pixels."""


def homography(dice: np.random.Generator, turn: tuple[float, float]) -> NDArray:
    """Turn by degrees of a range, zoom, and tilt, about the middle of the photograph."""
    angle, zoom = np.radians(dice.uniform(*turn) * dice.choice([-1, 1])), dice.uniform(0.75, 1.3)
    tilt = dice.uniform(-4e-4, 4e-4, 2)
    to_middle = np.array([[1, 0, -SIDE / 2], [0, 1, -SIDE / 2], [0, 0, 1]])
    turned = np.array([[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]])
    tilted = np.array([[1, 0, 0], [0, 1, 0], [*tilt, 1]])
    return np.linalg.inv(to_middle) @ tilted @ turned @ np.diag([zoom, zoom, 1]) @ to_middle


def other_light(photo: NDArray[np.uint8], dice: np.random.Generator) -> NDArray[np.uint8]:
    dark = 255 * (cv2.GaussianBlur(photo, (0, 0), 1.5) / 255.0) ** 1.8
    return np.clip(dark * 0.7 + dice.normal(0, 8, photo.shape), 0, 255).astype(np.uint8)


def moved(points: Points, matrix: NDArray) -> Points:
    return np.asarray(cv2.perspectiveTransform(points[:, None], matrix)[:, 0], np.float64)


def by_orb(first: NDArray[np.uint8], second: NDArray[np.uint8]) -> tuple[Points, Points]:
    orb = cv2.ORB.create(nfeatures=1000)
    found = [orb.detectAndCompute(cv2.cvtColor(each, cv2.COLOR_RGB2GRAY), None) for each in (first, second)]
    (keys, described), (other_keys, other_described) = found
    if described is None or other_described is None:
        return np.zeros((0, 2)), np.zeros((0, 2))
    pairs = cv2.BFMatcher(cv2.NORM_HAMMING, crossCheck=True).match(described, other_described)
    one = np.array([keys[pair.queryIdx].pt for pair in pairs], np.float64).reshape(-1, 2)
    return one, np.array([other_keys[pair.trainIdx].pt for pair in pairs], np.float64).reshape(-1, 2)


def by_patches(first: Seen, second: Seen, layer: int | None) -> tuple[Points, Points]:
    found = match_seen(first, second, layer)
    pairs = found.buddies.pairs.tolist()
    places = [
        [side.place(layout, pair[number])[::-1] for pair in pairs]
        for number, (side, layout) in enumerate(zip((first, second), found.layouts, strict=True))
    ]
    return np.array(places[0]).reshape(-1, 2), np.array(places[1]).reshape(-1, 2)


def judged(one: Points, other: Points, matrix: NDArray, tolerance: float) -> dict[str, float]:
    """Return the share of correct points, how many there are, and the share of cells that have one."""
    right = np.linalg.norm(moved(one, matrix) - other, axis=1) <= tolerance if len(one) else np.zeros(0, bool)
    middles = (np.stack(np.meshgrid(np.arange(CELLS), np.arange(CELLS)), -1).reshape(-1, 2) + 0.5) * SIDE / CELLS
    seen = moved(middles, matrix)
    shown = ((seen >= 0) & (seen < SIDE)).all(axis=1)
    cells = {tuple(cell) for cell in (one[right] * CELLS / SIDE).astype(int).tolist()}
    held = sum(tuple(cell) in cells for cell in (middles[shown] * CELLS / SIDE).astype(int).tolist())
    return {"correct": float(right.mean()) if len(one) else 0.0, "points": len(one), "coverage": held / shown.sum()}


def main() -> None:
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", default="dinov2-S/14", help="the model (default: dinov2-S/14)")
    parser.add_argument("--image", type=int, default=SIDE, help="side of its input in pixels (default: 448)")
    parser.add_argument("--warps", type=int, default=2, help="homographies per photograph and row (default: 2)")
    options = arguments(__doc__, parser)
    checkpoint = load(options.weights)
    viewer = Viewer(checkpoint, options.weights, image=Size(options.image, options.image), whole=True)
    tolerance = max(checkpoint.config.unit) * SIDE / options.image
    photos = [cv2.resize(getattr(skimage.data, name)()[:, :, :3], (SIDE, SIDE)) for name in PHOTOS]
    middle = checkpoint.model().count_layers() // 2
    layers = {f"layer {middle}": middle, "features": None}
    rows = []
    for row, turn, light in (
        ("same light", (0, 30), False),
        ("other light", (0, 30), True),
        ("turned", (90, 180), False),
    ):
        dice, results = np.random.default_rng(0), {who: [] for who in (*layers, "ORB")}
        for photo in photos:
            seen = viewer.see(photo)
            for _ in range(options.warps):
                matrix = homography(dice, turn)
                warped = cv2.warpPerspective(photo, matrix, (SIDE, SIDE), borderMode=cv2.BORDER_REFLECT).astype(
                    np.uint8
                )
                warped = other_light(warped, dice) if light else warped
                other = viewer.see(warped)
                for who, layer in layers.items():
                    results[who].append(judged(*by_patches(seen, other, layer), matrix, tolerance))
                results["ORB"].append(judged(*by_orb(photo, warped), matrix, tolerance))
        figures = {who: {key: mean(each[key] for each in found) for key in found[0]} for who, found in results.items()}
        rows.append({"row": row, "pairs": len(photos) * options.warps, **figures})
    lines = [f"{options.weights} at {options.image} px beside ORB; correct within {tolerance:g} px", ""]
    lines += [f"{'':14}{'':12}{'correct':>8}{'points':>8}{'coverage':>10}"]
    for each in rows:
        for who in (*layers, "ORB"):
            found = each[who]
            name = each["row"] if who == next(iter(layers)) else ""
            lines.append(f"{name:14}{who:12}{found['correct']:8.0%}{found['points']:8.0f}{found['coverage']:10.0%}")
    finish(
        {"weights": options.weights, "image": options.image, "tolerance": tolerance, "rows": rows}, options.json, lines
    )


if __name__ == "__main__":
    main()
