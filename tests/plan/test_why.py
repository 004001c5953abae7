"""The difference between two plans is the sum of its causes."""

from __future__ import annotations

import itertools
import json
from fractions import Fraction
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from command import call
from vitrail.checkpointing import Checkpointing
from vitrail.geometry import Size
from vitrail.parts import MeanPool, Prefix
from vitrail.plan import Case, Workload, ledger, memory, why
from vitrail.plan.why import Cost
from vitrail.presets import preset

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "schema" / "plan-why.json").read_text(encoding="utf-8"))
TRAIN = Workload(batch=3, train=True)
LARGE = Workload(
    batch=64,
    train=True,
    precision="amp-bf16",
    optimizer="adamw-fused",
    attention="eager",
    checkpointing=Checkpointing(),
)


def cost(case: Case) -> Cost:
    books, work = ledger(case.config, case.workload), case.workload
    flops = books.flops_train if work.train else books.flops_forward
    return Cost(memory(case.config, work).peak_bytes, flops * work.batch * work.accumulate, books.params)


PAIRS = [
    (
        Case(config=preset("clip-B/16", image=512), workload=TRAIN),
        Case(config=preset("dinov2-B/14-reg4"), workload=LARGE),
    ),
    (Case(config=preset("Ti/16")), Case(config=preset("dinov2-g/14-reg4"), workload=LARGE)),
    (Case(config=preset("swin-T"), workload=TRAIN), Case(config=preset("swin-S", image=Size(224, 448)))),
    (Case(config=preset("S/16", classes=7), workload=TRAIN), Case(config=preset("mobilevit-S"), workload=TRAIN)),
    (
        Case(config=preset("B/16"), workload=TRAIN),
        Case(config=preset("B/16"), workload=TRAIN.but(library="huggingface")),
    ),
    (Case(config=preset("B/16")), Case(config=preset("B/16", norm_eps=1e-5))),
]


@pytest.mark.parametrize("pair", range(len(PAIRS)))
def test_the_parts_sum_exactly_to_the_difference(pair: int):
    first, second = PAIRS[pair]
    found = why(first, second)
    assert (found.before, found.after) == (cost(first), cost(second))
    for place, (before, after) in enumerate(zip(found.before, found.after, strict=True)):
        assert sum(cause.part[place] for cause in found.causes) == after - before
    sizes = [abs(cause.part.bytes) for cause in found.causes]
    assert sizes == sorted(sizes, reverse=True)


def test_a_part_is_the_mean_over_all_orders_of_what_its_change_adds():
    before = {"depth": 12, "image": Size(224, 320), "batch": 2}
    after = {"depth": 5, "image": Size(64, 96), "batch": 7}

    def case(values: dict) -> Case:
        config = preset("S/16", image=values["image"], depth=values["depth"])
        return Case(config=config, workload=TRAIN.but(batch=values["batch"]))

    expected = dict.fromkeys(before, Fraction(0))
    for order in itertools.permutations(before):
        now = dict(before)
        for name in order:
            changed = {**now, name: after[name]}
            expected[name] += Fraction(cost(case(changed)).bytes - cost(case(now)).bytes, 6)
            now = changed
    found = why(case(before), case(after))
    assert found.orders == 6
    for cause in found.causes:
        assert abs(cause.part.bytes - expected[cause.name]) < 1  # rounded to a whole byte


def test_the_other_way_round_the_parts_have_the_other_sign():
    first, second = PAIRS[0]
    there, back = why(first, second), why(second, first)
    parts = {cause.fields: cause.part.bytes for cause in back.causes}
    assert there.orders == back.orders
    for cause in there.causes:
        if len(cause.fields) == 1:
            assert abs(cause.part.bytes + parts[cause.fields]) <= 1


def test_only_orders_of_valid_models_count():
    with_cls = preset("S/16", prefix=Prefix(cls=True))
    without = with_cls.but(pool=MeanPool(), prefix=Prefix(cls=False))
    found = why(Case(config=with_cls, workload=TRAIN), Case(config=without, workload=TRAIN))
    assert found.orders == 1  # the CLS token cannot go before the pool that reads it
    assert {cause.name for cause in found.causes} == {"pool", "prefix cls"}


def test_what_cannot_be_changed_alone_is_changed_together():
    second = preset("B/16", width=770, num_heads=14)  # neither 770 / 12 nor 768 / 14
    found = why(Case(config=preset("B/16")), Case(config=second))
    (cause,) = found.causes
    assert set(cause.fields) == {"config.width", "config.num_heads"}


def test_a_field_without_effect_is_named_and_no_cause():
    found = why(Case(config=preset("B/16")), Case(config=preset("B/16", norm_eps=1e-5, depth=13)))
    assert [cause.name for cause in found.causes] == ["depth"]
    assert found.without_effect == ("norm eps",)


def test_each_side_may_have_its_own_workload(capsys):
    sides = ("B/16,as=huggingface,batch=24", "dinov2-B/14,image=224,attention=eager,checkpointing")
    assert call("plan", "--why", *sides, "--train", "--batch", "32", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    Draft202012Validator.check_schema(SCHEMA)
    Draft202012Validator(SCHEMA).validate(found)
    first = Case(config=preset("B/16"), workload=Workload(batch=24, train=True, library="huggingface"))
    second = preset("dinov2-B/14", image=224)
    work = Workload(batch=32, train=True, attention="eager", checkpointing=Checkpointing())
    assert found["before"]["bytes"] == cost(first).bytes
    assert found["after"]["bytes"] == cost(Case(config=second, workload=work)).bytes
    assert sum(cause["bytes"] for cause in found["causes"]) == found["after"]["bytes"] - found["before"]["bytes"]
    fields = {field for cause in found["causes"] for field in cause["fields"]}
    assert {"workload.batch", "workload.library", "workload.attention", "config.layer_scale"} <= fields


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("plan --why B/16", "--why compares two plans, not 1"),
        ("plan S/16 --why B/16 L/16 --csv", "--why was given with MODEL S/16, --csv, which it does not take"),
        ("plan --why B/16 L/16,size=3", "'size=3' is not KEY=VALUE"),
        ("plan --why B/16 L/16,batch=many", "batch='many' is not a whole number"),
        ("plan --why B/16 L/16,precision=fp8", "precision 'fp8' is not one of"),
    ],
)
def test_a_mistake_is_one_line(line: str, said: str, capsys):
    assert call(*line.split()) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
