import json

import pytest

from command import call
from vitrail.plan import ledger
from vitrail.presets import preset


def test_models_side_by_side_are_exact(capsys):
    assert call("compare", "Ti/16", "S/16", "B/16", "L/16", "H/14", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [entry["params"] for entry in found["models"]] == [
        5_717_416,
        22_050_664,
        86_567_656,
        304_326_632,
        632_045_800,
    ]
    assert found["models"][2]["flops_forward"] == 35_127_656_448
    assert found["folklore"]["true"] == "84.15 % with JFT-300M"
    accuracies = {(entry["pretraining"], entry["accuracy"]) for entry in found["models"][2]["published"]}
    assert {("ImageNet-1k", 77.91), ("JFT-300M", 84.15)} <= accuracies


def test_weights_are_compared_with_presets_and_claim_no_published_results(capsys):
    assert call("compare", "default", "vit_base_patch16_384", "--json") == 0
    own, known = json.loads(capsys.readouterr().out)["models"]
    assert (own["model"], own["params"], own["published"]) == ("default", ledger(preset("cifar-small")).params, [])
    assert (known["model"], known["image"]) == ("B/16", {"height": 384, "width": 384})
    assert known["published"]


def test_models_for_people_are_a_table_with_sources(capsys):
    assert call("compare", "b/16", "dinov2-S/14", "--gpu", "rtx-4090") == 0
    shown = capsys.readouterr().out
    for part in (
        "B/16",
        "dinov2-S/14",
        "86.6 M",
        "(ImageNet-21k, 384 px)",
        "linear probe",
        "pytorch-image-models",
        "77.91",
    ):
        assert part in shown


def test_a_figure_that_was_not_looked_up_says_so(capsys):
    assert call("compare", "H/14", "G/14") == 0
    shown = capsys.readouterr().out
    for part in ("JFT-300M, 384 px, unchecked", "JFT-3B, 518 px, quoted", "unchecked: not looked up"):
        assert part in shown


def test_one_image_size_for_all(capsys):
    assert call("compare", "S/16", "B/32", "--image", "64x96", "--json") == 0
    small, large = json.loads(capsys.readouterr().out)["models"]
    assert (small["tokens"], large["tokens"]) == (4 * 6 + 1, 2 * 3 + 1)
    assert small["flops_forward"] == ledger(preset("S/16", image="64x96")).flops_forward


def test_a_chart_is_drawn(tmp_path, capsys):
    assert call("compare", "Ti/16", "S/16", "--chart", str(tmp_path / "models.png")) == 0
    assert (tmp_path / "models.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("B/17",), "model 'B/17' is not a preset"),
        (("B/16", "--batch", "-1"), "batch -1"),
        (("--gpu", "x9"), "gpu 'x9'"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(capsys, arguments, reason):
    assert call("compare", *arguments) == 2
    shown = capsys.readouterr()
    assert reason in shown.err
    assert shown.err.count("\n") == 1
