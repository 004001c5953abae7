"""A real Ray cluster on this machine, an actor of which is killed with -9."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np

from command import PATIENCE, children, command_of, until
from embedding import frozen, photos, read_rows, save_weights
from vitrail.checkpoint.read import load
from vitrail.vectors.engines.engine import build_engine
from vitrail.vectors.job.finish import SUCCESS
from vitrail.vectors.job.shard import process_shard

COUNT = 40
RUNNER = Path(__file__).parent.parent / "embed_runner.py"


def actors_below(pid: int) -> list[int]:
    """Processes at work as actors, of a Ray cluster that this process started."""
    found = []
    for child in children(pid):
        is_actor = command_of(child).startswith(b"ray::RayWorker.do")
        found += [child] if is_actor else actors_below(child)  # what an actor starts has the actor's name at first
    return found


def test_a_cluster_gives_what_one_machine_gives_though_an_actor_is_killed(tmp_path: Path):
    source, weights = photos(tmp_path / "photos", COUNT), save_weights(tmp_path / "w.safetensors")
    out = tmp_path / "out"
    command = [str(each) for each in (sys.executable, RUNNER, source, weights, out, "ray")]
    other = "127.0.0.1:9"  # a cluster that nobody named with --address is none of this run's
    environment = {**os.environ, "GATE": str(tmp_path / "gate"), "RAY_ADDRESS": other}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as driver:
        try:
            until(lambda: actors_below(driver.pid) or driver.poll() is not None)
            assert driver.poll() is None, driver.communicate()[1]
            (victim,) = actors_below(driver.pid)
            os.kill(victim, signal.SIGKILL)
            (tmp_path / "gate").touch()
            _, said = driver.communicate(timeout=PATIENCE)
        finally:
            driver.kill()
    assert driver.returncode == 0, said
    assert (out / SUCCESS).exists()
    plan, engine = frozen(tmp_path / "here", source, weights), build_engine(load(weights))
    for shard in range(plan.shards):
        process_shard(tmp_path / "here", plan, shard, engine)
    there, here = read_rows(out), read_rows(tmp_path / "here")
    assert [row["id"] for row in there] == [row["id"] for row in here]
    # the same sums in the order that a batch of another size takes
    np.testing.assert_allclose(
        np.array([row["vector"] for row in there]), np.array([row["vector"] for row in here]), atol=2e-6
    )
