"""A run that stops anywhere, in any way, goes on as if it had not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from small_runs import CONFIG, RICH, begin, interrupt_after, job_of, losses, same_weights, shapes
from vitrail.data.source import Subset
from vitrail.errors import VitrailError
from vitrail.images.decode import ImageError
from vitrail.training import state
from vitrail.training.folder import RunFolder, read_metrics
from vitrail.training.loop import train
from vitrail.training.recipe import Recipe
from vitrail.training.state import states


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run of everything that draws random numbers."""
    folder = tmp_path_factory.mktemp("whole")
    begin(folder, RICH)
    return folder


# ── resuming ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("step", [1, 4])
def test_a_run_that_was_stopped_and_resumed_equals_one_that_was_not(tmp_path: Path, whole: Path, step: int):
    outcome = begin(tmp_path, RICH, watch=interrupt_after(step))
    assert (outcome.step, outcome.stopped) == (step, 15)
    assert json.loads((tmp_path / "status.json").read_text())["state"] == "stopped"
    begin(tmp_path, RICH)
    assert losses(tmp_path) == losses(whole)
    assert same_weights(tmp_path, whole)


def test_a_second_signal_stops_at_once_and_harms_no_state(tmp_path: Path, whole: Path):
    with pytest.raises(KeyboardInterrupt):
        begin(tmp_path, RICH, save_every=2, watch=interrupt_after(3, times=2))
    assert [path.name for path in states(tmp_path / "states")] == ["step-00000002", "step-00000000"]
    begin(tmp_path, RICH)
    assert losses(tmp_path) == losses(whole)
    assert same_weights(tmp_path, whole)


def test_a_run_killed_at_any_moment_resumes_exactly(tmp_path: Path, whole: Path):
    """kill -9 of the process, as soon as some step has been told: between, during or after a save."""
    script = "import sys, pathlib, training; training.begin(pathlib.Path(sys.argv[1]), training.RICH, save_every=1)"
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "OMP_NUM_THREADS": str(torch.get_num_threads()),
    }
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], env=environment)
    metrics = tmp_path / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.read_text().count("\n") >= 2):
        time.sleep(0.002)
    process.kill()
    process.wait()
    begin(tmp_path, RICH)
    assert losses(tmp_path) == losses(whole)
    assert same_weights(tmp_path, whole)
    assert not list((tmp_path / "states").glob(".tmp-*"))


@pytest.mark.parametrize("damage", ["flip", "cut", "manifest"])
def test_a_damaged_newest_state_is_passed_over_and_said(tmp_path: Path, whole: Path, damage: str):
    begin(tmp_path, RICH, save_every=2, watch=interrupt_after(4))
    newest = states(tmp_path / "states")[0]
    file = newest / ("manifest.json" if damage == "manifest" else "state.safetensors")
    data = bytearray(file.read_bytes())
    data[-9] ^= 1
    file.write_bytes(data[:-40] if damage == "cut" else b"{" if damage == "manifest" else data)
    told: list[str] = []
    begin(tmp_path, RICH, watch=lambda facts: told.append(facts.get("note", "")))
    assert [line for line in told if "step-00000004 is damaged" in line and "resuming from" in line]
    assert losses(tmp_path) == losses(whole)
    assert same_weights(tmp_path, whole)


def test_when_every_state_is_damaged_it_says_so(tmp_path: Path):
    begin(tmp_path, RICH.but(steps=1))
    for path in states(tmp_path / "states"):
        (path / "state.safetensors").unlink()
    with pytest.raises(VitrailError, match=r"no state to resume from.*step-00000001 is damaged"):
        begin(tmp_path, RICH.but(steps=1))


# ── faults ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_good_state(tmp_path: Path):
    with pytest.raises(VitrailError, match=r"is (nan|inf) at step \d.*the last good state, of step \d") as caught:
        begin(tmp_path, Recipe(steps=8, batch=4, lr=1e30, min_lr=0, clip=None, warmup=0))
    assert "\n" not in str(caught.value)
    status = json.loads((tmp_path / "status.json").read_text())
    assert (status["state"], status["message"]) == ("failed", str(caught.value))
    held, _ = state.read_safetensors(states(tmp_path / "states")[0] / "state.safetensors")
    assert all(tensor.isfinite().all() for tensor in held.values())


def test_a_full_disk_is_one_line_and_the_last_state_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    begin(tmp_path, RICH, watch=interrupt_after(2))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(state, "write_safetensors", full)
    with pytest.raises(VitrailError, match=r"step 3 was not saved.*No space left.*last good state is .*step-00000002"):
        begin(tmp_path, RICH, save_every=1)
    assert [path.name for path in (tmp_path / "states").iterdir() if path.name.startswith(".")] == []


