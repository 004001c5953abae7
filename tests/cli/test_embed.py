from __future__ import annotations

import json
import multiprocessing.forkserver
import resource
import sys
from pathlib import Path

import pytest

from command import call
from embedding import photos, read_rows, save_weights


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_weights(tmp_path_factory.mktemp("weights") / "w.safetensors")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return photos(tmp_path / "photos", 30)


def test_a_folder_becomes_vectors_and_failures_are_counted_listed_and_exit_code_1(
    tmp_path: Path, source: Path, weights: Path, capsys: pytest.CaptureFixture[str]
):
    for number in range(25):
        (source / f"{number:05d}.png").write_bytes(b"no image")
    (source / "odd\x1b[2J\nname.png").write_bytes(b"")
    arguments = ["embed", str(source), "--weights", str(weights), "--out", str(tmp_path / "out"), "--workers", "1"]
    assert call(*arguments) == 1
    shown = capsys.readouterr().out
    assert f"images    31 in {source}" in shown
    assert "pixels    8x12, crop, bicubic, mean 0.5/0.5/0.5, std 0.5/0.5/0.5: " in shown
    assert "engine    float32 by torch (about 0 s of work, too little to try others)" in shown
    assert f"vectors   5 of 31 images, in {tmp_path / 'out'}" in shown
    assert "failed    26: 25 not a readable image, 1 empty, 0 bytes" in shown
    assert "  00007.png: not a readable image; use one of" in shown
    assert "  … and 6 more: pyarrow.parquet.read_table(" in shown
    assert "\x1b" not in shown
    assert len(read_rows(tmp_path / "out")) == 31
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert (manifest["images"], manifest["ok"], manifest["failed"]) == (31, 5, 26)
    assert call(*arguments) == 1  # again: nothing is to do, and the same is said
    again = capsys.readouterr().out
    assert f"vectors   5 of 31 images, in {tmp_path / 'out'}; nothing was left to do\n" in again
    assert "failed    26" in again


def test_int8_is_calibrated_on_the_images_and_says_how_near_it_comes(
    tmp_path: Path, source: Path, weights: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    arguments = ["embed", str(source), "--weights", str(weights), "--out", str(tmp_path / "out"), "--workers", "1",
                 "--engine", "int8"]  # fmt: skip
    monkeypatch.setattr("vitrail.vectors.job.embed.LEAST_COSINE", 1.1)
    assert call(*arguments) == 2
    assert "less than 1.1; use --engine torch and another --out, or --force it" in capsys.readouterr().err
    assert not list((tmp_path / "out").glob("part-*"))
    (tmp_path / "out" / "calibration.safetensors").unlink()  # what is gone is learnt again
    assert call(*arguments, "--force") == 0
    assert "cosine    to float32 on 10 of your images: mean 0.99" in capsys.readouterr().out
    held = json.loads((tmp_path / "out" / "manifest.json").read_text())["cosine_to_float32"]
    assert held["images"] == 10
    assert 0.9 < held["lowest"] <= held["mean"] <= 1  # a random model of one block is hard to quantise


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["--dtype", "float16"], "holds another run: dtype was float32, now float16"),
        (["--native"], "native was False, now True"),
        (["--scales", "x"], "'x' is not a list of numbers; write 1,1.5"),
        (["--scales", "0"], "scales[0] 0.0 is not a number above 0 and at most 8"),
        (["--native", "--scales", "1,2"], "--native and --scales cannot be combined"),
        (["--compile", "--native"], "--compile and --native cannot be combined"),
        (["--compile", "--engine", "int8"], "--compile and --engine int8 cannot be combined"),
        (["--token-budget", "9"], "--token-budget is for --native"),
        (["--workers", "0"], "give 1 or more"),
        (["--batch", "0"], "give 1 or more"),
        (["--weights", "/gone"], "/gone does not exist"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    tmp_path: Path, source: Path, weights: Path, capsys: pytest.CaptureFixture[str], change: list[str], words: str
):
    from embedding import frozen

    frozen(tmp_path / "out", source, weights)
    given = {"--weights": str(weights), "--out": str(tmp_path / "out")}
    if change[0] in given:
        given[change[0]] = change[1]
        change = []
    assert call("embed", str(source), *(word for pair in given.items() for word in pair), *change) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_without_pyarrow_or_ray_the_extra_is_named(
    tmp_path: Path, source: Path, weights: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    arguments = ["embed", str(source), "--weights", str(weights), "--out", str(tmp_path / "out")]
    monkeypatch.setitem(sys.modules, "ray", None)
    assert call(*arguments, "--engine", "ray") == 2
    assert "needs Ray, which is not installed; pip install 'vitrail[ray]'\n" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert call(*arguments) == 2
    assert "needs pyarrow; pip install 'vitrail[parquet]'\n" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_full_disk_is_one_line_and_the_same_command_goes_on(
    tmp_path: Path, source: Path, weights: Path, capsys: pytest.CaptureFixture[str]
):
    photos(source, 400)
    out = tmp_path / "out"
    arguments = ["embed", str(source), "--weights", str(weights), "--out", str(out), "--workers", "1"]
    multiprocessing.forkserver._forkserver._stop()  # type: ignore[attr-defined]  # a new one has the limit too
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30 * 2**10, hard))  # of this process and its worker
    try:
        assert call(*arguments, "--shard-size", "390") == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        multiprocessing.forkserver._forkserver._stop()  # type: ignore[attr-defined]
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("vitrail: ")
    assert "part-00000.parquet was not written (File too large)" in said
    assert not (out / "_SUCCESS").exists()
    assert not list(out.glob(".part-*"))
    assert call(*arguments) == 0
    assert len(read_rows(out)) == 400
