"""Two towers of one image: transformers' DeepSeek-VL gives the same tokens, and the plan is what a step takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from peer_models import randomise, relative_error
from peers import transformers
from vitrail.checkpoint.read import load
from vitrail.checkpoint.surgery.branches import with_second_branch
from vitrail.checkpointing import Checkpointing
from vitrail.config import TwoBranches, ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.nn.branches import TwoBranchEncoder
from vitrail.parts import (
    BranchMerger,
    DecomposedBias,
    Learned,
    MeanPool,
    Mlp,
    Neck,
    Patches,
    Prefix,
    WindowedAttention,
)
from vitrail.plan import Workload
from vitrail.plan.branches import plan_branches
from vitrail.plan.vision_language import VISION_LANGUAGE
from vitrail.presets import preset
from vitrail.tuning import Tuning

LOW = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 64}
LOW |= {"image_size": 32, "patch_size": 8, "vision_use_head": False}
HIGH = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 2, "mlp_dim": 80, "image_size": 80}
HIGH |= {"patch_size": 8, "window_size": 4, "global_attn_indexes": [1, 3], "output_channels": 16}
TEXT = {"model_type": "llama", "hidden_size": 40, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 9}


def deepseek() -> Any:
    config = transformers.DeepseekVLHybridConfig(
        vision_config={"model_type": "siglip_vision_model", **LOW}, high_res_vision_config=HIGH, text_config=TEXT
    )
    return randomise(transformers.DeepseekVLHybridModel(config))


@torch.no_grad()
@pytest.mark.parametrize("whole", [False, True])
def test_both_towers_of_one_file_give_the_tokens_that_deepseek_vls_language_model_receives(whole: bool, tmp_path: Path):
    theirs = deepseek()
    if whole:
        text = transformers.DeepseekVLHybridForConditionalGeneration(theirs.config)
        text.model.load_state_dict(theirs.state_dict())
        text.save_pretrained(tmp_path / "whole")
    else:
        theirs.save_pretrained(tmp_path / "whole")
    ours = with_second_branch(load(tmp_path / "whole"))
    dice = torch.Generator().manual_seed(1)
    images = [torch.randn(2, 3, side, side, generator=dice) for side in (32, 80)]
    expected = theirs.get_image_features(*images).pooler_output
    found = ours(*images)
    assert found.shape == (2, ours.config.visual_tokens, 40)
    assert relative_error(found, expected) < 1e-5


def test_a_file_without_a_second_tower_has_no_second_branch():
    with pytest.raises(VitrailError, match="no second tower is beside this one; read a whole DeepSeek-VL"):
        with_second_branch(load("default"))


def test_the_first_tower_is_read_from_a_whole_deepseek_vl(tmp_path: Path):
    theirs = deepseek()
    theirs.save_pretrained(tmp_path / "whole")
    checkpoint, pixels = load(tmp_path / "whole"), torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        expected = theirs.vision_model(pixels).last_hidden_state
        assert relative_error(checkpoint.model().features(pixels)[0], expected) < 1e-5


SMALL = TwoBranches(
    low=ViTConfig(
        image=Size(32, 48),
        embedding=Patches(patch=Size(8, 8)),
        prefix=Prefix(cls=False),
        width=48,
        depth=2,
        num_heads=3,
        mlp=Mlp(width=64),
        pool=MeanPool(),
        classes=0,
    ),
    high=ViTConfig(
        image=Size(80, 112),
        embedding=Patches(patch=Size(8, 8)),
        prefix=Prefix(cls=False),
        width=64,
        depth=5,
        num_heads=2,
        mlp=Mlp(width=80),
        position=Learned(relative=DecomposedBias()),
        attention=WindowedAttention(window=Size(4, 4), shift=False, window_padding="zeros", full=(1, 4)),
        final_norm="none",
        neck=Neck(width=16),
        pool=MeanPool(),
        classes=0,
    ),
    merger=BranchMerger(width=40),
)
TRAINED = {
    Workload(train=True): (6_451_324, 6_661_400, 4_892_564),
    Workload(batch=3, train=True, precision="amp-bf16"): (9_857_804, 9_865_368, 5_144_852),
    Workload(batch=2, train=True, precision="bf16", checkpointing=Checkpointing()): (2_285_942, 2_754_004, 2_513_066),
}
TRACKED = {
    Workload(): 1_685_332,
    Workload(batch=3, precision="amp-bf16"): 2_752_692,
    Workload(batch=2, precision="bf16"): 1_209_394,
    Workload(batch=2, precision="amp-fp16", attention="efficient"): 2_270_452,
}
"""Peaks of `TwoBranchEncoder(SMALL)`, by phase in training, followed on fake tensors of a card by `tests/truth.py`'s
tracker."""


@pytest.mark.parametrize("workload", TRACKED, ids=lambda work: f"{work.batch} {work.precision}")
def test_the_peak_is_where_the_tracker_says(workload: Workload):
    memory = plan_branches(SMALL, workload).memory
    assert memory.exact
    assert memory.peak_bytes == TRACKED[workload]


@pytest.mark.parametrize("workload", TRAINED, ids=lambda work: f"{work.batch} {work.precision}")
def test_every_phase_of_training_peaks_where_the_tracker_says(workload: Workload):
    memory = plan_branches(SMALL, workload).memory
    assert memory.exact
    assert tuple(memory.phase_peaks.values()) == TRAINED[workload]


def test_each_rows_parameters_are_its_modules_own_and_the_flops_are_the_counters():
    with torch.device("meta"):
        model = TwoBranchEncoder(SMALL)
        images = [torch.zeros(1, 3, *each.image) for each in (SMALL.low, SMALL.high)]
    plan = plan_branches(SMALL)
    modules = {path: [each.numel() for each in part.parameters(recurse=False)] for path, part in model.named_modules()}
    assert {row.path: row.params for row in plan.rows if row.params} == {
        path: sum(own) for path, own in modules.items() if own
    }
    with FlopCounterMode(display=False) as counter:
        model(*images)
    assert plan.flops() == counter.get_total_flops()
    assert plan.flops() == sum(plan.flops(part) for part in ("low", "high", "merger"))


def test_deepseek_vls_towers_and_merger_have_the_weights_of_transformers():
    vision = {"model_type": "siglip_vision_model", "hidden_size": 1024, "intermediate_size": 4096, "image_size": 384}
    vision |= {"patch_size": 16, "num_attention_heads": 16, "num_hidden_layers": 24, "vision_use_head": False}
    text = {**TEXT, "hidden_size": 4096}
    with torch.device("meta"):
        theirs = transformers.DeepseekVLHybridModel(
            transformers.DeepseekVLHybridConfig(vision_config=vision, text_config=text)
        )
    count = {name: sum(each.numel() for each in part.parameters()) for name, part in theirs.named_children()}
    branches = VISION_LANGUAGE["deepseek-vl-hybrid"].branches
    assert branches is not None
    plan = plan_branches(branches)
    assert (plan.params("low"), plan.params("high")) == (count["vision_model"], count["high_res_vision_model"])
    joined = count["high_res_vision_neck"] + count["high_res_vision_proj"] + count["aligner"] + 1
    assert plan.params("merger") == joined
    assert branches.visual_tokens == 576
    assert branches.high == preset("sam-B/16")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"high": SMALL.high.but(neck=None, final_norm="tokens")}, "has no neck"),
        ({"high": SMALL.high.but(attention=WindowedAttention(window=Size(4, 4), shift=False))}, "no full block"),
        ({"low": SMALL.low.but(classes=5)}, "the low tower has a merger, a head or a prefix"),
    ],
)
def test_towers_that_cannot_be_joined_are_refused(change: dict[str, Any], reason: str):
    with pytest.raises(VitrailError, match=reason):
        SMALL.but(**change)


@pytest.mark.parametrize(
    ("workload", "reason"),
    [
        (Workload(train=True, tuning=Tuning(last=1)), "two branches are trained whole, with labels"),
        (Workload(attention="eager"), "two branches are planned with a fused kernel"),
    ],
)
def test_what_is_not_planned_of_two_branches_is_refused(workload: Workload, reason: str):
    with pytest.raises(VitrailError, match=reason):
        plan_branches(SMALL, workload)
