"""Plan a list of many paths, and compare it again with its plan: seconds of one core, and memory.

python benchmarks/planning.py [--inputs 1000000] [--json]

The paths do not exist, so that the disk takes no part except for one failed stat for each.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path

from vitrail.checkpoint.read import load
from vitrail.checkpoint.sources.names import weights_path
from vitrail.vectors.job.freeze import freeze
from vitrail.vectors.job.options import Options
from vitrail.vectors.job.plan import read_shard


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    weights = weights_path("default")
    checkpoint = load(weights)
    with tempfile.TemporaryDirectory() as scratch:
        few, many = (_listed(Path(scratch) / f"{count}.txt", count) for count in (5000, asked.inputs))
        freeze(Path(scratch) / "few", few, weights, checkpoint, Options())  # imports, and buffers of their usual size
        before, figures = _peak_mb(), {"inputs": asked.inputs}
        for name in ("plan", "compare"):
            began = time.process_time()
            plan = freeze(Path(scratch) / "many", many, weights, checkpoint, Options()).plan
            figures[f"{name}_cpu_s"] = round(time.process_time() - began, 2)
        figures["memory_mb"] = round(_peak_mb() - before, 1)
        began = time.process_time()
        for shard in range(0, plan.shards, max(1, plan.shards // 20)):
            read_shard(Path(scratch) / "many", plan, shard)
        figures["read_shard_ms"] = round(1e3 * (time.process_time() - began) / min(20, plan.shards), 2)
    if asked.json:
        print(json.dumps(figures))
    else:
        print("\n".join(f"{name:14} {value:,}" for name, value in figures.items()))


def _listed(path: Path, count: int) -> Path:
    with path.open("wb") as file:
        file.writelines(b"folder%03d/%09d.jpg\n" % (number % 500, number) for number in range(count))
    return path


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
