"""What each process of the torchrun test runs: DDP and FSDP2, left alone and killed with -9 after step 3.

All four, and one that is refused, in one launch, because starting processes is what takes time. The last process kills
itself once in each of the two runs that are to be killed; torchrun then starts both again.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any, Literal

from small_runs import CONFIG, RICH, job_of, shapes
from vitrail.errors import VitrailError
from vitrail.lock import lock
from vitrail.training.distributed import World, world_of
from vitrail.training.finish import finish
from vitrail.training.folder import RunFolder
from vitrail.training.loop import train

RECIPE = RICH
STILL = CONFIG.but(dropout=0.0, drop_path=0.0)
"""Dropout is drawn by (seed, step, rank): two processes have other dropout than one."""
SHARDS: tuple[Literal["ddp", "fsdp"], ...] = ("ddp", "fsdp")


def run(folder: Path, world: World, *, dies: bool) -> None:
    def watch(facts: dict[str, Any]) -> None:
        if dies and world.rank == world.size - 1 and facts.get("step") == 3 and "loss" in facts:
            os.kill(os.getpid(), signal.SIGKILL)

    job, place = job_of(RECIPE, STILL), RunFolder(folder, writes=world.rank == 0)
    outcome = train(job, shapes(), place, test=shapes(), save_every=2, world=world, watch=watch)
    finish(job, place, outcome.model)


def refused(folder: Path, world: World) -> None:
    """A run in a folder where another training is under way: what each process is told."""
    folder.mkdir(exist_ok=True)
    other = lock(folder / ".lock", os.O_RDWR | os.O_CREAT) if world.rank == 0 else None
    world.wait()
    try:
        run(folder, world, dies=False)
    except VitrailError as error:
        (folder / f"{world.rank}.txt").write_text(str(error))
    world.wait()
    if other is not None:
        os.close(other)


def main(root: Path) -> None:
    jobs: list[tuple[Literal["ddp", "fsdp"], bool]] = [(shard, kill) for kill in (False, True) for shard in SHARDS]
    folders = {job: root / f"{job[0]}{'-killed' if job[1] else ''}" for job in jobs}
    done = [job for job in jobs if (folders[job] / "model.safetensors").exists()]
    with world_of("ddp") as world:
        for shard, kill in jobs:
            if (shard, kill) not in done:
                folders[shard, kill].mkdir(exist_ok=True)
                here = World(rank=world.rank, size=world.size, shard=shard, restarts=world.restarts)
                run(folders[shard, kill], here, dies=kill and world.restarts == SHARDS.index(shard))
        refused(root / "refused", world)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
