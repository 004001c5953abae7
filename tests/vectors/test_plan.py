from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from embedding import CONFIG, frozen, photos, save_weights
from vitrail.errors import VitrailError
from vitrail.vectors.job.find import find_inputs
from vitrail.vectors.job.listing import facts_of
from vitrail.vectors.job.plan import input_at, read_plan, read_shard, weights_sha256


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_weights(tmp_path_factory.mktemp("weights") / "w.safetensors")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return photos(tmp_path_factory.mktemp("in") / "photos", 11)


def test_a_plan_is_read_back_as_it_was_frozen(tmp_path: Path, source: Path, weights: Path):
    plan = frozen(tmp_path / "out", source, weights, 4, dtype="float16", scales=(1.0, 1.5))
    assert read_plan(tmp_path / "out") == plan
    assert read_plan(tmp_path / "out").fingerprint == plan.fingerprint
    assert (plan.images, plan.shards, [plan.rows(shard) for shard in range(3)]) == (11, 3, [4, 4, 3])
    assert plan.config == CONFIG


def test_the_shards_hold_every_input_once_in_order(tmp_path: Path, source: Path, weights: Path):
    plan = frozen(tmp_path, source, weights, 4)
    held = [each for shard in range(plan.shards) for each in read_shard(tmp_path, plan, shard)]
    assert held == [each._replace(stamp=facts_of(each)) for each in find_inputs(source)]
    assert [input_at(tmp_path, plan, number) for number in (0, 5, 10)] == [held[0], held[5], held[10]]


def test_every_worker_gets_several_shards_and_none_is_tiny(tmp_path: Path, weights: Path):
    from vitrail.vectors.job.freeze import LARGEST_SHARD, SMALLEST_SHARD, _shard_size

    class Many:
        def __init__(self, count: int) -> None:
            self.items = iter(range(count))

        def __iter__(self):
            return self.items

    for count, workers, size in ((5, 2, SMALLEST_SHARD), (800, 2, 100), (10**5, 2, LARGEST_SHARD)):
        chosen, items = _shard_size(Many(count), None, workers)  # type: ignore[arg-type]
        assert chosen == size
        assert sum(1 for _ in items) == count


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dtype": "float16"}, "dtype was float32, now float16"),
        ({"engine": "int8"}, "engine was torch, now int8"),
        ({"exact": True}, "exact was False, now True"),
        ({"tokens": "npy"}, "tokens was None, now npy"),
    ],
)
def test_another_runs_folder_is_refused_with_the_difference(tmp_path, source, weights, change, words):
    frozen(tmp_path, source, weights)
    with pytest.raises(VitrailError, match=f"holds another run: .*{words}"):
        frozen(tmp_path, source, weights, **change)


def test_other_weights_and_another_input_are_refused(tmp_path: Path, source: Path, weights: Path):
    frozen(tmp_path / "out", source, weights)
    other = save_weights(tmp_path / "other.safetensors", seed=1)
    with pytest.raises(VitrailError, match="weights sha256 was"):
        frozen(tmp_path / "out", source, other)
    with pytest.raises(VitrailError, match=r"input was .*photos, now .*more"):
        frozen(tmp_path / "out", photos(tmp_path / "more", 2), weights)


def test_the_same_weights_elsewhere_are_the_same_weights(tmp_path: Path, source: Path, weights: Path):
    plan = frozen(tmp_path / "out", source, weights)
    copy = tmp_path / "copy.safetensors"
    copy.write_bytes(weights.read_bytes())
    assert frozen(tmp_path / "out", source, copy) == plan


def test_the_hash_of_a_directory_is_of_what_is_in_it(tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    before = weights_sha256(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    assert weights_sha256(tmp_path) != before


def test_a_folder_with_other_things_in_it_is_refused(tmp_path: Path, source: Path, weights: Path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(VitrailError, match=r"holds thesis.tex and no plan"):
        frozen(tmp_path, source, weights)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_what_a_killed_run_left_before_its_plan_does_not_stand_in_the_way(tmp_path: Path, source: Path, weights: Path):
    (tmp_path / "inputs-1234.parquet").touch()
    (tmp_path / ".inputs-5678.parquet.ab.part").touch()
    assert frozen(tmp_path, source, weights).images == 11


def test_runs_that_freeze_at_the_same_time_follow_one_plan(tmp_path: Path, source: Path, weights: Path):
    plans, barrier = [], threading.Barrier(6)

    def run() -> None:
        barrier.wait()
        plans.append(frozen(tmp_path, source, weights, 4))

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(plans) == 6
    assert len({plan.fingerprint for plan in plans}) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{plans[0].inputs}-00000.parquet", "plan.json"]


def test_an_output_that_cannot_be_written_is_one_line(tmp_path: Path, source: Path, weights: Path):
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "file" / "out", Path("/proc/vitrail")):
        with pytest.raises(VitrailError, match=r"was not written|not a folder to write to") as caught:
            frozen(out, source, weights)
        assert "\n" not in str(caught.value)


def test_a_damaged_plan_is_one_line(tmp_path: Path, source: Path, weights: Path):
    plan = frozen(tmp_path, source, weights)
    os.truncate(tmp_path / f"{plan.inputs}-00000.parquet", 100)
    with pytest.raises(VitrailError, match="the plan needs it"):
        read_shard(tmp_path, plan, 0)
    plain = json.loads((tmp_path / "plan.json").read_text())
    del plain["images"]
    (tmp_path / "plan.json").write_text(json.dumps(plain))
    with pytest.raises(VitrailError, match="plan is incomplete"):
        read_plan(tmp_path)
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(VitrailError, match="cannot be read"):
        read_plan(tmp_path)


def test_a_process_that_skips_pandas_makes_arrow_columns_without_it():
    script = (
        "import sys, pyarrow\n"
        "from vitrail.vectors.job.part_files import skip_pandas\n"
        "skip_pandas()\n"
        "column = pyarrow.array(['a', None], pyarrow.string())\n"
        "sys.exit('pandas' in sys.modules or column.to_pylist() != ['a', None])"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
