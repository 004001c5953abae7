"""Search among a million vectors: `vitrail.search` beside faiss's flat index, both exact, in turns.

    .venv/bin/python benchmarks/search.py

A temporary folder gets synthetic vectors (clustered, seeded) in the format that `vitrail embed` writes. The first
search copies them into search.arrow, once. A cold search is a fresh process from its start to its answer, measured
with the file in the system's page cache, and with the file dropped from it (posix_fadvise). Warm searches are further
ones of one process, in turns with `faiss.IndexFlatIP` on as many threads; the peer holds its vectors in memory.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch
from measure import arguments, finish, machine, ratio, take_turns

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.checkpoint.write import save
from vitrail.config import ViTConfig
from vitrail.geometry import Size
from vitrail.nn.build import build
from vitrail.parts import Mlp, Patches
from vitrail.vectors.job.freeze import freeze
from vitrail.vectors.job.options import Options
from vitrail.vectors.job.part_files import Rows, write_part
from vitrail.vectors.job.plan import read_shard

SHARD = 1024
COLD = """
import json, sys, time
start = time.perf_counter()
import vitrail
found = vitrail.search(sys.argv[1], id=sys.argv[2], top=10, exact=True)
asked = time.perf_counter()
again = vitrail.search(sys.argv[1], id=sys.argv[2], top=10, exact=True)
warm = time.perf_counter() - asked
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1e6
print(json.dumps({"cold": asked - start, "warm": warm, "peak_gb": peak, "ids": [match.id for match in found.matches]}))
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--vectors", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--index", action="store_true", help="also build the index and measure its recall")
    options = arguments(__doc__, parser)
    with tempfile.TemporaryDirectory(prefix="vitrail-search-") as folder:
        result = measure(Path(folder), options)
    lines = [
        f"{result['vectors']:,} vectors of width {result['width']}, {options.threads} threads",
        f"first search, which writes search.arrow   {result['first_seconds']:7.2f} s",
        f"cold, page cache kept                     {result['cold_seconds']:7.2f} s",
        f"cold, page cache dropped                  {result['cold_dropped_seconds']:7.2f} s",
        f"second search of the cold process         {result['second_seconds']:7.3f} s",
        f"warm                                      {result['warm_seconds']:7.3f} s",
        f"faiss IndexFlatIP                         {result['faiss_seconds']:7.3f} s   {result['faiss_ratio']:.2f}×",
        f"peak memory of the cold process           {result['peak_gb']:7.2f} GB",
    ]
    if "recall_at_10" in result:
        lines += [
            f"index, built                              {result['index_build_seconds']:7.1f} s",
            f"index, warm                               {result['index_seconds']:7.4f} s   "
            f"recall@10 {result['recall_at_10']:.3f}",
        ]
    finish(result, options.json, lines)


def measure(root: Path, options: argparse.Namespace) -> dict:
    import faiss

    from vitrail.vectors.search import collection_of, nearest, stored

    folder = make_run(root, options.vectors, options.width)
    name = f"{options.vectors // 3:08d}.png"
    start = time.perf_counter()
    collection = collection_of(folder)
    first = time.perf_counter() - start
    kept, dropped = ([cold(folder, name, options.threads, drop=drop) for _ in range(3)] for drop in (False, True))
    flat = faiss.IndexFlatIP(options.width)
    for block in collection.blocks:
        flat.add(block)
    faiss.omp_set_num_threads(options.threads)
    query, _ = stored(collection, name)
    candidates = {
        "vitrail": lambda: nearest(collection, query, 10, exact=True),
        "faiss": lambda: flat.search(query[None], 10),
    }
    ours = [int(match.id[:8]) for match in nearest(collection, query, 10, exact=True).matches]
    assert ours == flat.search(query[None], 10)[1][0].tolist(), "vitrail and faiss disagree"
    spent = take_turns(candidates, seconds=options.seconds, at_least=5)
    result = {
        **machine(),
        "vectors": options.vectors,
        "width": options.width,
        "first_seconds": first,
        "cold_seconds": median(each["cold"] for each in kept),
        "cold_dropped_seconds": median(each["cold"] for each in dropped),
        "second_seconds": median(each["warm"] for each in kept),
        "warm_seconds": median(spent["vitrail"]),
        "faiss_seconds": median(spent["faiss"]),
        "faiss_ratio": ratio(spent, "vitrail", "faiss"),
        "peak_gb": max(each["peak_gb"] for each in (*kept, *dropped)),
    }
    if options.index:
        start = time.perf_counter()
        recall = nearest(collection, query, 10, exact=False).recall
        assert recall is not None
        result |= {"index_build_seconds": time.perf_counter() - start, "recall_at_10": recall.at_10}
        spent = take_turns({"index": lambda: nearest(collection, query, 10, exact=False)}, seconds=1)
        result["index_seconds"] = median(spent["index"])
    return result


def cold(folder: Path, name: str, threads: int, *, drop: bool) -> dict:
    """Search in a fresh process, with the file in the page cache or dropped from it."""
    with (folder / "search.arrow").open("rb") as file:
        if drop:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    threaded = {**os.environ, "OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)}
    command = [sys.executable, "-c", COLD, str(folder), name]
    start = time.perf_counter()
    done = subprocess.run(command, env=threaded, check=True, capture_output=True, text=True)
    took = time.perf_counter() - start
    answer = json.loads(done.stdout)
    return {**answer, "cold": took - answer["warm"]}  # with the interpreter's start, without the second search


def make_run(root: Path, count: int, width: int) -> Path:
    """Write a run of synthetic vectors: clusters of different sizes, seeded."""
    image = Size(8, 8)
    config = ViTConfig(
        image=image, embedding=Patches(patch=Size(4, 4)), width=width, depth=1, num_heads=1, mlp=Mlp(width=8), classes=0
    )
    torch.manual_seed(0)
    checkpoint = Checkpoint(config=config, tensors=build(config).state_dict(), preprocessing=Preprocessing(image=image))
    save(checkpoint, root / "w.safetensors")
    names = [f"{number:08d}.png" for number in range(count)]
    (root / "list.txt").write_text("\n".join(names))
    plan = freeze(
        root / "vectors", root / "list.txt", root / "w.safetensors", checkpoint, Options(), shard_size=SHARD
    ).plan
    dice = np.random.default_rng(0)
    centres = dice.normal(size=(2000, width)).astype(np.float32)
    popular = dice.dirichlet(np.full(len(centres), 0.5))
    for shard in range(plan.shards):
        rows = plan.rows(shard)
        near = centres[dice.choice(len(centres), rows, p=popular)]
        vectors = near + 0.8 * dice.standard_normal((rows, width), dtype=np.float32)
        sizes = dict.fromkeys(range(rows), image)
        write_part(
            root / "vectors",
            plan,
            shard,
            Rows(inputs=read_shard(root / "vectors", plan, shard), vectors=vectors, sizes=sizes),
        )
    return root / "vectors"


if __name__ == "__main__":
    main()
