"""Graphs that were written before, beside the weights in vitrail's cache folder, so that a later run starts at once.

A graph is named by a hash of all that it depends on. The newest `KEPT` are kept. Where the cache cannot be written, a
graph is written to a temporary folder and loaded from there.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from torch import Tensor

from vitrail.atomic import flush, temporary_folder
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.checkpoint.sources.catalogue import cache_folder
from vitrail.codec import to_plain
from vitrail.config import Config
from vitrail.vectors.engines.engine import LeanEngine
from vitrail.vectors.engines.graph import write_graph
from vitrail.vectors.engines.names import Runtime
from vitrail.vectors.engines.onnx_writer import GRAPH, WEIGHTS
from vitrail.vectors.engines.runtime import GraphEngine

__all__ = ["graph_engine", "graph_key", "kept_folder"]

VERSION = 2
"""Part of every name: raise it when the graph of a model changes."""
KEPT = 8


def graph_key(weights_sha256: str, config: Config, steps: Preprocessing, ranges: Mapping[str, Tensor] | None) -> str:
    """Return a name for the graph of these weights, with these `ranges` if it is in int8."""
    read = {"image": steps.image, "mean": steps.mean, "std": steps.std}
    facts = [VERSION, weights_sha256, to_plain(config), {name: list(value) for name, value in read.items()}]
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name, seen in sorted((ranges or {}).items()):
        digest.update(name.encode() + seen.numpy().tobytes())
    return digest.hexdigest()[:32]


def kept_folder(key: str) -> Path:
    """Return where the graph of that name is kept, with what else is known of it."""
    return cache_folder() / "engines" / key


def graph_engine(
    runtime: Runtime,
    lean: Callable[[], LeanEngine],
    *,
    key: str | None = None,
    ranges: Mapping[str, Tensor] | None = None,
    batch: int = 1,
    threads: int = 1,
) -> GraphEngine:
    """Return an engine that runs the graph by a runtime. `lean` builds the float32 engine if there is no graph yet."""
    if key is not None:
        folder = kept_folder(key)
        with suppress(OSError):
            if not (folder / GRAPH).exists():
                _write(folder, lean(), ranges)
            return GraphEngine(folder, runtime, batch=batch, threads=threads, int8=ranges is not None)
    with tempfile.TemporaryDirectory(prefix="vitrail-") as temporary:
        write_graph(lean(), Path(temporary), ranges)
        return GraphEngine(Path(temporary), runtime, batch=batch, threads=threads, int8=ranges is not None)


def _write(folder: Path, engine: LeanEngine, ranges: Mapping[str, Tensor] | None) -> None:
    """Write a graph; of several processes that do, the first is followed."""
    folder.mkdir(parents=True, exist_ok=True)
    older = sorted((each for each in folder.parent.iterdir() if each != folder), key=lambda each: each.stat().st_mtime)
    for each in older[: max(0, len(older) + 1 - KEPT)]:  # a process that has mapped it keeps its pages
        shutil.rmtree(each, ignore_errors=True)
    with temporary_folder(folder / "writing") as temporary:
        write_graph(engine, temporary, ranges)
        for name in (WEIGHTS, GRAPH):  # the graph appears last, with its weights in place
            flush(temporary / name)
            (temporary / name).replace(folder / name)
