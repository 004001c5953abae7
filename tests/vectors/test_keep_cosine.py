"""How much is merged, chosen on a run's own images for a mean cosine."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import vitrail
from command import call
from embedding import photos, png
from vitrail.checkpoint.pixels import prepare
from vitrail.checkpoint.read import load
from vitrail.errors import VitrailError
from vitrail.images.folder import image_files
from vitrail.remote import location_of
from vitrail.vectors.engines.engine import build_engine
from vitrail.vectors.job import preparation
from vitrail.vectors.job.engine_factory import engine_of
from vitrail.vectors.job.options import Options
from vitrail.vectors.job.plan import read_plan


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return photos(tmp_path_factory.mktemp("in") / "photos", 12)


@pytest.mark.parametrize("cosine", [0.9, 0.997, 0.9995])
def test_the_largest_threshold_is_taken_that_keeps_the_cosine(source: Path, cosine: float):
    checkpoint = load("default")
    seen = [prepare(path, checkpoint.preprocessing) for path in image_files(source)]
    pixels, plain = preparation._stacked(seen), build_engine(checkpoint)
    reference, kept = plain.vectors(pixels).numpy(), list[float]()
    for merge in preparation.THRESHOLDS:
        vectors = build_engine(checkpoint, merge=merge).vectors(pixels).numpy()
        cosines = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in zip(vectors, reference, strict=True)]
        kept += [merge] if np.mean(cosines) - np.std(cosines) / len(cosines) ** 0.5 >= cosine else []
    assert (len(kept) < len(preparation.THRESHOLDS)) == (cosine > 0.9)
    assert preparation._most_merging(checkpoint, Options(keep_cosine=cosine), cosine, seen).merge == kept[-1]


def test_a_run_is_computed_with_the_threshold_that_it_chose(source: Path, tmp_path: Path, capsys):
    found = vitrail.embed(source, "default", out=tmp_path / "out", keep_cosine=0.998, workers=0)
    chosen = json.loads((tmp_path / "out" / "merging.json").read_text())
    assert chosen["merge"] in preparation.THRESHOLDS
    assert chosen["images"] == 8  # the other four are judged on
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["merging"] == chosen
    assert manifest["cosine_to_float32"]["images"] == 4
    fixed = vitrail.embed(source, "default", merge=chosen["merge"], workers=0)
    assert found.column("vector").to_pylist() == fixed.column("vector").to_pylist()
    assert call("search", str(tmp_path / "out"), "--id", "00003.png", "--explain", "--json") == 2
    assert "one plain pass, and these were embedded with --keep-cosine" in capsys.readouterr().err


def test_nothing_is_merged_where_any_merging_loses_the_cosine(source: Path, tmp_path: Path, capsys):
    options = ("--keep-cosine", "0.9999999", "--workers", "1", "--out", str(tmp_path / "out"))
    assert call("embed", str(source), "--weights", "default", *options) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "no tokens merged, since any merging loses a mean cosine of 0.9999999 on your images" in printed
    plain = vitrail.embed(source, "default", workers=0, engine="torch")
    assert vitrail.embed(source, "default", out=tmp_path / "out", keep_cosine=0.9999999).equals(plain)


def test_the_command_says_what_it_chose(source: Path, tmp_path: Path, capsys):
    options = ("--keep-cosine", "0.998", "--workers", "1", "--out", str(tmp_path / "out"))
    assert call("embed", str(source), "--weights", "default", *options) == 0
    printed = " ".join(capsys.readouterr().out.split())
    chosen = json.loads((tmp_path / "out" / "merging.json").read_text())["merge"]
    assert f"tokens that differ by less than {chosen:g} merged, as chosen on 8 of your images" in printed
    assert "to float32 on 4 of your images" in printed


def test_a_folder_that_lost_what_it_chose_is_refused_by_readers_and_mended_by_its_run(source: Path, tmp_path: Path):
    vitrail.embed(source, "default", out=tmp_path / "out", keep_cosine=0.998, workers=0)
    out, chosen = location_of(tmp_path / "out"), tmp_path / "out" / "merging.json"
    before = chosen.read_bytes()
    chosen.write_text("{")
    for _ in range(2):  # damaged, and then missing
        with pytest.raises(VitrailError, match=r"merging\.json is missing or damaged; remove it and run the same"):
            engine_of(out, read_plan(out))
        chosen.unlink(missing_ok=True)
    vitrail.embed(source, "default", out=tmp_path / "out", keep_cosine=0.998, workers=0)
    assert chosen.read_bytes() == before


def test_merging_images_of_their_own_sizes_is_judged_at_their_sizes(tmp_path: Path):
    """The agreement is that of the rows that the run writes, and not of the model's one size."""
    sizes = ((24, 40), (40, 24), (32, 32), (28, 20), (24, 40), (20, 36))
    for seed, size in enumerate(sizes):
        (tmp_path / f"{seed}.png").write_bytes(png(seed, *size))
    merged = vitrail.embed(tmp_path, "default", native=True, merge=0.2, out=tmp_path / "out", workers=0)
    plain = vitrail.embed(tmp_path, "default", native=True, workers=0)
    one, other = (np.array(table.column("vector").to_pylist()) for table in (merged, plain))
    cosines = (one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)
    found = json.loads((tmp_path / "out" / "manifest.json").read_text())["cosine_to_float32"]
    assert found["images"] == 6
    assert found["mean"] < 0.9999
    assert found["mean"] == pytest.approx(cosines.mean(), abs=1e-6)
    assert found["lowest"] == pytest.approx(cosines.min(), abs=1e-6)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--keep-cosine", "1.5"), "keep_cosine 1.5 is not a number above 0 and below 1; 0.995 is a start"),
        (("--keep-cosine", "0.99", "--merge", "0.1"), "--keep-cosine and --merge cannot be combined"),
        (("--keep-cosine", "0.99", "--engine", "int8"), "--keep-cosine and --engine int8 cannot be combined"),
        (("--keep-cosine", "0.99", "--engine", "openvino"), "--engine openvino and --keep-cosine cannot be combined"),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_folder(source: Path, tmp_path: Path, capsys, options, words):
    assert call("embed", str(source), "--weights", "default", "--out", str(tmp_path / "out"), *options) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
