"""Features of several layers in one pass, beside timm's forward_intermediates."""

from __future__ import annotations

import pytest
import torch

from peers import timm
from vitrail import parts
from vitrail.checkpoint.read import load
from vitrail.config import MobileConfig, MobileStage, PyramidConfig, PyramidStage, ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.nn.build import build

SMALL = ViTConfig(
    image=Size(20, 28),
    embedding=parts.Patches(patch=Size(4, 4)),
    prefix=parts.Prefix(registers=2),
    width=24,
    depth=4,
    num_heads=3,
    mlp=parts.Mlp(width=40),
    classes=5,
)


def pair(tmp_path, name: str, **arguments):
    """timm's model, and its weights read by vitrail."""
    torch.manual_seed(0)
    theirs = timm.create_model(name, **arguments).eval()
    timm.models.save_for_hf(theirs, tmp_path, model_args=arguments, safe_serialization=True)
    return load(tmp_path).model(dtype=torch.float32), theirs


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("form", ["tokens", "grid"])
def test_a_vits_layers_are_timms(tmp_path, norm: bool, form):
    ours, theirs = pair(tmp_path, "vit_small_patch14_reg4_dinov2", img_size=(42, 56), depth=4)
    pixels = torch.randn(2, 3, 42, 56)
    found = ours.intermediates(pixels, layers=(0, 2, -1), norm=norm, form=form, prefix=True)
    reference = theirs.forward_intermediates(
        pixels,
        indices=[0, 2, 3],
        norm=norm,
        return_prefix_tokens=True,
        output_fmt="NCHW" if form == "grid" else "NLC",
        intermediates_only=True,
    )
    for (patches, prefix), (their_patches, their_prefix) in zip(found, reference, strict=True):
        torch.testing.assert_close(patches, their_patches, atol=2e-5, rtol=1e-4)
        torch.testing.assert_close(prefix, their_prefix, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("norm", [False, True])
def test_a_pyramids_stages_are_timms(tmp_path, norm: bool):
    ours, theirs = pair(tmp_path, "swin_tiny_patch4_window7_224", img_size=(64, 96))
    pixels = torch.randn(1, 3, 64, 96)
    found = ours.intermediates(pixels, layers=(0, 3), norm=norm, form="grid")
    reference = theirs.forward_intermediates(pixels, indices=[0, 3], norm=norm, intermediates_only=True)
    for ours_, theirs_ in zip(found, reference, strict=True):
        torch.testing.assert_close(ours_, theirs_, atol=2e-5, rtol=1e-4)


def test_a_mobile_models_maps_are_timms(tmp_path):
    ours, theirs = pair(tmp_path, "mobilevit_xxs")
    pixels = torch.randn(1, 3, 64, 128)
    found = ours.intermediates(pixels, form="grid")
    reference = theirs.forward_intermediates(pixels, intermediates_only=True)
    # timm counts its stem as the first, and joins a stage that keeps the map to the one before
    shapes = {tuple(each.shape): each for each in reference}
    alike = [(each, shapes[tuple(each.shape)]) for each in found if tuple(each.shape) in shapes]
    assert len(alike) >= 4
    for ours_, theirs_ in alike:
        torch.testing.assert_close(ours_, theirs_, atol=2e-5, rtol=1e-4)


MODELS = {
    "vit": SMALL,
    "adaptive": SMALL.but(
        image=Size(16, 24),
        embedding=parts.Adaptive(patches=(Size(4, 4), Size(8, 8))),
        position=parts.SinCos2d(),
        prefix=parts.Prefix(),
    ),
    "pyramid": PyramidConfig(
        image=Size(16, 24),
        stages=(PyramidStage(width=12, depth=2, num_heads=3), PyramidStage(width=24, depth=2, num_heads=3)),
        attention=parts.WindowedAttention(window=Size(2, 3)),
    ),
    "mobile": MobileConfig(
        image=Size(16, 24),
        stages=(MobileStage(width=8), MobileStage(width=12, stride=2, transformer_width=16, transformer_depth=1)),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_tokens_and_grid_hold_the_same_numbers_in_the_order_of_the_request(name: str):
    config = MODELS[name]
    model, pixels = build(config).eval(), torch.randn(2, 3, *config.image)
    backwards = model.intermediates(pixels, layers=(-1, 0), form="grid")
    forwards = model.intermediates(pixels, layers=(0, -1), form="grid")
    assert all(torch.equal(a, b) for a, b in zip(backwards, reversed(forwards), strict=True))
    if name != "adaptive":
        for tokens, grid in zip(model.intermediates(pixels), model.intermediates(pixels, form="grid"), strict=True):
            assert torch.equal(tokens, grid.flatten(2).mT)
    patches, prefix = model.intermediates(pixels, layers=(0,), prefix=True)[0]
    assert prefix.shape == (2, getattr(config, "prefix", parts.Prefix(cls=False)).count, patches.shape[2])


def test_the_last_layer_normalised_is_the_models_features():
    model, pixels = build(SMALL).eval(), torch.randn(2, 3, 20, 28)
    patches, prefix = model.intermediates(pixels, layers=(-1,), norm=True, prefix=True)[0]
    assert torch.equal(torch.cat([prefix, patches], dim=1), model.features(pixels)[0])


def test_gradients_reach_the_pixels_and_layers_after_the_last_do_not_run():
    model, pixels = build(SMALL), torch.randn(1, 3, 20, 28, requires_grad=True)
    ran = []
    for index, block in enumerate(model.blocks):
        block.register_forward_hook(lambda *_, index=index: ran.append(index))
    model.intermediates(pixels, layers=(1,))[0].sum().backward()
    assert pixels.grad is not None
    assert pixels.grad.abs().sum() > 0
    assert ran == [0, 1]


@pytest.mark.parametrize(
    ("asked", "words"),
    [({"layers": (4,)}, "layer 4"), ({"layers": ()}, "no layer"), ({"form": "map"}, "form 'map'")],
)
def test_what_is_not_there_is_refused(asked, words: str):
    with pytest.raises(VitrailError, match=words):
        build(SMALL).intermediates(torch.zeros(1, 3, 20, 28), **asked)


def test_a_norm_that_a_model_has_not_is_refused():
    for config in (SMALL.but(final_norm="none"), MODELS["mobile"]):
        with pytest.raises(VitrailError, match="no final norm"):
            build(config).intermediates(torch.zeros(1, 3, *config.image), norm=True)
