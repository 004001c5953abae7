"""The plan of two vision towers that read one image: what each costs, and the merger that joins them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vitrail.config import TwoBranches
from vitrail.errors import require
from vitrail.plan.ledger import Row, rows_of
from vitrail.plan.memory import memory_of
from vitrail.plan.meter import Meter
from vitrail.plan.step import run_step
from vitrail.plan.workload import Memory, Workload

__all__ = ["BranchPlan", "plan_branches"]

PARTS = ("low", "high", "merger")


@dataclass(frozen=True, kw_only=True)
class BranchPlan:
    """Parameters and FLOPs of an image by part, and the memory of a batch, in which one tower runs after the other."""

    branches: TwoBranches
    rows: tuple[Row, ...]
    memory: Memory

    def params(self, part: str = "") -> int:
        """Return the parameters of a part: low, high or merger; of all without one."""
        return sum(row.params for row in self.rows if row.path.startswith(part))

    def flops(self, part: str = "") -> int:
        """Return the forward FLOPs of an image in a part, or in all."""
        return sum(row.flops for row in self.rows if row.path.startswith(part))

    def train_flops(self, part: str = "") -> int:
        """Return the FLOPs of an image in a training step in a part, or in all."""
        return sum(row.train_flops for row in self.rows if row.path.startswith(part))

    def to_json(self) -> dict[str, Any]:
        parts = {part: {"params": self.params(part), "flops_forward": self.flops(part)} for part in PARTS}
        return {
            "params": self.params(),
            "flops_forward": self.flops(),
            "flops_train": self.train_flops(),
            "parts": parts,
            "peak_bytes": self.memory.peak_bytes,
            "bytes": self.memory.bytes,
            "exact": self.memory.exact,
        }


def plan_branches(branches: TwoBranches, workload: Workload | None = None) -> BranchPlan:
    """Plan inference or training of both towers and their merger; the loss of a step is over the tokens.

    >>> from vitrail.plan.vision_language import VISION_LANGUAGE
    >>> plan = plan_branches(VISION_LANGUAGE["deepseek-vl-hybrid"].branches)
    >>> plan.params("merger"), plan.params()
    (27665409, 421025025)
    """
    workload = workload or Workload()
    require(
        workload.attention != "eager" and workload.library == "vitrail" and workload.shard is None,
        "two branches are planned with a fused kernel, on one device, as vitrail's; leave out --attention eager, "
        "--as and --shard",
    )
    require(
        workload.tuning.is_everything and workload.pretraining is None,
        "two branches are trained whole, with labels; leave out --freeze, --train-last, --train-only, --lora and "
        "--pretrain, or plan each tower by itself",
    )
    # of a config, a step asks for its inputs and its model alone
    step = run_step(branches, workload, meter=Meter())  # type: ignore[arg-type]
    return BranchPlan(
        branches=branches, rows=tuple(rows_of(step.tape, workload.batch)), memory=memory_of(step, workload)
    )
