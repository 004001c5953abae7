"""What is often claimed differs from what is true, and each truth equals what the planner or the docs show."""

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from vitrail import build, preset
from vitrail.checkpointing import Checkpointing
from vitrail.geometry import Size
from vitrail.parts import RelativeBias
from vitrail.plan import Workload, ledger, memory
from vitrail.plan.cards import card
from vitrail.plan.fit import largest_batch
from vitrail.plan.folklore import claim, folklore
from vitrail.plan.measured import DATA_HUNGER, HUNGER_COMMAND

DOCS = Path(__file__).parents[2] / "docs"


def test_every_claim_has_a_different_truth_a_reason_and_a_source():
    entries = folklore()
    assert len({entry.key for entry in entries}) == len(entries) >= 14
    for entry in entries:
        assert entry.said != entry.true
        assert all((entry.about, entry.why, entry.source))


@pytest.mark.parametrize(
    ("key", "true"),
    [
        ("finer-patches", "256×"),
        ("doubled-side", "16×"),
        ("attention-per-pixel", "H·W·D/P⁴"),
        ("vit-b-jft", "84.15 % with JFT-300M"),
        ("vit-l-jft", "87.12 % with JFT-300M"),
        ("vit-giant", "90.45 % with JFT-3B"),
    ],
)
def test_known_truths(key, true):
    assert claim(key).true == true


def test_attention_has_four_squares_of_the_width():
    attention = next(m for m in build(preset("B/16", depth=1)).modules() if type(m).__name__ == "Attention")
    assert isinstance(attention, nn.Module)
    count = sum(each.numel() for each in attention.parameters())
    assert count == 4 * 768**2 + 4 * 768
    assert f"{count:,}" in claim("attention-parameters").why


def test_a_relative_bias_has_one_number_per_offset_and_head():
    model = build(preset("B/16", depth=1, position=RelativeBias()))
    shapes = [tuple(each.shape) for name, each in model.named_parameters() if "position" in name]
    assert sum(max(shape) for shape in shapes) == 27 * 27 + 3  # and three for the CLS token
    assert f" {27 * 27} " in claim("relative-bias").why


def test_checkpointing_costs_what_pytorch_counts():
    """torch's own counter on meta tensors, where attention is eager, with and without recomputing the blocks."""
    config = preset("B/16")
    model = build(config).to("meta")
    for again in (False, True):
        if again:
            for block in model.blocks:
                block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        with FlopCounterMode(display=False) as counter:
            model(torch.empty(1, 3, 224, 224, device="meta")).sum().backward()
        planned = ledger(
            config, Workload(train=True, attention="eager", checkpointing=Checkpointing.of(again))
        ).flops_train
        assert counter.get_total_flops() == planned
    plain, recomputed = (
        ledger(config, Workload(train=True, checkpointing=how)).flops_train for how in (None, Checkpointing())
    )
    assert claim("checkpointing").true == f"{100 * (recomputed / plain - 1):.0f} % more FLOPs"


def test_adamw_has_two_numbers_per_parameter_and_gradients_one():
    config = preset("S/16")
    params = sum(each.numel() for each in build(config).parameters())
    peak = memory(config, Workload(train=True, batch=1))
    assert peak.bytes["optimizer"] == pytest.approx(2 * 4 * params, rel=1e-5)  # and a step count per tensor
    assert claim("optimizer").true.startswith("2×")
    assert claim("gradients").true.startswith("1×")


def test_the_batch_on_24_gb_is_the_planners():
    large, work = preset("B/16", image=Size(384, 384)), Workload(train=True, precision="amp-bf16")
    safe = largest_batch(large, work, card("rtx-4090"), "safe")
    assert claim("batch-on-24-gb").true.startswith(f"batch {safe}–")


def test_measured_claims_quote_the_table_of_the_docs():
    table = (DOCS / "experiments.md").read_text()
    rows = {line.split("|")[1].strip(): line for line in table.splitlines() if line.startswith("| sinusoidal")}
    entry = claim("1d-or-2d")
    for kind, figures in (("1D", ("51.67 ± 0.58", "30.3 ± 3.0")), ("2D", ("52.09 ± 1.00", "40.9 ± 2.2"))):
        for figure in figures:
            assert figure in rows[f"sinusoidal, {kind}"]
            assert figure in entry.why
    rows = {line.split("|")[1].strip(): line for line in table.splitlines() if line.startswith("| learned, ")}
    entry = claim("fine-tune-or-resample")
    for way, figures in (
        ("fine-tuned", ("49.6 ± 1.0", "50.0 ± 0.9", "49.6 ± 0.8")),
        ("resampled", ("49.2 ± 1.9", "46.3 ± 1.4", "37.7 ± 2.5")),
    ):
        for figure in figures:
            assert figure in rows[f"learned, {way}"]
            assert figure in entry.why


def test_what_is_said_of_data_hunger_is_in_the_docs():
    text = (DOCS / "experiments.md").read_text()
    table = text[text.index("| equal steps |") : text.index("| equal epochs |")]
    for images, found in DATA_HUNGER.items():
        row = next(line for line in table.splitlines() if f"({images:,})" in line)
        for accuracy in found:
            deviation = f" ± {accuracy.deviation:.2f}"
            assert f"| {accuracy.mean:.2f}{deviation} |" in row
    assert HUNGER_COMMAND in claim("data-hungry").source
    for images in (500, 50_000):
        assert (
            f"{images:,} images: {DATA_HUNGER[images].vit} and {DATA_HUNGER[images].cnn} %" in claim("data-hungry").why
        )
