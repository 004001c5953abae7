from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings

from configs import any_configs
from vitrail import parts
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.config import Config, ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.nn.build import build
from vitrail.vectors.engines.engine import PlainEngine, agreement, build_engine
from vitrail.vectors.engines.scales import MultiScaleEngine, prepared_for, scaled_sizes

SMALL = ViTConfig(
    image=Size(40, 56),
    embedding=parts.Patches(patch=Size(8, 8)),
    width=48,
    depth=3,
    num_heads=3,
    mlp=parts.Mlp(width=80),
)


def checkpoint_of(config: Config, seed: int = 0) -> Checkpoint:
    torch.manual_seed(seed)
    state = build(config).state_dict()
    for name, tensor in state.items():  # norms, biases and scales of a fresh model are ones and zeros
        if tensor.is_floating_point() and "running" not in name:
            tensor.add_(torch.randn_like(tensor) * 0.1)
    mean, std = (0.4,) * config.channels, (0.3,) * config.channels
    steps = Preprocessing(image=config.image, mean=mean, std=std)
    return Checkpoint(config=config, tensors=state, preprocessing=steps)


def images_for(config: Config, count: int = 2, seed: int = 1) -> torch.Tensor:
    dice = torch.Generator().manual_seed(seed)
    return torch.randint(
        0, 256, (count, *config.input_shape[:-3], *config.image, config.channels), dtype=torch.uint8, generator=dice
    )


@settings(max_examples=60)
@given(config=any_configs)
def test_every_config_gives_the_models_own_vectors(config: Config):
    """Sums in another order: 1e-4 of values of order one, as float32 rounds."""
    checkpoint, images = checkpoint_of(config), images_for(config)
    model = checkpoint.model()
    pixels = (images.movedim(-1, -3) / 255 - 0.4) / 0.3
    with torch.inference_mode():
        expected = model.vector(pixels)
    expected = expected.mean(dim=1) if expected.ndim == 3 else expected
    engine = build_engine(checkpoint)
    found = engine.vectors(images)
    assert found.shape == (2, engine.width)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * max(1.0, expected.abs().max().item()))


@pytest.mark.parametrize("pool", [parts.ClsPool(), parts.MeanPool()])
@pytest.mark.parametrize("final_norm", ["tokens", "pooled", "none"])
def test_features_are_the_models_tokens_and_their_vectors(pool, final_norm):
    config = SMALL.but(pool=pool, final_norm=final_norm, prefix=parts.Prefix(registers=2), layer_scale=0.3)
    checkpoint, images = checkpoint_of(config), images_for(config)
    ours, theirs = (engine.features(images) for engine in (build_engine(checkpoint), PlainEngine(checkpoint)))
    assert ours.layout == theirs.layout
    assert ours.layout.grid == Size(5, 7)
    assert ours.layout.prefix == 3
    torch.testing.assert_close(ours.tokens, theirs.tokens, rtol=1e-4, atol=1e-4)
    for each in (ours, theirs):
        torch.testing.assert_close(each.vectors, PlainEngine(checkpoint).vectors(images), rtol=1e-4, atol=1e-4)


def test_a_distilled_model_gives_the_mean_of_its_two_tokens():
    config = SMALL.but(prefix=parts.Prefix(distillation=True))
    checkpoint, images = checkpoint_of(config), images_for(config)
    with torch.inference_mode():
        two = checkpoint.model().vector((images.permute(0, 3, 1, 2) / 255 - 0.4) / 0.3)
    torch.testing.assert_close(build_engine(checkpoint).vectors(images), two.mean(dim=1), rtol=1e-4, atol=1e-4)


def test_a_batch_gives_each_image_what_it_gets_alone():
    checkpoint, images = checkpoint_of(SMALL), images_for(SMALL, count=50)
    engine = build_engine(checkpoint)
    alone = torch.cat([engine.vectors(image[None]) for image in images])
    torch.testing.assert_close(engine.vectors(images), alone, rtol=1e-4, atol=1e-4)


def test_an_engine_agrees_with_itself():
    engine = build_engine(checkpoint_of(SMALL))
    found = agreement(engine, engine, images_for(SMALL, count=3))
    assert found.images == 3
    assert found.mean == pytest.approx(1)
    assert found.lowest == pytest.approx(1)


def test_mistakes_are_one_line():
    checkpoint = checkpoint_of(SMALL)
    with pytest.raises(VitrailError, match="engine 'cuda' is unknown; use torch or int8"):
        build_engine(checkpoint, "cuda")  # type: ignore[arg-type]
    with pytest.raises(VitrailError, match="int8 needs images"):
        build_engine(checkpoint, "int8")
    for merge in (-0.1, 16):
        with pytest.raises(VitrailError, match=rf"merge {merge} is not in \[0, 1\)"):
            build_engine(checkpoint, merge=merge)


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # of torch's own parts
def test_a_compiled_engine_gives_the_same_vectors():
    checkpoint, images = checkpoint_of(SMALL), images_for(SMALL)
    found = build_engine(checkpoint, compile=True).vectors(images)
    torch.testing.assert_close(found, build_engine(checkpoint).vectors(images), rtol=1e-4, atol=1e-5)
    with pytest.raises(VitrailError, match="leave out int8 and merge"):
        build_engine(checkpoint, compile=True, merge=0.1)


# ── several scales ──────────────────────────────────────────────────────────────────────────────────────────────


def test_scales_give_the_mean_of_unit_vectors_at_each_size():
    checkpoint = checkpoint_of(SMALL)
    engine = build_engine(checkpoint)
    sizes = scaled_sizes(SMALL.image, SMALL.patch, (1, 1.5))
    assert sizes == (Size(40, 56), Size(64, 80))
    assert prepared_for(checkpoint.preprocessing, SMALL.patch, (1, 1.5)).image == Size(64, 80)
    images = images_for(SMALL.but(image=Size(64, 80)))
    small = torch.nn.functional.interpolate(images.permute(0, 3, 1, 2), (40, 56), mode="bicubic", antialias=True)
    each = [engine.vectors(small.permute(0, 2, 3, 1).contiguous()), engine.vectors(images)]
    expected = sum(vector / vector.norm(dim=1, keepdim=True) for vector in each) / 2
    both = MultiScaleEngine(engine, sizes)
    torch.testing.assert_close(both.vectors(images), expected)
    found = both.features(images)
    torch.testing.assert_close(found.vectors, expected)
    torch.testing.assert_close(found.tokens, engine.features(images).tokens)


def test_one_scale_changes_directions_not_at_all():
    checkpoint, images = checkpoint_of(SMALL), images_for(SMALL)
    engine = build_engine(checkpoint)
    found = MultiScaleEngine(engine, scaled_sizes(SMALL.image, SMALL.patch, (1,)))
    assert agreement(found, engine, images).lowest == pytest.approx(1, abs=1e-6)
    assert replace(checkpoint.preprocessing) == prepared_for(checkpoint.preprocessing, SMALL.patch, (1.0,))


def test_a_scale_outside_its_range_is_refused():
    with pytest.raises(VitrailError, match="between 0 and 8"):
        scaled_sizes(SMALL.image, SMALL.patch, (1, 0))
