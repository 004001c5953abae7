"""Build the engine that a plan asks for, identically in every process and on every machine.

What `vitrail.vectors.job.preparation` found out is read from the folder: the runtime, int8's ranges and how much is
merged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.formats.safetensors import read_safetensors
from vitrail.checkpoint.pixels import Prepared, prepare
from vitrail.checkpoint.read import load
from vitrail.checkpoint.sources.names import weights_path
from vitrail.checkpoint.surgery.adaptive import with_adaptive_patches
from vitrail.codec import from_plain
from vitrail.config import ViTConfig
from vitrail.errors import require
from vitrail.remote import Location, local_copy
from vitrail.rules import PositiveInt
from vitrail.value import Value
from vitrail.vectors.engines.adaptive import AdaptiveEngine
from vitrail.vectors.engines.engine import Engine, LeanEngine, build_engine, images_at_once
from vitrail.vectors.engines.graph_cache import graph_engine, graph_key
from vitrail.vectors.engines.names import Runtime, RuntimeName, require_runtime
from vitrail.vectors.engines.pack import PackedEngine, prepare_native
from vitrail.vectors.engines.runtime import GraphEngine
from vitrail.vectors.engines.scales import MultiScaleEngine, prepared_for, scaled_sizes
from vitrail.vectors.engines.tournament import Choice
from vitrail.vectors.job.clips import prepare_clip
from vitrail.vectors.job.options import MergeThreshold, Options
from vitrail.vectors.job.plan import Plan, weights_sha256, weights_stamp

__all__ = [
    "CALIBRATION",
    "CHOICE",
    "MERGING",
    "Merging",
    "Watch",
    "engine_of",
    "graph_engine_of",
    "open_weights",
    "preparer_of",
    "read_choice",
    "read_merging",
    "runtime_of",
    "settled",
    "torch_engine_of",
    "vectors_of",
    "with_packing",
]

T = TypeVar("T", bound=Value)

CALIBRATION, CHOICE, MERGING = "calibration.safetensors", "engine.json", "merging.json"
Watch = Callable[[int | None, int], None]
"""Called with the row being decoded (None if none is) and the number of finished rows."""


@dataclass(frozen=True, kw_only=True)
class Merging(Value):
    """How much a run merges, as it was chosen for `keep_cosine`."""

    merge: MergeThreshold
    images: PositiveInt
    """On how many of the run's images."""


def engine_of(
    folder: Location,
    plan: Plan,
    *,
    batch: int = 1,
    threads: int | None = None,
    weights: str | Path | None = None,
    stamp: str | None = None,
) -> Engine | PackedEngine:
    """Build the plan's engine for batches of that size, after checking that the weights are the plan's."""
    options, runtime, ranges = plan.options, runtime_of(folder, plan), None
    if options.engine == "int8":
        with local_copy(folder / CALIBRATION) as path:
            ranges = read_safetensors(path)[0]
    checkpoint = open_weights(folder, plan, weights, stamp)
    if runtime != "torch":
        return graph_engine_of(plan, checkpoint, runtime, ranges=ranges, batch=batch, threads=threads)
    if options.keep_cosine is not None:
        options = settled(folder, options)
    engine = with_packing(torch_engine_of(checkpoint, options, threads=threads, ranges=ranges), options)
    if options.scales != (1.0,):
        assert isinstance(plan.config, ViTConfig)
        assert not isinstance(engine, PackedEngine)
        return MultiScaleEngine(engine, scaled_sizes(plan.preprocessing.image, plan.config.patch, options.scales))
    return engine


def runtime_of(folder: Location, plan: Plan) -> RuntimeName:
    """Return what runs the plan's model: torch, or what was asked for or chosen; refuse it if it is not installed."""
    if plan.options.engine == "torch":
        return "torch"
    choice = read_choice(folder)
    if choice is None:  # a run of int8 that an earlier release began has none
        require(plan.options.engine == "int8", f"{folder} has lost its {CHOICE}; choose another --out")
        return "torch"
    if choice.engine != "torch":
        require_runtime(choice.engine, f"the run in {folder} is computed by {choice.engine} and")
    return choice.engine


def read_choice(folder: Location) -> Choice | None:
    """Return the engine that a run has been given; None if it has not been chosen."""
    return _read(folder / CHOICE, Choice)


