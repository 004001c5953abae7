"""Plan every preset, for the first time and again with other batches, and sweep images and batches on arrays; beside a
step on torch's own fake tensors.

python benchmarks/plan.py [--repeats 20] [--questions 100000] [--peer] [--json]

CPU times of one core. `--peer` follows one training step of timm's ViT-B/16 with torch's `MemTracker`, if both are
installed: the same question, answered by running the module on fake tensors.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from vitrail.checkpointing import Checkpointing
from vitrail.config import Config
from vitrail.geometry import Size
from vitrail.plan import Workload, ledger, memory, recall
from vitrail.plan.sweep import sweep
from vitrail.presets import PRESETS, preset

STEPS = {
    "inference": Workload(batch=8),
    "training": Workload(batch=8, train=True),
    "training, amp-bf16": Workload(batch=8, train=True, precision="amp-bf16"),
    "the same, checkpointed": Workload(batch=8, train=True, precision="amp-bf16", checkpointing=Checkpointing()),
}
SWEPT = ("B/16", "dinov2-B/14-reg4", "pit-S", "swin-T", "mobilevit-S")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--questions", type=int, default=100_000)
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    configs = {name: preset(name) for name in PRESETS}
    times = {
        name: {f"{step}, first": _best_ms(partial(_first, config, work), asked.repeats) for step, work in STEPS.items()}
        | {step: _again_ms(config, work, asked.repeats) for step, work in STEPS.items()}
        | {"ledger": _best_ms(partial(ledger, config), asked.repeats)}
        for name, config in configs.items()
    }
    figures: dict[str, Any] = {"milliseconds": times, "questions_per_second": _rates(asked.questions)}
    if asked.peer:
        figures["peer_milliseconds"] = _best_ms(_mem_tracker(), 3)
    if asked.json:
        print(json.dumps(figures))
        return
    for step in next(iter(times.values())):
        slowest = max(times, key=lambda name: times[name][step])
        within = sum(each[step] <= 1 for each in times.values())
        print(f"{step:30} slowest {times[slowest][step]:6.2f} ms ({slowest}); {within} of {len(times)} within 1 ms")
    for name, rate in figures["questions_per_second"].items():
        print(f"sweep of {name:16} {rate:10,.0f} questions a second")
    if asked.peer:
        ours = times["B/16"]["training, first"]
        print(f"torch's MemTracker       {figures['peer_milliseconds']:.0f} ms, vitrail {ours:.2f} ms, for ViT-B/16")


def _best_ms(call: Callable[[], Any], repeats: int) -> float:
    best = float("inf")
    for _ in range(repeats):
        began = time.process_time()
        call()
        best = min(best, time.process_time() - began)
    return 1e3 * best


def _first(config: Config, work: Workload) -> None:
    """Plan as if nothing like it had been planned before."""
    recall.forget()
    memory(config, work)


def _again_ms(config: Config, work: Workload, repeats: int) -> float:
    """Return the shortest of the times of questions that differ in their batch, from the third on."""
    recall.forget()
    asked = iter([work.but(batch=batch) for batch in range(2, repeats + 4)])
    for _ in range(2):
        memory(config, next(asked))
    return _best_ms(lambda: memory(config, next(asked)), repeats)


def _rates(questions: int) -> dict[str, float]:
    """Square images of 1 to 50 units, and batches."""
    import numpy  # noqa: F401 — a sweep imports it once, which is not its rate

    found = {}
    for name in SWEPT:
        config, unit = preset(name), preset(name).unit
        images = [Size(unit.height * (1 + place % 50), unit.width * (1 + place % 50)) for place in range(questions)]
        values = {"image": images, "batch": [1 + place // 50 for place in range(questions)]}
        work = STEPS["training, amp-bf16"]
        began = time.process_time()
        sweep(lambda image, batch, c=config, w=work: (c.but(image=image), w.but(batch=batch)), values, questions)
        found[name] = questions / (time.process_time() - began)
    return found


def _mem_tracker() -> Callable[[], None]:
    import torch

    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    from peers import timm

    def run() -> None:
        with torch.device("meta"):
            model = timm.create_model("vit_base_patch16_224")
        with FakeTensorMode(allow_non_fake_inputs=True):
            model.to_empty(device="cpu")
            optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
            tracker = MemTracker()
            tracker.track_external(model, optimizer)
            with tracker:
                model(torch.randn(8, 3, 224, 224)).sum().backward()
                optimizer.step()

    return run


if __name__ == "__main__":
    main()
