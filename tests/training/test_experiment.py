"""Controlled experiments: as data they differ in one thing, as runs they are kept, resumed and measured."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from small_runs import interrupt_after
from vitrail.config import ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.nn.build import build
from vitrail.nn.positions import sincos_2d
from vitrail.parts import Adaptive, MeanPool, NoPosition, Patches, RelativeBias, SinCos1d, SinCos2d
from vitrail.plan.ledger import ledger
from vitrail.training.experiments.catalogue import BASE, EXPERIMENTS, RECIPE, Arm, Experiment
from vitrail.training.experiments.draw import draw_experiment
from vitrail.training.experiments.report import COLUMNS, MEANINGS, experiment_json, experiment_markdown, experiment_rows
from vitrail.training.experiments.run import Result, Stopped, run_experiment
from vitrail.training.experiments.structure import position_structure, structure_of
from vitrail.training.run import read_run

SMALL = BASE.but(image=Size(16, 24), width=24, depth=1, embedding=Patches(patch=Size(8, 4)))
TINY = Experiment(
    name="tiny",
    question="Does it run?",
    arms=(
        Arm(run="base", label="learned", config=SMALL),
        Arm(run="none", label="none", config=SMALL.but(position=NoPosition())),
        Arm(run="adaptive", label="adaptive", config=SMALL.but(embedding=Adaptive(patches=(Size(4, 4), Size(8, 8))))),
    ),
    measures=(
        "first_epoch_loss",
        "accuracy",
        "resolutions",
        "tokens",
        "parameters",
        "flops",
        "images_per_second",
        "structure",
    ),
    images=(Size(16, 24), Size(32, 16)),
)


def tried(out: Path, **options: Any) -> Result:
    return run_experiment(TINY, data=["shapes"], out=out, steps=2, limit=12, **{"seeds": 2, **options})


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return tried(tmp_path_factory.mktemp("tiny"))


# ── as data ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_run_has_one_name_wherever_its_config_is_the_same():
    arms = [arm for experiment in EXPERIMENTS.values() for arm in experiment.arms]
    for one, other in combinations(arms, 2):
        same = replace(one, label="") == replace(other, label="")
        assert (one.run == other.run) == same, (one, other)


def test_arms_differ_from_the_first_in_one_part():
    """Pooling by the mean takes the CLS token away too: two fields, one decision."""
    for experiment in EXPERIMENTS.values():
        base, *arms = experiment.arms
        for arm in arms:
            changed = [name for name in vars(BASE) if getattr(base.config, name) != getattr(arm.config, name)]
            changed += [name for name in ("images", "tuned") if getattr(base, name) != getattr(arm, name)]
            assert len(changed) == 1 + (arm.config.pool == MeanPool()), arm


def test_every_arm_is_built_and_planned_alike():
    for experiment in EXPERIMENTS.values():
        assert set(experiment.measures) <= set(COLUMNS)
        for arm in experiment.arms:
            count = sum(p.numel() for p in build(arm.config).parameters())
            if not isinstance(arm.config.embedding, Adaptive):
                assert ledger(arm.config).params == count


def test_multi_scale_training_includes_every_target():
    experiment = EXPERIMENTS["transfer"]
    assert next(arm for arm in experiment.arms if arm.images).images == experiment.images


# ── as runs ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_arm_and_seed_is_a_run_and_every_measure_has_a_spread(result: Result):
    names = {"first_epoch_loss", "accuracy", "accuracy@16x24", "accuracy@32x16", "tokens", "parameters", "flops",
             "images_per_second"}  # fmt: skip
    for arm in result.arms:
        assert [run.state for run in arm.runs] == ["finished", "finished"]
        assert [run.job.recipe for run in arm.runs] == [RECIPE.but(steps=2, seed=seed) for seed in (0, 1)]
        structured = {"structure", "untrained structure"} if arm.arm.run != "none" else set()
        assert arm.spreads.keys() == names | structured
        losses = [run.lines[0]["loss"] / 2 + run.lines[1]["loss"] / 2 for run in arm.runs]
        assert arm.spreads["first_epoch_loss"].mean == pytest.approx(np.mean(losses))
        assert arm.spreads["accuracy"].mean == pytest.approx(
            np.mean([run.lines[-1]["test_accuracy"] for run in arm.runs])
        )
    learned, _, adaptive = result.arms
    assert learned.spreads["tokens"].mean == 12
    assert 6 <= adaptive.spreads["tokens"].mean <= 24
    assert learned.spreads["accuracy"] == learned.spreads["accuracy@16x24"]  # carried nowhere, the same images


def test_stopped_anywhere_an_experiment_goes_on_and_ends_the_same(result: Result, tmp_path: Path):
    """The signal comes in the second run; the first is kept, byte for byte."""
    stop = interrupt_after(1)
    seen: list[str] = []

    def watch(facts: dict[str, Any]) -> None:
        if "arm" in facts:
            seen.append(facts["arm"])
        if len(seen) == 2:
            stop(facts)

    with pytest.raises(Stopped):
        tried(tmp_path, watch=watch)
    assert seen == ["learned", "none"]
    kept = (tmp_path / "runs" / "base-seed0" / "model.safetensors").stat().st_mtime_ns
    again = tried(tmp_path)
    assert (tmp_path / "runs" / "base-seed0" / "model.safetensors").stat().st_mtime_ns == kept
    for one, other in zip(again.arms, result.arms, strict=True):
        for name in ("first_epoch_loss", "accuracy", "accuracy@32x16"):
            assert one.spreads[name] == other.spreads[name]


def test_runs_of_another_budget_are_not_mixed_in(result: Result):
    out = result.arms[0].runs[0].path.parents[1]
    with pytest.raises(VitrailError, match=r"base-seed0 has another job: recipe.steps 2 → 3"):
        run_experiment(TINY, data=["shapes"], out=out, seeds=1, steps=3, limit=12)


def test_the_report_names_its_command_and_pairs_the_seeds(result: Result, tmp_path: Path):
    text = experiment_markdown(result, "vitrail experiment tiny", tmp_path / "tiny.png")
    assert text.splitlines()[2] == "    vitrail experiment tiny"
    assert "Δ smaller than 9 times its deviation may be chance" in text
    head, rows = experiment_rows(result)
    assert rows[1][head.index("trained")] == "–"
    found = experiment_json(result, "command")
    a, b = ([run.results()["final_accuracy"] for run in arm.runs] for arm in result.arms[:2])
    assert found["arms"][1]["difference"]["mean"] == pytest.approx(np.mean(b) - np.mean(a))
    assert found["arms"][0]["difference"] is None
    assert set(MEANINGS) <= set(COLUMNS)
    draw_experiment(result, tmp_path / "tiny.png")
    assert (tmp_path / "tiny.png").stat().st_size > 5000


# ── structure ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_structure_is_the_correlation_over_pairs_by_hand():
    grid, table = Size(3, 5), torch.randn(15, 7, generator=torch.Generator().manual_seed(0))
    rows, places = table.double().numpy(), list(product(range(3), range(5)))
    pairs = list(combinations(range(15), 2))
    cosine = [rows[a] @ rows[b] / np.linalg.norm(rows[a]) / np.linalg.norm(rows[b]) for a, b in pairs]
    distance = [np.hypot(*np.subtract(places[a], places[b])) for a, b in pairs]
    assert position_structure(table, grid) == pytest.approx(np.corrcoef(cosine, distance)[0, 1])


def test_sines_have_structure_and_shuffled_sines_have_none():
    grid, random = Size(7, 9), torch.Generator().manual_seed(0)
    table = sincos_2d(grid, 32, SinCos2d())
    assert position_structure(table, grid) < -0.6
    assert abs(position_structure(table[torch.randperm(63, generator=random)], grid)) < 0.1


def test_only_learned_tables_have_a_structure_to_learn():
    assert structure_of(build(SMALL)).keys() == {"position_structure"}
    for position in (NoPosition(), SinCos1d(), RelativeBias()):
        config: ViTConfig = SMALL.but(position=position)
        assert structure_of(build(config)) == {}


def test_equal_time_gives_a_faster_arm_more_steps_and_tuning_spends_the_same_total(tmp_path: Path):
    base = SMALL.but(image=Size(16, 24))
    targets = (Size(16, 24), Size(32, 24))
    experiment = Experiment(
        name="budgets",
        question="Are budgets equal?",
        arms=(
            Arm(run="base", label="all at once", config=base),
            Arm(run="tuned", label="half at the target", config=base, tuned=0.5),
            Arm(run="scales", label="multi-scale", config=base, images=targets),
        ),
        measures=("accuracy", "equal_time", "resolutions"),
        images=targets,
        equal_time=True,
    )
    found = run_experiment(experiment, data=["shapes"], out=tmp_path, steps=4, limit=12, seeds=1)
    for arm in found.arms:
        assert {"accuracy", "equal_time", "accuracy@16x24", "accuracy@32x24"} <= arm.spreads.keys()
    first, tuned, scales = (arm.runs[0] for arm in found.arms)
    assert first.job.recipe.steps == scales.job.recipe.steps == 4
    at_target = read_run(tmp_path / "runs" / "tuned-seed0-at-32x24").job
    assert tuned.job.recipe.steps + at_target.recipe.steps == 4
    assert at_target.config.image == Size(32, 24)
    assert at_target.data.start == "tuned-seed0"
    assert scales.job.recipe.images == targets
    paces = json.loads((tmp_path / "budgets.paces.json").read_bytes())
    equal = read_run(tmp_path / "runs" / "scales-time-seed0").job.recipe.steps
    assert equal == max(1, round(4 * paces["scales"] / paces["base"]))
    assert paces["scales"] < paces["base"]  # half of its images are twice as large
