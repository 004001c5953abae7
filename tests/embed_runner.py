"""An embedding as a process of its own, to be killed: python embed_runner.py SOURCE WEIGHTS OUT WORKERS|ray|ADDRESS.

It waits at the gate (see `embedding.gated_decoder`), and says beside it, by a file STOPPING, that a signal has come.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from embedding import gated_decoder
from vitrail.remote import location_of
from vitrail.vectors.job.cluster import RayCluster
from vitrail.vectors.job.embed import embed_source
from vitrail.vectors.job.run import LocalCrew, Progress
from vitrail.vectors.job.worker import WorkerOptions


def watch(progress: Progress) -> None:
    if progress.stopping:
        Path(os.environ["GATE"]).with_name("stopping").touch()


def main() -> int:
    source, weights, place, workers = sys.argv[1:]
    out = location_of(place)
    options = WorkerOptions(decode=gated_decoder, batch=2, patience=3600)
    cluster = None
    if not workers.isdigit():
        cluster = RayCluster(cpus=1) if workers == "ray" else RayCluster(workers)
    crew = cluster.crew if cluster else LocalCrew
    count = cluster.cpus if cluster else int(workers)
    done = embed_source(
        Path(source),
        Path(weights),
        location_of(out),
        workers=count,
        shard_size=5,
        worker=options,
        crew=crew,
        watch=watch,
    )
    if done.tally is None:
        return 128 + (done.stopped or 0)
    return 1 if done.tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
