"""The engine of an endpoint: torch, or the model's graph by another runtime, for batches of any size.

A graph is compiled for one batch size, and requests come in any number: there is one for a single image, and one for
as many as pass through the encoder together. A batch is cut into these, so that no blank image is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.pixels import prepare
from vitrail.config import ViTConfig
from vitrail.errors import require
from vitrail.images.synthesize import synthesize_image
from vitrail.vectors.engines.choice_cache import keep_choice, kept_choice
from vitrail.vectors.engines.engine import Engine, LeanEngine, PlainEngine, build_engine, images_at_once
from vitrail.vectors.engines.graph import why_no_graph
from vitrail.vectors.engines.graph_cache import graph_engine, graph_key
from vitrail.vectors.engines.names import RUNTIMES, Runtime, RuntimeName, installed
from vitrail.vectors.engines.tournament import Choice, hold_tournament
from vitrail.vectors.job.plan import weights_sha256

__all__ = ["EngineChoice", "Opened", "open_engine"]

Vectors = Callable[[Tensor], Tensor]
"""uint8 (B, H, W, C) → float32 (B, D)."""
EngineChoice = Literal["auto", "torch", "openvino", "onnxruntime"]
COMPARED = 8
"""Synthesized images that engines are compared and timed on: a server has none of its clients' yet."""


class Opened(NamedTuple):
    """An engine that computes batches of any size, in several threads."""

    vectors: Vectors
    width: int
    choice: Choice
    """How it was chosen."""


def open_engine(
    path: Path, checkpoint: Checkpoint, asked: EngineChoice, *, batch: int, workers: int, threads: int | None
) -> Opened:
    """Build the engine that is asked for, or the fastest here, for batches up to `batch` in `workers` threads."""
    if threads is not None:
        torch.set_num_threads(threads)
    threads, reason = torch.get_num_threads(), why_no_graph(checkpoint.config)
    require(asked in ("auto", "torch") or reason is None, f"engine {asked} cannot run this model: {reason}; use torch")
    if asked == "torch" or reason is not None:
        why = "asked for" if reason is None else f"only torch runs this model: {reason}"
        return _torch(checkpoint, Choice(engine="torch", why=why))
    assert isinstance(checkpoint.config, ViTConfig)
    most = images_at_once(checkpoint.config, checkpoint.preprocessing.image, batch)
    key = graph_key(weights_sha256(path), checkpoint.config, checkpoint.preprocessing, None)
    lean = partial(LeanEngine, checkpoint)

    def graph(runtime: Runtime, size: int) -> Engine:
        return graph_engine(runtime, lean, key=key, batch=size, threads=threads)

    choice = Choice(engine="torch", why="neither openvino nor onnxruntime is installed")
    if asked != "auto":
        choice = Choice(engine=asked, why="asked for")
    elif (kept := kept_choice(key, "float32", most, threads)) is not None:
        choice = kept
    elif any(map(installed, RUNTIMES)):
        candidates: dict[RuntimeName, Callable[[], Engine]] = {"torch": partial(build_engine, checkpoint)}
        for runtime in RUNTIMES:
            if installed(runtime):
                candidates[runtime] = partial(graph, runtime, most)
        choice = _fastest(checkpoint, candidates, batch=most, threads=threads)
        keep_choice(key, choice, "float32", most, threads)
    if choice.engine == "torch":
        return _torch(checkpoint, choice)
    copies = [{size: graph(choice.engine, size) for size in {1, most}} for _ in range(workers)]
    return Opened(_one_each(map(_in_parts, copies)), copies[0][1].width, choice)


def _torch(checkpoint: Checkpoint, choice: Choice) -> Opened:
    engine = build_engine(checkpoint)
    return Opened(engine.vectors, engine.width, choice)


def _fastest(
    checkpoint: Checkpoint, candidates: Mapping[RuntimeName, Callable[[], Engine]], *, batch: int, threads: int
) -> Choice:
    pixels = [prepare(synthesize_image(seed), checkpoint.preprocessing).pixels for seed in range(COMPARED)]
    images = torch.stack([torch.from_numpy(each) for each in pixels])
    reference = PlainEngine(checkpoint).vectors(images)
    return hold_tournament(candidates, images, reference, batch=batch, threads=threads)


def _in_parts(engines: Mapping[int, Engine]) -> Vectors:
    """Return a function that computes a batch by engines of one batch size each, one of which is 1."""

    def vectors(images: Tensor) -> Tensor:
        found = []
        while len(images):
            size = max(each for each in engines if each <= len(images))
            found.append(engines[size].vectors(images[:size]))
            images = images[size:]
        return torch.cat(found)

    return vectors


def _one_each(copies: Iterable[Vectors]) -> Vectors:
    """Return a function for as many threads as there are copies: a runtime's session answers one caller at a time."""
    free: SimpleQueue[Vectors] = SimpleQueue()
    for each in copies:
        free.put(each)

    def vectors(images: Tensor) -> Tensor:
        compute = free.get()
        try:
            return compute(images)
        finally:
            free.put(compute)

    return vectors
