import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from PIL import Image

from command import call, run
from vitrail.checkpointing import Checkpointing
from vitrail.config import ViTConfig
from vitrail.geometry import Size
from vitrail.images.measure import adaptive_token_count
from vitrail.images.synthesize import synthesize_image
from vitrail.parts import Adaptive
from vitrail.plan import Workload, ledger, memory
from vitrail.presets import PRESETS, preset
from vitrail.pretraining import Dino
from vitrail.tuning import Lora, Tuning

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "schema" / "plan.json").read_text(encoding="utf-8"))
ISSUE = [
    "plan",
    "B/16",
    "--image",
    "384x640",
    "--patch",
    "16",
    "--batch",
    "32",
    "--train",
    "--precision",
    "amp-bf16",
    "--optimizer",
    "adamw",
    "--attention",
    "flash",
    "--gpu",
    "rtx-4090",
]


def planned(capsys, *arguments: str) -> dict:
    assert call(*arguments, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    Draft202012Validator(SCHEMA).validate(found)
    return found


def test_the_schema_is_a_schema():
    Draft202012Validator.check_schema(SCHEMA)


def test_a_plan_as_json_is_exact(capsys):
    found = planned(capsys, "plan")
    assert found["grid"] == {"height": 14, "width": 14}
    assert (found["tokens"], found["params"]) == (197, 86_567_656)
    assert (found["flops_forward"], found["macs_forward"]) == (35_127_656_448, 17_563_828_224)
    assert (found["verdicts"], found["max_batch"], found["gpu"]) == ({}, {}, None)


def test_a_plan_on_a_card(capsys):
    found = planned(capsys, *ISSUE)
    assert found["grid"] == {"height": 24, "width": 40}
    assert found["tokens"] == 961
    assert found["peak_bytes"] == sum(found["bytes"].values()) == max(found["phase_peaks"].values())
    assert list(found["verdicts"]) == ["optimistic", "likely", "safe"]
    needs = [verdict["needed_bytes"] for verdict in found["verdicts"].values()]
    assert needs == sorted(needs)
    assert found["max_batch"]["optimistic"] >= found["max_batch"]["likely"] >= found["max_batch"]["safe"] >= 32
    work = Workload(batch=32, train=True, precision="amp-bf16")
    assert found["peak_bytes"] == memory(preset("B/16", image="384x640"), work).peak_bytes


def test_what_does_not_fit_is_told_what_to_change(capsys):
    found = planned(capsys, "plan", "H/14", "--train", "--batch", "64", "--gpu", "rtx-4090")
    assert not found["verdicts"]["likely"]["fits"]
    assert found["changes"][0]["name"] == "batch"


def test_every_option_reaches_the_workload(capsys):
    options = "--train --checkpointing --accumulate 4 --optimizer adamw-fused --attention efficient --batch 3"
    found = planned(capsys, "plan", "cifar", *options.split())
    work = found["workload"]
    assert work["checkpointing"]
    assert (work["accumulate"], work["batch"]) == (4, 3)
    assert (work["optimizer"], work["attention"]) == ("adamw-fused", "efficient")
    expected = Workload(
        batch=3, train=True, checkpointing=Checkpointing(), accumulate=4, optimizer="adamw-fused", attention="efficient"
    )
    assert found["peak_bytes"] == memory(preset("cifar"), expected).peak_bytes
    selective = planned(capsys, "plan", "cifar", *options.split(), "--selective", "--checkpoint-every", "2")
    assert selective["workload"]["checkpointing"] == "selective:2"


def test_a_compiled_step_is_traced(capsys):
    found = planned(capsys, "plan", "cifar", "--depth", "1", "--train", "--batch", "3", "--compile")["compiled"]
    assert 0 < found["saved_bytes"] < found["eager_saved_bytes"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--sweep batch=1,2 --timeline alive.png", "--sweep was given with --timeline"),
        ("--sweep batch=1,2 --images .", "--sweep was given with --images"),
        ("--largest batch --gpu t4 --images .", "--largest was given with --images"),
        ("--train --compile --shard tensor:3", "a compiled step is traced on one device; leave --shard out"),
        ("--pretrain mae", "--pretrain is a training step and needs --train"),
        ("--train --freeze embedding,prefix,position,blocks,norm,head", "all but embedding, prefix, position, blocks"),
    ],
)
def test_an_option_without_effect_is_refused(options: str, said: str, capsys):
    assert call("plan", "Ti/16", *options.split()) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_vision_language_model_says_how_many_tokens_an_image_becomes(capsys):
    found = planned(capsys, "plan", "InternVL3", "--image", "800x1200", "--batch", "2")
    assert (found["reading"]["crops"], found["reading"]["tokens"]) == (7, 7 * 256 + 2)
    assert (found["workload"]["batch"], found["tokens"]) == (14, 32 * 32 + 1)
    assert call("plan", "qwen2.5-vl", "--image", "64x96", "--depth", "2") == 2
    assert "qwen2.5-vl was given with --depth, which it does not take" in capsys.readouterr().err


