"""What a run finds out once, before its first shard: int8's ranges, which runtime is fastest, how much may be merged,
and how near it comes.

It works on a sample of the run's own images, in a worker, and leaves in the folder

    calibration.safetensors    int8's ranges
    engine.json                the runtime, and the figures by which it was chosen
    merging.json               the threshold of merging, and the images on which it was chosen
    agreement.json             the cosine of approximate vectors to float32's

so that every worker, and a run that is resumed, computes the same kind of numbers. What holds for the weights on this
machine is kept in vitrail's cache folder too, and a later run begins with it.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from typing import Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.atomic import write_file, write_json_file
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.formats.safetensors import read_safetensors, write_safetensors
from vitrail.checkpoint.pixels import Prepared
from vitrail.codec import to_plain
from vitrail.config import ViTConfig
from vitrail.errors import VitrailError, require
from vitrail.images.decode import ImageError
from vitrail.remote import Location
from vitrail.vectors.engines.choice_cache import keep_choice, kept_choice
from vitrail.vectors.engines.engine import Agreement, Engine, LeanEngine, PlainEngine, agreement_of, build_engine
from vitrail.vectors.engines.graph import why_no_graph
from vitrail.vectors.engines.graph_cache import graph_key, kept_folder
from vitrail.vectors.engines.names import RUNTIMES, RuntimeName, installed
from vitrail.vectors.engines.tournament import Choice, hold_tournament
from vitrail.vectors.job.engine_factory import (
    CALIBRATION,
    CHOICE,
    MERGING,
    Merging,
    Watch,
    graph_engine_of,
    open_weights,
    preparer_of,
    read_choice,
    read_merging,
    settled,
    torch_engine_of,
    vectors_of,
    with_packing,
)
from vitrail.vectors.job.opener import Opener
from vitrail.vectors.job.options import Options
from vitrail.vectors.job.plan import Plan, input_at

__all__ = ["choose_without_images", "is_prepared", "prepare_engine", "read_agreement"]

T = TypeVar("T")

AGREEMENT = "agreement.json"
CALIBRATED = 32, 96
"""Images that int8 is calibrated on, at least and at most: a tenth of the run. More of them show more of the rare large
inputs, which are cut off where they lie beyond the ranges (docs/running.md)."""
MERGED = 32
"""Images that the threshold of merging is chosen on."""
THRESHOLDS = 0.05, 0.08, 0.1, 0.12, 0.15, 0.18, 0.2, 0.22, 0.25, 0.3
"""Thresholds of merging to choose from; the smallest saves hardly a token."""
JUDGED = 16
"""Other images, that approximate engines are compared on."""
COMPARED = 8
"""Images that float32 engines are compared on, and int8 with the ranges of an earlier run."""
WORTH = 20.0
"""Seconds of work, by estimate, from which on a tournament is held."""
FLOPS_PER_SECOND = 8e10
"""What a core is taken to reach in float32, for that estimate."""
SPARE_COSINE = 0.002
"""Ranges of an earlier run are used if the cosine is at most this much lower than it was there."""


def prepare_engine(
    folder: Location,
    plan: Plan,
    *,
    batch: int,
    threads: int,
    lost: Mapping[int, str],
    decode: Callable[..., Prepared],
    watch: Watch,
    stamp: str | None = None,
) -> None:
    """Find out on a sample of the images what the plan leaves open, and write it into the folder."""
    options, checkpoint = plan.options, open_weights(folder, plan, None, stamp)
    kept = _kept(plan, batch, threads) if options.engine == "int8" else None
    if kept is not None and kept.winner is not None and kept.winner.cosine is not None:
        images = _stacked(_sample(folder, plan, COMPARED, lost, decode, watch))
        if _do_as_well(folder, plan, checkpoint, kept, kept.winner.cosine, images, batch=batch, threads=threads):
            return
    sampled = _sample(folder, plan, _wanted(plan), lost, decode, watch)
    _use_all_cores()
    if not options.approximate:
        images = _stacked(sampled)
        reference = PlainEngine(checkpoint).vectors(images)
        choice = _hold(plan, checkpoint, images, reference, batch=batch, threads=threads)
        _write_once(folder / CHOICE, choice)
        _keep(plan, choice, batch, threads)
        return
    if options.engine == "int8":
        calibration, judged = map(_stacked, _split(sampled))
        reference = build_engine(checkpoint).vectors(judged)
        found = _prepare_int8(folder, plan, checkpoint, calibration, judged, reference, batch=batch, threads=threads)
    else:
        if options.keep_cosine is not None:
            seen, sampled = _split(sampled)
            _write_once(folder / MERGING, _most_merging(checkpoint, options, options.keep_cosine, seen))
            options = settled(folder, options)
        found = agreement_of(_vectors(checkpoint, options, sampled), _all_tokens(checkpoint, options, sampled))
    write_json_file(folder / AGREEMENT, asdict(found))


def _vectors(checkpoint: Checkpoint, options: Options, images: Sequence[Prepared]) -> Tensor:
    return vectors_of(with_packing(torch_engine_of(checkpoint, options, threads=None), options), images)


def _all_tokens(checkpoint: Checkpoint, options: Options, images: Sequence[Prepared]) -> Tensor:
    return vectors_of(with_packing(build_engine(checkpoint), replace(options, adaptive=None)), images)


def _most_merging(checkpoint: Checkpoint, options: Options, cosine: float, images: Sequence[Prepared]) -> Merging:
    """Choose the largest threshold whose vectors keep this mean cosine to those of all tokens; 0 if none does.

    The mean must be above it by a standard error, since other images may lose more than these.
    """
    reference = _all_tokens(checkpoint, options, images)

    def loses(merge: float) -> bool:
        merged = replace(options, keep_cosine=None, merge=merge)
        cosines = F.cosine_similarity(_vectors(checkpoint, merged, images).double(), reference.double())
        return (cosines.mean() - cosines.std(correction=0) / len(cosines) ** 0.5).item() < cosine

    kept = bisect_left(THRESHOLDS, True, key=loses)
    return Merging(merge=THRESHOLDS[kept - 1] if kept else 0.0, images=len(images))


def _wanted(plan: Plan) -> int:
    """Return how many images settle what the plan leaves open."""
    if plan.options.engine == "int8":
        least, most = CALIBRATED
        return JUDGED + min(most, max(least, plan.images // 10))
    if plan.options.keep_cosine is not None:
        return JUDGED + MERGED
    return JUDGED if plan.options.approximate else COMPARED


def _split(images: Sequence[T]) -> tuple[Sequence[T], Sequence[T]]:
    """Return the images to calibrate on, and JUDGED others to judge on: a third of a few; of one or two, the same."""
    if len(images) < 3:
        return images, images
    every = max(3, len(images) // JUDGED)
    return [image for index, image in enumerate(images) if (index + 1) % every], images[every - 1 :: every]


def _stacked(images: Sequence[Prepared]) -> Tensor:
    return torch.stack([torch.from_numpy(image.pixels) for image in images])


def _use_all_cores() -> None:
    torch.set_num_threads(len(os.sched_getaffinity(0)))  # the run's other workers have not begun


def _do_as_well(
    folder: Location,
    plan: Plan,
    checkpoint: Checkpoint,
    kept: Choice,
    cosine: float,
    images: Tensor,
    *,
    batch: int,
    threads: int,
) -> bool:
    """Take int8's ranges and runtime of an earlier run if they come as near to float32 as their `cosine` was there."""
    ranges = read_safetensors(kept_folder(_key(plan)) / CALIBRATION)[0]
    engine = _candidates(plan, checkpoint, ranges, batch, threads)[kept.engine]()
    _use_all_cores()
    found = agreement_of(engine.vectors(images), build_engine(checkpoint).vectors(images))
    if found.mean < cosine - SPARE_COSINE:
        return False
    _write_ranges(folder, ranges)
    _write_once(folder / CHOICE, kept)
    write_json_file(folder / AGREEMENT, asdict(found))
    return True


