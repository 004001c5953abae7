from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from peers import transformers
from vitrail import parts
from vitrail.geometry import Size
from vitrail.nn.layout import Layout
from vitrail.nn.positions import LearnedTable, SinCos1dTable, SinCosTable, place, sincos_1d, sincos_2d, sinusoidal_2d
from vitrail.nn.relative import RelativeTable
from vitrail.nn.resample import resample_grid
from vitrail.nn.rotary import AxialRotation, MixedRotation

GRID = Size(5, 7)


def layout(grid: Size = GRID, prefix: int = 0) -> Layout:
    return Layout(grid=grid, frame=grid, prefix=prefix)


# ── fixed tables ──


@pytest.mark.parametrize("shape", ["interleaved", "timm", "mae", "big_vision"])
def test_every_row_of_a_2d_table_has_norm_root_half_width(shape):
    table = sincos_2d(GRID, 24, parts.SinCos2d(layout=shape))
    assert table.shape == (35, 24)
    # sin² + cos² = 1 for each of the 12 waves; float32 sums of 24 squares leave 1e-6.
    torch.testing.assert_close(table.norm(dim=1), torch.full((35,), math.sqrt(12)), rtol=1e-6, atol=0)


def test_the_classic_table_is_half_rows_half_columns_by_turns():
    table = sinusoidal_2d(5, 7, 12)
    for i in range(5):
        for j in range(7):
            expected = []
            for index in (i, j):
                for k in range(3):
                    angle = index / 10_000 ** (k / 3)
                    expected += [math.sin(angle), math.cos(angle)]
            torch.testing.assert_close(table[i * 7 + j], torch.tensor(expected), rtol=1e-6, atol=1e-6)


def test_fixed_tables_are_the_same_every_time():
    assert torch.equal(sinusoidal_2d(6, 9, 48), sinusoidal_2d(6, 9, 48))


def test_the_timm_layout_is_timms():
    from timm.layers import build_sincos2d_pos_embed

    theirs = build_sincos2d_pos_embed([5, 7], dim=24)
    ours = sincos_2d(GRID, 24, parts.SinCos2d(layout="timm"))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)  # theirs is computed in float32


def test_the_mae_layout_is_the_one_of_mae():
    # MAE's own script counts columns first; transformers has the same halves, rows first.
    build = transformers.models.vit_mae.modeling_vit_mae.build_2d_sinusoidal_position_embedding
    rows, columns = build(5, 7, 24).chunk(2, dim=1)
    ours = sincos_2d(GRID, 24, parts.SinCos2d(layout="mae"))
    torch.testing.assert_close(ours, torch.cat([columns, rows], dim=1), rtol=0, atol=1e-6)


def test_the_big_vision_layout_is_its_formula():
    rows, columns = np.mgrid[:5, :7]
    omega = 1.0 / 10_000 ** (np.arange(6) / 5)
    x, y = columns.reshape(-1, 1) * omega, rows.reshape(-1, 1) * omega
    reference = np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)], axis=1)
    np.testing.assert_allclose(sincos_2d(GRID, 24, parts.SinCos2d(layout="big_vision")), reference, rtol=0, atol=1e-6)


