"""Checkpointed blocks give the same gradients, and recompute what the planner says."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from vitrail.checkpointing import Checkpointing
from vitrail.config import ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.nn.checkpointing import checkpoint_blocks
from vitrail.nn.vit import ViT
from vitrail.parts import Mlp
from vitrail.plan import Workload, ledger

CONFIG = ViTConfig(image=Size(48, 80), width=48, depth=5, num_heads=3, mlp=Mlp(width=80), classes=7)
KINDS = [Checkpointing(kind, every) for kind in ("full", "selective") for every in (1, 2)]


def checkpointed(how: Checkpointing) -> ViT:
    model = ViT(CONFIG)
    checkpoint_blocks(((f"blocks.{number}", block) for number, block in enumerate(model.blocks)), how)
    return model


@pytest.mark.parametrize("how", KINDS, ids=str)
def test_gradients_stay_the_same_to_the_bit(how: Checkpointing) -> None:
    image, plain, again = torch.randn(2, 3, 48, 80), ViT(CONFIG), checkpointed(how)
    again.load_state_dict(plain.state_dict())
    for model in (plain, again):
        model(image).square().sum().backward()
    for name, parameter in plain.named_parameters():
        assert torch.equal(parameter.grad, again.get_parameter(name).grad), name  # type: ignore[arg-type]


@pytest.mark.parametrize("how", KINDS, ids=str)
def test_flops_are_those_that_pytorch_counts(how: Checkpointing) -> None:
    """On meta tensors, where attention is eager. A selective block multiplies nothing again."""
    model = checkpointed(how).to("meta")
    with FlopCounterMode(display=False) as counter:
        model(torch.empty(1, 3, 48, 80, device="meta")).sum().backward()
    step = Workload(train=True, attention="eager")
    planned = ledger(CONFIG, step.but(checkpointing=how)).flops_train
    assert planned == counter.get_total_flops()
    assert (planned > ledger(CONFIG, step).flops_train) == (how.kind == "full")


def test_what_is_no_kind_of_checkpointing_is_refused() -> None:
    for text in ("partial", "full:x", "selective:0"):
        with pytest.raises(VitrailError):
            Checkpointing.of(text)
    assert str(Checkpointing.of("selective:3")) == "selective:3"
