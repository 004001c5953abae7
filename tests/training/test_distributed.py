"""Two processes are one with the same batch; one that is killed comes back, and nothing shows."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from command import PATIENCE
from many import RECIPE, STILL
from small_runs import begin, losses
from vitrail.checkpoint.read import load
from vitrail.training.state import states

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """DDP and FSDP2, left alone and killed one step past a state, by `many.py`."""
    root = tmp_path_factory.mktemp("many")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": "1",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    command = [Path(sys.executable).with_name("torchrun"), "--nproc-per-node", "2", "--max-restarts", "2"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0", TESTS / "many.py", root]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return root


@pytest.mark.parametrize("shard", ["ddp", "fsdp"])
def test_two_processes_lose_what_one_loses_with_the_same_batch(runs: Path, tmp_path: Path, shard: str):
    """In float32 sums in another order differ in the seventh digit."""
    begin(tmp_path, RECIPE, config=STILL)
    np.testing.assert_allclose(losses(runs / shard), losses(tmp_path), rtol=2e-6)


@pytest.mark.parametrize("shard", ["ddp", "fsdp"])
def test_a_killed_process_is_restarted_and_the_run_is_the_same_bit_for_bit(runs: Path, shard: str):
    assert losses(runs / f"{shard}-killed") == losses(runs / shard)
    alone, killed = ((runs / name / "model.safetensors").read_bytes() for name in (shard, f"{shard}-killed"))
    assert alone == killed


def test_a_sharded_state_is_resumed_by_one_process(runs: Path, tmp_path: Path):
    shutil.copytree(runs / "fsdp", tmp_path / "run")
    shutil.rmtree(states(tmp_path / "run" / "states")[0])
    begin(tmp_path / "run", RECIPE, config=STILL)
    assert [step for step, _ in losses(tmp_path / "run")] == [1, 2, 3, 4, 5, 6]
    np.testing.assert_allclose(losses(tmp_path / "run"), losses(runs / "fsdp"), rtol=2e-6)


def test_the_weights_of_a_sharded_run_are_whole(runs: Path):
    assert load(runs / "fsdp" / "model.safetensors").config == STILL


def test_while_another_training_is_under_way_every_process_is_refused(runs: Path):
    assert sorted(path.name for path in (runs / "refused").iterdir()) == [".lock", "0.txt", "1.txt"]
    assert "refused is in use by another process; wait until it ends" in (runs / "refused" / "0.txt").read_text()
    assert "refused in the first process of this run" in (runs / "refused" / "1.txt").read_text()
