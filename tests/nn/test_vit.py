"""Laws of the whole model, over every kind of part."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from configs import vit_configs
from vitrail import parts
from vitrail.config import ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.nn.block import drop_path
from vitrail.nn.front import VisionFrontEnd
from vitrail.nn.remainder import pad_batch
from vitrail.nn.vit import ViT

SMALL = ViTConfig(
    image=Size(20, 28),
    embedding=parts.Patches(patch=Size(4, 4)),
    width=24,
    depth=2,
    num_heads=3,
    mlp=parts.Mlp(width=40),
    classes=7,
)
EXACT = {"rtol": 0, "atol": 1e-11}  # float64 through a few layers

laws = settings(max_examples=40, suppress_health_check=[HealthCheck.filter_too_much])


def model_of(config: ViTConfig, seed: int = 0) -> ViT:
    torch.manual_seed(seed)
    model = ViT(config).double().eval()
    for parameter in model.parameters():  # fresh zeros and ones would hide a wrong or unused one
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    return model


def images(config: ViTConfig, batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, *config.input_shape, dtype=torch.float64)


def test_without_positions_the_encoder_is_permutation_equivariant():
    model = model_of(SMALL.but(position=parts.NoPosition()))
    tokens, layout = model.embed(images(SMALL))
    order = torch.cat([torch.tensor([0]), 1 + torch.randperm(35)])
    for block in model.blocks:
        torch.testing.assert_close(block(tokens, layout)[:, order], block(tokens[:, order], layout), **EXACT)


@pytest.mark.parametrize(
    "position",
    [
        parts.Learned(),
        parts.SinCos1d(),
        parts.SinCos2d(),
        parts.RelativeBias(),
        parts.Rotary(),
        parts.RotaryMixed(),
    ],
)
def test_every_position_tells_a_moved_patch_apart(position: parts.Position):
    model = model_of(SMALL.but(position=position))
    image = images(SMALL, 1)
    moved = image.roll((4, 8), dims=(2, 3))  # whole patches: without positions, the same set of tokens
    assert not torch.allclose(model(image), model(moved), atol=1e-6)


def test_without_positions_a_moved_patch_changes_nothing():
    model = model_of(SMALL.but(position=parts.NoPosition()))
    image = images(SMALL, 1)
    torch.testing.assert_close(model(image), model(image.roll((4, 8), dims=(2, 3))), **EXACT)


@given(vit_configs())
@laws
def test_an_image_gives_the_same_alone_and_in_a_batch(config: ViTConfig):
    model = model_of(config)
    batch = images(config, 3)
    with torch.inference_mode():
        together = model(batch)
        alone = torch.cat([model(image[None]) for image in batch])
    merged = (config.visual_tokens, config.merger.width) if config.merger else ()
    assert together.shape == (3, *(merged or (config.classes or config.vector_width,)))
    torch.testing.assert_close(together, alone, **EXACT)


def test_cls_is_the_same_for_every_image_and_takes_nothing_from_the_others():
    front = VisionFrontEnd(SMALL)
    batch = torch.randn(3, 3, 20, 28)
    sequence = front(batch)
    assert torch.equal(sequence[0, 0], sequence[1, 0])
    changed = batch.clone()
    changed[1] += 1
    again = front(changed)
    assert torch.equal(again[[0, 2]], sequence[[0, 2]])
    assert torch.equal(again[1, 0], sequence[1, 0])


@given(vit_configs(), st.lists(st.tuples(st.integers(9, 24), st.integers(9, 32)), min_size=2, max_size=3))
@laws
def test_a_padded_batch_gives_every_image_what_it_gets_alone(config: ViTConfig, sizes: list[tuple[int, int]]):
    attention = config.attention
    assume(not isinstance(attention, parts.WindowedAttention) or attention.window_padding == "masked")
    assume(not isinstance(config.embedding, parts.ResNetStem))
    model = model_of(config.but(remainder="pad", merger=None, neck=None))
    alone = [torch.randn(*config.input_shape[:-2], *size, dtype=torch.float64) for size in sizes]
    with torch.inference_mode():
        together = model(*pad_batch(alone))
        expected = torch.cat([model(image[None]) for image in alone])
    torch.testing.assert_close(together, expected, **EXACT)


def test_what_lies_in_the_padding_does_not_matter():
    model = model_of(SMALL.but(remainder="pad"))
    batch, sizes = pad_batch([torch.randn(3, 9, 28).double(), torch.randn(3, 20, 6).double()])
    dirty = batch.clone()
    dirty[0, :, 9:], dirty[1, :, :, 6:] = 99, -99
    assert torch.equal(model(batch, sizes), model(dirty, sizes))


@given(vit_configs(), st.sampled_from([torch.float32, torch.bfloat16]))
@laws
def test_every_config_runs_in_every_precision(config: ViTConfig, dtype: torch.dtype):
    torch.manual_seed(0)
    model = ViT(config).to(dtype).eval()
    with torch.inference_mode():
        found = model(images(config).to(dtype))
    assert found.dtype == dtype
    assert found.isfinite().all()


@given(vit_configs())
@laws
def test_the_gradient_reaches_every_weight(config: ViTConfig):
    torch.manual_seed(0)
    # A pool reads some tokens only, and adaptive patches use the sizes that the image asks for.
    config = (
        config.but(drop_path=0.0, pool=parts.MeanPool(), prefix=parts.Prefix(cls=False))
        if (not isinstance(config.embedding, parts.Adaptive) and not isinstance(config.position, parts.RelativeBias))
        else SMALL
    )
    model = model_of(config).train()
    model(images(config)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize(
    "position",
    [
        parts.Learned(),
        parts.Learned(prefix="none", convention="dinov2"),
        parts.SinCos1d(),
        parts.SinCos2d(),
        parts.RelativeBias(),
        parts.RelativeBias(shared=True, prefix=False),
        parts.Rotary(),
        parts.Rotary(coordinates="normalised"),
        parts.RotaryMixed(),
        parts.NoPosition(),
    ],
)
def test_a_model_runs_on_another_grid(position: parts.Position):
    model = model_of(SMALL.but(position=position))
    tokens, layout = model.features(torch.randn(2, 3, 32, 12, dtype=torch.float64))
    assert layout.grid == Size(8, 3)
    assert tokens.shape == (2, 25, 24)
    assert tokens.isfinite().all()


@pytest.mark.parametrize(("remainder", "grid"), [("resize", Size(5, 8)), ("crop", Size(5, 7)), ("pad", Size(6, 8))])
def test_a_remainder_is_met_as_chosen(remainder, grid: Size):
    model = model_of(SMALL.but(image=Size(24, 32), remainder=remainder))
    _, layout = model.features(torch.randn(1, 3, 21, 31, dtype=torch.float64))
    assert layout.grid == grid


def test_cropping_keeps_the_centre():
    model = model_of(SMALL.but(remainder="crop"))
    image = torch.randn(1, 3, 23, 30, dtype=torch.float64)
    assert torch.equal(model(image), model(image[:, :, 1:21, 1:29]))


@pytest.mark.parametrize(
    ("config", "image", "sizes", "message"),
    [
        (SMALL, torch.zeros(1, 3, 21, 28), None, "image 21x28 is not divisible by patch 4x4"),
        (SMALL, torch.zeros(1, 4, 20, 28), None, r"image has shape \(1, 4, 20, 28\); give \(batch, 3, height, width\)"),
        (SMALL, torch.zeros(3, 20, 28), None, "image has shape"),
        (SMALL, torch.zeros(1, 3, 20, 28), [Size(4, 4)], "sizes needs remainder 'pad'"),
        (SMALL.but(remainder="pad"), torch.zeros(1, 3, 40, 28), None, "larger than the config's image 20x28"),
        (SMALL.but(remainder="pad"), torch.zeros(1, 3, 8, 8), [Size(9, 8)], "give each image's own size, at most 8x8"),
    ],
)
def test_an_image_that_does_not_fit_is_refused(config: ViTConfig, image: torch.Tensor, sizes, message: str):
    with pytest.raises(VitrailError, match=message):
        ViT(config)(image, sizes)


def test_bytes_go_in_as_a_decoder_gives_them():
    model = model_of(SMALL)
    mean, std = (0.48, 0.45, 0.4), (0.22, 0.23, 0.25)
    pixels = torch.randint(0, 256, (2, 20, 28, 3), dtype=torch.uint8)
    scale, shift = torch.tensor(std, dtype=torch.float64), torch.tensor(mean, dtype=torch.float64)
    expected = model(((pixels / 255.0).double() - shift).div(scale).permute(0, 3, 1, 2))
    from_bytes = model.from_bytes(mean, std)
    # pixels / 255.0 is float32 here: 1e-7 of each pixel.
    torch.testing.assert_close(from_bytes(pixels), expected, rtol=0, atol=1e-5)
    assert isinstance(model.embedding, torch.nn.Module)
    torch.testing.assert_close(model(images(SMALL)).shape, (2, 7))  # the model itself still takes floats
    assert from_bytes.blocks is model.blocks


def test_a_distilled_model_gives_the_mean_of_its_two_heads():
    model = model_of(SMALL.but(prefix=parts.Prefix(distillation=True)))
    image = images(SMALL)
    cls, distillation = model.vector(image).unbind(1)
    expected = (model.head(cls) + model.distillation_head(distillation)) / 2  # type: ignore[misc]
    torch.testing.assert_close(model(image), expected, **EXACT)


def test_the_pools_are_what_they_say():
    image = images(SMALL)
    prefix = parts.Prefix(registers=3)
    for pool, reduce in (
        (parts.ClsPool(), lambda x: x[:, 0]),
        (parts.MeanPool(), lambda x: x[:, 4:].sum(dim=1) / 35),
        (parts.MaxPool(), lambda x: x[:, 4:].sort(dim=1).values[:, -1]),
    ):
        model = model_of(SMALL.but(pool=pool, prefix=prefix, classes=0))
        torch.testing.assert_close(model(image), reduce(model.features(image)[0]), **EXACT)


def test_a_layer_scale_of_zero_leaves_the_tokens_alone():
    model = ViT(SMALL.but(layer_scale=0.0, final_norm="none")).eval()
    image = torch.randn(2, 3, 20, 28)
    assert torch.equal(model.features(image)[0], model.embed(image)[0])


def test_stochastic_depth_grows_with_depth_keeps_the_mean_and_rests_in_evaluation():
    model = ViT(SMALL.but(depth=5, drop_path=0.4))
    assert [block.drop_path for block in model.blocks] == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])
    torch.manual_seed(0)
    branch = drop_path(torch.ones(20_000, 1, 1), 0.4)
    assert sorted(branch.unique().tolist()) == pytest.approx([0, 1 / 0.6])
    assert branch.mean().item() == pytest.approx(1, abs=0.02)  # deviation √(0.4/0.6/20000) = 0.006
    model.eval()
    image = torch.randn(2, 3, 20, 28)
    assert torch.equal(model(image), model(image))


def test_dropout_rests_in_evaluation_and_works_in_training():
    model = ViT(SMALL.but(dropout=0.5, attention_dropout=0.5))
    image = torch.randn(2, 3, 20, 28)
    assert not torch.equal(model(image), model(image))
    model.eval()
    assert torch.equal(model(image), model(image))


@given(vit_configs())
@laws
def test_a_config_knows_what_its_positions_learn(config: ViTConfig):
    with torch.device("meta"):
        named = ViT(config).named_parameters()
        assert config.position_parameters == sum(p.numel() for name, p in named if "position." in name)


@given(vit_configs())
@laws
def test_every_config_runs_where_its_weights_are(config: ViTConfig):
    # Tensors made on the way must follow the weights' device. Adaptive patches count tokens, which meta has none of.
    if isinstance(config.embedding, parts.Adaptive):
        config = SMALL
    with torch.device("meta"):
        model = ViT(config)
    image = torch.empty(2, *config.input_shape, device="meta")
    assert model(image).device.type == "meta"
    other = torch.empty(2, *config.input_shape[:-2], 16, 24, device="meta")
    assert model.vector(other).device.type == "meta"


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (ViTConfig(), 86_567_656),
        (ViTConfig(image=Size(384, 640)), 86_567_656 + (24 * 40 - 14 * 14) * 768),
        (ViTConfig(embedding=parts.Patches(patch=Size(32, 16))), 86_567_656 + 768 * 16 * 16 * 3 - 14 * 7 * 768),
    ],
)
def test_parameters_are_the_closed_form(config: ViTConfig, parameters: int):
    with torch.device("meta"):
        assert sum(p.numel() for p in ViT(config).parameters()) == parameters