def test_a_self_supervised_step_is_planned(capsys):
    found = planned(
        capsys, "plan", "cifar", "--train", "--batch", "3", "--pretrain", "dino,local_crops=2,local_image=16"
    )
    step = Dino(local_crops=2, local_image=Size(16, 16))
    assert found["workload"]["pretraining"]["kind"] == "dino"
    assert found["peak_bytes"] == memory(preset("cifar"), Workload(batch=3, train=True, pretraining=step)).peak_bytes


def test_a_config_file_is_planned_like_its_preset(capsys, tmp_path):
    (tmp_path / "small.json").write_text(preset("S/16", classes=5).to_json())
    found = planned(capsys, "plan", str(tmp_path / "small.json"))
    assert found["model"] == "small.json"
    assert found["params"] == ledger(preset("S/16", classes=5)).params


def test_weights_of_any_dialect_are_planned_by_their_config(capsys, tmp_path):
    from embedding import CONFIG, save_weights
    from vitrail.checkpoint.read import load
    from vitrail.checkpoint.write import save

    own = save_weights(tmp_path / "own.safetensors")
    save(load(own), tmp_path / "hf", dialect="huggingface")
    expected = ledger(CONFIG)
    for path in (own, tmp_path / "hf"):
        found = planned(capsys, "plan", str(path))
        assert (found["params"], found["flops_forward"]) == (expected.params, expected.flops_forward)
        assert found["model"] == path.name
    assert planned(capsys, "plan", "default")["params"] == ledger(preset("cifar-small")).params


def test_the_shape_can_be_changed(capsys):
    found = planned(capsys, "plan", "--width", "96", "--depth", "2", "--num-heads", "3", "--classes", "0")
    from vitrail.parts import Mlp

    config = preset("B/16", width=96, depth=2, num_heads=3, classes=0, mlp=Mlp(width=384))
    assert found["params"] == ledger(config).params


def test_a_plan_for_people_names_every_part(capsys):
    assert call(*ISSUE) == 0
    shown = capsys.readouterr().out
    for part in (
        "961",
        "activations",
        "optimizer",
        "optimistic",
        "likely",
        "safe",
        "modelled, not measured",
        "at least",
    ):
        assert part in shown


def test_the_rows_as_csv_add_up(capsys):
    assert call("plan", "--csv") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert sum(int(row["params"]) for row in rows) == 86_567_656
    assert sum(int(row["flops"]) for row in rows) == 35_127_656_448
    assert rows[0]["path"].startswith("embedding")


def test_a_sweep_answers_every_combination_and_says_why_one_is_missing(capsys):
    assert call("plan", "--sweep", "patch=8,14,16,32", "image=224,384,512", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["rows"]) == 12
    missing = [row for row in found["rows"] if row["error"]]
    assert len(missing) == 2
    assert "384x384 is not divisible by patch 14x14" in missing[0]["error"]
    row = next(row for row in found["rows"] if row["image"]["height"] == 384 and row["patch"]["height"] == 16)
    assert row["tokens"] == 577
    assert row["flops_forward"] == ledger(preset("B/16", image=384)).flops_forward


