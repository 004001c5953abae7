"""Low-rank adapters, beside those of peft."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from peers import peft
from small_runs import CONFIG
from vitrail.geometry import Size
from vitrail.nn.build import build
from vitrail.nn.lora import LoraLinear, merged
from vitrail.parts import FullAttention
from vitrail.tracking.tracker import Tracker
from vitrail.training.tuning import tune
from vitrail.tuning import Lora, Tuning

SMALL = CONFIG.but(dropout=0.0, drop_path=0.0, attention=FullAttention(fused=False))
ADAPTERS = Lora(rank=5, on=("qkv", "out", "mlp"), alpha=8.0)
IMAGES = torch.linspace(-1, 1, 3 * 3 * 12 * 16).view(3, 3, 12, 16)


def pair(config=SMALL, lora: Lora = ADAPTERS) -> tuple[nn.Module, nn.Module]:
    """The same model and the same adapters, by vitrail and by peft."""
    torch.manual_seed(7)
    ours, theirs = build(config), build(config)
    theirs.load_state_dict(ours.state_dict())
    tune(ours, Tuning(lora=lora, only=("head",)))
    names = [name for name, part in ours.named_modules() if isinstance(part, LoraLinear)]
    spec = peft.LoraConfig(r=lora.rank, lora_alpha=round(lora.scale * lora.rank), target_modules=names)
    peft.inject_adapter_in_model(spec, theirs)
    for name, parameter in theirs.named_parameters():
        parameter.requires_grad_(".lora_" in name or name.startswith("head."))
    with torch.no_grad():
        for name in names:
            layer, peer = ours.get_submodule(name), theirs.get_submodule(name)
            layer.lora_b.normal_()  # type: ignore[operator]
            peer.lora_A.default.weight.copy_(layer.lora_a)  # type: ignore[union-attr]
            peer.lora_B.default.weight.copy_(layer.lora_b)  # type: ignore[union-attr]
    return ours, theirs


def trained(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def test_adapters_have_as_many_parameters_as_pefts() -> None:
    ours, theirs = pair()
    width, hidden, rank, blocks = SMALL.width, SMALL.mlp.width, ADAPTERS.rank, SMALL.depth
    closed_form = blocks * rank * ((width + 3 * width) + 2 * width + 2 * (width + hidden)) + 4 * (width + 1)
    counts = [sum(parameter.numel() for parameter in trained(model).values()) for model in (ours, theirs)]
    assert counts == [closed_form, closed_form]


def test_outputs_and_gradients_are_pefts() -> None:
    """In float64; where the scale is multiplied in changes only the rounding."""
    ours, theirs = (model.double() for model in pair())
    outputs = [model(IMAGES.double()) for model in (ours, theirs)]
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-12, atol=1e-12)
    for out in outputs:
        out.square().sum().backward()
    grads = [[parameter.grad for parameter in trained(model).values()] for model in (ours, theirs)]
    assert len(grads[0]) == len(grads[1]) > 0
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


def test_adapters_begin_as_pefts_do_and_change_nothing() -> None:
    """A is uniform, in the same bounds; B is zero."""
    torch.manual_seed(7)
    ours = LoraLinear(nn.Linear(400, 9), rank=50, scale=2.0)
    spec = peft.LoraConfig(r=50, target_modules=["0"])
    theirs = peft.inject_adapter_in_model(spec, nn.Sequential(nn.Linear(400, 9))).get_submodule("0")
    for drawn in (ours.lora_a, theirs.lora_A.default.weight):
        assert 0.049 < drawn.abs().max() <= 0.05  # 1/√400
        assert drawn.std().item() == pytest.approx(0.05 / 3**0.5, rel=0.02)  # of 20,000 values
    assert not ours.lora_b.any()
    assert not theirs.lora_B.default.weight.any()
    x = torch.ones(2, 400)
    assert torch.equal(ours(x), nn.functional.linear(x, ours.weight, ours.bias))


@pytest.mark.parametrize("qkv_bias", ["all", "no_key", "none"])
def test_a_merged_model_is_the_adapted_one(qkv_bias: str) -> None:
    torch.manual_seed(3)
    config = SMALL.but(qkv_bias=qkv_bias)
    model = build(config)
    tune(model, Tuning(lora=ADAPTERS))
    with torch.no_grad():
        for parameter in trained(model).values():
            parameter.normal_(std=0.3)
    plain = build(config)
    plain.load_state_dict(merged(model.state_dict(), ADAPTERS.scale))
    torch.testing.assert_close(plain(IMAGES), model(IMAGES), rtol=2e-4, atol=2e-4)  # float32 sums in another order


def test_merged_weights_are_pefts() -> None:
    ours, theirs = pair()
    weights = merged(ours.state_dict(), ADAPTERS.scale)
    for name, part in theirs.named_modules():
        if hasattr(part, "get_delta_weight"):
            part.merge()  # type: ignore[operator]
            torch.testing.assert_close(weights[f"{name}.weight"], part.weight, rtol=1e-6, atol=1e-6)


def peak(model: nn.Module, images: Tensor, *, half: bool) -> int:
    tracker = Tracker("cpu")
    with tracker:
        tracker.follow(model.parameters(), "weights")
        with tracker.phase("forward"):
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                out = model(images)
            out.float().sum().backward()
    return tracker.peak_bytes


def test_a_step_takes_no_more_memory_than_with_peft_and_less_under_autocast() -> None:
    """peft converts the input of every adapter to float32, which autocast converts back to a second copy."""
    models = pair(SMALL.but(image=Size(24, 32)))
    images = torch.zeros(5, 3, 24, 32)
    ours, theirs = (peak(model, images, half=False) for model in models)
    assert ours <= theirs
    ours, theirs = (peak(model, images, half=True) for model in models)
    assert ours < theirs
