"""Features at every pixel: a linear probe's IoU by one pass, by shifted passes, and along the photograph's edges.

    vitrail weights fetch dinov2-S/14 && python benchmarks/dense.py [--weights dinov2-S/14] [--size 224] [--json]

Shapes of three materials (scikit-image's brick, grass and gravel) are drawn over photographs, so that the truth of
every pixel is known. A linear probe (ridge regression, in closed form) learns the material from the tokens of some
images, one pass each; its scores on other images are carried to every pixel. The usual way is one pass and bilinear
interpolation. Prints the mean IoU of the four classes.
"""

from __future__ import annotations

import argparse
from time import perf_counter

import numpy as np
import skimage.data
import torch
from measure import arguments, finish
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor

from vitrail.checkpoint.read import load
from vitrail.geometry import Size
from vitrail.look.dense import Dense, dense
from vitrail.look.refine import at_pixels, guided

PHOTOS = ("astronaut", "chelsea", "coffee", "rocket", "immunohistochemistry", "retina")
MATERIALS = ("brick", "grass", "gravel")
RIDGE = 1.0


def scene(dice: np.random.Generator, side: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Draw shapes of the materials over a photograph; return the picture, and the class of every pixel."""

    def part(name: str) -> Image.Image:
        whole = Image.fromarray(getattr(skimage.data, name)()).convert("RGB")
        cut = min(whole.size) * 3 // 4
        left, top = (int(dice.integers(0, length - cut + 1)) for length in whole.size)
        return whole.crop((left, top, left + cut, top + cut)).resize((side, side), Image.Resampling.LANCZOS)

    picture, truth = part(str(dice.choice(PHOTOS))), Image.new("L", (side, side))
    for number, name in enumerate(MATERIALS, 1):
        mask = Image.new("L", (side, side))
        x, y, r = *dice.uniform(0.2, 0.8, 2) * side, dice.uniform(0.12, 0.22) * side
        corners = int(dice.integers(3, 8))
        turn = dice.uniform(0, 2 * np.pi)
        angles = turn + np.arange(corners) * 2 * np.pi / corners
        outline = [(x + r * np.cos(a), y + r * np.sin(a)) for a in angles]
        ImageDraw.Draw(mask).polygon(outline, fill=255)
        picture.paste(part(name), mask=mask)
        truth.paste(number, mask=mask)
    return np.asarray(picture), np.asarray(truth).astype(np.int64)


def truth_at(truth: NDArray[np.int64], found: Dense) -> NDArray[np.int64]:
    """Return the classes at the pixels that the model has seen, which are a little fewer or more."""
    rows, columns = found.pixels.shape[:2]
    return np.asarray(Image.fromarray(truth.astype(np.uint8)).resize((columns, rows), Image.Resampling.NEAREST))


def learn(examples: list[tuple[Dense, NDArray]]) -> Tensor:
    """Return (D + 1, classes): the weights of a linear probe on tokens, each with the class in its middle."""
    rows, classes = [], []
    for found, truth in examples:
        cells, grid = found.cells, found.cells.grid
        down = [int(cells.top + (row + 0.5) * cells.step[0]) for row in range(grid.height)]
        across = [int(cells.left + (column + 0.5) * cells.step[1]) for column in range(grid.width)]
        rows.append(found.features.flatten(1).T)
        classes.append(torch.from_numpy(truth_at(truth, found)[np.ix_(down, across)].flatten().astype(np.int64)))
    x = torch.cat(rows).double()
    x = torch.cat([x, torch.ones(len(x), 1)], dim=1)
    y = torch.nn.functional.one_hot(torch.cat(classes), len(MATERIALS) + 1).double()
    return torch.linalg.solve(x.T @ x + RIDGE * torch.eye(x.shape[1]), x.T @ y).float()


def mean_iou(pairs: list[tuple[NDArray, NDArray]]) -> float:
    """Return the IoU over all pixels of all pictures, mean over classes."""
    guess, truth = (np.concatenate([each.ravel() for each in some]) for some in zip(*pairs, strict=True))
    ious = [((guess == k) & (truth == k)).sum() / ((guess == k) | (truth == k)).sum() for k in np.unique(truth)]
    return float(np.mean(ious))


def main() -> None:
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", default="dinov2-S/14", help="the model (default: dinov2-S/14)")
    parser.add_argument("--size", type=int, default=224, help="side of its input in pixels (default: 224)")
    parser.add_argument("--stride", type=int, default=7, help="step of the shifted passes in pixels (default: 7)")
    parser.add_argument("--images", type=int, default=12, help="pictures to learn from, and to judge (default: 12)")
    options = arguments(__doc__, parser)
    checkpoint, dice = load(options.weights), np.random.default_rng(0)
    scenes = [scene(dice, options.size) for _ in range(2 * options.images)]
    seconds: dict[int | None, float] = {}

    def seen(picture: NDArray[np.uint8], stride: int | None) -> Dense:
        start = perf_counter()
        found = dense(picture, checkpoint, size=options.size, stride=stride)
        seconds[stride] = seconds.get(stride, 0.0) + perf_counter() - start
        return found

    weights = learn([(seen(picture, None), truth) for picture, truth in scenes[: options.images]])
    ways = {
        "one pass, bilinear": (None, "bilinear"),
        "one pass, guided": (None, "guided"),
        "shifted passes, bilinear": (options.stride, "bilinear"),
        "shifted passes, guided": (options.stride, "guided"),
    }
    judged: dict[str, list[tuple[NDArray, NDArray]]] = {way: [] for way in ways}
    for picture, truth in scenes[options.images :]:
        by_stride = {stride: seen(picture, stride) for stride in (None, options.stride)}
        for way, (stride, how) in ways.items():
            found = by_stride[stride]
            scores = torch.einsum("dhw,dk->khw", found.features, weights[:-1]) + weights[-1][:, None, None]
            size = Size(*found.pixels.shape[:2])
            whole = (
                guided(scores, found.cells, found.pixels) if how == "guided" else at_pixels(scores, found.cells, size)
            )
            judged[way].append((whole.argmax(dim=0).numpy(), truth_at(truth, found)))
    results = {way: mean_iou(pairs) for way, pairs in judged.items()}
    usual = results["one pass, bilinear"]
    lines = [f"{options.weights} at {options.size} px, {options.images} pictures, stride {options.stride}", ""]
    lines += [f"{way:28}IoU {iou:6.3f}   {iou / usual:5.2f}×" for way, iou in results.items()]
    finish(
        {"weights": options.weights, "size": options.size, "stride": options.stride, "iou": results},
        options.json,
        lines,
    )


if __name__ == "__main__":
    main()
