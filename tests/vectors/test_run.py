"""Runs that are killed, stopped, shared and resumed: nothing is lost and nothing comes twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from command import PATIENCE, children, command_of, until
from embedding import frozen, photos, read_rows, save_weights
from vitrail.checkpoint.read import load
from vitrail.errors import VitrailError
from vitrail.lock import lock
from vitrail.vectors.engines.engine import build_engine
from vitrail.vectors.job import engine_factory
from vitrail.vectors.job.embed import embed_source
from vitrail.vectors.job.engine_factory import engine_of
from vitrail.vectors.job.finish import MANIFEST, SUCCESS, finish
from vitrail.vectors.job.part_files import part_path
from vitrail.vectors.job.plan import weights_stamp
from vitrail.vectors.job.shard import process_shard

COUNT = 60
Start = Callable[..., subprocess.Popen[str]]
RUNNER = Path(__file__).parent.parent / "embed_runner.py"


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_weights(tmp_path_factory.mktemp("weights") / "w.safetensors")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return photos(tmp_path_factory.mktemp("in") / "photos", COUNT)


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory, source: Path, weights: Path) -> np.ndarray:
    """What one shard after another gives, here and undisturbed."""
    folder = tmp_path_factory.mktemp("wanted")
    plan, engine = frozen(folder, source, weights), build_engine(load(weights))
    for shard in range(plan.shards):
        process_shard(folder, plan, shard, engine)
    return np.array([row["vector"] for row in read_rows(folder)])


@pytest.fixture
def start(source: Path, weights: Path, tmp_path: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def run(workers: int = 2) -> subprocess.Popen[str]:
        command = [str(each) for each in (sys.executable, RUNNER, source, weights, tmp_path / "out", workers)]
        environment = {**os.environ, "GATE": str(tmp_path / "gate")}
        started.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment))
        return started[-1]

    yield run
    for each in started:
        each.kill()
        each.wait()
        assert each.stderr is not None
        each.stderr.close()


def parts(folder: Path) -> int:
    return len(list(folder.glob("part-*.parquet")))


def workers_of(pid: int) -> list[int]:
    """Workers are forked from a process that the driver starts."""
    return [worker for child in children(pid) if b"forkserver" in command_of(child) for worker in children(child)]


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def check_whole(folder: Path, wanted: np.ndarray) -> None:
    rows = read_rows(folder)
    assert [row["id"] for row in rows] == [f"{seed:05d}.png" for seed in range(COUNT)]
    assert all(row["status"] == "ok" for row in rows)
    # the same sums in the order that a batch of another size takes
    np.testing.assert_allclose(np.array([row["vector"] for row in rows]), wanted, atol=2e-6)
    assert (folder / SUCCESS).exists()
    assert json.loads((folder / MANIFEST).read_text())["ok"] == COUNT


def test_a_killed_driver_takes_its_workers_along_and_two_runs_at_once_finish_its_work(
    tmp_path: Path, source: Path, weights: Path, wanted: np.ndarray, start: Start
):
    out, gate = tmp_path / "out", tmp_path / "gate"
    driver = start()
    until(lambda: parts(out) >= 3)
    workers = workers_of(driver.pid)
    assert len(workers) == 2
    driver.kill()
    driver.communicate()
    until(lambda: not any(runs(worker) for worker in workers))
    assert 3 <= parts(out) < 12
    assert not (out / SUCCESS).exists()
    done_before = {path: path.stat().st_mtime_ns for path in out.glob("part-*.parquet")}
    both = [start(workers=1) for _ in range(2)]
    until(lambda: all(workers_of(run.pid) for run in both))
    gate.touch()
    for run in both:
        assert run.communicate(timeout=PATIENCE)[1] == ""
        assert run.returncode == 0
    check_whole(out, wanted)
    assert all(path.stat().st_mtime_ns == then for path, then in done_before.items())
    assert not list(out.glob(".*.part"))  # what the two killed workers were writing


def test_a_killed_worker_costs_nothing_and_ctrl_c_finishes_the_parts_under_way(
    tmp_path: Path, source: Path, weights: Path, wanted: np.ndarray, start: Start
):
    out, gate = tmp_path / "out", tmp_path / "gate"
    driver = start()
    until(lambda: parts(out) >= 1)
    victim, other = workers_of(driver.pid)
    os.kill(victim, signal.SIGKILL)
    until(lambda: len(set(workers_of(driver.pid)) - {victim, other}) == 1)
    driver.send_signal(signal.SIGINT)
    until((tmp_path / "stopping").exists)
    gate.touch()
    assert driver.communicate(timeout=PATIENCE)[1] == ""
    assert driver.returncode == 128 + signal.SIGINT
    assert 1 < parts(out) < 12
    assert not (out / SUCCESS).exists()
    done = embed_source(source, weights, out, workers=1)
    assert done.tally is not None
    assert (done.tally.ok, done.tally.failed) == (COUNT, 0)
    check_whole(out, wanted)


def test_ctrl_c_twice_stops_at_once_and_harms_no_part(
    tmp_path: Path, source: Path, weights: Path, wanted: np.ndarray, start: Start
):
    out, gate = tmp_path / "out", tmp_path / "gate"
    driver = start()
    until(lambda: parts(out) >= 1)
    workers = workers_of(driver.pid)
    driver.send_signal(signal.SIGINT)
    until((tmp_path / "stopping").exists)
    assert driver.poll() is None  # a shard under way waits at the gate
    driver.send_signal(signal.SIGINT)
    driver.communicate(timeout=PATIENCE)
    assert driver.returncode != 0
    assert not gate.exists()
    until(lambda: not any(runs(worker) for worker in workers))
    plan = frozen(out, source, weights)
    engine = build_engine(load(weights))
    for shard in range(plan.shards):
        if not part_path(out, shard).exists():
            process_shard(out, plan, shard, engine)
    finish(out, plan)
    check_whole(out, wanted)


def test_a_part_that_was_cut_or_lost_is_made_again_and_the_others_are_left_alone(
    tmp_path: Path, source: Path, weights: Path, wanted: np.ndarray
):
    plan, engine = frozen(tmp_path, source, weights, 20), build_engine(load(weights))
    for shard in range(plan.shards):
        process_shard(tmp_path, plan, shard, engine)
    os.truncate(part_path(tmp_path, 0), 500)
    part_path(tmp_path, 1).unlink()
    before = part_path(tmp_path, 2).stat().st_mtime_ns
    with pytest.raises(VitrailError, match="has no part 0 of 3"):
        finish(tmp_path, plan)
    seen = []
    done = embed_source(source, weights, tmp_path, workers=1, watch=lambda progress: seen.append(progress.before))
    assert done.tally is not None
    assert done.tally.ok == COUNT
    assert set(seen) == {20}
    assert part_path(tmp_path, 2).stat().st_mtime_ns == before
    check_whole(tmp_path, wanted)


def test_weights_that_changed_during_a_run_are_refused_by_the_worker(tmp_path: Path, source: Path):
    weights = save_weights(tmp_path / "w.safetensors")
    plan = frozen(tmp_path / "out", source, weights)
    save_weights(weights, seed=5)
    with pytest.raises(VitrailError, match="are not the ones that"):
        engine_of(tmp_path / "out", plan)


def test_weights_are_hashed_once_a_run_and_again_only_if_they_were_touched(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
):
    weights, hashed = save_weights(tmp_path / "w.safetensors"), []
    stamp = weights_stamp(weights)
    plan = frozen(tmp_path / "out", source, weights)
    monkeypatch.setattr(engine_factory, "weights_sha256", lambda path: hashed.append(path) or plan.weights_sha256)
    engine_of(tmp_path / "out", plan, stamp=stamp)
    assert hashed == []
    weights.write_bytes(weights.read_bytes())
    engine_of(tmp_path / "out", plan, stamp=stamp)
    assert hashed == [weights]


def test_what_a_killed_process_left_is_swept_when_all_is_done(tmp_path: Path, source: Path, weights: Path):
    plan, engine = frozen(tmp_path, source, weights), build_engine(load(weights))
    for shard in range(plan.shards):
        process_shard(tmp_path, plan, shard, engine)
    left, live = tmp_path / ".part-00000.parquet.aaaaaaaa.part", tmp_path / ".part-00001.parquet.bbbbbbbb.part"
    before_its_plan, being_made = (tmp_path / f"inputs-{letter * 8}-00000.parquet" for letter in "cd")
    for path in (left, live, before_its_plan, being_made):
        path.touch()
    os.utime(before_its_plan, (0, 0))
    held = lock(live)
    assert held is not None
    finish(tmp_path, plan)
    os.close(held)
    assert not left.exists()
    assert not before_its_plan.exists()
    assert live.exists()
    assert being_made.exists()
    assert (tmp_path / f"{plan.inputs}-00000.parquet").exists()
