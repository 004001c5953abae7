"""Every published figure says what it measures, who says so, and whether that was looked up."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from vitrail.plan.folklore import claim
from vitrail.plan.published import DOUBTS, RESULTS, Check, best, results
from vitrail.presets import PRESETS


@pytest.mark.parametrize("result", RESULTS, ids=lambda result: f"{result.model} {result.accuracy}")
def test_a_figure_has_a_source_and_a_check(result) -> None:
    assert result.check in get_args(Check)
    assert re.fullmatch(r"arXiv \d{4}\.\d{5}(, .+)?|[\w.-]+/[\w.-]+, [\w./-]+\.(md|csv)", result.source)
    assert result.check != "quoted" or result.note, "who quotes it?"
    assert 50 < result.accuracy < 100
    assert result.pretraining
    assert result.image > 0
    assert result.model in PRESETS or result.dataset != "ImageNet-1k"


def test_no_figure_stands_twice() -> None:
    found = [(result.model, result.pretraining, result.image, result.source) for result in RESULTS]
    assert len(found) == len(set(found))


def test_a_figure_that_was_not_read_at_its_source_says_so_wherever_it_is_shown() -> None:
    for result in RESULTS:
        assert (result.check in result.label) == (result.check != "read")
        assert f"{result.accuracy:.1f}" in result.label
    assert set(DOUBTS) == {check for check in get_args(Check) if check != "read"}


def test_a_figure_that_was_read_comes_before_a_higher_one_that_was_not() -> None:
    found = results("L/16")
    highest = max(found, key=lambda result: result.accuracy)
    chosen = best("L/16")
    assert highest.check == "unchecked"
    assert chosen is not None
    assert chosen.check == "read"
    assert chosen.accuracy == max(result.accuracy for result in found if result.check == "read")
    assert best("g/14") is None  # not to be taken for G/14


def test_the_folklore_about_vit_b_is_set_right_by_the_figures() -> None:
    """77.91 % is ImageNet-1k alone, at 384 pixels; with JFT-300M it is 84.15 %."""
    found = {result.pretraining: result for result in results("B/16") if result.source == "arXiv 2010.11929, table 5"}
    assert (found["ImageNet-1k"].accuracy, found["ImageNet-1k"].image) == (77.91, 384)
    assert found["JFT-300M"].accuracy == 84.15
    assert claim("vit-b-jft").true == "84.15 % with JFT-300M"
    assert f"84.15 {found['JFT-300M'].check}" in claim("vit-b-jft").source