def test_a_sweep_as_csv_has_a_row_each(capsys):
    assert call("plan", "--sweep", "model=Ti/16,S/16", "batch=1,4", "--gpu", "t4", "--csv") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["model"], row["batch"]) for row in rows] == [
        ("Ti/16", "1"),
        ("Ti/16", "4"),
        ("S/16", "1"),
        ("S/16", "4"),
    ]
    assert all(row["fits"] == "True" and int(row["max_batch"]) > 4 for row in rows)


def test_a_sweep_for_people_is_a_table(capsys):
    assert call("plan", "--sweep", "patch=14,16", "image=224,384", "--gpu", "24GiB") == 0
    shown = capsys.readouterr().out
    assert "577" in shown
    assert "384x384 is not divisible by patch 14x14" in shown


@pytest.mark.parametrize("suffix", ["png", "svg"])
@pytest.mark.parametrize(
    "question",
    [
        ("--train", "--batch", "4", "--gpu", "rtx-3060"),
        ("--image", "32x96"),
        ("--sweep", "patch=8,16", "image=64,128", "--gpu", "t4"),
        ("--sweep", "batch=1,2,4"),
    ],
)
def test_a_chart_is_a_file_of_its_kind(tmp_path, suffix, question, capsys):
    path = tmp_path / f"chart.{suffix}"
    assert call("plan", "Ti/16", *question, "--chart", str(path)) == 0
    assert path.read_bytes().startswith({"png": b"\x89PNG", "svg": b"<?xml"}[suffix])


