from __future__ import annotations

import pytest
import torch

from vitrail import parts
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.preprocessing import IMAGENET, Preprocessing
from vitrail.config import PyramidConfig, PyramidStage, ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.nn.build import build
from vitrail.nn.patches import PatchEmbed
from vitrail.vectors.engines.engine import LeanEngine, agreement, build_engine
from vitrail.vectors.engines.int8 import IntegerDense, IntegerPatches, highest_step, watched

SMALL = ViTConfig(
    image=Size(40, 56),
    embedding=parts.Patches(patch=Size(8, 8)),
    width=96,
    depth=4,
    num_heads=3,
    mlp=parts.Mlp(width=320),
)


def heavy_tailed(config: ViTConfig) -> Checkpoint:
    """Weights as training leaves them: a few channels that are many times the others, in norms and in rows."""
    torch.manual_seed(0)
    state = build(config).state_dict()
    tails = torch.distributions.StudentT(3.0)
    for name, tensor in state.items():
        if name.endswith("norm1.weight") or name.endswith("norm2.weight"):
            tensor.mul_(tails.sample(tensor.shape).abs() + 0.3)
        elif tensor.ndim == 2 and "table" not in name:
            tensor.mul_(1 + tails.sample(tensor.shape).abs() / 4)
        elif name.endswith("bias"):
            tensor.add_(0.1 * tails.sample(tensor.shape))
    return Checkpoint(config=config, tensors=state, preprocessing=Preprocessing(image=config.image))


def photos(count: int, seed: int) -> torch.Tensor:
    """Smooth random pictures of different brightness and contrast."""
    dice = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 3, 5, 7, generator=dice)
    smooth = torch.nn.functional.interpolate(coarse, (40, 56), mode="bicubic").clamp(0, 1)
    return (smooth * 255).round().byte().permute(0, 2, 3, 1).contiguous()


def test_an_integer_layer_is_the_float_layer_of_its_rounded_values():
    torch.manual_seed(0)
    weight, bias, top = torch.randn(48, 96), torch.randn(48), highest_step()
    steps = torch.randint(0, top + 1, (7, 96))
    layer = IntegerDense(weight, bias, step=0.03, zero=40, top=top)
    scales = weight.abs().amax(dim=1, keepdim=True) / 127
    rounded = (weight / scales).round() * scales
    expected = ((steps - 40) * 0.03).double() @ rounded.double().T + bias
    torch.testing.assert_close(layer(steps + 0.5).double(), expected, rtol=1e-5, atol=1e-4)


def test_values_beyond_the_range_are_cut_off_at_its_ends():
    weight, top = torch.eye(32), highest_step()
    layer = IntegerDense(weight, None, step=0.5, zero=10, top=top)
    found = layer(torch.tensor([-3.0, 0.2, top + 0.9, top + 400.0]).repeat(8)[None])
    expected = torch.tensor([-5.0, -5.0, (top - 10) / 2, (top - 10) / 2]).repeat(8)[None]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_the_highest_step_never_saturates():
    """All products at their largest and of one sign: the sum must be exact on this machine."""
    top = highest_step()
    layer = IntegerDense(torch.full((32, 256), 127.0), None, step=1.0, zero=0, top=top)
    steps = torch.full((9, 256), top, dtype=torch.uint8)
    assert (layer.product(steps) == top * 127 * 256).all()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"prefix": parts.Prefix(registers=2), "layer_scale": 0.5, "pool": parts.MeanPool()},
        {"prefix": parts.Prefix(distillation=True), "mlp": parts.Mlp(width=320, activation="quick_gelu")},
        {"mlp": parts.SwiGLU(width=160), "position": parts.Rotary(), "qkv_bias": "none", "qk_norm": True},
    ],
    ids=["plain", "registers-mean", "distilled", "swiglu-rotary"],
)
def test_int8_is_near_float32_on_images_that_it_has_not_seen(changes):
    """0.99 is the least mean that a run accepts; these weights are harder than trained ones."""
    checkpoint = heavy_tailed(SMALL.but(**changes))
    engine = build_engine(checkpoint, "int8", calibration=photos(16, seed=1))
    assert engine.name == "int8"
    found = agreement(engine, build_engine(checkpoint), photos(16, seed=2))
    assert found.mean > 0.99
    assert found.lowest > 0.97, found


@pytest.mark.parametrize("pool", [parts.ClsPool(), parts.MeanPool()], ids=["first-token", "all-tokens"])
def test_ranges_are_those_of_all_that_vectors_and_features_compute(pool):
    """The last block of a CLS-pooled model has two forms: that of vectors and that of features."""
    prefix = parts.Prefix(cls=isinstance(pool, parts.ClsPool))
    engine, images = LeanEngine(heavy_tailed(SMALL.but(prefix=prefix, pool=pool))), photos(5, seed=1)
    blocks = engine._every_block()
    assert len(blocks) == (5 if prefix.cls else 4)
    both = watched(blocks, lambda: [(engine.vectors(images), engine.features(images))])
    torch.testing.assert_close(engine.ranges(images), both, rtol=1e-4, atol=1e-4)


def test_integer_patches_are_the_float_patches_of_rounded_weights():
    """A weight is rounded to half a step of its filter's largest: the error stays below that times the pixels' sum."""
    torch.manual_seed(0)
    floats = PatchEmbed(Size(8, 4), 32).from_bytes(*IMAGENET)
    image = torch.randint(0, 256, (2, 24, 20, 3), dtype=torch.uint8)
    (ours, layout), (theirs, same) = IntegerPatches(floats)(image), floats(image)
    assert layout == same
    step = floats.weight.abs().amax(dim=1) / 63
    assert ((ours - theirs).abs() <= 0.5 * step * 128 * floats.weight.shape[1]).all()
    assert torch.nn.functional.cosine_similarity(ours, theirs, dim=-1).min() > 0.999


def test_int8_tokens_are_near_float32s():
    checkpoint = heavy_tailed(SMALL)
    engine, reference = build_engine(checkpoint, "int8", calibration=photos(16, seed=1)), build_engine(checkpoint)
    ours, theirs = (each.features(photos(3, seed=2)) for each in (engine, reference))
    assert ours.layout == theirs.layout
    assert torch.nn.functional.cosine_similarity(ours.tokens, theirs.tokens, dim=-1).mean() > 0.99


def test_int8_merges_too():
    checkpoint = heavy_tailed(SMALL)
    engine = build_engine(checkpoint, "int8", calibration=photos(16, seed=1), merge=0.2)
    reference = build_engine(checkpoint, merge=0.2)
    assert agreement(engine, reference, photos(8, seed=2)).mean > 0.95  # other pairs may merge


def test_a_pyramid_has_no_int8():
    config = PyramidConfig(image=Size(64, 96), stages=(PyramidStage(width=12, depth=2, num_heads=3),))
    checkpoint = Checkpoint(
        config=config, tensors=build(config).state_dict(), preprocessing=Preprocessing(image=config.image)
    )
    with pytest.raises(VitrailError, match="PyramidConfig has no int8 engine"):
        build_engine(checkpoint, "int8", calibration=photos(1, seed=0))
