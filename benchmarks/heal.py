"""What surgery loses and healing gives back, on a trained DINOv2-S/14 and photographs of another source.

    vitrail weights fetch dinov2-S/14
    python benchmarks/heal.py --train WALLPAPERS --train SMALL_PHOTOS --held PHOTOS [--cases patch16,registers]
                              [--minutes 20] [--threads 2] [--probe CIFAR10] [--probe shapes] [--probed 2000] [--json]

The peer is resizing alone: the pseudo-inverse of the patch projection and resampled positions, which is what FlexiViT's
and timm's resizers do. Errors are 1 − cosine with the original's features on every image of --held, none of which is
healed with. With --probe, a linear probe and nearest neighbours read the original, the resized and the healed model on
CIFAR-10, upscaled, or on drawn shapes. Where the folders come from: docs/heal.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measure import machine

from vitrail import Checkpoint, adapt, heal, load
from vitrail.data.source import Split
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.healing.report import Healing, to_json
from vitrail.images.decode import decode
from vitrail.images.folder import image_files

REGISTERS = {"prefix": "cls,registers=4"}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "patch16": ("patch 14 → 16, image 256", {"patch": 16, "image": 256}),
    "patch28": ("patch 14 → 28, image 224", {"patch": 28}),
    "wide": ("patch 14 → 16x8, image 256x128", {"patch": "16x8", "image": "256x128"}),
    "image": ("image 224 → 336", {"image": 336}),
    "registers": ("4 registers added", REGISTERS),
    "dropped": ("4 registers dropped, from a model that was healed with them", {"prefix": "cls"}),
    "mean": ("CLS → mean pool", {"pool": "mean"}),
    "blocks": ("blocks 5 and 9 of 12 dropped", {"drop_blocks": (5, 9)}),
    "grey": ("RGB → grey", {"channels": 1}),
    "four": ("RGB → four channels", {"channels": 4}),
    "thirteen": ("RGB → thirteen channels", {"channels": 13}),
}
MOST_ARRAYS = 400
"""Images of more than three channels that are held in memory."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path, action="append", required=True, help="folder of images to heal with")
    parser.add_argument("--held", type=Path, required=True, help="folder of images of another source, to judge on")
    parser.add_argument("--cases", default="patch16,registers", help=f"of {', '.join(CASES)}, joined by commas")
    parser.add_argument("--minutes", type=float, default=20.0, help="time of each healing")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--probe", action="append", default=[], help="CIFAR-10's folder, as vitrail data fetch cifar10 "
                        "writes it, or shapes")  # fmt: skip
    parser.add_argument("--probed", type=int, default=2000, help="images that the probe learns from; half as many test")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    chosen = options.cases.split(",")
    unknown = [name for name in chosen if name not in CASES]
    if unknown:
        parser.error(f"unknown case {unknown[0]}; use {', '.join(CASES)}")
    try:
        before = adapt(load("dinov2-S/14"), {"image": 224})[0]
    except VitrailError as error:
        parser.error(str(error))
    train = [path for folder in options.train for path in image_files(folder)]
    held = image_files(options.held)
    rows = []
    for name in chosen:
        print(f"{CASES[name][0]} …", file=sys.stderr)
        rows.append(measured(name, before, train, held, options.minutes, options.probe, options.probed))
        if not options.json:
            show(rows[-1])
    if options.json:
        print(json.dumps({"machine": machine(), "minutes": options.minutes, "cases": rows}, indent=2))


def measured(
    name: str, before: Checkpoint, train: list[Path], held: list[Path], minutes: float, probes: list[str], count: int
) -> dict[str, Any]:
    words, changes = CASES[name]
    if name == "dropped":
        before, _ = heal(before, adapt(before, REGISTERS)[0], list(train), minutes=minutes, watch=say)
    dropped = changes.get("drop_blocks", ())
    after, _ = adapt(before, {} if dropped else changes, drop_blocks=dropped)
    given: Callable[[list[Path]], list[Any]] = {"four": four_channels, "thirteen": thirteen_channels}.get(name, list)
    images, judged = given(train), given(held)
    wall, spent = time.perf_counter(), time.process_time()
    healed, report = heal(before, after, images, judge=judged, minutes=minutes, watch=say)
    row = {"case": words, **figures(report)}
    row |= {"minutes": (time.perf_counter() - wall) / 60, "cpu_minutes": (time.process_time() - spent) / 60}
    if after.config.channels == 3:
        models = {"original": before, "resized": after, "healed": healed}
        row["probes"] = {data: {label: probed(each, data, count) for label, each in models.items()} for data in probes}
    return row


