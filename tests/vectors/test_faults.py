"""Images that are broken, and decoders that are: a row with a reason, or the right pixels; the run goes on."""

from __future__ import annotations

import multiprocessing.forkserver
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from bad_images import CORPUS
from embedding import bad_decoder, frozen, photos, png, read_rows, save_weights
from vitrail.checkpoint.pixels import prepare
from vitrail.checkpoint.read import load
from vitrail.errors import VitrailError
from vitrail.images.decode import ImageError, decode
from vitrail.vectors.engines.engine import build_engine
from vitrail.vectors.job.embed import embed_source
from vitrail.vectors.job.shard import process_shard
from vitrail.vectors.job.worker import Task, Worker, WorkerOptions


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_weights(tmp_path_factory.mktemp("weights") / "w.safetensors")


@pytest.mark.parametrize("exact", [False, True])
def test_every_awkward_image_gives_a_row_with_a_reason_or_the_vector_of_the_right_pixels(
    tmp_path: Path, weights: Path, exact: bool
):
    listed = tmp_path / "list.txt"
    for case in CORPUS:
        (tmp_path / case.name).write_bytes(case.data)
    listed.write_text("\n".join(case.name for case in CORPUS))
    checkpoint = load(weights)
    plan, engine = frozen(tmp_path / "out", listed, weights, 1000, exact=exact), build_engine(checkpoint)
    tally = process_shard(tmp_path / "out", plan, 0, engine)
    rows = {row["id"]: row for row in read_rows(tmp_path / "out")}
    assert list(rows) == [case.name for case in CORPUS]
    assert tally.failed == sum(1 for case in CORPUS if case.error)
    for case in CORPUS:
        row = rows[case.name]
        if case.error:
            assert row["status"] == "failed", case.name
            assert case.error in row["error"], case.name
            assert row["vector"] is None
            with pytest.raises(ImageError):
                decode(case.data)
        else:
            assert (row["status"], row["error"]) == ("ok", None), case.name
            assert (row["height"], row["width"]) == case.size
            import torch

            pixels = prepare(case.data, checkpoint.preprocessing, exact=exact).pixels
            alone = engine.vectors(torch.from_numpy(pixels[None]))[0]
            np.testing.assert_allclose(row["vector"], alone, atol=2e-5, err_msg=case.name)


def test_a_decoder_that_hangs_crashes_or_raises_costs_its_image_alone(
    tmp_path: Path, weights: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    multiprocessing.forkserver._forkserver._stop()  # type: ignore[attr-defined]  # a new one writes where capfd reads
    source = photos(tmp_path / "photos", 5)
    for name in ("00000-crash", "00001-hang", "00002-once", "00003-raise"):
        (source / f"{name}.png").write_bytes(png(3))
    hangs = source / "00001-hang.hangs"

    def clock() -> int:
        """An hour later, once: when a decoder has said that it hangs."""
        late = 3600 * 10**9 if hangs.exists() else 0
        hangs.unlink(missing_ok=True)
        return time.monotonic_ns() + late

    monkeypatch.setattr("vitrail.vectors.job.worker.time", SimpleNamespace(monotonic_ns=clock))
    options = WorkerOptions(decode=bad_decoder, batch=2)
    done = embed_source(source, weights, tmp_path / "out", workers=1, shard_size=6, worker=options)
    assert done.tally is not None
    assert (done.tally.ok, done.tally.failed) == (6, 3)
    failed = {row["id"]: row["error"] for row in read_rows(tmp_path / "out") if row["status"] == "failed"}
    assert failed == {
        "00000-crash.png": "the decoder crashed (SIGSEGV); replace or remove it",
        "00001-hang.png": "the decoder hung for 120 s; replace or remove it",
        "00003-raise.png": "the decoder crashed (exit code 1); replace or remove it",
    }
    assert (source / "00002-once.died").exists()  # and its second try was let be
    assert "KeyError: 'no decoder should'" in capfd.readouterr().err


@pytest.mark.parametrize(("task", "words"), [(7, "shard 7"), ("preparation", "preparation")])
def test_a_worker_that_dies_in_no_image_ends_the_run_with_a_line(
    task: Task, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    worker = Worker(tmp_path, WorkerOptions())
    monkeypatch.setattr(worker, "_attempt", lambda task, lost: "SIGKILL")
    with pytest.raises(VitrailError, match=rf"died 3 times in {words}, outside any image \(SIGKILL\); if memory"):
        worker.do(task)


def test_of_ten_thousand_inputs_with_one_in_a_hundred_broken_the_counts_add_up_exactly(tmp_path: Path, weights: Path):
    source = tmp_path / "photos"
    good = [png(seed) for seed in range(10)]
    broken = [b"", b"text", good[0][:60], good[0][:-30]]
    for folder in range(100):
        (source / f"{folder:02d}").mkdir(parents=True)
        for number in range(100):
            data = broken[folder % 4] if number == 37 else good[number % 10]
            (source / f"{folder:02d}" / f"{number:02d}.png").write_bytes(data)
    done = embed_source(source, weights, tmp_path / "out", workers=2, worker=WorkerOptions(batch=64))
    assert done.tally is not None
    assert (done.tally.ok, done.tally.failed) == (9_900, 100)
    assert dict(done.tally.reasons) == {"empty, 0 bytes": 25, "not a readable image": 25, "damaged PNG": 50}
    rows = read_rows(tmp_path / "out")
    assert [row["id"] for row in rows] == [f"{f:02d}/{n:02d}.png" for f in range(100) for n in range(100)]
    assert {row["id"] for row in rows if row["status"] == "failed"} == {f"{f:02d}/37.png" for f in range(100)}
    vectors = np.array([row["vector"] for row in rows if row["status"] == "ok"])
    assert len(np.unique(vectors.round(3), axis=0)) == 10
