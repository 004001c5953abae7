"""The same command after the input has changed: what is new is embedded, what is the same is kept."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command import PATIENCE, call, children, command_of, until
from embedding import frozen, photos, png, save_weights
from vitrail import VitrailError, embed, search
from vitrail.checkpoint.read import load
from vitrail.vectors.job import shard as shard_module
from vitrail.vectors.job.engine_factory import engine_of
from vitrail.vectors.job.finish import MANIFEST, SUCCESS
from vitrail.vectors.job.freeze import freeze
from vitrail.vectors.job.options import Options
from vitrail.vectors.job.part_files import is_done, is_readable, part_path
from vitrail.vectors.job.plan import find_generation, read_plan, read_shard
from vitrail.vectors.job.shard import process_shard

RUNNER = Path(__file__).parent.parent / "embed_runner.py"


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_weights(tmp_path_factory.mktemp("weights") / "w.safetensors")


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the images that were decoded."""
    seen: list[str] = []
    plain = shard_module.preparer_of

    def watched(plan: Any, decode: Any) -> Any:
        prepare = plain(plan, decode)
        return lambda source: (seen.append(source.name), prepare(source))[1]

    monkeypatch.setattr(shard_module, "preparer_of", watched)
    return seen


def by_id(table: Any) -> dict[str, list[float]]:
    return {row["id"]: row["vector"] for row in table.to_pylist()}


def done(out: Path) -> list[bool]:
    plan = read_plan(out)
    return [is_done(out, plan, shard) for shard in range(plan.shards)]


def alone(seed: int, weights: Path) -> list[float]:
    return embed([png(seed)], weights, workers=0).column("vector")[0].as_py()


def test_only_what_is_new_or_changed_is_decoded_and_all_else_keeps_its_vector(tmp_path: Path, weights, decoded):
    source, out = photos(tmp_path / "photos", 40), tmp_path / "out"
    before = by_id(embed(source, weights, out=out, workers=0))
    parts = {path: path.stat().st_mtime_ns for path in out.glob("part-*")}
    decoded.clear()
    (source / "00003.png").write_bytes(png(77))
    (source / "00000-new.png").write_bytes(png(78))
    (source / "zoo").mkdir()
    (source / "zoo" / "a.png").write_bytes(png(79))
    (source / "00039.png").unlink()
    after = by_id(embed(source, weights, out=out, workers=0))
    assert sorted(decoded) == ["00000-new.png", "00003.png", "a.png"]
    assert set(after) == {*before, "00000-new.png", "zoo/a.png"}  # a row of a vanished image stays
    assert all(after[name] == before[name] for name in before if name != "00003.png")
    for name, seed in (("00003.png", 77), ("00000-new.png", 78), ("zoo/a.png", 79)):
        np.testing.assert_allclose(after[name], alone(seed, weights), atol=2e-6)
    assert part_path(out, 1).stat().st_mtime_ns == parts[part_path(out, 1)]  # no row of it changed
    assert json.loads((out / MANIFEST).read_text())["images"] == 42
    decoded.clear()
    assert by_id(embed(source, weights, out=out, workers=0)) == after
    assert decoded == []


def test_the_vanished_are_dropped_if_asked_even_a_whole_part_of_them(tmp_path, weights, decoded):
    source, out = photos(tmp_path / "photos", 40), tmp_path / "out"
    before = by_id(embed(source, weights, out=out, workers=0))
    decoded.clear()
    for seed in [*range(16), 20]:
        (source / f"{seed:05d}.png").unlink()
    table = embed(source, weights, out=out, workers=0, drop_vanished=True)
    assert by_id(table) == {name: before[name] for name in before if (source / name).exists()}
    assert decoded == []
    assert read_plan(out).rows(0) == 0
    assert (out / SUCCESS).exists()
    found = search(out, id="00030.png", top=3)
    assert found.searched == 23


def test_an_input_that_is_away_drops_nothing(tmp_path, weights):
    source, out = photos(tmp_path / "photos", 5), tmp_path / "out"
    before = embed(source, weights, out=out, workers=0)
    source.rename(tmp_path / "away")
    assert embed(source, weights, out=out, workers=0, drop_vanished=True).equals(before)
    source.mkdir()
    assert embed(source, weights, out=out, workers=0, drop_vanished=True).equals(before)


