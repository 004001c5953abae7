"""Config → numbers, before anything runs: no torch here, microseconds a question."""

from vitrail.plan.ledger import Ledger, Row, ledger
from vitrail.plan.memory import memory
from vitrail.plan.workload import Memory, Shard, Workload

__all__ = ["Ledger", "Memory", "Row", "Shard", "Workload", "ledger", "memory"]
