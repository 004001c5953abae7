"""Studies measure what they say: against closed forms and drawn data."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from command import call
from vitrail.config import Config
from vitrail.geometry import Size
from vitrail.nn.adaptive import AdaptiveEmbed
from vitrail.parts import Adaptive
from vitrail.plan.ledger import ledger
from vitrail.studies import adaptive
from vitrail.studies.catalogue import STUDIES
from vitrail.studies.data_hunger import ARMS, study_data_hunger
from vitrail.studies.fashion_choices import CANDIDATES, VALIDATION, study_fashion_choices
from vitrail.studies.findings import Kept, drawn_splits, rank_correlation
from vitrail.studies.layers import study_layers
from vitrail.studies.shapes import MODEL, READERS, study_shapes
from vitrail.studies.vocabulary import cluster, study_vocabulary
from vitrail.training.job import read_job
from vitrail.training.recipe import Recipe, TokenBudget


def test_seeds_draw_different_images_and_the_same_seed_the_same():
    drawn = [drawn_splits("shapes", Size(16, 24), seed=seed, limit=8)[0] for seed in (0, 0, 1)]
    images = [np.stack([source[index][0] for index in range(8)]) for source in drawn]
    assert np.array_equal(images[0], images[1])
    assert not np.array_equal(images[0], images[2])


def test_rank_correlation_is_that_of_the_ranks():
    first, second = torch.tensor([3.0, 1.0, 4.0, 1.5]), torch.tensor([30.0, -1.0, 90.0, 2.0])
    assert rank_correlation(first, second) == pytest.approx(1.0)
    assert rank_correlation(first, -second) == pytest.approx(-1.0)
    # 1 − 6·Σd²/(n·(n² − 1)) with rank differences 0, 1, 1, 0
    assert rank_correlation(torch.tensor([1, 2, 3, 4]), torch.tensor([1, 3, 2, 4])) == pytest.approx(1 - 6 * 2 / 60)


def test_clusters_find_separate_clouds():
    random = torch.Generator().manual_seed(0)
    centres = 20 * torch.randn(5, 7, generator=random)
    owners = torch.arange(5).repeat_interleave(30)
    vectors = centres[owners] + torch.randn(150, 7, generator=random)
    found, labels = cluster(vectors, 5, seed=1)
    assert torch.cdist(found, centres).amin(dim=1).max() < 1.0
    for owner in range(5):
        assert len(labels[owners == owner].unique()) == 1


def test_finished_parts_are_kept_unless_the_settings_differ(tmp_path: Path):
    calls = []

    def compute() -> list[int]:
        calls.append(1)
        return [len(calls)]

    for limit, expected in ((5, [1]), (5, [1]), (6, [2])):
        assert Kept(tmp_path / "parts.json", limit=limit)("seed 0", compute) == expected


def test_the_front_ends_cls_token_is_at_chance_and_does_not_depend_on_training(tmp_path: Path):
    """It is the same vector for every image, so that every probe of it answers with one class."""
    found = study_shapes(out=tmp_path, seeds=1, limit=80, steps=2)
    rows = {row.label: row.spreads["accuracy"].mean for row in found.rows}
    assert len(rows) == 2 * len(READERS)
    labels = [drawn_splits("shapes", MODEL.image, seed=0, limit=80)[1][index][1] for index in range(40)]
    shares = np.bincount(labels, minlength=4) / 40
    for state in ("random", "trained"):
        assert rows[f"{state} front end, CLS token"] in shares
    again = study_shapes(out=tmp_path, seeds=1, limit=80, steps=2)
    assert again.rows == found.rows


def test_layers_are_measured_after_every_block_on_the_models_own_grid(tmp_path: Path):
    found = study_layers(["default"], ["shapes"], out=tmp_path, seeds=2, limit=48)
    assert [row.label for row in found.rows] == ["default, embedding"] + [f"default, block {i}" for i in range(6)]
    for row in found.rows[1:]:
        held = row.spreads
        assert 0 < held["nearest"].mean <= held["distance"].mean <= held["farthest"].mean
        assert 0 <= held["cls"].mean <= 1
    assert "distance" not in found.rows[0].spreads
    found.draw(tmp_path / "layers.png")
    assert (tmp_path / "layers.png").stat().st_size > 10_000


@pytest.fixture
def few_images(tmp_path: Path) -> Path:
    """CIFAR-10's files with 40 images to train on and 10 to test with, of all classes."""
    place, random = tmp_path / "cifar", np.random.default_rng(0)
    place.mkdir()
    for name, count in (*((f"data_batch_{number}.bin", 8) for number in range(1, 6)), ("test_batch.bin", 10)):
        rows = random.integers(0, 256, (count, 3073), dtype=np.uint8)
        rows[:, 0] = np.arange(count) % 10
        (place / name).write_bytes(rows.tobytes())
    return place


