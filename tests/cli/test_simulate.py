import json

import pytest
import torch

from command import call
from peers import timm
from vitrail.parts import NoPosition, position_variants


def test_simulate_as_json_has_every_method_and_kind(capsys):
    assert call("simulate", "--from-grid", "5x7", "--to-grid", "8x11", "--bands", "3", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert {each["method"] for each in found["methods"]} >= {"timm", "huggingface", "dinov2", "torchvision", "exact"}
    assert all(len(each["bands"]) == 3 for each in found["methods"])
    assert found["methods"][0]["old"] == {"height": 5, "width": 7}
    kinds = [kind.name for kind in position_variants() if kind != NoPosition()]
    assert [kind["kind"] for kind in found["kinds"]] == kinds
    assert found["trained"] == []


def test_simulate_for_people(capsys):
    assert call("simulate", "--to-grid", "24x40", "--method", "timm,hf") == 0
    shown = capsys.readouterr().out
    assert "Positions from 14x14 to 24x40" in shown
    assert "huggingface" in shown
    assert "torchvision" not in shown
    assert "Rotary (normalised)" in shown


def test_simulate_with_weights_measures_them(tmp_path, capsys):
    model = timm.models.VisionTransformer(img_size=(20, 28), patch_size=4, embed_dim=24, depth=1, num_heads=3)
    torch.save(model.state_dict(), tmp_path / "vit.pth")
    weights = ("--weights", str(tmp_path / "vit.pth"), "--from-image", "20x28", "--num-heads", "3")
    assert call("simulate", "--to-grid", "8x11", *weights, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["methods"][0]["table"] == "trained"
    assert found["trained"][0]["kind"] == "Learned"
    assert call("simulate", "--from-grid", "5x7", *weights) == 2
    assert "--weights were both given; choose one" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "start"), [("bands.svg", b"<svg"), ("maps.png", b"\x89PNG")])
def test_simulate_draws(tmp_path, capsys, name, start):
    assert call("simulate", "--from-grid", "5x7", "--to-grid", "8x11", "--chart", str(tmp_path / name)) == 0
    assert (tmp_path / name).read_bytes().startswith(start)
    capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--to-grid", "big"), "size 'big' is not HEIGHTxWIDTH"),
        (("--from-grid", "1x1"), "a grid of 1x1 has no frequencies"),
        (("--method", "cubic"), "method 'cubic' is unknown"),
        (("--chart", "out.gif"), "use .svg for bands or .png for maps"),
        (("--bands", "0"), "bands 0 is not positive"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(capsys, arguments, reason):
    assert call("simulate", *arguments) == 2
    shown = capsys.readouterr()
    assert reason in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""