def _prepare_int8(
    folder: Location,
    plan: Plan,
    checkpoint: Checkpoint,
    calibration: Tensor,
    judged: Tensor,
    reference: Tensor,
    *,
    batch: int,
    threads: int,
) -> Agreement:
    """Calibrate int8 on the run's own images and choose its runtime."""
    ranges = LeanEngine(checkpoint).ranges(calibration)
    _write_ranges(folder, ranges)
    choice = _hold(plan, checkpoint, judged, reference, ranges, batch=batch, threads=threads)
    _write_once(folder / CHOICE, choice)
    with suppress(VitrailError, OSError):
        _write_ranges(kept_folder(_key(plan)), ranges)
        _keep(plan, choice, batch, threads)
    best = choice.winner
    assert best is not None
    assert best.cosine is not None
    assert best.lowest_cosine is not None
    return Agreement(images=len(judged), mean=best.cosine, lowest=best.lowest_cosine)


def _hold(
    plan: Plan,
    checkpoint: Checkpoint,
    images: Tensor,
    reference: Tensor,
    ranges: Mapping[str, Tensor] | None = None,
    *,
    batch: int,
    threads: int,
) -> Choice:
    candidates = _candidates(plan, checkpoint, ranges, batch, threads)
    torch.set_num_threads(threads)
    exact = ranges is None
    choice = hold_tournament(candidates, images, reference, batch=batch, threads=threads, exact=exact)
    asked = plan.options.engine
    return choice.but(why="asked for") if asked in RUNTIMES else choice


