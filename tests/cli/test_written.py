"""Every file that a command writes is named in what it prints."""

from __future__ import annotations

from pathlib import Path

import pytest

import small_runs
from command import call
from embedding import photos, save_weights
from vitrail.training.job import write_job
from vitrail.training.recipe import Recipe


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("written")
    save_weights(root / "w.safetensors")
    photos(root / "photos", 2)
    small_runs.begin(root / "run", Recipe(steps=1, batch=8))
    write_job(root / "run", small_runs.job_of(Recipe(steps=1, batch=8)))
    return root


@pytest.mark.parametrize(
    "line",
    [
        "plan Ti/16 --chart plan.svg",
        "plan --sweep image=224,256 --chart sweep.svg",
        "compare Ti/16 S/16 --chart compare.svg",
        "convert w.safetensors timm.safetensors --to timm",
        "adapt w.safetensors wide.safetensors --image 12x16 --images photos --report report.html",
        "simulate --from-grid 5x7 --to-grid 6x8 --chart bands.svg",
        "simulate --from-grid 5x7 --to-grid 6x8 --chart maps.png",
        "look photos/00001.png --what filters --out filters.svg",
        "classify photos --out labels.csv",
        "evaluate default --data shapes --image 8 --chart accuracy.svg",
        "compare-runs run --report runs.md",
        "bench w.safetensors --batch 1 --seconds 0.01 --chart times.svg",
    ],
)
def test_every_file_written_is_named(line: str, place: Path, monkeypatch, capsys):
    monkeypatch.chdir(place)
    before = set(place.iterdir())
    assert call(*line.split()) == 0, capsys.readouterr().err
    shown, new = capsys.readouterr().out, set(place.iterdir()) - before
    assert new
    assert [path.name for path in new if path.name not in shown] == []
