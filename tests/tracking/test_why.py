"""Two followed modules: where their bytes differ, in parts that sum exactly to the difference."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

import peers  # noqa: F401 - timm's import needs it where torchvision has no operators
from command import call

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/schema/plan-why-module.json").read_text(encoding="utf-8"))
MODULE = """
from torch import nn

def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 48 * 64, 40), nn.GELU(), nn.Linear(40, 9))
"""


def asked(capsys: pytest.CaptureFixture[str], *line: str) -> dict:
    assert call("plan", "--why", *line, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    Draft202012Validator(SCHEMA).validate(found)
    assert sum(part["bytes"] for part in found["parts"]) == found["after"]["bytes"] - found["before"]["bytes"]
    sizes = [abs(part["bytes"]) for part in found["parts"]]
    assert sizes == sorted(sizes, reverse=True)
    return found


def test_a_preset_and_timms_own_module_of_it_take_the_same(capsys) -> None:
    found = asked(capsys, "timm:vit_tiny_patch16_224", "deit-Ti/16", "--train", "--batch", "2")
    assert found["before"] == found["after"]
    assert found["parts"] == []


def test_parts_of_a_larger_batch_and_another_model_sum_to_the_whole(capsys) -> None:
    found = asked(capsys, "timm:resnet10t", "Ti/16,batch=3", "--train", "--image", "64")
    names = [part["name"] for part in found["parts"]]
    assert {"weights", "optimizer"} <= set(names)
    assert any(name.startswith(("activations: ", "temporary: ")) for name in names)


def test_a_file_is_compared_and_what_cannot_change_it_is_refused(tmp_path: Path, capsys) -> None:
    file = tmp_path / "mine.py"
    file.write_text(MODULE)
    assert call("plan", "--why", f"{file}:make", "Ti/16") == 2
    assert "does not say what it takes" in capsys.readouterr().err
    assert asked(capsys, f"{file}:make", "Ti/16,batch=2", "--input", "2x3x48x64")["before"]["params"] == 369_049
    assert call("plan", "--why", "S/16", "Ti/16", "--input", "2x3x48x64") == 2
    assert "the shape that a module takes, and none is compared" in capsys.readouterr().err
    assert call("plan", "--why", "timm:resnet10t,depth=3", "Ti/16") == 2
    assert "is a module, which depth cannot change" in capsys.readouterr().err
    assert call("plan", "--why", "timm:resnet10t", "Ti/16", "--train", "--train-last", "2") == 2
    assert "--why with a module takes no --freeze" in capsys.readouterr().err
