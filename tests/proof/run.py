"""The planner against the tracker: `python tests/proof/run.py --kind tuned` draws cases and prints every difference.

`--golden FILE` writes the tracker's answers, for machines where the shim cannot be compiled; `--check FILE …` follows
some of the files' cases again; `--table FILE` writes the results as JSON for the docs; `--degenerate` takes the fixed
cases of degenerate.py, whose answers are tests/golden/degenerate.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

from shim import load_shim  # noqa: E402 — before torch

load_shim()

import torch  # noqa: E402
from cases import draw  # noqa: E402
from checkpointings import draw_checkpointed  # noqa: E402
from clips import draw_clips  # noqa: E402
from degenerate import degenerate  # noqa: E402
from mergers import draw_mergers  # noqa: E402
from parts import draw_parts  # noqa: E402
from pretrainings import draw_pretraining  # noqa: E402
from shards import draw_sharded  # noqa: E402
from stems import draw_stems  # noqa: E402
from tunings import draw_tuned  # noqa: E402

from truth import follow_step  # noqa: E402
from vitrail.codec import from_plain  # noqa: E402
from vitrail.config import config_from_json  # noqa: E402
from vitrail.plan import Workload, memory  # noqa: E402

DRAWS = {
    "steps": (draw, 260),
    "checkpointed": (draw_checkpointed, 160),
    "tuned": (draw_tuned, 160),
    "pretraining": (draw_pretraining, 120),
    "sharded": (draw_sharded, 120),
    "clips": (draw_clips, 100),
    "parts": (draw_parts, 100),
    "mergers": (draw_mergers, 100),
    "stems": (draw_stems, 100),
}
"""Kinds of random cases: what draws them, and how many `make proof` draws."""


def report(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def workload_of(held: dict[str, Any]) -> Workload:
    return from_plain(held, Workload, "workload")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=DRAWS, default="steps", help="what the random cases vary")
    parser.add_argument("--count", type=int, help="cases (default: the kind's own number)")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--degenerate", action="store_true", help="the fixed degenerate cases instead of random ones")
    parser.add_argument("--golden", type=Path)
    parser.add_argument("--check", type=Path, nargs="+")
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    drawn, usual = DRAWS[options.kind]
    count = options.count or usual
    if options.check:
        golden = [case for path in options.check for case in json.loads(path.read_text())]
        cases = [(config_from_json(json.dumps(case["config"])), workload_of(case["workload"])) for case in golden]
        cases = cases[:: max(1, len(cases) // count)]
    else:
        cases = degenerate() if options.degenerate else drawn(count, options.seed)
    rows, start = [], time.perf_counter()
    for config, workload in cases:
        plan, tracked = memory(config, workload), follow_step(config, workload).phase_peaks
        truth = {phase: tracked[phase] for phase in plan.phase_peaks}
        error = {phase: plan.phase_peaks[phase] - truth[phase] for phase in plan.phase_peaks}
        rows.append(
            {
                "config": json.loads(config.to_json()),
                "workload": workload.to_json(),
                "phase_peaks": truth,
                "planned": plan.phase_peaks,
                "exact": plan.exact,
            }
        )
        if any(error.values()):
            report(f"{error} of {max(truth.values()):,}, exact={plan.exact}: {workload} {config}")
    wrong = sum(row["planned"] != row["phase_peaks"] for row in rows)
    seconds = time.perf_counter() - start
    report(f"{len(rows)} cases, {wrong} with an error in any phase, {seconds:.0f} s")
    for path in filter(None, (options.golden, options.table)):
        keys = ("config", "workload", "phase_peaks") if path == options.golden else rows[0].keys()
        lines = [json.dumps({key: row[key] for key in keys}) for row in rows]
        path.write_text("[\n" + ",\n".join(lines) + "\n]\n")
    return int(any(row["planned"] != row["phase_peaks"] and row["exact"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
