import json

import pytest

from command import call
from vitrail.plan.folklore import folklore


def test_laws_as_json_are_exact(capsys):
    assert call("laws", "--image", "512", "--patch", "8", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["grid"] == {"height": 64, "width": 64}
    assert (found["tokens"], found["attention_elements"]) == (4097, 16_777_216)
    assert found["twice_as_fine"] == {"tokens": 4, "attention": 16}
    assert found["neighbours"][-1]["attention_elements"] * 256 == found["attention_elements"]


def test_laws_for_people(capsys):
    assert call("laws", "--image", "384x640", "--patch", "16x8", "--width", "192") == 0
    shown = capsys.readouterr().out
    assert "24x80" in shown
    assert "1,921" in shown
    assert "vitrail laws --folklore" in shown


def test_folklore_shows_the_truth_beside_what_is_said(capsys):
    assert call("laws", "--folklore") == 0
    shown = capsys.readouterr().out
    assert shown.index("258×") < shown.index("256×")
    assert shown.count("  source ") == len(folklore())


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--image", "12", "--patch", "16"), "patch 16x16 is larger than image 12x12"),
        (("--image", "500"), "500x500 is not divisible by patch 16x16"),
        (("--image", "big"), "size 'big' is not HEIGHTxWIDTH"),
        (("--width", "-3"), "width -3 is not a positive whole number"),
        (("--prefix", "5"), "prefix '5' is not understood"),
        (("--patch", "0"), "height 0 is not a positive whole number"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(capsys, arguments, reason):
    assert call("laws", *arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert reason in shown.err
    assert shown.err.count("\n") == 1
