"""A Ray cluster of three raylets on this machine: one is killed, one joins, and the head is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command import PATIENCE, until
from embedding import photos, read_rows, save_weights
from vitrail import embed
from vitrail.vectors.job.finish import SUCCESS

COUNT = 60
RUNNER = Path(__file__).parent.parent / "embed_runner.py"
NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
QUICK = {
    **{"health_check_initial_delay_ms": 2000, "health_check_period_ms": 1000, "health_check_failure_threshold": 5},
    "gcs_rpc_server_reconnect_timeout_s": 5,
}
"""How soon Ray believes that a machine, or its head, is gone."""


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Any]]:
    """Start a cluster: a head without cores and two machines with one each."""
    monkeypatch.setenv("GATE", str(tmp_path / "gate"))  # what a raylet starts has the raylet's environment
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(RUNNER.parent), os.environ.get("PYTHONPATH", "")]))
    from ray.cluster_utils import Cluster

    started = []

    def cluster() -> Any:
        head = {**NODE, "num_cpus": 0, "include_dashboard": False, "_system_config": QUICK}
        started.append(Cluster(initialize_head=True, head_node_args=head))
        for _ in range(2):
            started[-1].add_node(**NODE)
        return started[-1]

    yield cluster
    for each in started:
        each.shutdown()


def parts(out: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in out.glob("part-*.parquet")}


def check_whole(out: Path, source: Path, weights: Path) -> None:
    rows, wanted = read_rows(out), embed(source, weights, workers=0)
    assert (out / SUCCESS).exists()
    assert [row["id"] for row in rows] == wanted.column("id").to_pylist()
    np.testing.assert_allclose([row["vector"] for row in rows], wanted.column("vector").to_pylist(), atol=2e-6)


def test_machines_may_leave_and_join_and_the_same_command_survives_the_loss_of_the_head(tmp_path, start):
    source, weights = photos(tmp_path / "photos", COUNT), save_weights(tmp_path / "w.safetensors")
    out, gate = tmp_path / "out", tmp_path / "gate"
    cluster = start()
    command = [str(each) for each in (sys.executable, RUNNER, source, weights)]
    with subprocess.Popen([*command, str(out), cluster.address], stderr=subprocess.PIPE, text=True) as driver:
        try:
            until(lambda: len(parts(out)) >= 2 or driver.poll() is not None)
            cluster.remove_node(cluster.list_all_nodes()[1], allow_graceful=False)
            cluster.add_node(**NODE)
            gate.touch()
            said = driver.communicate(timeout=PATIENCE)[1]
        finally:
            driver.kill()
    assert driver.returncode == 0, said
    check_whole(out, source, weights)

    gate.unlink()
    second = tmp_path / "second"
    with subprocess.Popen([*command, str(second), cluster.address], stderr=subprocess.DEVNULL) as driver:
        try:
            until(lambda: len(parts(second)) >= 2 or driver.poll() is not None)
            cluster.remove_node(cluster.head_node, allow_graceful=False)
            driver.wait(timeout=PATIENCE)
        finally:
            driver.kill()
    assert driver.returncode != 0
    before = parts(second)
    assert 2 <= len(before) < 12
    assert not (second / SUCCESS).exists()
    gate.touch()
    again = [*command, str(second), start().address]
    done = subprocess.run(again, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    assert before.items() <= parts(second).items()
    check_whole(second, source, weights)
