"""From a plan to what computes its vectors, the same in every process and on every machine.

Int8 learns its ranges from a sample of the plan's own images, and is compared with float32 on another: once, in
a worker, and kept in the folder as calibration.npy and agreement.json.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from vitrail.checkpoint.file import write_file, write_json_file
from vitrail.checkpoint.read import load
from vitrail.embed.engine import Agreement, Engine, agreement, build_engine
from vitrail.embed.inputs import Opener
from vitrail.embed.pixels import Prepared
from vitrail.embed.plan import Plan, input_at, weights_sha256
from vitrail.embed.worker import COMPUTING
from vitrail.errors import VitrailError, require

__all__ = ["calibrate", "channels_of", "engine_of", "read_agreement"]

CALIBRATION, AGREEMENT = "calibration.npy", "agreement.json"
SAMPLE = 32
"""Images to learn from, and as many others to compare on."""


def engine_of(folder: Path, plan: Plan, *, threads: int | None = None, weights: Path | None = None) -> Engine:
    """The plan's engine on the plan's weights, which must be those of the plan still."""
    path = weights or Path(plan.weights)
    require(
        weights_sha256(path) == plan.weights_sha256,
        f"weights {path} are not those that the plan of {folder} was made with; give those, or choose another --out",
    )
    checkpoint = load(path).but(config=plan.config, preprocessing=plan.preprocessing)
    options = plan.options
    ranges = None if options.engine == "torch" else torch.from_numpy(np.load(folder / CALIBRATION))
    return build_engine(checkpoint, options.engine, threads=threads, calibration=ranges, merge=options.merge)


def channels_of(plan: Plan) -> Literal[1, 3]:
    channels = plan.config.channels
    require(channels in (1, 3), f"the model takes {channels} channels, and images have 1 or 3; give other weights")
    return 1 if channels == 1 else 3


# ── int8 and how near it comes ──────────────────────────────────────────────────────────────────────────────────


def calibrate(
    folder: Path,
    plan: Plan,
    *,
    lost: Mapping[int, str],
    decode: Callable[..., Prepared],
    watch: Callable[[int, int], None],
    threads: int | None,
) -> None:
    """Choose the images that int8 learns from, learn, and compare with float32 on others."""
    many = min(2 * SAMPLE, plan.images)
    numbers = [index * plan.images // many for index in range(many)]
    open_input, images = Opener(), list[Tensor]()
    for number in numbers:
        watch(number, 0)
        try:
            require(number not in lost, "given up")
            item = open_input(input_at(folder, plan, number))
            image = decode(item, plan.preprocessing, exact=plan.options.exact, channels=channels_of(plan))
        except VitrailError:  # its row will say why
            continue
        images.append(torch.from_numpy(image.pixels))
    watch(COMPUTING, 0)
    require(len(images) > 0, f"none of {many} images that were tried to calibrate int8 can be read; use --engine torch")
    learnt, judged = torch.stack(images[::2]), torch.stack(images[1::2] or images)
    write_file(folder / CALIBRATION, lambda file: np.save(file, learnt.numpy()))
    checkpoint = load(plan.weights).but(config=plan.config, preprocessing=plan.preprocessing)
    reference = build_engine(checkpoint, "torch", threads=threads)
    found = agreement(engine_of(folder, plan, threads=threads), reference, judged)
    write_json_file(folder / AGREEMENT, asdict(found))


def read_agreement(folder: Path) -> Agreement | None:
    """None if it has not been measured."""
    try:
        return Agreement(**json.loads((folder / AGREEMENT).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
