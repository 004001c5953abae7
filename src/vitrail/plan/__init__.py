"""Plan parameters, FLOPs and memory of a config without running it: no torch, about a millisecond per query."""

from vitrail.plan.ledger import Ledger, Row, ledger
from vitrail.plan.memory import memory
from vitrail.plan.timeline import Timeline, timeline
from vitrail.plan.why import Case, Cause, Why, why
from vitrail.plan.workload import Memory, Shard, Workload

__all__ = [
    "Case",
    "Cause",
    "Ledger",
    "Memory",
    "Row",
    "Shard",
    "Timeline",
    "Why",
    "Workload",
    "ledger",
    "memory",
    "timeline",
    "why",
]