@pytest.mark.parametrize(("by", "again"), [("time", 3), ("content", 0)])
def test_files_that_were_only_touched_are_the_same_by_content(tmp_path, weights, decoded, by, again):
    source, out = photos(tmp_path / "photos", 6), tmp_path / "out"
    before = by_id(embed(source, weights, out=out, workers=0, changed_by=by))
    decoded.clear()
    for seed in range(3):
        os.utime(source / f"{seed:05d}.png", (1, 1))
    after = by_id(embed(source, weights, out=out, workers=0, changed_by=by))
    assert len(decoded) == again
    np.testing.assert_allclose(list(after.values()), list(before.values()), atol=2e-6)  # batches of other sizes
    decoded.clear()
    part_path(out, 0).unlink()  # and what must be made again is opened by what it is now
    assert embed(source, weights, out=out, workers=0, changed_by=by).column("status").to_pylist() == ["ok"] * 6
    same_length = png(5)[:-1] + bytes([png(5)[-1] ^ 1])
    (source / "00005.png").write_bytes(same_length)
    status = (source / "00004.png").stat()
    os.utime(source / "00005.png", ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    decoded.clear()
    embed(source, weights, out=out, workers=0, changed_by=by)
    assert decoded == ["00005.png"]


def test_changing_how_changes_are_found_embeds_nothing_again(tmp_path, weights, decoded):
    source, out = photos(tmp_path / "photos", 6), tmp_path / "out"
    embed(source, weights, out=out, workers=0)
    decoded.clear()
    for by in ("content", "time", "content"):
        embed(source, weights, out=out, workers=0, changed_by=by)
    assert decoded == []


def test_small_additions_fill_the_last_part_and_then_new_ones(tmp_path, weights):
    source, out = photos(tmp_path / "photos", 20), tmp_path / "out"
    embed(source, weights, out=out, workers=0)
    for day in range(8):
        for number in range(5):
            (source / f"day{day}-{number}.png").write_bytes(png(100 * day + number))
        table = embed(source, weights, out=out, workers=0)
        ids = table.column("id").to_pylist()
        assert len(ids) == len(set(ids)) == 25 + 5 * day
    plan = read_plan(out)
    assert [plan.rows(shard) for shard in range(plan.shards)] == [16, 16, 16, 12]
    assert len(list(out.glob("plan*.json"))) == 2  # this one, and the one before for readers that began earlier
    assert {path.name.rpartition("-")[0] for path in out.glob("inputs-*")} == {
        read_plan(out, generation).inputs for generation in (7, 8)
    }


def test_readers_see_every_row_once_at_every_moment_of_an_update(tmp_path, weights):
    source, out = photos(tmp_path / "photos", 40), tmp_path / "out"
    embed(source, weights, out=out, workers=0)
    for seed in (2, 18, 35):
        (source / f"{seed:05d}.png").write_bytes(png(500 + seed))
    (source / "zz.png").write_bytes(png(90))
    plan = freeze(out, source, weights, load(weights), Options(engine="auto")).plan
    engine = engine_of(out, plan)
    assert not (out / SUCCESS).exists()
    for shard in range(plan.shards):
        assert not is_done(out, plan, shard)
        assert is_readable(out, plan, shard)
        ids = [match.id for match in search(out, id="00010.png", top=100).matches]
        assert len(ids) == len(set(ids)) >= 39
        process_shard(out, plan, shard, engine)
        assert is_done(out, plan, shard)
    assert search(out, id="00010.png", top=100).searched == 41


def test_a_run_of_an_earlier_plan_writes_no_part_over_a_newer_one(tmp_path, weights):
    source, out = photos(tmp_path / "photos", 8), tmp_path / "out"
    old = frozen(out, source, weights)
    (source / "00002.png").write_bytes(png(55))
    new = frozen(out, source, weights)
    assert (old.generation, new.generation) == (0, 1)
    process_shard(out, new, 0, engine_of(out, new))
    written = part_path(out, 0).read_bytes()
    with pytest.raises(VitrailError, match="brought the plan"):
        process_shard(out, old, 0, engine_of(out, old))
    assert part_path(out, 0).read_bytes() == written


def test_a_run_killed_in_an_update_loses_nothing_and_the_same_command_goes_on(tmp_path, weights):
    source, out, gate = photos(tmp_path / "photos", 40), tmp_path / "out", tmp_path / "gate"
    gate.touch()
    command = [str(each) for each in (sys.executable, RUNNER, source, weights, out, 2)]
    environment = {**os.environ, "GATE": str(gate)}
    assert subprocess.run(command, env=environment, timeout=PATIENCE, check=False).returncode == 0
    before = by_id(embed(source, weights, out=out, workers=0))
    gate.unlink()
    changed = range(0, 40, 5)
    for seed in changed:
        (source / f"{seed:05d}.png").write_bytes(png(600 + seed))
    with subprocess.Popen(command, env=environment) as run:
        try:
            until(lambda: find_generation(out) == 1 and sum(done(out)) >= 2)
            workers = children(run.pid)
        finally:
            os.kill(run.pid, signal.SIGKILL)
    until(lambda: not any(command_of(worker) for worker in workers))
    plan = read_plan(out)
    assert all(is_readable(out, plan, shard) for shard in range(plan.shards))
    assert not all(done(out))
    gate.touch()
    assert subprocess.run(command, env=environment, timeout=PATIENCE, check=False).returncode == 0
    after = by_id(embed(source, weights, out=out, workers=0))
    assert list(after) == list(before)
    again = {f"{seed:05d}.png" for seed in changed}
    assert {name for name in after if after[name] != before[name]} == again


def test_other_weights_are_refused_or_get_a_version_of_their_own(tmp_path, weights):
    source, out = photos(tmp_path / "photos", 4), tmp_path / "out"
    other = save_weights(tmp_path / "other.safetensors", seed=9)
    first = embed(source, weights, out=out, workers=0)
    with pytest.raises(VitrailError, match=r"sha256 was .*--new-version to write beside"):
        embed(source, other, out=out, workers=0)
    second = embed(source, other, out=out, workers=0, new_version=True)
    assert sorted(path.name for path in tmp_path.glob("out*")) == ["out", "out-v2"]
    assert by_id(first) != by_id(second)
    assert embed(source, weights, out=out, workers=0, new_version=True).equals(first)
    assert embed(source, other, out=out, workers=0, new_version=True).equals(second)
    embed(source, other, out=out, workers=0, new_version=True, dtype="float16")
    assert (tmp_path / "out-v3" / SUCCESS).exists()


def test_the_summary_says_what_was_new_and_how_it_was_known(tmp_path, weights, capsys):
    source, out = photos(tmp_path / "photos", 20), tmp_path / "out"
    command = ["embed", str(source), "--weights", str(weights), "--out", str(out), "--workers", "1"]
    assert call(*command) == 0
    (source / "00001.png").write_bytes(png(60))
    (source / "00002.png").unlink()
    (source / "new.png").write_bytes(png(61))
    capsys.readouterr()
    assert call(*command) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "since the last run: 1 added, 1 changed (by size and time), 1 vanished (kept; --drop-vanished removes" in said
    )
    assert "19 images were done before, 2 now" in said


