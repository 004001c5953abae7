from fractions import Fraction

import pytest

from vitrail.config import ViTConfig
from vitrail.errors import VitrailError
from vitrail.parts import RelativeBias, WindowedAttention
from vitrail.plan.allocators import ALLOCATORS, VERDICTS, allocator_of
from vitrail.plan.cards import CARDS, GIB, MIB, card
from vitrail.plan.hardware import (
    flash_scratch_bytes,
    kernel_on,
    needed_bytes,
    roofline,
    verdicts,
)
from vitrail.plan.workload import Memory, Workload


def memory(forward: int, backward: int, optimizer: int) -> Memory:
    phases = {"forward": forward, "backward": backward, "optimizer": optimizer}
    peak = max(phases.values())
    return Memory(peak_bytes=peak, bytes={"activations": peak}, phase_peaks=phases)


def test_every_card_sees_less_than_its_nameplate():
    nameplate = {"t4": 16, "a100-80": 80, "rtx-4090": 24, "rtx-5090": 32, "h100-sxm": 80, "v100-32": 32, "l4": 24}
    for key, gib in nameplate.items():
        assert 0.9 * gib * GIB < card(key).visible_bytes < gib * GIB


def test_every_card_has_a_source_and_a_name_of_its_own():
    assert all(entry.source and entry.gigabytes_per_second > 0 and entry.vendor != "unknown" for entry in CARDS)
    assert all(entry.tflops or "no rate is published" in entry.note for entry in CARDS)
    assert len({entry.key for entry in CARDS}) == len(CARDS)
    assert len({entry.name for entry in CARDS}) == len(CARDS)


@pytest.mark.parametrize("text", ["rtx-4090", "RTX 4090", "rtx4090", " Rtx_4090 ", "GeForce RTX 4090"])
def test_a_card_is_found_however_it_is_spelt(text):
    assert card(text).key == "rtx-4090"


def test_the_start_of_a_name_is_enough_when_only_one_card_has_it():
    assert card("rtx-6000").key == "rtx-6000-ada"
    with pytest.raises(VitrailError, match=r"a100-40, a100-80"):
        card("A100")


