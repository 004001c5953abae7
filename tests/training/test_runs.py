"""A run from Python: the same as the command's, from values instead of words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from command import call
from small_runs import CONFIG, losses, same_weights
from vitrail import train
from vitrail.data.open import open_source
from vitrail.errors import VitrailError
from vitrail.parts import FullAttention
from vitrail.training.job import read_job
from vitrail.training.probe import probe
from vitrail.training.recipe import Recipe

RECIPE = Recipe(steps=3, batch=8, seed=4)


def test_a_run_from_values_is_the_run_of_the_command(tmp_path: Path):
    told: list[dict[str, Any]] = []
    jobs = []
    outcome = train(
        "shapes",
        CONFIG,
        recipe=RECIPE,
        out=tmp_path / "here",
        device="cpu",
        begin=lambda job, planned, free: jobs.append(job),
        watch=told.append,
    )
    (tmp_path / "config.json").write_text(CONFIG.to_json())
    (tmp_path / "recipe.json").write_text(RECIPE.to_json())
    files = ["--model", str(tmp_path / "config.json"), "--recipe", str(tmp_path / "recipe.json")]
    assert call("train", "--data", "shapes", *files, "--device", "cpu", "--out", str(tmp_path / "there")) == 0
    assert same_weights(tmp_path / "here", tmp_path / "there")
    assert jobs == [read_job(tmp_path / "there")]
    assert [(line["step"], line["loss"]) for line in told if "loss" in line] == losses(tmp_path / "there")
    assert (outcome.step, outcome.stopped) == (3, None)
    assert outcome.accuracy == told[-1]["test_accuracy"]
    assert (tmp_path / "here" / "model.safetensors").is_file()


def test_in_bfloat16_on_a_cpu_attention_takes_explicit_steps_and_the_checkpoint_keeps_its_config(tmp_path: Path):
    half = RECIPE.but(precision="amp-bf16")
    explicit = CONFIG.but(attention=FullAttention(fused=False))
    fused, stepwise = (
        train("shapes", config, recipe=half, out=tmp_path / name, device="cpu")
        for name, config in (("fused", CONFIG), ("explicit", explicit))
    )
    assert losses(tmp_path / "fused") == losses(tmp_path / "explicit")
    assert (fused.checkpoint().config, stepwise.checkpoint().config) == (CONFIG, explicit)


def test_a_run_goes_on_as_it_was_begun_or_not_at_all(tmp_path: Path):
    train("shapes", CONFIG, recipe=RECIPE, out=tmp_path / "run", device="cpu")
    assert train(out=tmp_path / "run", resume=True, device="cpu").step == 3
    assert train("shapes", CONFIG, recipe=RECIPE, out=tmp_path / "run", resume=True, device="cpu").step == 3
    with pytest.raises(VitrailError, match=r"has another job: config\.depth 2 → 1"):
        train("shapes", CONFIG.but(depth=1), out=tmp_path / "run", resume=True, device="cpu")
    with pytest.raises(VitrailError, match=r"has another job: recipe\.batch 8 → 4"):
        train(out=tmp_path / "run", changes={"batch": 4}, resume=True, device="cpu")
    with pytest.raises(VitrailError, match="has a run"):
        train("shapes", CONFIG, out=tmp_path / "run", device="cpu")


def test_with_a_validation_split_the_test_images_are_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    opened: list[str] = []

    def opening(data: Any, split: Any = "train", **options: Any) -> Any:
        opened.append(split)
        return open_source(data, split, **options)

    for module in ("prepare", "train"):
        monkeypatch.setattr(f"vitrail.training.{module}.open_source", opening)
    run = train(
        "shapes", CONFIG, recipe=RECIPE, validation=0.015625, fraction=0.125, out=tmp_path / "run", device="cpu"
    )
    assert opened == ["train"]
    assert run.job.data.images == (8192 - 128) // 8
    assert run.accuracies() == [(3, run.lines[-1]["validation_accuracy"])]
    assert "test_accuracy" not in run.lines[-1]
    assert "validation accuracy" in repr(run)
    assert train(out=tmp_path / "run", resume=True, device="cpu").job == run.job
    with pytest.raises(VitrailError, match=r"data\.validation 0\.015625 → 0\.5"):
        train(out=tmp_path / "run", resume=True, validation=0.5, device="cpu")


def test_an_unknown_field_of_a_recipe_is_refused_before_anything_is_written(tmp_path: Path):
    with pytest.raises(VitrailError, match="Recipe has no field step"):
        train("shapes", CONFIG, out=tmp_path / "run", changes={"step": 3}, device="cpu")
    assert not (tmp_path / "run").exists()


def test_the_probe_is_the_command_s(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    train("shapes", CONFIG, recipe=RECIPE, out=tmp_path / "run", device="cpu")
    found = probe(tmp_path / "run", "shapes", image="16x12", limit=120, neighbours=5)
    assert (found.width, found.classes, found.train_images, found.fresh) == (24, 4, 120, False)
    assert call("probe", str(tmp_path / "run"), "--data", "shapes", "--image", "16x12", "--limit", "120",
                "--neighbours", "5", "--json") == 0  # fmt: skip
    said = json.loads(capsys.readouterr().out)
    assert (said["linear"], said["nearest"]) == (found.linear, found.nearest)
