"""What is planned to be trained is what training trains: tensors, bytes and results."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from small_runs import CONFIG, RICH, begin, interrupt_after, job_of, losses, same_weights, shapes
from vitrail.checkpoint.formats.safetensors import read_safetensors
from vitrail.checkpoint.read import load
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.nn.build import build
from vitrail.parts import FullAttention, Stem
from vitrail.plan import ledger, memory
from vitrail.tracking.tracker import Tracker
from vitrail.training.distributed import ALONE
from vitrail.training.finish import finish
from vitrail.training.folder import RunFolder
from vitrail.training.forecast import workload_of
from vitrail.training.loop import _begin
from vitrail.training.recipe import Recipe
from vitrail.training.state import states
from vitrail.training.tuning import tune
from vitrail.tuning import Lora, Tuning

ADAPTERS = Tuning(lora=Lora(rank=3, on=("qkv", "mlp"), alpha=6.0))
PARTS = [
    Tuning(),
    Tuning(last=1),
    Tuning(only=("head",)),
    Tuning(only=("norms", "biases", "head")),
    Tuning(freeze=("embedding", "prefix", "position", "blocks[:3]")),
    Tuning(lora=Lora(rank=2, on=("qkv", "out", "mlp"))),
]


def test_a_run_with_adapters_resumes_bit_for_bit(tmp_path: Path) -> None:
    recipe = RICH.but(tuning=ADAPTERS)
    begin(tmp_path / "whole", recipe)
    begin(tmp_path / "stopped", recipe, watch=interrupt_after(4))
    begin(tmp_path / "stopped", recipe)
    assert losses(tmp_path / "stopped") == losses(tmp_path / "whole")
    assert same_weights(tmp_path / "stopped", tmp_path / "whole")


def test_a_run_with_adapters_ends_with_weights_that_every_command_reads(tmp_path: Path) -> None:
    job = job_of(RICH.but(tuning=ADAPTERS))
    outcome = begin(tmp_path, job.recipe)
    finish(job, RunFolder(tmp_path), outcome.model)
    plain = load(tmp_path / "model.safetensors")
    assert plain.tensors.keys() == build(CONFIG).state_dict().keys()
    images = torch.linspace(-1, 1, 2 * 3 * 12 * 16).view(2, 3, 12, 16)
    torch.testing.assert_close(plain.model()(images), outcome.model(images), rtol=1e-4, atol=1e-5)
    adapters, facts = read_safetensors(tmp_path / "adapters.safetensors")
    assert len(adapters) == 2 * 3 * CONFIG.depth
    assert '"rank": 3' in facts["lora"]


@pytest.mark.parametrize("tuning", [Tuning(last=1), ADAPTERS])
def test_what_is_frozen_stays_and_has_no_optimizer_state(tmp_path: Path, tuning: Tuning) -> None:
    begin(tmp_path, RICH.but(tuning=tuning, steps=2))
    after, before = (read_safetensors(path / "state.safetensors")[0] for path in states(tmp_path / "states"))
    model = build(CONFIG)
    tune(model, tuning)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert {name.removeprefix("adamw.exp_avg.model.") for name in after if ".exp_avg." in name} == trained
    assert {name.removeprefix("mean.model.") for name in after if name.startswith("mean.")} == trained
    for name in model.state_dict():
        same = torch.equal(before[f"weights.model.{name}"], after[f"weights.model.{name}"])
        assert same == (name not in trained), name


def test_frozen_batch_norms_keep_their_statistics(tmp_path: Path) -> None:
    config = CONFIG.but(embedding=Stem(patch=Size(4, 4), widths=(5, 7)))
    source = shapes()
    recipe = Recipe(steps=3, batch=4, tuning=Tuning(freeze=("embedding",)))
    begin(tmp_path, recipe, config=config, source=source, test=source, evaluate_every=1)
    after, before = (read_safetensors(path / "state.safetensors")[0] for path in states(tmp_path / "states"))
    statistics = [name for name in after if "running_" in name or "num_batches" in name]
    assert len(statistics) == 6
    assert all(torch.equal(after[name], before[name]) for name in statistics)


def test_a_recipe_that_trains_nothing_is_refused(tmp_path: Path) -> None:
    nothing = Tuning(freeze=("biases", "norms"), only=("biases",))
    with pytest.raises(VitrailError, match="trains no tensor of this model; freeze less"):
        begin(tmp_path, Recipe(steps=1, batch=4, tuning=nothing))
    with pytest.raises(VitrailError, match="trains no tensor of this model; freeze less"):
        memory(CONFIG, workload_of(CONFIG, Recipe(tuning=nothing)))


# ── planned and run ─────────────────────────────────────────────────────────────────────────────────────────────

PLANNED = CONFIG.but(image=Size(24, 40), depth=4, dropout=0.0, drop_path=0.0, attention=FullAttention(fused=False))


def follow(recipe: Recipe) -> dict[str, int]:
    """The peaks of the second training step of a run, by phase, on real tensors."""
    trained, forward = _begin(job_of(recipe, PLANNED), None, None, ALONE)
    tracker = Tracker("cpu")
    with tracker:
        tracker.follow([*trained.objective.parameters(), *trained.objective.buffers()], "weights")
        moments = [tensor for name, tensor in trained.tensors().items() if name.startswith("adamw.")]
        tracker.follow(moments, "optimizer")
        images, targets = torch.zeros(recipe.batch, 3, *PLANNED.image), torch.zeros(recipe.batch, PLANNED.classes)
        for _ in range(2):
            tracker.phase_peaks.clear()
            with tracker.phase("forward"):
                loss, right = forward(images, targets, None)
            with tracker.phase("backward"):
                loss.backward()
            with tracker.phase("optimizer"):
                for optimizer in trained.optimizers:
                    optimizer.step()
            for optimizer in trained.optimizers:
                optimizer.zero_grad(set_to_none=True)
            del loss, right
    return tracker.phase_peaks


def test_a_real_training_step_takes_the_planned_bytes_whatever_is_trained() -> None:
    """The plan has numbers as labels and training soft ones, with a loss of its own: the same few bytes always."""
    differences = set()
    for tuning in PARTS:
        recipe = Recipe(batch=6, tuning=tuning)
        planned = memory(PLANNED, replace(workload_of(PLANNED, recipe), attention="eager"))
        tracked = follow(recipe)
        assert planned.exact
        differences.add(tuple(tracked[phase] - peak for phase, peak in planned.phase_peaks.items()))
    [(forward, backward, optimizer)] = differences
    soft_labels, labels = 4 * 6 * PLANNED.classes, 8 * 6
    assert forward == soft_labels - labels
    assert abs(backward - forward) + abs(optimizer - forward) <= soft_labels + 8


@pytest.mark.parametrize("tuning", PARTS)
def test_training_and_plan_train_the_same_tensors(tuning: Tuning) -> None:
    model = build(PLANNED)
    tune(model, tuning)
    own = {
        path: sum(parameter.numel() for parameter in part.parameters(recurse=False) if parameter.requires_grad)
        for path, part in model.named_modules()
    }
    rows = ledger(PLANNED, workload_of(PLANNED, Recipe(tuning=tuning))).rows
    planned = {row.path: row.trained_params for row in rows if row.trained_params}
    assert planned == {path: count for path, count in own.items() if count}
