"""ResNet's basic block: equal to timm's, and a mobile network of such blocks without transformers is a ResNet."""

import pytest
import torch
from torch import nn

from peers import timm
from vitrail.config import MobileConfig, MobileStage
from vitrail.geometry import Size
from vitrail.nn.mobile import MobileViT
from vitrail.nn.residuals import BasicResidual

RESNET = MobileConfig(
    image=Size(24, 40),
    channels=4,
    stem_width=6,
    stem_stride=1,
    residual="basic",
    expansion=1,
    stages=(MobileStage(width=6, depth=2), MobileStage(width=10, stride=2)),
    last_width=0,
    classes=7,
)
NAMES = {"first.conv": "conv1", "first.norm": "bn1", "second.conv": "conv2", "second.norm": "bn2",
         "shortcut.conv": "downsample.0", "shortcut.norm": "downsample.1"}  # fmt: skip


@pytest.mark.parametrize(("before", "after", "stride"), [(6, 6, 1), (6, 10, 1), (6, 10, 2), (6, 6, 2)])
def test_a_basic_residual_is_timms_basic_block_with_silu(before: int, after: int, stride: int) -> None:
    torch.manual_seed(0)
    ours = BasicResidual(before, after, expansion=1, stride=stride).double()
    changes = before != after or stride != 1
    shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
    theirs = timm.models.resnet.BasicBlock(
        before, after, stride=stride, downsample=shortcut if changes else None, act_layer=nn.SiLU
    ).double()
    state = {f"{NAMES[name.rpartition('.')[0]]}.{name.rpartition('.')[2]}": x for name, x in ours.state_dict().items()}
    theirs.load_state_dict(state)
    image = torch.randn(2, before, 8, 12, dtype=torch.double)
    torch.testing.assert_close(ours(image), theirs(image), rtol=0, atol=1e-12)  # batch norms in training, as in a step


def test_without_a_last_convolution_the_vector_is_the_mean_of_the_last_map() -> None:
    model = MobileViT(RESNET).eval()
    image = torch.randn(2, 4, 24, 40)
    last = model.levels(image)[-1]
    assert last.shape == (2, 10, 12, 20)
    torch.testing.assert_close(model.vector(image), last.mean((2, 3)))
    assert model(image).shape == (2, 7)
    assert RESNET.grid == Size(12, 20)


def test_expansion_is_the_inner_width_of_a_basic_residual() -> None:
    assert BasicResidual(6, 10, expansion=3, stride=1).first.conv.out_channels == 30
