"""A folder of JPEGs → vectors, end to end: `vitrail embed` beside what people use, whole processes in turns.

    python benchmarks/folder.py [--models S/16 B/16] [--images 512] [--rounds 1] [--photos FOLDER]
                                [--trained] [--quick] [--json]

float32, int8    `vitrail embed` and `vitrail embed --engine int8`, as they come: a one-thread worker on every core, and
                 the fastest of the engines that are installed
timm             a plain loop of timm and Pillow                            } benchmarks/plain.py, both at the best of
transformers     its image-feature-extraction pipeline and processor        } some batch sizes and thread counts

All have the same weights, written in each library's own dialect, and the same JPEGs of 1–2 megapixels (photos.py).
Weights are random, which int8 is not made for: it is forced there. With --trained the fetched dinov2-S/14 is
measured too, and int8 is not forced (but with --quick, whose few images are too few to learn from).

first      seconds per image of vitrail's first run with these weights, from the start of the process to its end: it
           holds the tournament between engines, or leaves it where it would not pay, and fills the cache
whole      the same of a later run, which finds graphs, choice and ranges in the cache; peers have none to fill
steady     start-up taken out: the slope between the whole folder and a third of it, run one after the other
ratio      the peer's time over vitrail's, the median over rounds; above 1, vitrail is faster
cosine     vitrail's vectors to the peer's, mean and lowest: timm's pixels are Pillow's, to the bit

About four minutes for S/16 on two quiet cores.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
from forward import MODELS
from measure import finish, machine, ratio
from photos import make_photos, models
from pyarrow import parquet

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.read import load
from vitrail.checkpoint.surgery.adapt import adapt
from vitrail.checkpoint.write import save

OURS, PEERS = ("float32", "int8"), ("timm", "transformers")
BATCHES, THREADS = (1, 8, 32), (1, len(os.sched_getaffinity(0)))
PLAIN = Path(__file__).parent / "plain.py"
OFFLINE = {**os.environ, "HF_HUB_OFFLINE": "1"}  # nobody waits for a network

Command = Callable[[Path, Path], list[Any]]
"""From a folder of images and a place for the vectors to what is run."""


@dataclass(frozen=True, kw_only=True)
class Material:
    """What is measured: a model, and who knows it by which name."""

    what: str
    checkpoint: Checkpoint
    timm: str
    forced: bool


def main() -> None:
    options = arguments()
    with tempfile.TemporaryDirectory() as work:
        whole, part = Path(work) / "whole", Path(work) / "part"
        whole.mkdir()
        part.mkdir()
        photos = make_photos(whole, options.photos, options.images)
        for path in photos[: max(1, len(photos) // 4)]:
            os.link(path, part / path.name)
        cells = []
        for index, material in enumerate(materials(options)):
            place = Path(work) / str(index)
            place.mkdir()
            cells.append(measured(material, whole, part, place, options.rounds))
    lines = [f"{len(photos)} photographs, {THREADS[-1]} cores; ratio = peer's time / vitrail's"]
    finish({"machine": machine(), "images": len(photos), "cells": cells}, options.json, lines + _lines(cells))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", choices=MODELS, default=["S/16"])
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--photos", type=Path, help="a folder of large photographs")
    parser.add_argument("--trained", action="store_true", help="also with the fetched dinov2-S/14")
    parser.add_argument("--quick", action="store_true", help="one model, 12 images, one round: to see that it runs")
    parser.add_argument("--json", action="store_true")
    found = parser.parse_args()
    if found.quick:
        found.models, found.images, found.rounds = [] if found.trained else ["S/16"], 12, 1
    return found


def materials(options: argparse.Namespace) -> list[Material]:
    found = [Material(what=name, checkpoint=models(name)[0], timm=MODELS[name], forced=True) for name in options.models]
    if options.trained:
        trained = adapt(load("dinov2-S/14"), {"image": 224})[0]
        steps = replace(trained.preprocessing, crop_share=1.0)  # as timm has it for this model
        name = "vit_small_patch14_dinov2"
        found.append(
            Material(
                what="trained DINOv2-S/14", checkpoint=trained.but(preprocessing=steps), timm=name, forced=options.quick
            )
        )
    return found


# ── running ─────────────────────────────────────────────────────────────────────────────────────────────────────


def measured(material: Material, whole: Path, part: Path, place: Path, rounds: int) -> dict[str, Any]:
    """One model, all candidates, round by round."""
    weights = {
        "vitrail": place / "weights.safetensors",
        "timm": place / f"{material.timm}.safetensors",
        "transformers": place / "huggingface",
    }
    for dialect, path in weights.items():
        save(material.checkpoint, path, dialect="huggingface" if dialect == "transformers" else dialect)
    few = place / "few"
    few.mkdir()
    for path in sorted(part.iterdir())[:32]:
        os.link(path, few / path.name)
    best = {peer: best_settings(peer, weights[peer], few) for peer in PEERS}
    commands: dict[str, Command] = {
        "float32": vitrail(weights["vitrail"]),
        "int8": vitrail(weights["vitrail"], "--engine", "int8", *(["--force"] if material.forced else [])),
        **{peer: plain(peer, weights[peer], *best[peer]) for peer in PEERS},
    }
    OFFLINE["VITRAIL_CACHE"] = str(place / "cache")
    first = {who: seconds_of(commands[who](whole, place / f"{who}-first")) for who in OURS}
    spent = {size: {who: list[float]() for who in commands} for size in ("part", "whole")}
    order, dice = list(commands), random.Random(0)
    for number in range(rounds):
        dice.shuffle(order)
        for who in order:
            for size, folder in (("part", part), ("whole", whole)):
                out = place / f"{who}-{size}-{number}"
                spent[size][who].append(seconds_of(commands[who](folder, out)))
                told = f"{material.what}, round {number + 1}: {who}, {size} folder, {spent[size][who][-1]:.1f} s"
                print(told, file=sys.stderr)
    images, fewer = (len(list(folder.iterdir())) for folder in (whole, part))
    each = {
        "whole": {who: [time / images for time in times] for who, times in spent["whole"].items()},
        "steady": {
            who: [(all_ - few) / (images - fewer) for all_, few in zip(times, spent["part"][who], strict=True)]
            for who, times in spent["whole"].items()
        },
    }
    vectors = {who: read_vectors(place / f"{who}-whole-0") for who in commands}
    return {
        "model": material.what,
        "first": {who: time / images for who, time in first.items()},
        "settings": {peer: {"batch": batch, "threads": threads} for peer, (batch, threads) in best.items()},
        **{kind: compared(times) for kind, times in each.items()},
        "cosine": {
            f"{us} : {peer}": cosines(vectors[us], vectors[peer])
            for us, peer in combinations(commands, 2)
            if peer in PEERS
        },
    }


def vitrail(weights: Path, *more: str) -> Command:
    begin = [sys.executable, "-m", "vitrail", "embed"]
    return lambda folder, out: [*begin, folder, "--weights", weights, "--out", out, *more]


def plain(peer: str, weights: Path, batch: int, threads: int) -> Command:
    settings = ["--weights", weights, "--batch", str(batch), "--threads", str(threads)]
    return lambda folder, out: [sys.executable, PLAIN, peer, folder, *settings, "--out", out.with_suffix(".npy")]


def best_settings(peer: str, weights: Path, folder: Path) -> tuple[int, int]:
    """Batch size and threads with which the peer is fastest on some images."""
    tried = [sys.executable, PLAIN, peer, folder, "--weights", weights, "--batch", *BATCHES, "--threads", *THREADS]
    _, batch, threads = min(json.loads(run([str(word) for word in tried])))
    return batch, threads


def seconds_of(command: list[Any]) -> float:
    start = perf_counter()
    run(command)
    return perf_counter() - start


def run(command: list[Any]) -> str:
    done = subprocess.run(command, env=OFFLINE, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


# ── comparing ───────────────────────────────────────────────────────────────────────────────────────────────────


def compared(times: dict[str, list[float]]) -> dict[str, Any]:
    return {
        "seconds_per_image": {who: median(each) for who, each in times.items()},
        "ratio": {us: {peer: ratio(times, us, peer) for peer in PEERS} for us in OURS},
        "faster_peer": min(PEERS, key=lambda peer: median(times[peer])),
    }


def read_vectors(out: Path) -> np.ndarray:
    """Of every image, in the order of names."""
    if not out.is_dir():
        return np.load(out.with_suffix(".npy"))
    table = parquet.read_table(sorted(out.glob("part-*.parquet"))).sort_by("id")
    return np.array(table["vector"].to_pylist(), np.float32)


def cosines(ours: np.ndarray, theirs: np.ndarray) -> dict[str, float]:
    a, b = (each.astype(np.float64) for each in (ours, theirs))
    found = (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    return {"mean": found.mean(), "lowest": found.min()}


def _lines(cells: list[dict[str, Any]]) -> list[str]:
    lines = []
    for cell in cells:
        best = (f"{peer} batch {each['batch']}, threads {each['threads']}" for peer, each in cell["settings"].items())
        lines.append(f"— {cell['model']}   best: {'; '.join(best)}")
        lines.append("first   " + "  ".join(f"{who} {1e3 * time:.1f} ms" for who, time in cell["first"].items()))
        for kind in ("whole", "steady"):
            figures = cell[kind]
            times = "  ".join(f"{who} {1e3 * time:.1f} ms" for who, time in figures["seconds_per_image"].items())
            lines.append(f"{kind:7} {times}")
            for us, ratios in figures["ratio"].items():
                each = "  ".join(f"{peer} {value:.2f}×" for peer, value in ratios.items())
                faster = figures["faster_peer"]
                lines.append(f"        {us} against the faster, {faster}: {ratios[faster]:.2f}×   ({each})")
        lines += [
            f"cosine  {who}  mean {each['mean']:.5f}, lowest {each['lowest']:.5f}"
            for who, each in cell["cosine"].items()
        ]
    return lines


if __name__ == "__main__":
    main()