@pytest.mark.parametrize(
    ("text", "size"),
    [("24GiB", 24 * GIB), ("25769803776", 24 * GIB), ("1.5 gib", 3 * GIB // 2), ("24GB", 24 * 10**9), ("8g", 8 * GIB)],
)
def test_a_card_can_be_given_by_its_bytes(text, size):
    assert card(text).visible_bytes == size


@pytest.mark.parametrize(("text", "nearest"), [("rtx-4080", "rtx-4090"), ("a100-90", "a100-80")])
def test_an_unknown_card_names_the_nearest(text, nearest):
    with pytest.raises(VitrailError, match=nearest):
        card(text)


@pytest.mark.parametrize("text", ["24", "-5", "", "1.5"])
def test_a_card_of_no_memory_is_refused(text):
    with pytest.raises(VitrailError, match="gpu"):
        card(text)


def test_flash_falls_back_where_it_cannot_run():
    amp = Workload(precision="amp-fp16", attention="flash")
    assert kernel_on(card("t4"), amp) == "efficient"
    assert kernel_on(card("rtx-4090"), amp) == "flash"
    assert kernel_on(card("rtx-4090"), Workload(precision="fp32", attention="flash")) == "efficient"
    assert kernel_on(card("t4"), Workload(precision="amp-fp16", attention="eager")) == "eager"


def test_flash_scratch_is_the_formula_of_its_kernel():
    config = ViTConfig(width=240, num_heads=3)
    workload = Workload(batch=5, train=True, precision="amp-bf16")
    tokens, heads, head_width = 256, 3, 96  # 197 → 256, 80 → 96
    assert flash_scratch_bytes(config, workload) == 4 * 5 * tokens * heads * head_width + 4 * 5 * heads * tokens


@pytest.mark.parametrize(
    ("config", "workload"),
    [
        (ViTConfig(), Workload(precision="amp-bf16")),
        (ViTConfig(), Workload(train=True, precision="fp32")),
        (ViTConfig(), Workload(train=True, precision="bf16", attention="efficient")),
        (ViTConfig(position=RelativeBias()), Workload(train=True, precision="bf16")),
        (ViTConfig(attention=WindowedAttention()), Workload(train=True, precision="bf16")),
    ],
)
def test_no_flash_backward_no_scratch(config, workload):
    assert flash_scratch_bytes(config, workload) == 0


@pytest.mark.parametrize("key", ["rtx-4090", "mi300x", "m2-ultra-192", "tpu-v5e", "24GiB"])
def test_verdicts_are_ordered_and_never_below_the_live_bytes(key):
    live = memory(3 * GIB, 5 * GIB, 4 * GIB)
    needs = [needed_bytes(live, card(key), verdict) for verdict in VERDICTS]
    assert live.peak_bytes <= needs[0] < needs[1] < needs[2]
    assert needs[2] - needs[0] >= int(5 * GIB * Fraction(1, 10))


@pytest.mark.parametrize(
    ("key", "added"),
    [
        ("rtx-4090", GIB // 2 + 8_519_680 + 22 * MIB),
        ("h100-sxm", GIB // 2 + 32 * MIB + 22 * MIB),
        ("mi300x", GIB // 2 + 76 * MIB + 22 * MIB),
        ("m1-max-64", GIB // 4 + (8 + 32 + 1024) * MIB),
        ("tpu-v6e", 530 * MIB),
    ],
)
def test_a_maker_adds_what_its_own_allocator_takes(key, added):
    target = card(key)
    lost = allocator_of(target).allowances["likely"].fragmentation
    whole = 300 * GIB  # of which every share is a whole number of pages
    assert needed_bytes(memory(1, whole, 1), target) == whole + whole * lost + added


def test_every_allocator_says_what_is_known_with_its_source_and_what_is_assumed():
    assert {entry.vendor for entry in CARDS} < set(ALLOCATORS)
    for allocator in ALLOCATORS.values():
        assert "PyTorch" in allocator.known or "#" in allocator.known
        assert allocator.assumed


def test_scratch_counts_only_where_backward_is_the_peak():
    scratch = GIB
    target, optimizer = card("rtx-4090"), memory(1, 2 * GIB, 5 * GIB)
    assert needed_bytes(optimizer, target, "optimistic", scratch) == needed_bytes(optimizer, target, "optimistic")
    backward = memory(1, 5 * GIB, 2 * GIB)
    without = needed_bytes(backward, target, "optimistic")
    assert needed_bytes(backward, target, "optimistic", scratch) - without == scratch


def test_a_verdict_says_what_is_free_or_missing():
    found = {v.name: v for v in verdicts(memory(GIB, 11 * GIB, GIB), card("rtx-3060"))}
    assert found["optimistic"].fits
    assert not found["safe"].fits
    assert found["safe"].free_bytes == card("rtx-3060").visible_bytes - found["safe"].needed_bytes


def test_the_roofline_takes_the_slower_of_arithmetic_and_memory():
    target, workload = card("a100-80"), Workload(precision="amp-bf16")
    busy = roofline(target, workload, flops=312 * 10**12, traffic_bytes=2039 * 10**8)
    assert busy is not None
    assert (busy.seconds, busy.limited_by) == (1.0, "compute")
    moving = roofline(target, workload, flops=10**9, traffic_bytes=2039 * 10**9)
    assert moving is not None
    assert (moving.seconds, moving.limited_by) == (1.0, "memory")


def test_the_roofline_says_when_a_format_is_missing():
    bound = roofline(card("t4"), Workload(precision="bf16"), flops=81 * 10**11, traffic_bytes=0)
    assert bound is not None
    assert bound.seconds == pytest.approx(1.0)  # 8.1 in floating point
    assert "no bf16 rate is known" in bound.note


def test_nothing_is_claimed_of_an_unknown_card_s_speed():
    assert roofline(card("24GiB"), Workload(), flops=1, traffic_bytes=1) is None
