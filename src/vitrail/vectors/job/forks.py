"""The process that workers are forked from: it has imported torch and has never computed.

All workers cost one import, share its pages, and inherit none of torch's threads, which a fork of a process that has
computed would copy without their stacks. A command starts it first, so that it imports while the command itself does.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver

__all__ = ["FORKS", "start_early"]

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["vitrail.vectors.job.worker"])


def start_early() -> None:
    """Start the process, which imports what workers need; those that are started later begin at once."""
    multiprocessing.forkserver.ensure_running()
