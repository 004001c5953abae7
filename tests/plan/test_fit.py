import json
from dataclasses import replace
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from command import call
from vitrail.config import ViTConfig
from vitrail.geometry import Size
from vitrail.parts import Mlp, Patches
from vitrail.plan import fit
from vitrail.plan.allocators import VERDICTS
from vitrail.plan.cards import GIB, card
from vitrail.plan.changes import changes
from vitrail.plan.fit import largest_batch, largest_batches, limits, need_bytes
from vitrail.plan.memory import memory
from vitrail.plan.report import report
from vitrail.plan.tiers import tiers
from vitrail.plan.workload import Workload
from vitrail.presets import preset
from vitrail.tuning import Tuning

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "schema" / "plan-limits.json").read_text(encoding="utf-8"))
SMALL = ViTConfig(
    image=Size(48, 80),
    embedding=Patches(patch=Size(8, 16)),
    width=48,
    depth=3,
    num_heads=3,
    mlp=Mlp(width=112),
    classes=7,
)
TRAIN = Workload(batch=6, train=True, precision="amp-bf16")


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("verdict", VERDICTS)
def test_the_largest_batch_fits_and_one_more_does_not(verdict, train):
    target, workload = card("1GiB"), replace(TRAIN, train=train)
    most = largest_batch(SMALL, workload, target, verdict)
    assert most > 0
    assert need_bytes(SMALL, replace(workload, batch=most), target, verdict) <= target.visible_bytes
    assert need_bytes(SMALL, replace(workload, batch=most + 1), target, verdict) > target.visible_bytes


def test_the_largest_batch_is_what_counting_up_finds():
    target, workload = card("600MiB"), Workload(train=True, attention="eager")
    batch = 1
    while need_bytes(SMALL, replace(workload, batch=batch + 1), target) <= target.visible_bytes:
        batch += 1
    assert largest_batch(SMALL, workload, target) == batch


def test_a_search_takes_a_handful_of_plans(monkeypatch):
    calls = []
    monkeypatch.setattr(fit, "memory", lambda *question: calls.append(question) or memory(*question))
    largest_batch(preset("B/16"), TRAIN, card("a100-80"))
    assert len(calls) <= 8


@pytest.mark.parametrize("bends", [(0,), (40,), (7, 300), (1000,)])
@pytest.mark.parametrize("limit", [105, 900, 5000, 100_000])
def test_the_search_is_exact_on_any_line_with_bends(bends, limit):
    def need(batch: int) -> int:
        return 100 + batch + sum(5 * max(0, batch - bend) for bend in bends)

    found = fit._search(need, replace(card("1GiB"), visible_bytes=limit))
    assert need(found) <= limit < need(found + 1)


def test_nothing_fits_a_card_that_the_context_fills():
    assert largest_batches(SMALL, TRAIN, card("100MiB")) == {"optimistic": 0, "likely": 0, "safe": 0}


def test_what_fits_needs_no_change():
    assert changes(SMALL, TRAIN, card("rtx-4090")) == ()


def test_changes_come_in_order_and_each_saves_what_it_says():
    config, target = preset("B/16"), card("rtx-4090")
    workload = Workload(batch=256, train=True, precision="fp32", attention="eager")
    found = changes(config, workload, target)
    names = [change.name for change in found]
    order = ["batch", "attention", "optimizer", "checkpointing", "precision", "shard", "patch"]
    assert names == sorted(names, key=order.index)
    assert names[0] == "batch"
    assert {"checkpointing", "precision"} <= set(names)
    before = need_bytes(config, workload, target)
    for change in found:
        assert change.alone_bytes == need_bytes(change.config, change.workload, target) < before
        assert change.alone_fits == (change.alone_bytes <= target.visible_bytes)


def test_a_smaller_batch_keeps_the_effective_batch():
    workload = Workload(batch=192, accumulate=2, train=True, precision="fp32")
    change = changes(preset("B/16"), workload, card("rtx-3060"))[0]
    assert change.workload.batch * change.workload.accumulate == 384
    assert change.workload.batch < 192
    assert change.alone_fits


def test_changes_add_up_until_it_fits():
    target = card("9GiB")
    found = changes(preset("L/16"), Workload(batch=64, train=True, precision="fp32"), target)
    together = [change.together_bytes for change in found if change.together_bytes is not None]
    assert len(together) > 1
    assert together == sorted(together, reverse=True)
    fits = [change.together_fits for change in found]
    assert fits == sorted(fits)
    assert fits[-1]


def test_sharding_says_how_many_cards_both_its_numbers_are_for():
    target = card("rtx-4090")
    found = changes(preset("G/14"), Workload(batch=64, train=True), target)
    shard = next(change for change in found if change.name == "shard")
    assert shard.workload.shard is not None
    assert shard.what == f"fsdp over {shard.workload.shard.devices} cards"
    assert shard.alone_bytes == need_bytes(shard.config, shard.workload, target)
    assert shard.together_fits


def test_patch_size_comes_last_and_only_if_it_divides():
    workload = Workload(batch=512, train=True)
    assert changes(preset("B/16"), workload, card("rtx-3060"))[-1].name == "patch"
    odd = preset("B/16", image=Size(48, 208))  # 13 columns: 32 does not divide
    assert "patch" not in [change.name for change in changes(odd, replace(workload, batch=20_000), card("rtx-3060"))]


def test_inference_is_not_told_to_checkpoint_or_shard():
    found = changes(preset("B/16"), Workload(batch=100_000), card("2GiB"))
    assert {change.name for change in found} <= {"batch", "precision", "patch"}
    assert found[0].name == "batch"
    assert found[0].alone_fits


