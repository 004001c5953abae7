"""Runs side by side: groups by everything but the seed, spreads by the textbook, unfinished runs as they are."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from small_runs import RICH, begin, interrupt_after, job_of
from vitrail.errors import VitrailError
from vitrail.training.experiments.compare import group_runs, spread
from vitrail.training.experiments.draw import draw_comparison
from vitrail.training.experiments.report import compare_json, compare_markdown
from vitrail.training.finish import finish
from vitrail.training.folder import RunFolder
from vitrail.training.job import write_job
from vitrail.training.recipe import Recipe
from vitrail.training.run import read_run

PLAIN = Recipe(steps=3, batch=4)


def run(folder: Path, recipe: Recipe, *, whole: bool = True) -> Path:
    folder.mkdir()
    write_job(folder, job_of(recipe))
    outcome = begin(folder, recipe, watch=(lambda facts: None) if whole else interrupt_after(2))
    if whole:
        finish(job_of(recipe), RunFolder(folder), outcome.model)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two seeds of one job, another learning rate, and one that was stopped."""
    root = tmp_path_factory.mktemp("runs")
    return {
        "a0": run(root / "a0", PLAIN),
        "a1": run(root / "a1", PLAIN.but(seed=1)),
        "b": run(root / "b", PLAIN.but(lr=0.01)),
        "cut": run(root / "cut", PLAIN.but(seed=2), whole=False),
    }


def test_runs_that_differ_in_their_seed_alone_are_one_group(folders: dict[str, Path]):
    groups = group_runs(read_run(path) for path in folders.values())
    assert [[r.path.name for r in group.runs] for group in groups] == [["a0", "a1", "cut"], ["b"]]
    assert [group.changes for group in groups] == [(), ("recipe.lr 0.001 → 0.01",)]
    assert groups[0].seeds == (0, 1, 2)


def test_a_spread_is_the_mean_and_the_sample_deviation():
    values = [0.51, 0.54, 0.6]
    found = spread(values)
    assert found.mean == pytest.approx(np.mean(values))
    assert found.deviation == pytest.approx(np.std(values, ddof=1))
    assert spread([3.0]).deviation is None


def test_an_unfinished_run_is_shown_and_does_not_count_beside_finished_ones(folders: dict[str, Path]):
    group = group_runs(read_run(folders[name]) for name in ("a0", "a1", "cut"))[0]
    states = [run.state for run in group.runs]
    assert states == ["finished", "finished", "stopped"]
    assert group.runs[2].step == 2
    expected = spread([run.results()["final_loss"] for run in group.runs[:2]])
    assert group.spreads()["final_loss"] == expected
    alone = group_runs([group.runs[2]])[0]
    assert alone.spreads()["final_loss"].mean == pytest.approx(group.runs[2].lines[1]["loss"])


def test_a_run_that_was_killed_before_its_first_step_is_a_run(tmp_path: Path):
    write_job(tmp_path, job_of(RICH))
    begun = read_run(tmp_path)
    assert (begun.state, begun.step, begun.results(), begun.first_epoch_loss()) == ("begun", 0, {}, None)
    groups = group_runs([begun])
    assert "| 0/6 | begun | – |" in compare_markdown(groups, "command", None)
    draw_comparison(groups, tmp_path / "curves.png")


def test_the_first_epoch_is_the_first_pass_over_the_data(folders: dict[str, Path], tmp_path: Path):
    """40 images in batches of 4: ten steps; of a run of twelve, the last two are of the second."""
    whole = read_run(folders["a0"])
    assert whole.first_epoch_loss() == pytest.approx(np.mean([line["loss"] for line in whole.lines]))
    longer = read_run(run(tmp_path / "longer", PLAIN.but(steps=12)))
    assert longer.first_epoch_loss() == pytest.approx(np.mean([line["loss"] for line in longer.lines[:10]]))


def test_the_same_job_and_seed_twice_is_refused(folders: dict[str, Path]):
    with pytest.raises(VitrailError, match="the same job with the same seed 0"):
        group_runs(read_run(folders[name]) for name in ("a0", "b", "a0"))


def test_what_is_no_run_is_one_line(tmp_path: Path):
    with pytest.raises(VitrailError, match="is not a run"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(VitrailError, match="is not a run"):
        read_run(tmp_path)


def test_json_has_every_run_and_the_spread(folders: dict[str, Path]):
    found = compare_json(group_runs(read_run(folders[name]) for name in ("a0", "a1")))
    assert [each["seed"] for each in found[0]["runs"]] == [0, 1]
    losses = [each["final_loss"] for each in found[0]["runs"]]
    assert found[0]["spread"]["final_loss"]["deviation"] == pytest.approx(abs(losses[0] - losses[1]) / math.sqrt(2))