def test_a_million_inputs_are_planned_in_a_stream_and_read_shard_by_shard(tmp_path, weights):
    """A tenth of a million, to be quick; the memory is that of one shard."""
    listed, count = tmp_path / "list.txt", 100_000
    listed.write_bytes(b"".join(b"folder/%07d.jpg\n" % number for number in range(count)))
    script = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from embedding import frozen\n"
        "from vitrail.vectors.job.plan import input_at, read_shard\n"
        "listed, weights, out = map(Path, sys.argv[1:])\n"
        "few = listed.with_name('few.txt')\n"
        "few.write_bytes(b'\\n'.join(listed.read_bytes().split()[:5000]))\n"
        "def planned(source, out):\n"
        "    plan = frozen(out, source, weights)\n"
        "    plan = frozen(out, source, weights)\n"
        "    return plan, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024\n"
        "small, before = planned(few, out / 'few')\n"
        "plan, after = planned(listed, out / 'many')\n"
        "assert plan.images == 100_000 and plan.shards == 98, plan\n"
        "assert input_at(out / 'many', plan, 99_999).id == 'folder/0099999.jpg'\n"
        "assert read_shard(out / 'many', plan, 50)[3].id == f'folder/{50 * 1024 + 3:07d}.jpg'\n"
        "assert after - before < 40, (before, after)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(RUNNER.parent)])}
    done = subprocess.run(
        [sys.executable, "-c", script, str(listed), str(weights), str(tmp_path / "out")],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_shards_keep_their_inputs_for_ever(tmp_path, weights):
    source, out = photos(tmp_path / "photos", 30), tmp_path / "out"
    old = frozen(out, source, weights, 8)
    held = [[each.id for each in read_shard(out, old, shard)] for shard in range(old.shards)]
    (source / "00000-a.png").write_bytes(png(1))
    (source / "00011.png").unlink()
    new = frozen(out, source, weights, 8)
    now = [[each.id for each in read_shard(out, new, shard)] for shard in range(new.shards)]
    assert now == [*held[:3], [*held[3], "00000-a.png"]]
    assert [new.stamp(shard) == old.stamp(shard) for shard in range(4)] == [True, True, True, False]