def test_a_report_without_a_card_says_nothing_of_one():
    found = report(SMALL, TRAIN)
    assert (found.card, found.verdicts, found.max_batch, found.changes, found.step_bound) == (None, (), {}, (), None)


def test_a_report_plans_the_kernel_that_the_card_runs():
    found = report(SMALL, replace(TRAIN, precision="amp-fp16"), card("t4"))
    assert found.workload.attention == "efficient"
    assert "flash attention does not run on this card" in found.notes[0]
    assert found.memory == memory(SMALL, replace(TRAIN, precision="amp-fp16", attention="efficient"))


def test_a_report_s_bound_is_arithmetic_at_the_card_s_rate():
    found = report(preset("B/16"), replace(TRAIN, batch=32), card("rtx-4090"))
    assert found.step_bound is not None
    assert found.step_bound.compute_seconds == pytest.approx(32 * found.books.flops_train / 165e12)
    assert found.memory.peak_bytes < found.verdicts[0].needed_bytes < found.memory.peak_bytes + GIB


def test_the_flops_of_a_report_do_not_depend_on_batch_or_phase():
    one, many = report(SMALL, Workload()), report(SMALL, replace(TRAIN, precision="fp32", batch=5, accumulate=3))
    assert one.books == many.books


def test_a_tier_is_the_largest_batch_that_fits_and_the_next_does_not():
    large, target = preset("L/16", image=Size(224, 320)), card("16GiB")
    tier = next(t for t in tiers(["L/16"], image=large.image) if t.gib == 16)
    for train, batch in ((True, tier.train_batch), (False, tier.inference_batch)):
        work = Workload(train=train, precision="amp-bf16")
        assert need_bytes(large, replace(work, batch=batch), target) <= target.visible_bytes
        assert need_bytes(large, replace(work, batch=batch + 1), target) > target.visible_bytes


# ── limits ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("quantity", "name", "options"),
    [
        ("batch", "S/16", {"image": Size(224, 320)}),
        ("image", "S/16", {"image": Size(96, 160)}),
        ("image", "swin-T", {}),
        ("image", "mobilevit-XXS", {}),
        ("patch", "S/16", {"image": Size(240, 160)}),
        ("patch", "swin-T", {"image": Size(192, 256)}),
        ("train-last", "L/16", {"image": Size(224, 160)}),
        ("train-last", "swin-B", {}),
    ],
)
def test_a_limit_fits_and_the_next_one_does_not(quantity, name, options):
    config, target = preset(name, **options), card("6GiB")
    changed = {
        "batch": lambda value: (config, TRAIN.but(batch=value)),
        "image": lambda value: (config.but(image=value), TRAIN),
        "patch": lambda value: (config.with_patch(value), TRAIN),
        "train-last": lambda value: (config, TRAIN if value == "everything" else TRAIN.but(tuning=Tuning(last=value))),
    }[quantity]
    for verdict, found in limits(quantity, config, TRAIN, target).items():
        assert found.needed_bytes == need_bytes(*changed(found.value), target, verdict) <= target.visible_bytes
        if found.beyond is not None:
            assert found.beyond_bytes == need_bytes(*changed(found.beyond), target, verdict) > target.visible_bytes
        if quantity == "image":
            assert isinstance(found.value, Size)
            assert found.value.height * config.image.width == found.value.width * config.image.height


def test_the_smallest_patch_is_what_trying_all_finds():
    config, target = preset("B/16", image=Size(192, 288)), card("3GiB")
    work = Workload(batch=2, train=True)
    sides = [side for side in range(1, 97) if 192 % side == 0 and 288 % side == 0]
    needs = {side: need_bytes(config.with_patch(Size(side, side)), work, target) for side in sides}
    smallest = min(side for side, needed in needs.items() if needed <= target.visible_bytes)
    assert limits("patch", config, work, target)["likely"].value == Size(smallest, smallest)


def test_where_nothing_fits_the_first_that_does_not_is_shown():
    found = limits("image", preset("G/14"), TRAIN, card("2GiB"))["likely"]
    assert found.value is None
    assert found.beyond == Size(14, 14)
    assert (found.beyond_bytes or 0) > card("2GiB").visible_bytes


def test_the_most_trained_blocks_are_asked_of_a_step_that_leaves_them_open(capsys):
    line = ("plan", "B/16", "--gpu", "rtx-4090", "--largest", "train-last")
    assert call(*line) == 2
    assert "which trains none; add --train" in capsys.readouterr().err
    assert call(*line, "--train", "--train-last", "3") == 2
    assert "--train-last 3 fixes them" in capsys.readouterr().err
    assert call(*line, "--train", "--batch", "4", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    Draft202012Validator(SCHEMA).validate(found)
    assert found["limits"]["safe"]["value"] == "everything"


def test_limits_from_the_command_line(capsys):
    line = "plan B/16 --gpu rtx-4090 --largest image --batch 8 --train --json"
    assert call(*line.split()) == 0
    found = json.loads(capsys.readouterr().out)
    Draft202012Validator(SCHEMA).validate(found)
    expected = limits("image", preset("B/16"), Workload(batch=8, train=True), card("rtx-4090"))["safe"]
    assert isinstance(expected.value, Size)
    assert found["limits"]["safe"]["value"] == {"height": expected.value.height, "width": expected.value.width}
    assert call("plan", "B/16", "--largest", "image") == 2
    assert "needs a card; give --gpu" in capsys.readouterr().err
    assert call("plan", "mobilevit-S", "--smallest", "patch", "--gpu", "t4") == 2
    assert "has no patch size to choose" in capsys.readouterr().err