def read_merging(folder: Location) -> Merging | None:
    """Return how much a run with `keep_cosine` merges; None if it has not been chosen."""
    return _read(folder / MERGING, Merging)


def _read(path: Location, kind: type[T]) -> T | None:
    try:
        return from_plain(json.loads(path.read_bytes()), kind, path.name)
    except (OSError, ValueError):
        return None


def settled(folder: Location, options: Options) -> Options:
    """Return the options with the threshold of merging that was chosen for `keep_cosine`."""
    merging = read_merging(folder)
    require(
        merging is not None,
        f"{folder / MERGING} is missing or damaged; remove it and run the same command, which chooses it again",
    )
    assert merging is not None
    return replace(options, keep_cosine=None, merge=merging.merge)


def graph_engine_of(
    plan: Plan,
    checkpoint: Checkpoint,
    runtime: Runtime,
    *,
    ranges: Mapping[str, Tensor] | None,
    batch: int,
    threads: int | None,
) -> GraphEngine:
    """Build an engine that runs the graph of the plan's model; `checkpoint` is read only if no graph is kept."""
    key = graph_key(plan.weights_sha256, plan.config, plan.preprocessing, ranges)
    assert isinstance(plan.config, ViTConfig)
    few = images_at_once(plan.config, plan.preprocessing.image, batch)
    lean = partial(LeanEngine, checkpoint)
    return graph_engine(runtime, lean, key=key, ranges=ranges, batch=few, threads=threads or torch.get_num_threads())


def open_weights(folder: Location, plan: Plan, weights: str | Path | None, stamp: str | None) -> Checkpoint:
    """Load the weights; refuse them if neither their stamp nor their hash is the plan's."""
    path = weights_path(weights or plan.weights)
    require(
        weights_stamp(path) == stamp or weights_sha256(path) == plan.weights_sha256,
        f"weights {path} are not the ones that {folder} was planned with; give those, or choose another --out",
    )
    return load(path).but(config=plan.config, preprocessing=plan.preprocessing)


def torch_engine_of(
    checkpoint: Checkpoint, options: Options, *, threads: int | None, ranges: Mapping[str, Tensor] | None = None
) -> Engine:
    """Build the torch engine that the options ask for, with int8's ranges in 8 bits."""
    if options.adaptive is not None:
        checkpoint = with_adaptive_patches(checkpoint, options.adaptive)
    return build_engine(
        checkpoint,
        "torch" if ranges is None else "int8",
        threads=threads,
        calibration=ranges,
        compile=options.compile,
        merge=options.merge,
        device=options.device,
        bf16=options.bf16,
    )


def with_packing(engine: Engine, options: Options) -> Engine | PackedEngine:
    """Pack what images of their own sizes, or patches of several sizes, make unequal in length."""
    if not options.native and options.adaptive is None:
        return engine
    assert isinstance(engine, LeanEngine)
    return PackedEngine(engine) if options.adaptive is None else AdaptiveEngine(engine)


def preparer_of(plan: Plan, decode: Callable[..., Prepared] = prepare) -> Callable[[Any], Prepared]:
    """Return the function that turns an input into the pixels that the plan's engine takes."""
    options, steps, config = plan.options, plan.preprocessing, plan.config
    if config.frames > 1:
        return lambda frames: prepare_clip(frames, steps, config.frames, decode=decode, exact=options.exact)
    if options.native:
        assert isinstance(config, ViTConfig)
        patch, budget = config.patch, options.token_budget or steps.patch_budget or config.grid.area
        return lambda source: prepare_native(source, steps, patch, budget, exact=options.exact)
    if options.scales != (1.0,):
        assert isinstance(config, ViTConfig)
        steps = prepared_for(steps, config.patch, options.scales)
    return partial(decode, steps=steps, exact=options.exact)


def vectors_of(engine: Engine | PackedEngine, images: Sequence[Prepared]) -> Tensor:
    """Compute the vectors of images, packed if their shapes may differ, otherwise stacked."""
    pixels = [torch.from_numpy(image.pixels) for image in images]
    return engine.vectors(pixels) if isinstance(engine, PackedEngine) else engine.vectors(torch.stack(pixels))