class Damaged:
    """A source of which some images give no picture."""

    def __init__(self, source: object, bad: set[int]) -> None:
        self.source, self.bad = source, bad
        self.classes, self.channels = shapes().classes, 3

    def __len__(self) -> int:
        return len(shapes())

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        if index in self.bad:
            raise ImageError(f"image {index}: damaged; replace it")
        return shapes()[index]


def test_damaged_images_are_counted_named_and_left_out(tmp_path: Path):
    told: list[str] = []
    begin(
        tmp_path,
        Recipe(steps=12, batch=8),
        source=Damaged(shapes(), {5, 17}),
        watch=lambda f: told.append(f.get("note", "")),
    )
    assert sorted(filter(None, told)) == [f"left out: image {n}: damaged; replace it" for n in (17, 5)]
    assert len(json.loads((tmp_path / "status.json").read_text())["damaged"]) == 2


def test_data_that_changed_and_labels_out_of_range_are_refused(tmp_path: Path):
    with pytest.raises(VitrailError, match="have 32 images and had 40 when the run began"):
        train(job_of(RICH), shapes(32), RunFolder(tmp_path))
    with pytest.raises(VitrailError, match=r"label 3 .star. is out of range for a model of 3 classes"):
        begin(tmp_path / "b", RICH, config=CONFIG.but(classes=3))


# ── arithmetic ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_accumulation_gives_the_update_of_the_whole_batch(tmp_path: Path):
    """Without dropout, micro-batches add up; in float32 the order of sums differs, hence 1e-5."""
    config = CONFIG.but(dropout=0.0, drop_path=0.0)
    plain = RICH.but(accumulate=1, augment=0)
    for name, recipe in (("one", plain), ("four", plain.but(accumulate=4))):
        begin(tmp_path / name, recipe, config=config)
    one, four = (np.array(losses(tmp_path / name)) for name in ("one", "four"))
    np.testing.assert_allclose(one, four, rtol=1e-5)


@pytest.mark.parametrize("how", ["full", "selective:2"])
def test_checkpointing_changes_memory_and_nothing_else(tmp_path: Path, whole: Path, how: str):
    begin(tmp_path, RICH.but(checkpointing=how))
    assert losses(tmp_path) == losses(whole)
    assert same_weights(tmp_path, whole)


def test_the_running_mean_is_the_result_and_follows_its_formula(tmp_path: Path):
    """Two steps by hand: decay min(0.9, 1/10), then min(0.9, 2/11)."""
    recipe = Recipe(steps=2, batch=4, ema=0.9)
    outcome = begin(tmp_path, recipe, save_every=1)
    name = "weights.model.head.weight"
    first = state.read_safetensors(states(tmp_path / "states")[1] / "state.safetensors")[0]
    last = state.read_safetensors(states(tmp_path / "states")[0] / "state.safetensors")[0]
    expected = torch.lerp(first["mean.model.head.weight"], last[name], 1 - 2 / 11)
    torch.testing.assert_close(last["mean.model.head.weight"], expected, rtol=1e-6, atol=1e-8)
    assert torch.equal(outcome.model.head.weight, last["mean.model.head.weight"])  # type: ignore[union-attr]


def test_training_learns(tmp_path: Path):
    begin(
        tmp_path,
        Recipe(steps=60, batch=16, lr=5e-3),
        config=CONFIG.but(dropout=0.0, drop_path=0.0),
        source=Subset(shapes(), np.arange(16)),
    )
    told = [loss for _, loss in losses(tmp_path)]
    assert np.mean(told[-5:]) < 0.5 * np.mean(told[:5])


def test_half_precision_steps_are_finite_and_close(tmp_path: Path):
    """bfloat16 has 8 bits: losses agree to about 1 %."""
    plain = Recipe(steps=3, batch=8)
    begin(tmp_path / "a", plain)
    begin(tmp_path / "b", plain.but(precision="amp-bf16"))
    np.testing.assert_allclose(losses(tmp_path / "a"), losses(tmp_path / "b"), rtol=0.02)


# ── the folder ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_metrics_have_an_object_a_step(whole: Path):
    lines = read_metrics(whole)
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert {"loss", "accuracy", "lr", "gradient_norm", "images_per_second", "image", "patch"} <= lines[0].keys()
    assert lines[-1]["lr"] == RICH.min_lr
    assert len({(line["image"], line["patch"]) for line in lines}) > 1


def test_a_line_cut_by_a_kill_is_forgotten(tmp_path: Path, whole: Path):
    shutil.copy(whole / "metrics.jsonl", tmp_path / "metrics.jsonl")
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 7, "lo')
    RunFolder(tmp_path).rewind(4)
    assert [line["step"] for line in read_metrics(tmp_path)] == [1, 2, 3, 4]


def test_two_states_are_kept(whole: Path, tmp_path: Path):
    begin(tmp_path, RICH.but(steps=4), save_every=1)
    assert [path.name for path in states(tmp_path / "states")] == ["step-00000004", "step-00000003"]