def test_bad_input_is_one_line_and_exit_2_from_the_shell(tmp_path):
    for arguments, reason in (
        (("--image", "12"), "patch 16x16 is larger than image 12x12"),
        (("--gpu", "rtx-4080"), "gpu 'rtx-4080' is not a known card; try rtx-4090"),
        (("--batch", "-3"), "batch -3 is not a positive whole number"),
    ):
        found = run("plan", *arguments)
        assert found.returncode == 2
        assert found.stdout == ""
        assert reason in found.stderr
        assert found.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("missing.safetensors",), "missing.safetensors does not exist; give a weights file"),
        (("--width", "770"), "width 770 is not divisible by num_heads 12"),
        (("B/17",), "model 'B/17' is not a preset; try"),
        (("--image", "225"), "225x225 is not divisible by patch 16x16"),
        (("--image", "0"), "height 0 is not a positive whole number"),
        (("--batch", "0"), "batch 0"),
        (("--checkpointing",), "--checkpointing is about training and needs --train"),
        (("--accumulate", "4"), "--accumulate 4 is about training and needs --train"),
        (("--offload",), "--offload is about the optimizer and needs --train"),
        (("--accumulate", "-1"), "accumulate -1"),
        (("--precision", "fp8"), "--precision"),
        (("--optimizer", "lion"), "--optimizer"),
        (("--attention", "magic"), "--attention"),
        (("--as", "keras"), "--as"),
        (("--shard", "fsdp"), "shard 'fsdp' is not KIND:DEVICES"),
        (("--shard", "mine:8"), "shard 'mine' is not one of ddp, zero1, zero2, fsdp"),
        (("--train", "--infer"), "--train and --infer"),
        (("--json", "--csv"), "--json and --csv"),
        (("nowhere.json",), "config nowhere.json cannot be read"),
        (("--sweep", "patch"), "sweep 'patch' is not KEY=VALUE"),
        (("--sweep", "colour=red"), "sweep key 'colour' is unknown"),
        (("--sweep", "batch=two"), "sweep batch='two' is not a whole number"),
        (("--sweep", "patch=8", "patch=16"), "sweep key 'patch' is given twice"),
        (("--sweep", "patch=15"), "not divisible by patch 15x15"),
        (("--sweep", "model=Ti/16,S/16", "--chart", "x.png"), "a chart of a sweep needs"),
        (("--chart", "x.bmp"), "picture 'x.bmp' does not end in"),
        (("--chart", "nowhere/x.png"), "folder 'nowhere' does not exist"),
        (("--gpu", "24"), "less than 1 MiB"),
        (("swin-T", "--width", "9"), "not a PyramidConfig"),
        (("mobilevit-S", "--patch", "8"), "cannot be set on a mobile model"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(capsys, arguments, reason, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call("plan", *arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert reason in shown.err
    assert shown.err.count("\n") == 1


def test_planning_imports_neither_torch_nor_numpy():
    code = (
        "import sys; from vitrail.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit as end: assert end.code == 0, end.code\n"
        "heavy = {'torch', 'numpy', 'matplotlib', 'PIL'} & set(sys.modules); assert not heavy, heavy"
    )
    for arguments in (ISSUE, [*ISSUE, "--json"], ["laws"], ["compare", "Ti/16"], ["plan", "--sweep", "patch=8,16"]):
        found = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False)
        assert found.returncode == 0, found.stderr


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_planned(capsys, name):
    planned(capsys, "plan", name, "--train", "--batch", "2", "--precision", "amp-bf16")


def test_adaptive_tokens_are_counted_on_a_folder(tmp_path: Path, capsys):
    spec = Adaptive()
    (tmp_path / "config.json").write_text(ViTConfig(image=Size(64, 96), embedding=spec).to_json())
    pictures = [synthesize_image(seed, Size(64, 96)) for seed in range(2)]
    for seed, picture in enumerate(pictures):
        Image.fromarray(picture).save(tmp_path / f"{seed}.png")
    found = planned(capsys, "plan", str(tmp_path / "config.json"), "--images", str(tmp_path))
    expected = sum(adaptive_token_count(picture, spec) for picture in pictures) / 2
    assert found["workload"]["adaptive_tokens"] == round(expected)
    assert call("plan", "--images", str(tmp_path)) == 2
    assert "--images counts adaptive patches" in capsys.readouterr().err


# ── training a part ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("options", "tuning"),
    [
        (["--train-last", "4"], Tuning(last=4)),
        (["--freeze", "embedding,blocks[:8]"], Tuning(freeze=("embedding", "blocks[:8]"))),
        (["--train-only", "norms,head"], Tuning(only=("norms", "head"))),
        (["--lora", "16", "--lora-on", "qkv,mlp"], Tuning(lora=Lora(rank=16, on=("qkv", "mlp")))),
    ],
)
def test_options_say_what_is_trained(capsys, options: list[str], tuning: Tuning):
    found = planned(capsys, "plan", "S/16", "--train", *options)
    step = Workload(train=True, tuning=tuning)
    assert found["peak_bytes"] == memory(preset("S/16"), step).peak_bytes
    assert found["trained_params"] == ledger(preset("S/16"), step).trained_params < found["params"]
    full = found["saving"]["full_peak_bytes"]
    assert full == memory(preset("S/16"), Workload(train=True)).peak_bytes
    assert sum(found["saving"]["bytes"].values()) == full - found["peak_bytes"]


def test_a_plan_says_in_words_what_freezing_saves_and_what_stands_in_its_way(capsys):
    assert call("plan", "S/16", "--train", "--freeze", "embedding,blocks[:8]") == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "frozen weights have no gradients and no optimizer state" in text
    assert "nothing is saved for backward below the first trained tensor, in prefix" in text
    assert "prefix, position below frozen blocks need gradients to pass through them; freezing these too" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--train", "--freeze", "block"],
            "'block' is no part of this model; name embedding, prefix, position, blocks",
        ),
        (["--train", "--train-last", "13"], "more than the model's 12"),
        (["--train", "--lora", "0"], "rank 0"),
        (["--train", "--lora", "4", "--lora-on", "qkw"], "did you mean 'qkv'?"),
        (["--train", "--lora-on", "qkv"], "give --lora RANK too"),
        (["--lora", "4"], "need --train"),
    ],
)
def test_a_selection_that_means_nothing_is_refused_in_a_line(capsys, options: list[str], message: str):
    assert call("plan", "B/16", *options) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1


def test_why_attributes_what_a_part_saves(capsys):
    assert call("plan", "--why", "S/16", "S/16,lora=4,train_last=3", "--train", "--batch", "8", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert {cause["name"] for cause in found["causes"]} == {"LoRA", "last blocks trained"}
    step = Workload(batch=8, train=True)
    saved = [
        memory(preset("S/16"), step.but(tuning=each)).peak_bytes
        for each in (Tuning(), Tuning(last=3, lora=Lora(rank=4)))
    ]
    assert sum(cause["bytes"] for cause in found["causes"]) == saved[1] - saved[0]
