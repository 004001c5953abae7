"""vitrail embed: a folder of images → vectors in Parquet."""

from __future__ import annotations

import os
from typing import Annotated, Literal

from vitrail.cli.options import Flag, LocationOption, Weights, several

__all__ = ["embed"]


def embed(
    images: LocationOption,
    /,
    *,
    weights: Weights,
    out: LocationOption,
    engine: Literal["auto", "torch", "openvino", "onnxruntime", "int8", "ray"] = "auto",
    dtype: Literal["float32", "float16"] = "float32",
    exact: Flag = False,
    native: Flag = False,
    token_budget: int | None = None,
    scales: Annotated[tuple[float, ...], several(float, "1,1.5")] = (1.0,),
    merge: float = 0.0,
    keep_cosine: float | None = None,
    adaptive: float | None = None,
    tokens: Literal["npy", "safetensors"] | None = None,
    compile: Flag = False,  # noqa: A002 — torch's word
    device: Literal["cpu", "cuda", "mps", "xpu"] = "cpu",
    bf16: Flag = False,
    workers: int | None = None,
    batch: int = 4,
    shard_size: int | None = None,
    address: str | None = None,
    changed_by: Literal["time", "content"] = "time",
    drop_vanished: Flag = False,
    new_version: Flag = False,
    force: Flag = False,
) -> int | None:
    """Turn a folder of images into vectors in Parquet; the same command resumes, and later embeds what is new.

    Every input gets a row: id, status (ok or failed), error, height, width, vector. The exit code is 1 if any failed.
    Ctrl-C finishes the shards that are running; a second Ctrl-C stops at once, and those shards are run again.

    Parameters
    ----------
    images
        Folder of images, list of paths or URLs (.txt), Parquet table with image bytes, .tar, or folder of such files;
        as a path or by URL: s3://, gs://, hf://, hdfs:// or https://. For a model of clips: a folder with a folder of
        numbered frames for each clip, of which as many as the model takes are used, evenly spaced.
    out
        Folder for plan.json, part-00000.parquet …, manifest.json and, last, _SUCCESS; a path, s3:// or gs://.
    engine
        auto tries torch, openvino and onnxruntime in float32 on some of your images and takes the fastest; each can be
        named instead. int8 does the same in 8 bits, is calibrated on your images and reports its cosine to float32. ray
        is auto on a Ray cluster.
    dtype
        Number type of the stored vectors.
    exact
        Decode and resize exactly as Pillow does; slower.
    native
        Keep each image's aspect ratio, up to the token budget; for NaFlex models, sized as they were trained.
    token_budget
        For --native: at most this many patches per image (default: the processor's, or those of the model's image).
    scales
        Multiples of the model's image size, e.g. 1,1.5; an image's vector is the mean over them.
    merge
        Merge patches whose tokens differ by less than this, e.g. 0.15: faster and approximate; 0 merges none.
    keep_cosine
        Merge as many patches as leave vectors this mean cosine to float32's, e.g. 0.995, on some of your images, in
        place of --merge (default: off).
    adaptive
        Use patches twice as large where a part of an image has less detail than this, e.g. 0.3, relative to all its
        parts: faster and approximate, also with --merge (default: off).
    tokens
        Also store every token's features beside each part, in this format (default: not stored).
    compile
        Compile the torch engine with torch.compile, which takes minutes and a C++ compiler; for large runs.
    device
        Where the torch engine computes; every worker has the model there.
    bf16
        Multiply in bfloat16, for processors and cards that are faster in it; reports its cosine to float32.
    workers
        Processes, which decode and compute with one thread each (default: one per core).
    batch
        Images that a worker computes at a time.
    shard_size
        Images per part (default: chosen from the number of images and workers).
    address
        Address of a Ray cluster, for any engine, e.g. auto (default: none; --engine ray then starts one here).
    changed_by
        How a changed image is found: by its file's size and time (in a store, its ETag), or by a hash of its content,
        for which every image is read.
    drop_vanished
        Remove the rows of images that are no longer in the input (default: they stay).
    new_version
        If the folder holds vectors of other weights or options, write beside it, to OUT-v2 (default: refuse).
    force
        Keep int8's vectors even if they are far from float32's.
    """
    from vitrail.vectors.job.forks import start_early

    # threads that spin between small kernels slow each other down on a busy machine, by a hundred times and more
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    start_early()  # workers' imports run beside these

    from vitrail.cli.embed_view import View
    from vitrail.vectors.job.embed import embed_source
    from vitrail.vectors.job.options import Options
    from vitrail.vectors.job.part_files import skip_pandas
    from vitrail.vectors.job.run import LocalCrew
    from vitrail.vectors.job.worker import WorkerOptions

    options = Options(
        engine="auto" if engine == "ray" else engine,
        dtype=dtype,
        exact=exact,
        native=native,
        token_budget=token_budget,
        scales=scales,
        merge=merge,
        keep_cosine=keep_cosine,
        adaptive=adaptive,
        tokens=tokens,
        compile=compile,
        device=device,
        bf16=bf16,
    )
    crew = LocalCrew
    if engine == "ray" or address is not None:
        from vitrail.vectors.job.cluster import RayCluster

        cluster = RayCluster(address, cpus=workers)
        crew, workers = cluster.crew, cluster.cpus if workers is None else workers
    else:
        skip_pandas()
    with View() as view:
        view.wait("reading the weights and the list of images")
        done = embed_source(
            images,
            weights,
            out,
            options,
            workers=workers,
            shard_size=shard_size,
            worker=WorkerOptions(batch=batch),
            crew=crew,
            by=changed_by,
            drop_vanished=drop_vanished,
            new_version=new_version,
            force=force,
            begin=view.begin,
            watch=view.watch,
        )
    if done.tally is None:
        view.stopped(done.plan)
        return 128 + (done.stopped or 0)
    view.end(done)
    return 1 if done.tally.failed else None