def _candidates(
    plan: Plan, checkpoint: Checkpoint, ranges: Mapping[str, Tensor] | None, batch: int, threads: int
) -> dict[RuntimeName, Callable[[], Engine]]:
    """Return what may run the plan: all that is installed, or the one runtime that was asked for."""
    asked, found = plan.options.engine, dict[RuntimeName, Callable[[], Engine]]()
    if asked not in RUNTIMES:
        found["torch"] = partial(torch_engine_of, checkpoint, plan.options, threads=threads, ranges=ranges)
    for runtime in RUNTIMES:
        if asked == runtime or (asked not in RUNTIMES and installed(runtime) and why_no_graph(plan.config) is None):
            found[runtime] = partial(
                graph_engine_of, plan, checkpoint, runtime, ranges=ranges, batch=batch, threads=threads
            )
    if plan.options.torch_only:
        return {"torch": found["torch"]}
    return found


def _sample(
    folder: Location, plan: Plan, most: int, lost: Mapping[int, str], decode: Callable[..., Prepared], watch: Watch
) -> list[Prepared]:
    """Decode images from all over the run: at the model's own size, or at theirs if their packed tokens are merged."""
    many = min(most, plan.images)
    numbers = [index * plan.images // many for index in range(many)]
    options = plan.options
    native = {"native": options.native, "token_budget": options.token_budget} if options.engine != "int8" else {}
    alone = replace(plan, options=Options(exact=options.exact, **native))
    open_input, prepare_one, images = Opener(), preparer_of(alone, decode), list[Prepared]()
    for number in numbers:
        watch(number, 0)
        with suppress(ImageError):  # its row will have the error
            if number not in lost:
                images.append(prepare_one(open_input(input_at(folder, plan, number))))
    watch(None, 0)
    require(len(images) > 0, f"none of {many} sampled images can be read; use --engine torch and all tokens")
    return images


# ── without images ──────────────────────────────────────────────────────────────────────────────────────────────


def choose_without_images(
    folder: Location, plan: Plan, *, parameters: int, workers: int, batch: int, threads: int, in_process: bool
) -> None:
    """Settle an auto engine that needs no tournament."""
    if plan.options.engine != "auto" or read_choice(folder) is not None:
        return
    why = _why_torch(plan, in_process=in_process)
    if why is None and (kept := _kept(plan, batch, threads)) is not None:
        _write_once(folder / CHOICE, kept)
        return
    if why is None:
        assert isinstance(plan.config, ViTConfig)
        work = plan.images * 2 * parameters * plan.config.tokens / FLOPS_PER_SECOND / workers
        why = f"about {work:.0f} s of work, too little to try others" if work < WORTH else None
    if why is not None:
        _write_once(folder / CHOICE, Choice(engine="torch", why=why))


def _why_torch(plan: Plan, *, in_process: bool) -> str | None:
    """Return why only torch can run the plan, if so."""
    if plan.options.torch_only:
        return f"only torch has {' and '.join(plan.options.torch_only)}"
    if reason := why_no_graph(plan.config):
        return f"only torch runs this model: {reason}"
    if not any(installed(runtime) for runtime in RUNTIMES):
        return "neither openvino nor onnxruntime is installed"
    return "a run in this process begins at once" if in_process else None


def is_prepared(folder: Location, plan: Plan) -> bool:
    """Return whether the folder has all that workers read beside the plan."""
    options = plan.options
    chosen = options.engine == "torch" or read_choice(folder) is not None
    merged = options.keep_cosine is None or read_merging(folder) is not None
    return chosen and merged and (not options.approximate or read_agreement(folder, plan) is not None)


def read_agreement(folder: Location, plan: Plan) -> Agreement | None:
    """Return the measured agreement; None if it or int8's calibration, which is made with it, is missing."""
    if plan.options.engine == "int8" and not (folder / CALIBRATION).exists():
        return None
    try:
        return Agreement(**json.loads((folder / AGREEMENT).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


# ── what is kept ────────────────────────────────────────────────────────────────────────────────────────────────


def _write_once(path: Location, value: Choice | Merging) -> None:
    """Write what was chosen, unless another run of this folder has; that one is then followed."""
    text = json.dumps(to_plain(value), indent=2).encode() + b"\n"
    write_file(path, lambda file: file.write(text), replace=False)


def _write_ranges(folder: Location, ranges: Mapping[str, Tensor]) -> None:
    write_file(folder / CALIBRATION, partial(write_safetensors, tensors=ranges, metadata={}))


def _key(plan: Plan) -> str:
    return graph_key(plan.weights_sha256, plan.config, plan.preprocessing, None)


def _kind(plan: Plan) -> Literal["float32", "int8"]:
    return "int8" if plan.options.engine == "int8" else "float32"


def _keep(plan: Plan, choice: Choice, batch: int, threads: int) -> None:
    if plan.options.engine not in RUNTIMES:  # what was asked for was compared with nothing
        keep_choice(_key(plan), choice, _kind(plan), batch, threads)


def _kept(plan: Plan, batch: int, threads: int) -> Choice | None:
    return kept_choice(_key(plan), _kind(plan), batch, threads)