def test_data_hunger_trains_every_share_at_equal_steps_and_at_equal_epochs(
    few_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("vitrail.studies.data_hunger.FRACTIONS", (0.5, 1.0))
    found = study_data_hunger([str(few_images)], out=tmp_path, seeds=1, steps=2)
    assert [row.label for row in found.rows] == [
        f"{budget}, {share}" for budget in ("equal steps", "equal epochs") for share in ("50%", "100%")
    ]
    jobs = {path.name: read_job(path) for path in (tmp_path / "runs").iterdir()}
    assert len(jobs) == 3 * len(ARMS)  # all of the images are one run for both budgets
    steps, epochs, whole = (jobs[f"hunger-cnn-{name}-seed0"] for name in ("50-steps", "50-epochs", "100-steps"))
    assert [job.recipe.steps for job in (steps, epochs, whole)] == [2, 1, 2]
    assert [job.data.fraction for job in (steps, epochs, whole)] == [0.5, 0.5, 1.0]
    assert found.rows[1].spreads == found.rows[3].spreads
    found.draw(tmp_path / "hunger.png")
    assert (tmp_path / "hunger.png").stat().st_size > 10_000
    assert len(found.answers) == 6


def test_the_models_of_data_hunger_have_equal_parameters_and_flops():
    books = [ledger(config) for config in ARMS.values()]
    for each in books:
        assert each.params == pytest.approx(books[0].params, rel=0.03)
        assert each.flops_forward == pytest.approx(books[0].flops_forward, rel=0.03)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Flat images of a few colours, so that patches are alike or not at all, and one file that is no image."""
    place = tmp_path_factory.mktemp("flat")
    for index in range(6):
        colour = tuple(int(value) for value in np.random.default_rng(index).integers(0, 256, 3))
        Image.new("RGB", (40, 36), colour).save(place / f"{index}.png")
    (place / "broken.png").write_bytes(b"not an image")
    return place


def test_patches_of_one_colour_have_one_token_before_positions(folder: Path, tmp_path: Path):
    found = study_vocabulary("default", folder, out=tmp_path, seeds=1)
    assert found.rows[0].spreads["shared"].mean > 0.9
    assert found.rows[0].spreads["alike"].mean > 0.3
    found.draw(tmp_path / "vocabulary.png")
    assert (tmp_path / "vocabulary.png").stat().st_size > 10_000


def test_the_command_writes_a_report_and_lists_the_studies(folder: Path, tmp_path: Path, capsys):
    options = ["--data", str(folder), "--seeds", "1", "--limit", "6", "--out", str(tmp_path)]
    assert call("experiment", "vocabulary", *options) == 0
    assert "embedding" in capsys.readouterr().out
    written = json.loads((tmp_path / "vocabulary.json").read_text())
    assert written["command"].startswith("vitrail experiment vocabulary --data")
    assert written["answers"]
    assert f"    {written['command']}\n" in (tmp_path / "vocabulary.md").read_text()
    assert call("experiment", "--json") == 0
    assert {each["name"] for each in json.loads(capsys.readouterr().out)} >= set(STUDIES)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["layer"], "try layers"),
        (["layers"], "vitrail data fetch cifar10"),
        (["vocabulary"], "give a folder of images"),
        (["vocabulary", "--data", "shapes", "--weights", "a", "b"], "one folder and one model"),
        (["layers", "--data", "shapes", "--epochs", "1"], "layers has no --epochs"),
        (["pooling", "--data", "shapes", "--weights", "default"], "pooling trains its own models"),
        (["data-hunger", "--data", "shapes", "--limit", "9"], "leave --limit out"),
        (["shapes", "--limit", "1"], "limit 1 is too few"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], line: str, tmp_path: Path, capsys):
    assert call("experiment", *arguments, "--out", str(tmp_path)) == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert len(error) == 1
    assert line in error[0]


def test_adaptive_arms_keep_the_budget_and_are_compared_with_random_places(
    few_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    arms = [arm for arm in adaptive.ARMS if arm.label in ("regular grid", "random, 3 sizes", "learned, 3 sizes")]
    monkeypatch.setattr(adaptive, "ARMS", arms)
    found = adaptive.study_adaptive([str(few_images)], out=tmp_path, seeds=1, steps=2)
    regular, random, learned = found.rows
    assert regular.spreads["share"].mean == 1
    assert random.spreads["share"].mean == pytest.approx(adaptive.BUDGET)
    gap = learned.spreads["accuracy"].mean - random.spreads["accuracy"].mean
    assert learned.spreads["difference"].mean == pytest.approx(gap)
    job = read_job(tmp_path / "runs" / "adaptive-learned-3-sizes-seed0")
    assert job.recipe.token_budget == TokenBudget(share=adaptive.BUDGET)
    found.draw(tmp_path / "adaptive.png")
    assert (tmp_path / "adaptive.png").stat().st_size > 10_000


def test_calibration_keeps_the_share_on_average():
    pixels = torch.randn(12, 3, 32, 32, generator=torch.Generator().manual_seed(0)).cumsum(2)
    for patches in ((Size(4, 4), Size(8, 8)), (Size(4, 4), Size(8, 8), Size(16, 16))):
        spec = adaptive.calibrated(Adaptive(patches=patches), pixels, share=0.5)
        assert adaptive.token_share(AdaptiveEmbed(spec, 1), pixels) == pytest.approx(0.5, abs=0.01)


def test_fashion_choices_are_judged_on_images_held_out_of_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    calls = []

    def judged(data: list[str], config: Config, recipe: Recipe, folder: Path, **options: Any) -> SimpleNamespace:
        calls.append((config, recipe, options["validation"]))
        return SimpleNamespace(accuracy=0.5 + 0.1 * (recipe.label_smoothing == 0) + 0.01 * recipe.seed)

    monkeypatch.setattr("vitrail.studies.fashion_choices.train_or_resume", judged)
    found = study_fashion_choices(["fashion"], out=tmp_path, seeds=2, steps=7)
    assert len({(config, recipe) for config, recipe, _ in calls}) == 2 * len(CANDIDATES)
    assert {(recipe.steps, share) for _, recipe, share in calls} == {(7, VALIDATION)}
    assert found.answers[0] == "The validation split prefers the recipe: 60.50 ± 0.71 %."
    assert found.rows[-1].spreads["difference"].mean == pytest.approx(-0.1)
    found.draw(tmp_path / "choices.png")
    assert (tmp_path / "choices.png").stat().st_size > 5_000
