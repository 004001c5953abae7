"""A model is given normalised float images: anything else is refused or warned about, never computed in silence."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.config import Config, MobileConfig, PyramidConfig, PyramidStage, ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.nn.build import build
from vitrail.parts import FullAttention, Mlp, Patches, WindowedAttention

VIT = ViTConfig(
    image=Size(12, 20),
    embedding=Patches(patch=Size(4, 4)),
    width=24,
    depth=1,
    num_heads=3,
    mlp=Mlp(width=40),
    classes=5,
)
CONFIGS = (
    VIT,
    PyramidConfig(
        image=Size(32, 64),
        stages=(PyramidStage(width=12, depth=2, num_heads=3),),
        attention=WindowedAttention(window=Size(4, 4)),
    ),
    MobileConfig(image=Size(64, 128)),
)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)
def test_what_is_not_a_batch_of_floats_is_refused_with_the_remedy(config: Config):
    model, pixels = build(config).eval(), np.zeros((*config.image, 3), np.uint8)
    for value, words in (
        (Image.fromarray(pixels), r"not a value of type Image; give it checkpoint.transform\(image\)"),
        (pixels, "not a value of type ndarray"),
        ("cat.jpg", "not a value of type str"),
        (
            torch.zeros(1, 3, *config.image, dtype=torch.uint8),
            "uint8 and a model takes normalised floats",
        ),
        (torch.zeros(3, *config.image), r"give \(batch, 3, height, width\)"),
        (torch.zeros(1, *config.image, 3), r"give \(batch, 3, height, width\)"),
    ):
        with pytest.raises(VitrailError, match=words):
            model(value)  # type: ignore[operator]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)
def test_pixels_from_0_to_255_are_warned_about(config: Config):
    image = torch.rand(2, 3, *config.image) * 255
    with (
        torch.inference_mode(),
        pytest.warns(UserWarning, match="values from 0 to 255, and models take"),
    ):
        build(config).eval()(image)


def test_a_byte_model_refuses_a_pillow_image_too():
    model = build(VIT).from_bytes(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    with pytest.raises(VitrailError, match="not a value of type Image"):
        model(Image.new("RGB", (20, 12)))  # type: ignore[arg-type]


def test_normalised_images_and_those_without_values_pass_in_silence():
    model, image = build(VIT).eval(), torch.rand(2, 3, 12, 20)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(image)  # from 0 to 1
        model((image - 0.5) / 0.003)  # a very small deviation
        model((image * 255).requires_grad_() - 128)
        explicit = build(VIT.but(attention=FullAttention(fused=False))).eval()  # torch's own kernel warns under vmap
        torch.func.vmap(lambda one: explicit(one[None] * 255))(image)
        torch.export.export(model, (image * 255,))
        build(VIT).to("meta")(torch.empty(2, 3, 12, 20, device="meta"))
