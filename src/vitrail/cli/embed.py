"""vitrail embed: a folder of images → vectors in Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from vitrail.cli.options import Flag
from vitrail.errors import VitrailError

__all__ = ["embed"]


def embed(
    images: Path,
    /,
    *,
    weights: Path,
    out: Path,
    engine: Literal["torch", "int8", "ray"] = "torch",
    precision: Literal["float32", "float16"] = "float32",
    exact: Flag = False,
    native: Flag = False,
    token_budget: int | None = None,
    scales: str = "1",
    merge: int = 0,
    adaptive: float | None = None,
    tokens: Literal["npy", "safetensors"] | None = None,
    compile: Flag = False,  # noqa: A002 — torch's word
    workers: int | None = None,
    batch: int = 4,
    shard_size: int | None = None,
    address: str | None = None,
    force: Flag = False,
) -> int | None:
    """Turn a folder of images into vectors in Parquet; killed at any moment, the same command goes on.

    Every input gets a row: id, status (ok or failed), error, height, width, vector. The exit code is 1 if any failed.
    Ctrl-C once finishes the shards under way; twice stops at once, and only these are done again.

    Parameters
    ----------
    images
        A folder, a list of paths (.txt), a Parquet table with image bytes, a .tar, or a folder of either.
    weights
        A checkpoint that vitrail reads: a file, or a folder with its config. It says how images are prepared.
    out
        The folder for plan.json, part-00000.parquet …, manifest.json and, last, _SUCCESS.
    engine
        torch (float32), int8 (calibrated on your images, its cosine to float32 measured and told), or ray: torch
        on a Ray cluster.
    precision
        Number type of the stored vectors (default: float32).
    exact
        Decode and resize as Pillow does, to the bit; slower.
    native
        Images keep their aspect ratio, up to the token budget.
    token_budget
        For --native: at most so many patches an image.
    scales
        The image at several sizes, like 1,1.5, and the mean of its vectors.
    merge
        Tokens that every block merges away: faster, and not quite the same vectors.
    adaptive
        Twice as large patches where an image has less detail than this, like 0.25: faster, and not quite the same.
    tokens
        Keep every token's features too, beside each part.
    compile
        The torch engine by torch.compile, which needs a C++ compiler: minutes at first, for large runs.
    workers
        Processes that each decode and compute with one thread; as many as there are cores unless given.
    batch
        Images that a worker computes at a time.
    shard_size
        Images in a part.
    address
        Address of a Ray cluster, for any engine. With --engine ray and no address, one is started on this machine.
    force
        Keep int8's vectors however far they are from float32's.
    """
    from vitrail.cli.embed_view import View
    from vitrail.embed.embed import embed as run
    from vitrail.embed.job.options import Options
    from vitrail.embed.job.run import LocalCrew
    from vitrail.embed.job.worker import WorkerOptions

    options = Options(
        engine="int8" if engine == "int8" else "torch",
        precision=precision,
        exact=exact,
        native=native,
        token_budget=token_budget,
        scales=_scales(scales),
        merge=merge,
        adaptive=adaptive,
        tokens=tokens,
        compile=compile,
    )
    crew = LocalCrew
    if engine == "ray" or address is not None:
        from vitrail.embed.job.cluster import RayCluster

        cluster = RayCluster(address, cpus=workers)
        crew, workers = cluster.crew, cluster.cpus if workers is None else workers
    with View(out) as view:
        done = run(
            images,
            weights,
            out,
            options,
            workers=workers,
            shard_size=shard_size,
            worker=WorkerOptions(batch=batch),
            crew=crew,
            force=force,
            begin=view.begin,
            watch=view.watch,
        )
    if done.tally is None:
        view.stopped(done.plan)
        return 128 + (done.stopped or 0)
    view.end(done.plan, done.tally)
    return 1 if done.tally.failed else None


def _scales(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise VitrailError(f"scales {text!r} are not numbers; write 1,1.5") from None
