"""Side by side, in one run: candidates take turns, so that a noisy machine is noisy for all of them alike."""

from __future__ import annotations

import argparse
import json
import platform
import random
from collections.abc import Callable, Mapping
from statistics import median
from time import perf_counter

import torch

__all__ = ["arguments", "finish", "gemm_flops_per_second", "machine", "ratio", "take_turns"]


def take_turns(
    candidates: Mapping[str, Callable[[], object]], *, seconds: float = 3.0, at_least: int = 3, warm: bool = True
) -> dict[str, list[float]]:
    """Seconds of every candidate in every round. A round runs each once, in an order that changes.

    With `warm`, a candidate runs once more before every timed call: the first call of all pays for threads and kernels,
    and the threads of the one before it may still be spinning. Calls that take seconds can do without.
    """
    spent: dict[str, list[float]] = {name: [] for name in candidates}
    order, dice = list(candidates), random.Random(0)
    until = perf_counter() + seconds * len(candidates)
    while perf_counter() < until or len(spent[order[0]]) < at_least:
        dice.shuffle(order)
        for name in order:
            if warm:
                candidates[name]()
            start = perf_counter()
            candidates[name]()
            spent[name].append(perf_counter() - start)
    return spent


def ratio(spent: Mapping[str, list[float]], ours: str, theirs: str) -> float:
    """How many times as fast ours is: the median over rounds, each of which had the same neighbours."""
    return median(b / a for a, b in zip(spent[ours], spent[theirs], strict=True))


def gemm_flops_per_second(size: int = 1536, seconds: float = 1.5) -> float:
    """What the machine reaches on one large float32 product: the peak that shares are of."""
    a, b = torch.randn(2, size, size)
    spent = take_turns({"gemm": lambda: a @ b}, seconds=seconds)["gemm"]
    return 2 * size**3 / min(spent)


def machine() -> dict[str, str | int]:
    return {
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def arguments(description: str | None, parser: argparse.ArgumentParser | None = None) -> argparse.Namespace:
    """The options that every benchmark has, added to those of its own."""
    parser = parser or argparse.ArgumentParser()
    parser.description = description
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--seconds", type=float, default=3.0, help="time per candidate and cell")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads that every candidate has")
    found = parser.parse_args()
    torch.set_num_threads(found.threads)
    return found


def finish(result: dict, as_json: bool, lines: list[str]) -> None:
    """Print the same result for a program or a person."""
    print(json.dumps(result, indent=2) if as_json else "\n".join(lines))