def say(facts: dict[str, Any]) -> None:
    if "error" in facts:
        print(f"  step {facts['step']}: error {facts['error']:.5f}", file=sys.stderr, flush=True)
    elif "doing" in facts or "forecast" in facts:
        print(f"  {facts}", file=sys.stderr, flush=True)


def figures(report: Healing) -> dict[str, Any]:
    found = to_json(report)
    kept = ("target", "before", "after", "steps", "images", "error_before", "error_after", "curve")
    return {name: found[name] for name in kept} | {"left": report.after.error / max(report.before.error, 1e-12)}


def four_channels(paths: list[Path]) -> list[np.ndarray]:
    """Photographs with a fourth channel that carries information of its own kind: the brightest of the three."""
    return [np.concatenate([pixels, pixels.max(axis=2, keepdims=True)], axis=2) for pixels in arrays(paths)]


def thirteen_channels(paths: list[Path]) -> list[np.ndarray]:
    """Photographs with ten further channels: brightest, darkest, their difference, the mean, and slopes."""
    found = []
    for pixels in arrays(paths):
        values = pixels.astype(np.float32)
        high, low, mean = values.max(2), values.min(2), values.mean(2)
        down, right = (np.abs(slope) for slope in np.gradient(values, axis=(0, 1)))
        further = [high, low, high - low, mean, *down.transpose(2, 0, 1), *right.transpose(2, 0, 1)]
        found.append(np.concatenate([pixels, np.stack(further, axis=2).astype(np.uint8)], axis=2))
    return found


def arrays(paths: list[Path]) -> Iterator[np.ndarray]:
    for path in paths[:: max(1, len(paths) // MOST_ARRAYS)]:
        try:
            pixels = decode(path)
        except VitrailError:
            continue
        step = max(1, min(pixels.shape[:2]) // 512)
        yield pixels[::step, ::step]


def probed(checkpoint: Checkpoint, data: str, count: int) -> dict[str, float]:
    """Accuracy of a linear classifier (ridge) and of the nearest neighbour on frozen vectors."""
    from vitrail.data.open import open_source
    from vitrail.data.source import Subset

    sets = []
    model = checkpoint.model(dtype=torch.float32)
    steps = checkpoint.preprocessing.squashed(checkpoint.config.image)
    splits: tuple[tuple[Split, int], ...] = (("train", count), ("test", count // 2))
    for split, images in splits:
        source = Subset(open_source(data, split, image=Size(224, 224)), np.arange(images))
        vectors, labels = [], []
        for first in range(0, len(source), 16):
            pairs = [source[index] for index in range(first, min(first + 16, len(source)))]
            with torch.inference_mode():
                vectors.append(model.vector(steps(*(pixels for pixels, _ in pairs))))
            labels += [label for _, label in pairs]
        sets.append((torch.nn.functional.normalize(torch.cat(vectors).double(), dim=1), torch.tensor(labels)))
    (x, y), (tests, truth) = sets
    bias = lambda rows: torch.nn.functional.pad(rows, (0, 1), value=1.0)  # noqa: E731
    wanted = torch.nn.functional.one_hot(y).double()
    weights = torch.linalg.solve(bias(x).T @ bias(x) + 0.1 * torch.eye(x.shape[1] + 1), bias(x).T @ wanted)
    return {
        "linear": float(((bias(tests) @ weights).argmax(1) == truth).double().mean()),
        "nearest": float((y[(tests @ x.T).argmax(1)] == truth).double().mean()),
    }


def show(row: dict[str, Any]) -> None:
    before, after = row["before"], row["after"]
    print(f"{row['case']}: {row['target']}; {row['cpu_minutes']:.1f} CPU minutes, {row['minutes']:.1f} in all")
    for name, old, new in (
        ("error of patches", 1 - before["patches"], 1 - after["patches"]),
        ("error of vectors", 1 - before["vectors"], 1 - after["vectors"]),
        ("lowest cosine", before["lowest"], after["lowest"]),
        ("neighbours shared", before["neighbours"], after["neighbours"]),
    ):
        print(f"  {name:18} {old:9.5f} → {new:9.5f}" + (f"  ({new / old:.3f})" if old else ""))
    for step in row["steps"]:
        print(f"  {'kept' if step['kept'] else 'left out':9} {step['error']:.5f}  {step['name']}")
    for data, models in row.get("probes", {}).items():
        for label, found in models.items():
            print(f"  {Path(data).name}, {label:9} linear {found['linear']:.1%}, nearest {found['nearest']:.1%}")


if __name__ == "__main__":
    main()
