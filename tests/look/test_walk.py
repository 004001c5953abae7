"""A walk records the model's own numbers, and they are what the formulas say."""

from __future__ import annotations

import math

import pytest
import torch

from vitrail import parts
from vitrail.config import MobileConfig, ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.look import capture, tokens_after
from vitrail.look.walk import Walk, walk_through
from vitrail.nn.build import build
from vitrail.nn.vit import ViT

PLAIN = ViTConfig(
    image=Size(20, 28),
    embedding=parts.Patches(patch=Size(4, 4)),
    prefix=parts.Prefix(registers=2),
    width=24,
    depth=3,
    num_heads=3,
    mlp=parts.Mlp(width=32),
    classes=5,
)
KINDS = {
    "plain": PLAIN,
    "rotary": PLAIN.but(position=parts.Rotary()),
    "relative": PLAIN.but(position=parts.RelativeBias()),
    "windows": PLAIN.but(attention=parts.WindowedAttention(window=Size(3, 4))),
    "windows with zeros": PLAIN.but(attention=parts.WindowedAttention(window=Size(3, 4), window_padding="zeros")),
    "linear": PLAIN.but(attention=parts.LinearAttention()),
    "gated, scaled, mean": PLAIN.but(
        mlp=parts.SwiGLU(width=20), layer_scale=0.3, pool=parts.MeanPool(), final_norm="pooled", qk_norm=True
    ),
    "distilled": PLAIN.but(prefix=parts.Prefix(distillation=True)),
    "overlapping, no head": PLAIN.but(embedding=parts.Patches(patch=Size(4, 4), stride=Size(2, 3)), classes=0),
}


def walked(config: ViTConfig, block: int = 1) -> tuple[ViT, torch.Tensor, Walk]:
    torch.manual_seed(0)
    model = build(config).double().eval()
    assert isinstance(model, ViT)
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.2)
    image = torch.randn(1, 3, 20, 28, dtype=torch.float64)
    return model, image, walk_through(model, image, block=block)


@pytest.mark.parametrize("kind", KINDS)
def test_the_walked_logits_are_the_models_to_the_bit(kind):
    model, image, walk = walked(KINDS[kind])
    with torch.no_grad():
        assert torch.equal(walk.logits, model(image)[0])
    assert torch.equal(walk.lens[-1], walk.logits)


@pytest.mark.parametrize("kind", KINDS)
def test_every_stop_follows_from_the_one_before(kind):
    model, image, walk = walked(KINDS[kind])
    flat = walk.patches.flatten(1) @ walk.projection.flatten(1).T + walk.projection_bias
    torch.testing.assert_close(walk.projected, flat)
    torch.testing.assert_close(walk.prefixed[walk.layout.prefix :], walk.projected)
    torch.testing.assert_close(walk.prefixed + walk.positions, walk.tokens[0])
    for layer in range(3):
        assert torch.equal(walk.tokens[layer + 1], tokens_after(model, image, layer)[0][0])
    block = walk.block
    assert torch.equal(block.entering, walk.tokens[1])
    torch.testing.assert_close(block.entering + block.added + block.fed, walk.tokens[2])
    if walk.head is not None and walk.head_bias is not None and kind != "distilled":
        torch.testing.assert_close(walk.head @ walk.pooled + walk.head_bias, walk.logits)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_is_the_one_that_capture_sees_and_the_softmax_of_its_scores(kind):
    model, image, walk = walked(KINDS[kind])
    with torch.no_grad(), capture(model, [1]) as maps:
        model(image)
    for token, head in ((0, 0), (9, 2)):
        step = walk.block.step(token, head)
        torch.testing.assert_close(step.weights, maps[1].weights[0, head, token])
        key = int(step.weights.argmax())
        dot = step.products.sum() / math.sqrt(8) + step.bias
        torch.testing.assert_close(dot, step.scores[key])
        lacks = 1 - step.weights.sum()
        assert step.is_softmax == (kind != "linear" and lacks < 1e-6)
        if kind in ("plain", "rotary", "relative"):
            torch.testing.assert_close(step.scores.softmax(dim=0), step.weights)
        value = 0 if walk.block.padding is None else lacks * walk.block.padding[1][0, head, 0]
        torch.testing.assert_close(step.mixed, step.weights @ walk.block.v[head] + value)


def test_the_walk_leaves_no_hook_behind():
    model, _, _ = walked(PLAIN)
    assert not any(module._forward_hooks for module in model.modules())


def test_a_model_without_one_projection_is_refused_in_a_line():
    with pytest.raises(VitrailError, match="use a ViT with plain patches"):
        walk_through(build(MobileConfig(image=Size(64, 64))), torch.zeros(1, 3, 64, 64))
    stem = build(PLAIN.but(image=Size(16, 32), embedding=parts.Stem(patch=Size(4, 4), widths=(4, 8))))
    with pytest.raises(VitrailError, match="ConvStem"):
        walk_through(stem, torch.zeros(1, 3, 16, 32))
