"""Laws of sharded plans; that they equal the tracker's bytes is in test_memory.py and tests/proof."""

from __future__ import annotations

import pytest
import torch

from vitrail.config import PyramidConfig, ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.nn.build import build
from vitrail.parts import Mlp, RelativeBias, RotaryMixed
from vitrail.plan import Shard, Workload, memory
from vitrail.plan.cards import card
from vitrail.plan.fit import on_card
from vitrail.tuning import Lora, Tuning

SMALL = ViTConfig(image=Size(80, 112), width=84, depth=5, num_heads=3, mlp=Mlp(width=159), classes=11)
TRAIN = Workload(batch=3, train=True, optimizer="adamw-fused")
INPUT = 3 * (4 * SMALL.channels * SMALL.image.area + 8)
"""Bytes of images and labels."""


def state(shard: str | None, **changes: object) -> dict[str, int]:
    """What is alive when the optimizer steps."""
    spread = None if shard is None else Shard.of(shard)
    plan = memory(SMALL, TRAIN.but(shard=spread, **changes))
    assert plan.exact
    return plan.phase_peaks


def shard_bytes(devices: int) -> int:
    """Rank 0's part of every tensor, by PyTorch's own cut."""
    with torch.device("meta"):
        return sum(4 * parameter.chunk(devices)[0].numel() for parameter in build(SMALL).parameters())


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_fsdp_leaves_a_device_its_chunk_of_every_tensor(devices: int) -> None:
    with torch.device("meta"):
        tensors = len(list(build(SMALL).parameters()))
    assert state(f"fsdp:{devices}")["optimizer"] == 4 * shard_bytes(devices) + 4 * tensors + INPUT


def test_fsdp_with_offload_leaves_nothing_but_images_on_the_device() -> None:
    assert state("fsdp:4", offload=True)["optimizer"] == INPUT


def test_ddp_adds_a_copy_of_the_gradients_unless_they_are_views_of_it() -> None:
    with torch.device("meta"):
        gradients = 4 * sum(parameter.numel() for parameter in build(SMALL).parameters())
    alone, beside, views = (state(shard)["optimizer"] for shard in (None, "ddp:2", "ddp:2,gradient_as_bucket_view"))
    assert (beside - alone, views - alone) == (gradients, 0)


@pytest.mark.parametrize("shard", ["fsdp:4", "fsdp:4,reshard_after_forward=no,param_dtype=bf16", "ddp:2", "tensor:3"])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_every_block_costs_a_device_the_same(shard: str, accumulate: int) -> None:
    """Blocks between the first and the last ones are skipped: peaks are affine in depth all the same."""
    workload = TRAIN.but(shard=Shard.of(shard), accumulate=accumulate)
    six, seven, eight, many = (memory(SMALL.but(depth=depth), workload).phase_peaks for depth in (6, 7, 8, 40))
    for phase in six:
        step = seven[phase] - six[phase]
        assert eight[phase] - seven[phase] == step
        assert many[phase] - eight[phase] == 32 * step


def test_gathered_weights_that_are_released_cost_less_than_those_that_stay() -> None:
    released, kept = (state(f"fsdp:8{option}")["forward"] for option in ("", ",reshard_after_forward=no"))
    assert released < kept


def test_tensor_parallelism_splits_blocks_and_nothing_else() -> None:
    one, three = (memory(SMALL, TRAIN.but(shard=shard)).bytes for shard in (None, Shard("tensor", 3)))
    with torch.device("meta"):
        tensors = dict(build(SMALL).named_parameters())
    split = sum(
        tensor.numel()
        for name, tensor in tensors.items()
        if name.startswith("blocks.")
        and (".qkv." in name or ".fc1." in name or name.endswith((".out.weight", "fc2.weight")))
    )
    assert one["weights"] - three["weights"] == 4 * split * 2 // 3


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (SMALL, {"shard": Shard("tensor", 2)}, "num_heads 3 does not split over 2 devices"),
        (SMALL.but(mlp=Mlp(width=160)), {"shard": Shard("tensor", 3)}, "mlp width 160 does not split"),
        (SMALL.but(qk_norm=True), {"shard": Shard("tensor", 3)}, "use fsdp"),
        (SMALL.but(position=RelativeBias()), {"shard": Shard("tensor", 3)}, "use fsdp"),
        (SMALL.but(position=RotaryMixed()), {"shard": Shard("tensor", 3)}, "use fsdp"),
        (SMALL, {"shard": Shard("tensor", 3), "tuning": Tuning(lora=Lora(rank=2))}, "use fsdp"),
        (PyramidConfig(), {"shard": Shard("tensor", 3)}, "use fsdp"),
    ],
)
def test_what_tensor_parallelism_does_not_split_is_refused(config, changes, message) -> None:
    with pytest.raises(VitrailError, match=message):
        memory(config, TRAIN.but(**changes))


@pytest.mark.parametrize(
    ("build_it", "message"),
    [
        (lambda: Shard("ddp", 2, param_dtype="bf16"), "param_dtype is an option of fsdp, not of ddp"),
        (lambda: Shard("fsdp", 2, gradient_as_bucket_view=True), "an option of ddp, not of fsdp"),
        (lambda: Shard.of("fsdp:2,param_dtype=int8"), "param_dtype 'int8' is not one of fp32, bf16"),
        (lambda: Shard.of("fsdp:2,reshard_after_forward=never"), "is not one of yes, no"),
        (lambda: Shard.of("fsdp:2,sharp"), "shard option 'sharp' is not one of gradient_as_bucket_view"),
        (
            lambda: Workload(precision="amp-bf16", shard=Shard("fsdp", 2, param_dtype="bf16")),
            "takes the place of autocast",
        ),
    ],
)
def test_options_that_do_not_belong_together_are_refused(build_it, message) -> None:
    with pytest.raises(VitrailError, match=message):
        build_it()


@pytest.mark.parametrize(
    "text", ["fsdp:8", "ddp:2,gradient_as_bucket_view=yes", "fsdp:4,reshard_after_forward=no,param_dtype=bf16"]
)
def test_a_shard_is_read_from_its_own_text(text: str) -> None:
    assert str(Shard.of(text)) == text


def test_the_stage_that_is_not_followed_says_that_it_is_an_estimate() -> None:
    plan = memory(SMALL, TRAIN.but(shard=Shard("zero2", 8)))
    assert not plan.exact
    assert "zero2" in plan.note


def test_weights_gathered_in_bf16_run_flash_attention() -> None:
    fp32, bf16 = (TRAIN.but(shard=Shard("fsdp", 4, param_dtype=kind)) for kind in ("fp32", "bf16"))
    target = card("a100-40")
    assert [on_card(workload, target).attention for workload in (fp32, bf16)] == ["efficient", "flash"]


def test_zero1_shares_out_the_optimizers_state_alone() -> None:
    """Whole tensors, so that parts differ by less than the largest."""
    ddp, zero1 = (memory(SMALL, Workload(batch=3, train=True, shard=Shard(kind, 4))).bytes for kind in ("ddp", "zero1"))
    assert abs(zero1["optimizer"] - ddp["optimizer"] / 4) < 2 * 4 * 3 * SMALL.width**2
    assert zero1["weights"] == ddp["weights"]
