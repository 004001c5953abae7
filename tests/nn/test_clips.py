"""Clips: tubelets are a 3D convolution, steps follow each other in time, and a position knows where in time it is."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from peers import transformers
from vitrail import parts
from vitrail.config import ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.nn.layout import Layout
from vitrail.nn.patches import TubeletEmbed
from vitrail.nn.positions import LearnedTable, sincos_1d, sincos_3d
from vitrail.nn.rotary import ClipRotation
from vitrail.nn.vit import ViT

GRID = Size(5, 7)
CLIP = ViTConfig(
    image=Size(20, 28),
    embedding=parts.Tubelets(patch=Size(4, 4), frames=6, tubelet=2),
    width=24,
    depth=2,
    num_heads=3,
    mlp=parts.Mlp(width=40),
    classes=7,
)


def clip_layout(steps: int = 3, prefix: int = 0) -> Layout:
    return Layout(grid=GRID, frame=GRID, prefix=prefix, steps=steps)


def test_tubelets_are_a_convolution_over_frames_rows_and_columns():
    embed = TubeletEmbed(Size(4, 6), 24, tubelet=2).double()
    clip = torch.randn(2, 6, 3, 20, 42, dtype=torch.float64)
    weight = embed.weight.unflatten(1, (2, 3)).transpose(1, 2)  # (D, C, t, P, Q)
    expected = F.conv3d(clip.transpose(1, 2), weight, embed.bias, stride=(2, 4, 6))  # (B, D, s, h, w)
    tokens, layout = embed(clip)
    assert (layout.steps, layout.grid) == (3, GRID)
    torch.testing.assert_close(tokens, expected.flatten(2).mT, rtol=0, atol=1e-12)


def test_features_come_as_a_grid_for_every_step():
    model, clip = ViT(CLIP).eval(), torch.randn(2, *CLIP.input_shape)
    tokens, grids = (model.intermediates(clip, layers=(1,), form=form)[0] for form in ("tokens", "grid"))
    assert grids.shape == (2, 3, 24, 5, 7)
    assert torch.equal(grids[1, 2, :, 4, 3], tokens[1, (2 * 5 + 4) * 7 + 3])


def test_without_positions_in_time_the_order_of_steps_does_not_matter():
    config = CLIP.but(position=parts.SinCos2d(), prefix=parts.Prefix(cls=False), pool=parts.MeanPool())
    clip = torch.randn(1, *CLIP.input_shape, dtype=torch.float64)
    later = clip.unflatten(1, (3, 2)).flip(1).flatten(1, 2)
    for position, same in (
        (parts.SinCos2d(), True),
        (parts.Rotary(), True),
        (parts.SinCos1d(), False),
        (parts.SinCos3d(), False),
        (parts.Rotary3d(), False),
        (parts.Learned(), False),
    ):
        torch.manual_seed(0)
        model = ViT(config.but(position=position)).double().eval()
        difference = (model(clip) - model(later)).abs().max().item()
        assert (difference < 1e-10) is same, position


@pytest.mark.parametrize("width", [24, 20])
def test_the_3d_table_is_vjepas_formula(width):
    third = math.ceil(width / 6) * 2
    omega = 1 / 10_000 ** (np.arange(third // 2) / (third / 2))
    angles = [place.reshape(-1, 1) * omega for place in np.mgrid[:3, :5, :7]]
    reference = np.concatenate([wave(angle) for angle in angles for wave in (np.sin, np.cos)], axis=1)[:, :width]
    table = sincos_3d(3, GRID, width, parts.SinCos3d())
    np.testing.assert_allclose(table, reference, rtol=0, atol=1e-6)


def test_the_1d_table_over_a_clip_is_videomaes():
    build = transformers.models.videomae.modeling_videomae.get_sinusoid_encoding_table
    torch.testing.assert_close(sincos_1d(105, 24, parts.SinCos1d()), build(105, 24)[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("head_width", [24, 20, 16])
def test_3d_rotary_positions_are_vjepas(head_width):
    vjepa = transformers.models.vjepa2.modeling_vjepa2
    square = Size(5, 5)
    config = transformers.VJEPA2Config(crop_size=20, patch_size=4, frames_per_clip=6, hidden_size=2 * head_width)
    attention = vjepa.VJEPA2RopeAttention(config, hidden_size=2 * head_width, num_attention_heads=2)
    x = torch.randn(1, 2, 75, head_width)
    theirs = attention.apply_rotary_embeddings(x, attention.get_position_ids(torch.empty(1, 75, 1)))
    layout = Layout(grid=square, frame=square, steps=3)
    ours = ClipRotation(head_width, parts.Rotary3d()).within(layout, x).rotate(x)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


def test_a_learned_table_is_resampled_in_every_step_alone():
    table = LearnedTable(GRID, 24, prefix_rows=1, convention="timm", steps=3)
    larger, alone = Size(8, 9), LearnedTable(GRID, 24, prefix_rows=1, convention="timm")
    found = table(torch.zeros(1, 1 + 3 * 72, 24), Layout(grid=larger, frame=larger, prefix=1, steps=3))
    for step in range(3):
        alone.table.data = torch.cat([table.table[:1], table.table[1:].unflatten(0, (3, 35))[step]])
        expected = alone(torch.zeros(1, 1 + 72, 24), Layout(grid=larger, frame=larger, prefix=1))
        torch.testing.assert_close(found[0, 1:].unflatten(0, (3, 72))[step], expected[0, 1:], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: parts.Tubelets(frames=1), "frames 1 is not a whole number of 2 or more; a clip of one frame"),
        (lambda: parts.Tubelets(frames=5), "5 frames are not divisible by tubelets of 2 frames; use 4 or 6 frames"),
        (lambda: CLIP.but(position=parts.RelativeBias()), "none between the 3 steps of a clip"),
        (lambda: CLIP.but(attention=parts.SparseAttention()), "a clip of 6 frames has 3"),
        (lambda: ViT(CLIP)(torch.zeros(2, 3, 20, 28)), r"give \(batch, 6, 3, height, width\), or adapt the model"),
        (lambda: ViT(CLIP)(torch.zeros(2, 4, 3, 20, 28)), "takes clips of 6 frames"),
        (lambda: ViT(CLIP).from_bytes((0.5,) * 3, (0.5,) * 3), "normalise first"),
    ],
)
def test_what_a_clip_cannot_be_is_refused(build, message):
    with pytest.raises(VitrailError, match=message):
        build()
