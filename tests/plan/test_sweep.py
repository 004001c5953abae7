"""A sweep is the planner on arrays: integer for integer what it says of each question alone."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from plan_cases import AMP, CASES, TRAIN, VIT
from vitrail.config import Config, ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.plan import Workload, ledger, memory
from vitrail.plan import sweep as module
from vitrail.plan.cards import card
from vitrail.plan.fit import largest_batch, need_bytes
from vitrail.plan.sweep import Sweep, sweep


def questions(name: str, count: int) -> tuple[dict[str, list], object]:
    """Random images, batches and, where the kind has them, patches, widths, depths and heads; some break a rule."""
    random, (config, workload) = Random(name), CASES[name]
    unit = config.unit
    values: dict[str, list] = {
        "image": [Size(unit.height * random.randint(1, 9), unit.width * random.randint(1, 9)) for _ in range(count)],
        "batch": [random.randint(1, 5) for _ in range(count)],
        "classes": [random.choice([0, 7, 1000]) for _ in range(count)],
    }
    if isinstance(config, ViTConfig):
        values["width"] = [random.choice([24, 48, 96]) for _ in range(count)]
        values["depth"] = [random.randint(1, 6) for _ in range(count)]
        values["num_heads"] = [random.choice([1, 3, 5, 6]) for _ in range(count)]

    def describe(batch, **changed) -> tuple[Config, Workload]:
        return config.but(**changed), workload.but(batch=batch)

    return values, describe


def check(found: Sweep, values: dict[str, list], describe, place: int) -> None:
    asked = {name: each[place] for name, each in values.items()}
    if found.errors[place]:
        assert found["peak_bytes"][place] is None
        with pytest.raises(VitrailError) as refused:
            memory(*describe(**asked))
        assert found.errors[place] == str(refused.value)
        return
    config, workload = describe(**asked)
    held, books = memory(config, workload), ledger(config, replace(workload, batch=1, accumulate=1, train=True))
    expected = {
        "grid.height": config.grid.height,
        "grid.width": config.grid.width,
        "tokens": config.tokens,
        "params": books.params,
        "flops_forward": books.flops_forward,
        "flops_train": books.flops_train,
        "macs_forward": books.macs_forward,
        "peak_bytes": held.peak_bytes,
        "exact": held.exact,
        **{f"bytes.{name}": size for name, size in held.bytes.items()},
    }
    assert {name: column[place] for name, column in found.columns.items()} == expected


@pytest.mark.parametrize("name", CASES)
def test_a_sweep_says_of_every_question_what_the_planner_says_of_it_alone(name: str) -> None:
    values, describe = questions(name, 80)
    found = sweep(describe, values, 80)  # type: ignore[arg-type]
    for place in range(0, 80, 3):
        check(found, values, describe, place)
    assert not all(found.errors)


def test_few_questions_are_answered_alike_without_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    values, describe = questions("plain", 66)
    together = sweep(describe, values, 66, card("t4"))  # type: ignore[arg-type]
    monkeypatch.setattr(module, "_FEW", 67)
    assert sweep(describe, values, 66, card("t4")) == together  # type: ignore[arg-type]


def test_a_sweep_on_a_card_finds_what_each_needs_and_its_largest_batch() -> None:
    target, sides = card("1GiB"), [Size(16 * (1 + place % 9), 16 * (1 + place % 7)) for place in range(70)]
    found = sweep(lambda image: (VIT.but(image=image), AMP), {"image": sides}, 70, target)
    for place in range(0, 70, 9):
        config = VIT.but(image=sides[place])
        assert found["needed_bytes"][place] == need_bytes(config, AMP, target)
        assert found["max_batch"][place] == largest_batch(config, AMP, target)


def test_a_sweep_beyond_64_bits_is_exact_and_no_number_overflows_in_silence() -> None:
    batches = [10 ** (place % 19) for place in range(70)]
    found = sweep(lambda batch: (VIT, TRAIN.but(batch=batch)), {"batch": batches}, 70)
    assert max(found["peak_bytes"]) > 2**63
    assert found["peak_bytes"] == [memory(VIT, TRAIN.but(batch=batch)).peak_bytes for batch in batches]


def test_a_value_that_is_no_whole_number_is_refused_as_it_is_alone() -> None:
    batches = [*range(1, 70), 1.5]
    found = sweep(lambda batch: (VIT, TRAIN.but(batch=batch)), {"batch": batches}, 70)  # type: ignore[arg-type]
    assert found.errors[-1].startswith("batch 1.5 is not a positive whole number")
    assert not any(found.errors[:-1])


def test_a_sweep_with_a_list_of_another_length_is_refused() -> None:
    with pytest.raises(VitrailError, match="a sweep of 70 questions has 3 values of batch"):
        sweep(lambda batch: (VIT, TRAIN.but(batch=batch)), {"batch": [1, 2, 3]}, 70)