def test_the_1d_table_is_that_of_the_transformer_paper():
    table = sincos_1d(9, 10, parts.SinCos1d())
    for position in range(9):
        for i in range(5):
            angle = position / 10_000 ** (2 * i / 10)
            assert table[position, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert table[position, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)


def test_fixed_tables_are_recomputed_on_a_new_grid():
    new = Size(3, 11)
    tokens = torch.zeros(1, 2 + 33, 24)
    two = SinCosTable(GRID, 24, parts.SinCos2d())(tokens, layout(new, prefix=2))
    assert torch.equal(two[0, 2:], sinusoidal_2d(3, 11, 24))
    assert not two[0, :2].any()
    one = SinCos1dTable(GRID, 24, parts.SinCos1d(), prefix=2)(tokens, layout(new, prefix=2))
    assert torch.equal(one[0], sincos_1d(35, 24, parts.SinCos1d()))


def test_fixed_tables_are_not_weights():
    module = SinCosTable(GRID, 24, parts.SinCos2d())
    assert not list(module.parameters())
    assert not module.state_dict()


# ── learned ──


def test_learned_rows_start_as_a_truncated_normal():
    torch.manual_seed(0)
    table = LearnedTable(Size(20, 30), 64, prefix_rows=1, convention="timm").table
    assert table.shape == (601, 64)
    assert table.abs().max() <= 0.04
    # A normal cut at two deviations has 0.8796 of its deviation.
    assert table.std().item() == pytest.approx(0.02 * 0.8796, rel=0.02)


def test_on_its_own_grid_a_learned_table_is_added_as_it_is():
    table = LearnedTable(GRID, 8, prefix_rows=2, convention="timm")
    tokens = torch.randn(3, 37, 8)
    assert torch.equal(table(tokens, layout(prefix=2)), tokens + table.table)


def test_on_a_new_grid_patch_rows_are_resampled_as_timm_does_and_prefix_rows_kept():
    from timm.layers import resample_abs_pos_embed

    table = LearnedTable(GRID, 8, prefix_rows=1, convention="timm")
    found = table(torch.zeros(1, 1 + 4 * 9, 8), layout(Size(4, 9), prefix=1))
    reference = resample_abs_pos_embed(table.table[None], [4, 9], [5, 7], num_prefix_tokens=1)
    assert torch.equal(found, reference)


def test_rows_for_cls_alone_leave_registers_without():
    table = LearnedTable(GRID, 8, prefix_rows=1, convention="dinov2")
    found = table(torch.zeros(2, 5 + 35, 8), layout(prefix=5))
    assert torch.equal(found[1, 0], table.table[0])
    assert not found[:, 1:5].any()
    assert torch.equal(found[0, 5:], table.table[1:])


@pytest.mark.parametrize("convention", ["timm", "huggingface", "dinov2", "torchvision", "big_vision"])
def test_resampling_to_the_same_grid_is_identity(convention):
    table = torch.randn(35, 8)
    assert resample_grid(table, old=GRID, new=GRID, convention=convention) is table


@pytest.mark.parametrize("convention", ["timm", "huggingface", "dinov2", "torchvision", "big_vision"])
def test_a_constant_table_stays_constant_on_any_grid(convention):
    table = torch.full((35, 2), 3.0)
    found = resample_grid(table, old=GRID, new=Size(9, 4), convention=convention)
    torch.testing.assert_close(found, torch.full((36, 2), 3.0), rtol=1e-6, atol=0)


def test_a_padded_image_takes_the_top_left_of_its_canvas():
    table = torch.arange(35.0)[:, None]
    rows = place(table, replace(layout(Size(2, 3)), frame=GRID))
    assert rows[:, 0].tolist() == [0, 1, 2, 7, 8, 9]


def test_an_adaptive_patch_takes_the_mean_of_its_cells():
    grid = Size(4, 8)
    table = torch.randn(32, 5, dtype=torch.float64)
    rectangles = torch.tensor([[[0, 0, 4, 4], [0, 4, 2, 2], [0, 6, 1, 1], [2, 6, 2, 2]]])
    found = place(table, replace(layout(grid), rectangles=rectangles))
    cells = table.view(4, 8, 5)
    for row, (top, left, height, width) in zip(found[0], rectangles[0].tolist(), strict=True):
        expected = cells[top : top + height, left : left + width].mean(dim=(0, 1))
        torch.testing.assert_close(row, expected, rtol=0, atol=1e-14)


# ── relative ──


def test_a_relative_table_has_one_entry_per_offset_and_head():
    assert RelativeTable(GRID, 3).table.shape == (9 * 13, 3)
    assert RelativeTable(GRID, 3, prefix=True).table.shape == (9 * 13 + 3, 3)


def test_equal_offsets_have_equal_bias_and_different_ones_their_own():
    table = RelativeTable(GRID, 3)
    bias = table.bias(layout())
    seen: dict[tuple[int, int], torch.Tensor] = {}
    for query in range(35):
        for key in range(35):
            offset = (query // 7 - key // 7, query % 7 - key % 7)
            assert torch.equal(seen.setdefault(offset, bias[:, query, key]), bias[:, query, key])
    assert len({tuple(value.tolist()) for value in seen.values()}) == 9 * 13


def test_the_index_with_a_prefix_is_beits():
    from timm.models.beit import gen_relative_position_index

    table = RelativeTable(GRID, 3, prefix=True)
    reference = table.table[gen_relative_position_index((5, 7))].permute(2, 0, 1)
    assert torch.equal(table.bias(layout(prefix=1)), reference)


def test_a_prefix_without_entries_gets_no_bias():
    bias = RelativeTable(GRID, 3).bias(layout(prefix=2))
    assert bias.shape == (3, 37, 37)
    assert not bias[:, :2].any()
    assert not bias[:, :, :2].any()


# ── rotary ──


@pytest.mark.parametrize("spec", [parts.Rotary(), parts.Rotary(coordinates="normalised")])
def test_axial_rotation_makes_scores_depend_on_the_offset_alone(spec):
    torch.manual_seed(0)
    q, k = torch.randn(2, 8, dtype=torch.float64)
    rotation = AxialRotation(8, spec).within(layout(), q)
    scores = rotation.rotate(q.expand(35, 8)) @ rotation.rotate(k.expand(35, 8)).T
    by_offset: dict[tuple[int, int], float] = {}
    for query in range(35):
        for key in range(35):
            offset = (query // 7 - key // 7, query % 7 - key % 7)
            # Angles are computed in float32: 1e-5 of the score.
            assert by_offset.setdefault(offset, scores[query, key].item()) == pytest.approx(
                scores[query, key].item(), abs=2e-5
            )


@pytest.mark.parametrize("module", [AxialRotation(8, parts.Rotary()), MixedRotation(3, 8, 10.0)])
def test_a_rotation_keeps_lengths_and_leaves_the_prefix(module):
    x = torch.randn(2, 3, 2 + 35, 8)
    turned = module.within(layout(prefix=2), x).rotate(x)
    assert torch.equal(turned[:, :, :2], x[:, :, :2])
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1), rtol=1e-5, atol=1e-6)
    assert (turned[:, :, 3:] != x[:, :, 3:]).any()


def test_index_rotation_is_timms():
    from timm.layers import RotaryEmbeddingCat, apply_rot_embed_cat

    x = torch.randn(2, 3, 35, 16)
    theirs = RotaryEmbeddingCat(16, in_pixels=False, temperature=100.0, feat_shape=[5, 7]).get_embed()
    ours = AxialRotation(16, parts.Rotary(temperature=100.0)).within(layout(), x)
    torch.testing.assert_close(ours.rotate(x), apply_rot_embed_cat(x, theirs), rtol=0, atol=1e-5)


def test_normalised_rotation_is_dinov3s():
    module = transformers.models.dinov3_vit.modeling_dinov3_vit
    config = transformers.DINOv3ViTConfig(hidden_size=48, num_attention_heads=3, patch_size=4, image_size=28)
    cos, sin = module.DINOv3ViTRopePositionEmbedding(config).eval()(torch.zeros(1, 3, 20, 28))
    q = torch.randn(2, 3, 1 + 35, 16)
    theirs, _ = module.apply_rotary_pos_emb(q, q, cos, sin)
    ours = AxialRotation(16, parts.Rotary(coordinates="normalised")).within(layout(prefix=1), q)
    torch.testing.assert_close(ours.rotate(q), theirs, rtol=0, atol=1e-5)


def test_mixed_rotation_is_timms():
    from timm.layers import RotaryEmbeddingMixed, apply_rot_embed_cat

    theirs = RotaryEmbeddingMixed(dim=48, depth=1, num_heads=3, temperature=10.0, feat_shape=[5, 7])
    ours = MixedRotation(3, 16, 10.0)
    columns, rows = theirs.freqs.detach()[:, 0]  # timm keeps x before y
    ours.frequencies.data = torch.stack([rows, columns])
    x = torch.randn(2, 3, 35, 16)
    reference = apply_rot_embed_cat(x, theirs.get_embed()[0])
    torch.testing.assert_close(ours.within(layout(), x).rotate(x), reference, rtol=0, atol=1e-5)


def test_mixed_rotation_starts_with_orthogonal_pairs_of_the_right_lengths():
    frequencies = MixedRotation(3, 16, 10.0).frequencies  # (2, heads, 8)
    first, second = frequencies.chunk(2, dim=-1)
    torch.testing.assert_close((first * second).sum(dim=0), torch.zeros(3, 4), rtol=0, atol=1e-6)
    expected = 10.0 ** -(torch.arange(4) / 4)
    torch.testing.assert_close(first.norm(dim=0), expected.expand(3, -1), rtol=1e-5, atol=0)
