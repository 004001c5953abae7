"""A question that is answered by the arithmetic of an earlier one has the answer that it has alone."""

from __future__ import annotations

from random import Random

import pytest

from plan_cases import CASES, VIT
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.parts import Adaptive, Mlp, SinCos2d
from vitrail.plan import Workload, memory, recall
from vitrail.plan.memory import memory_of
from vitrail.plan.step import run_step
from vitrail.traced import Program, Trace


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each program that was tried had an answer."""
    recall.forget()
    tried: list[bool] = []
    answer = Program.__call__

    def watched(self: Program, inputs: dict[str, int]) -> dict | None:
        found = answer(self, inputs)
        tried.append(found is not None)
        return found

    monkeypatch.setattr(Program, "__call__", watched)
    return tried


@pytest.mark.parametrize("name", [name for name in CASES if name != "sharded"])
def test_a_recalled_answer_is_that_of_the_question_alone(name: str, used: list[bool]) -> None:
    random, (config, workload) = Random(name), CASES[name]
    for _ in range(12):
        sides = (side * random.choice([1, 2, 3, 7]) for side in config.unit)
        asked = config.but(image=Size(*sides)), workload.but(batch=random.choice([1, 2, 5, 64]))
        assert memory(*asked) == memory_of(run_step(*asked), asked[1])
    assert any(used)


def test_a_recalled_estimate_has_its_note(used: list[bool]) -> None:
    odd = VIT.but(width=30, num_heads=3, mlp=Mlp(width=40))  # heads of width 10: the note names it
    notes = {memory(odd.but(image=Size(16 * side, 32)), Workload(batch=side)).note for side in (2, 3, 4, 5)}
    assert len(notes) == 1
    assert "heads of width 10" in notes.pop()
    assert used == [True, True]  # the width is no number that questions of this kind differ in


def test_a_refusal_is_that_of_the_question_alone() -> None:
    config = VIT.but(embedding=Adaptive(), position=SinCos2d())
    work = Workload(batch=2, adaptive_tokens=40)
    for side in (96, 128, 160):
        memory(config.but(image=Size(side, side)), work)
    for _ in range(2):
        with pytest.raises(VitrailError, match="adaptive_tokens 40 is more than the finest grid 4x8 has"):
            memory(config.but(image=Size(32, 64)), work)


def test_a_program_has_no_answer_where_a_branch_would_differ() -> None:
    trace = Trace()
    side = trace.input("side", 8)
    program = trace.program({"half": side // 2 if side % 2 == 0 else side, "parts": 40 // side})
    assert program({"side": 20}) == {"half": 10, "parts": 2}
    assert program({"side": 7}) is None
    assert program({"side": 0}) is None
