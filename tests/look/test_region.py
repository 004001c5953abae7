from __future__ import annotations

import pytest
import torch

from vitrail import parts, synthesize_image
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.config import ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.images.boxes import Box
from vitrail.look.match import Viewer
from vitrail.look.region import see_region
from vitrail.nn.build import build

MEAN = ViTConfig(
    image=Size(20, 28),
    embedding=parts.Patches(patch=Size(4, 4)),
    width=24,
    depth=2,
    num_heads=3,
    mlp=parts.Mlp(width=32),
    pool=parts.MeanPool(),
    classes=0,
)
PICTURE = synthesize_image(3, Size(40, 56))


def viewer(config: ViTConfig) -> Viewer:
    torch.manual_seed(4)
    tensors = build(config).state_dict()
    return Viewer(Checkpoint(config=config, tensors=tensors, preprocessing=Preprocessing(image=config.image)), "model")


def test_a_region_of_a_mean_pooled_model_is_the_mean_of_its_tokens_in_context():
    seeing = viewer(MEAN)
    region, words = see_region(seeing, PICTURE, Box(8, 16, 16, 8))
    tokens, _ = seeing.see(PICTURE).recording.features
    patches = tokens[0, 1:].view(5, 7, 24)
    expected = patches[1:3, 2:3].mean(dim=(0, 1))
    torch.testing.assert_close(region.model.pooled(*region.features)[0], expected)
    assert words == "the tokens in the box, pooled"


def test_a_region_of_a_cls_model_is_seen_as_an_image_of_its_own():
    seeing = viewer(MEAN.but(pool=parts.ClsPool()))
    region, words = see_region(seeing, PICTURE, Box(8, 16, 20, 28))
    alone = seeing.see(PICTURE[8:28, 16:44]).recording
    torch.testing.assert_close(region.output, alone.output)
    assert words.startswith("the box as an image of its own")


def test_a_box_without_a_patchs_centre_is_refused():
    with pytest.raises(VitrailError, match="box 0,0,2,2 has the centre of no patch that the model sees"):
        see_region(viewer(MEAN), PICTURE, Box(0, 0, 2, 2))
