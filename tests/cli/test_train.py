"""train, evaluate, probe and data as people run them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from command import PATIENCE, call, until
from embedding import photos
from small_runs import CONFIG, losses, same_weights
from vitrail.checkpoint.read import load
from vitrail.data import fetch
from vitrail.geometry import Size
from vitrail.parts import Prefix
from vitrail.training.job import read_job
from vitrail.training.recipe import Recipe

SCRIPT = Path(sys.executable).with_name("vitrail")


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    path.write_text(CONFIG.to_json())
    return str(path)


def train(model: str, out: Path, *more: str) -> list[str]:
    return ["train", "--data", "shapes", "--model", model, "--batch", "8", "--steps", "5", "--out", str(out), *more]


def said(capsys: pytest.CaptureFixture[str]) -> str:
    error = capsys.readouterr().err
    assert error.startswith("vitrail: ")
    assert error.count("\n") == 1
    return error


def test_a_folder_without_a_test_split_says_what_it_holds_out(model: str, tmp_path: Path, capsys):
    for label in ("circle", "square", "star", "triangle"):
        photos(tmp_path / "data" / label, 6)
    assert call("train", "--data", str(tmp_path / "data"), "--model", model, "--steps", "1", "--batch", "2", "--device",
                "cpu", "--out", str(tmp_path / "run")) == 0  # fmt: skip
    said = capsys.readouterr().err
    assert "held out for testing: 2 of 24 images, every 10th, since the data have no test split" in said


def test_a_run_leaves_its_folder_and_is_measured(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = tmp_path / "run"
    assert call(*train(model, run, "--seed", "4", "--save-every", "2")) == 0
    shown = capsys.readouterr().out
    assert "memory    forecast" in shown
    assert "test accuracy" in shown
    assert f"weights   {run / 'model.safetensors'}" in shown
    assert f"curves    {run / 'curves.png'}" in shown
    names = {
        "config.json",
        "recipe.json",
        "data.json",
        "metrics.jsonl",
        "status.json",
        "model.safetensors",
        "curves.png",
    }
    assert names <= {path.name for path in run.iterdir()}
    assert [step for step, _ in losses(run)] == [1, 2, 3, 4, 5]
    assert json.loads((run / "status.json").read_text())["state"] == "finished"
    held = load(run / "model.safetensors")
    assert held.config == CONFIG
    assert list(held.preprocessing.mean) == json.loads((run / "data.json").read_text())["preprocessing"]["mean"]

    assert call("evaluate", str(run), "--image", "12x16,24x32", "--json") == 0
    scores = json.loads(capsys.readouterr().out)
    assert [score["image"] for score in scores] == [{"height": 12, "width": 16}, {"height": 24, "width": 32}]
    assert scores[0]["accuracy"] == json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["test_accuracy"]
    assert (run / "resolution.png").is_file()

    assert call("probe", str(run), "--data", "shapes", "--limit", "200") == 0
    assert "linear probe" in capsys.readouterr().out

    tuned = ["--model", str(run), "--image", "16x20", "--teacher", str(run), "--recipe", "finetune"]
    assert call("train", "--data", "shapes", *tuned, "--steps", "1", "--batch", "4", "--out", str(tmp_path / "b")) == 0
    assert str(load(tmp_path / "b" / "model.safetensors").config.image) == "16x20"

    capsys.readouterr()
    assert call(*train(model, run)) == 2
    assert "has a run; resume it with --resume" in said(capsys)
    assert call("train", "--resume", str(run), "--lr", "0.5") == 2
    assert "recipe.lr 0.001 → 0.5" in said(capsys)
    assert call("train", "--resume", str(run), "--data", "shapes", "--image", "24x32") == 2
    assert "config.image 12x16 → 24x32" in said(capsys)


def test_epochs_are_passes_over_the_data(model: str, tmp_path: Path):
    """Of 8,192 shapes, 0.003 epochs are 24.6 images: three batches of eight."""
    arguments = ["--data", "shapes", "--model", model, "--batch", "8", "--device", "cpu", "--out", str(tmp_path / "a")]
    assert call("train", *arguments, "--epochs", "0.003") == 0
    assert [step for step, _ in losses(tmp_path / "a")] == [1, 2, 3]


def test_a_precision_that_is_asked_for_is_the_recipes_and_rounds(model: str, tmp_path: Path):
    runs = [tmp_path / "whole", tmp_path / "half"]
    for run, more in zip(runs, ((), ("--precision", "amp-bf16")), strict=True):
        assert call(*train(model, run, "--device", "cpu", *more)) == 0
    assert [read_job(run).recipe.precision for run in runs] == ["fp32", "amp-bf16"]
    whole, half = ([loss for _, loss in losses(run)] for run in runs)
    assert whole != half
    assert half == pytest.approx(whole, rel=2**-5)  # bfloat16 keeps eight bits


def test_a_run_may_train_adapters_or_last_blocks(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert call(*train(model, tmp_path / "whole")) == 0
    start = str(tmp_path / "whole")
    assert call(*train(start, tmp_path / "lora", "--lora", "2", "--lora-on", "qkv,mlp", "--train-last", "1")) == 0
    shown = capsys.readouterr()
    assert "trained   LoRA of rank 2 on qkv, mlp, in the last block" in shown.out
    assert "adapters  merged into the weights; alone in" in shown.out
    assert "fresh, random weights" not in shown.err
    before, after = (load(tmp_path / name / "model.safetensors").tensors for name in ("whole", "lora"))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    layers = ("attention.qkv", "mlp.fc1", "mlp.fc2")
    assert changed == {*(f"blocks.1.{layer}.weight" for layer in layers), "head.weight", "head.bias"}
    assert call("evaluate", str(tmp_path / "lora"), "--data", "shapes") == 0


def test_an_image_that_is_asked_for_is_the_only_one(model: str, tmp_path: Path):
    recipe = tmp_path / "recipe.json"
    recipe.write_text(Recipe(steps=2, batch=8, images=(Size(12, 16), Size(24, 16))).to_json())
    arguments = ["--data", "shapes", "--model", model, "--recipe", str(recipe), "--device", "cpu"]
    assert call("train", *arguments, "--image", "16x24", "--out", str(tmp_path / "run")) == 0
    job = read_job(tmp_path / "run")
    assert (job.config.image, job.recipe.images) == (Size(16, 24), ())


def test_tensorboard_reads_what_the_metrics_say(model: str, tmp_path: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert call(*train(model, tmp_path / "run", "--tensorboard")) == 0
    events = EventAccumulator(str(tmp_path / "run"))
    events.Reload()
    told = [(event.step, event.value) for event in events.Scalars("loss")]
    assert [step for step, _ in told] == [1, 2, 3, 4, 5]
    assert [value for _, value in told] == pytest.approx([loss for _, loss in losses(tmp_path / "run")], rel=1e-6)
    assert "test_accuracy" in events.Tags()["scalars"]


@pytest.mark.parametrize("what", ["features", "token"])
def test_a_student_is_distilled_from_another_width_by_features_or_by_a_token(what: str, tmp_path: Path):
    teacher, student = tmp_path / "teacher.json", tmp_path / "student.json"
    teacher.write_text(CONFIG.but(width=36).to_json())
    student.write_text(CONFIG.but(prefix=Prefix(distillation=what == "token")).to_json())
    assert call(*train(str(teacher), tmp_path / "teacher")) == 0
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(f'steps = 3\nbatch = 4\n[distillation]\nkind = "distillation"\nwhat = "{what}"\n')
    asked = ["--data", "shapes", "--model", str(student), "--recipe", str(recipe)]
    assert call("train", *asked, "--teacher", str(tmp_path / "teacher"), "--out", str(tmp_path / "run")) == 0
    assert [step for step, _ in losses(tmp_path / "run")] == [1, 2, 3]
    held = load(tmp_path / "run" / "model.safetensors")
    assert not any("projection" in name or "teacher" in name for name in held.tensors)
    assert (held.config.prefix.distillation, "distillation_head.weight" in held.tensors) == (what == "token",) * 2  # type: ignore[union-attr]


def test_torchrun_in_front_of_the_command_gives_the_same_run(model: str, tmp_path: Path):
    """Two processes, through `-m vitrail`; dropout is drawn by process, so the model has none. Sums differ in order."""
    still = tmp_path / "still.json"
    still.write_text(CONFIG.but(dropout=0.0, drop_path=0.0).to_json())
    both = [*train(str(still), tmp_path / "both"), "--device", "cpu"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    command = [SCRIPT.with_name("torchrun"), "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
    command += ["--rdzv-endpoint", "127.0.0.1:0", "-m", "vitrail", *both]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("finished  step 5") == 1
    assert call(*train(str(still), tmp_path / "one")) == 0
    one, two = (losses(tmp_path / name) for name in ("one", "both"))
    assert [step for step, _ in two] == [1, 2, 3, 4, 5]
    assert [loss for _, loss in two] == pytest.approx([loss for _, loss in one], rel=2e-6)


def start(arguments: list[str]) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    return subprocess.Popen([SCRIPT, *arguments], env=environment, stderr=subprocess.PIPE, text=True)


def test_sigterm_saves_and_resume_ends_as_if_nothing_had_been(model: str, tmp_path: Path):
    long = ["--steps", "40", "--data", "shapes", "--model", model, "--batch", "8", "--save-every", "0"]
    process = start(["train", *long, "--out", str(tmp_path / "a")])
    metrics = tmp_path / "a" / "metrics.jsonl"
    until(lambda: process.poll() is not None or (metrics.exists() and metrics.read_text().count("\n") >= 2))
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=PATIENCE)
    assert process.returncode in (143, 0)  # 0 where all 40 steps were done before the signal came
    assert process.returncode == 0 or "which is saved; resume with vitrail train --resume" in error
    assert call("train", "--resume", str(tmp_path / "a")) == 0
    assert call("train", *long, "--out", str(tmp_path / "b")) == 0
    assert losses(tmp_path / "a") == losses(tmp_path / "b")
    assert same_weights(tmp_path / "a", tmp_path / "b")
    one, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in "ab")
    assert one == other


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--data", "nowhere", "--out", "x"], "nowhere does not exist"),
        (["--data", "shapes"], "give either --out RUN"),
        (["--data", "shapes", "--steps", "3", "--epochs", "1", "--out", "x"], "choose one"),
        (["--out", "x"], "no --data was given"),
        (["--resume", "nowhere"], "is not a run"),
        (["--data", "shapes", "--recipe", "cifer", "--out", "x"], "try cifar"),
        (["--data", "shapes", "--device", "cuda:7", "--out", "x"], "device 'cuda:7' cannot be used here"),
        (["--data", "shapes", "--device", "toaster", "--out", "x"], "device 'toaster' cannot be used here"),
        (["--data", "shapes", "--model", "x.json", "--out", "x"], "config x.json cannot be read"),
        (["--data", "shapes", "--model", "cifar", "--batch", "0", "--out", "x"], "batch 0 is not a positive"),
        (
            ["--data", "shapes", "--model", "cifar", "--precision", "bf16", "--out", "x"],
            "precision 'bf16' is not one of fp32, amp-bf16",
        ),
        (["--data", "shapes", "--model", "cifar", "--image", "33", "--out", "x"], "not divisible by patch 4x4"),
        (
            ["--data", "shapes", "--model", "cifar", "--freeze", "block", "--out", "x"],
            "'block' is no part of this model",
        ),
        (
            ["--data", "shapes", "--model", "H/14", "--image", "448", "--batch", "8192", "--out", "x"],
            "change first: batch",
        ),
    ],
)
def test_a_mistake_is_one_line(
    arguments: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    assert call("train", *arguments) == 2
    assert line in said(capsys)
    assert not (tmp_path / "x").exists()


def test_a_set_from_files_at_hand_is_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """A small stand-in for the real set, by the same path: sums, counts, copies."""
    import gzip
    import hashlib
    import struct

    import numpy as np

    there = tmp_path / "there"
    there.mkdir()
    sums = {}
    for name in fetch.DATASETS["fashion-mnist"].files:
        shape = (3, 28, 28) if "images" in name else (3,)
        data = struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape) + bytes(int(np.prod(shape)))
        (there / name).write_bytes(gzip.compress(data, mtime=0))
        sums[name] = hashlib.sha256((there / name).read_bytes()).hexdigest()
    small = fetch.DATASETS["fashion-mnist"]._replace(files=sums, train=3, test=3)
    monkeypatch.setitem(fetch.DATASETS, "fashion-mnist", small)
    out = tmp_path / "fashion-mnist"
    assert call("data", "fetch", "fashion-mnist", "--from", str(there), "--out", str(out)) == 0
    assert "3 images to train on" in capsys.readouterr().out
    (there / "train-labels-idx1-ubyte.gz").write_bytes(b"other")
    assert call("data", "fetch", "fashion-mnist", "--from", str(there), "--out", str(tmp_path / "again")) == 2
    assert "SHA-256 differs" in said(capsys)
    (there / "train-labels-idx1-ubyte.gz").unlink()
    assert call("data", "fetch", "fashion-mnist", "--from", str(there), "--out", str(tmp_path / "again")) == 2
    assert "lacks train-labels-idx1-ubyte.gz" in said(capsys)
