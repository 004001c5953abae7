"""Build the engine that a plan asks for, identically in every process and on every machine.

Int8 is calibrated on a sample of the plan's images. Approximate engines (int8, merging, adaptive patches) are compared
with float32 on another sample, once, in a worker; the folder keeps calibration.safetensors and agreement.json.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from vitrail.atomic import write_file, write_json_file
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.formats.safetensors import read_safetensors, write_safetensors
from vitrail.checkpoint.pixels import Image, Prepared, prepare
from vitrail.checkpoint.read import load
from vitrail.checkpoint.sources.names import weights_path
from vitrail.checkpoint.surgery.adaptive import with_adaptive_patches
from vitrail.config import ViTConfig
from vitrail.errors import require
from vitrail.images.decode import ImageError
from vitrail.remote import Location, local_copy
from vitrail.vectors.engines.adaptive import AdaptiveEngine
from vitrail.vectors.engines.engine import Agreement, Engine, LeanEngine, agreement, build_engine
from vitrail.vectors.engines.pack import PackedEngine, prepare_native
from vitrail.vectors.engines.scales import MultiScaleEngine, prepared_for, scaled_sizes
from vitrail.vectors.job.opener import Opener
from vitrail.vectors.job.options import Options
from vitrail.vectors.job.plan import Plan, input_at, weights_sha256, weights_stamp

__all__ = ["Watch", "calibrate", "engine_of", "preparer_of", "read_agreement", "vectors_of"]

CALIBRATION, AGREEMENT = "calibration.safetensors", "agreement.json"
SAMPLE = 32
"""Images to calibrate on; the same number of others is compared on."""
Watch = Callable[[int | None, int], None]
"""Called with the row being decoded (None if none is) and the number of finished rows."""


def engine_of(
    folder: Location,
    plan: Plan,
    *,
    threads: int | None = None,
    weights: str | Path | None = None,
    stamp: str | None = None,
) -> Engine | PackedEngine:
    """Build the plan's engine, after checking that the weights are the plan's."""
    options = plan.options
    ranges = None
    if options.engine != "torch":
        with local_copy(folder / CALIBRATION) as path:
            ranges = read_safetensors(path)[0]
    engine = _engine(_open_weights(folder, plan, weights, stamp), options, threads=threads, ranges=ranges)
    if options.native or options.adaptive is not None:
        return _packed(engine, options)
    if options.scales != (1.0,):
        assert isinstance(plan.config, ViTConfig)
        return MultiScaleEngine(engine, scaled_sizes(plan.preprocessing.image, plan.config.patch, options.scales))
    return engine


def _open_weights(folder: Location, plan: Plan, weights: str | Path | None, stamp: str | None) -> Checkpoint:
    """Load the weights; refuse them if neither their stamp nor their hash is the plan's."""
    path = weights_path(weights or plan.weights)
    require(
        weights_stamp(path) == stamp or weights_sha256(path) == plan.weights_sha256,
        f"weights {path} are not the ones that {folder} was planned with; give those, or choose another --out",
    )
    return load(path).but(config=plan.config, preprocessing=plan.preprocessing)


def _engine(
    checkpoint: Checkpoint, options: Options, *, threads: int | None, ranges: Mapping[str, Tensor] | None = None
) -> Engine:
    """Build the engine that the options ask for."""
    if options.adaptive is not None:
        checkpoint = with_adaptive_patches(checkpoint, options.adaptive)
    return build_engine(
        checkpoint,
        options.engine,
        threads=threads,
        calibration=ranges,
        compile=options.compile,
        merge=options.merge,
    )


def _packed(engine: Engine, options: Options) -> PackedEngine:
    assert isinstance(engine, LeanEngine)
    return PackedEngine(engine) if options.adaptive is None else AdaptiveEngine(engine)


def preparer_of(plan: Plan, decode: Callable[..., Prepared] = prepare) -> Callable[[Image], Prepared]:
    """Return the function that turns an input into the pixels that the plan's engine takes."""
    options, steps, config = plan.options, plan.preprocessing, plan.config
    if options.native:
        assert isinstance(config, ViTConfig)
        patch, budget = config.patch, options.token_budget or config.grid.area
        return lambda source: prepare_native(source, steps, patch, budget, exact=options.exact)
    if options.scales != (1.0,):
        assert isinstance(config, ViTConfig)
        steps = prepared_for(steps, config.patch, options.scales)
    return partial(decode, steps=steps, exact=options.exact)


def vectors_of(engine: Engine | PackedEngine, images: Sequence[Prepared]) -> Tensor:
    """Compute the vectors of images, packed if their shapes may differ, otherwise stacked."""
    pixels = [torch.from_numpy(image.pixels) for image in images]
    return engine.vectors(pixels) if isinstance(engine, PackedEngine) else engine.vectors(torch.stack(pixels))


# ── int8 and how near it comes ──────────────────────────────────────────────────────────────────────────────────


def calibrate(
    folder: Location,
    plan: Plan,
    *,
    lost: Mapping[int, str],
    decode: Callable[..., Prepared],
    watch: Watch,
    threads: int | None,
    stamp: str | None = None,
) -> None:
    """Calibrate int8 on a sample of the images, and compare the engine with float32 on others."""
    many = min(2 * SAMPLE, plan.images)
    numbers = [index * plan.images // many for index in range(many)]
    alone = replace(plan, options=Options(exact=plan.options.exact))  # the model's own image, one size
    open_input, prepare_one, images = Opener(), preparer_of(alone, decode), list[Tensor]()
    for number in numbers:
        watch(number, 0)
        with suppress(ImageError):  # its row will have the error
            if number not in lost:
                images.append(torch.from_numpy(prepare_one(open_input(input_at(folder, plan, number))).pixels))
    watch(None, 0)
    require(
        len(images) > 0,
        f"none of {many} sampled images can be read; use --engine torch and all tokens",
    )
    calibration, judged = torch.stack(images[::2]), torch.stack(images[1::2] or images)
    checkpoint = _open_weights(folder, plan, None, stamp)
    ranges = None
    if plan.options.engine == "int8":
        exact = _engine(checkpoint, replace(plan.options, engine="torch"), threads=threads)
        assert isinstance(exact, LeanEngine)
        ranges = exact.ranges(calibration)
        write_file(folder / CALIBRATION, partial(write_safetensors, tensors=ranges, metadata={}))
    ours = _engine(checkpoint, plan.options, threads=threads, ranges=ranges)
    ours = ours if plan.options.adaptive is None else _packed(ours, plan.options)
    found = agreement(ours, build_engine(checkpoint, "torch", threads=threads), judged)
    write_json_file(folder / AGREEMENT, asdict(found))


def read_agreement(folder: Location, plan: Plan) -> Agreement | None:
    """Return the measured agreement; None if it or int8's calibration, which is made with it, is missing."""
    if plan.options.engine == "int8" and not (folder / CALIBRATION).exists():
        return None
    try:
        return Agreement(**json.loads((folder / AGREEMENT).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
