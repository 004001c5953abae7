from __future__ import annotations

import math

import pytest
import torch

from vitrail.geometry import Size
from vitrail.nn.attention import Attention, FullMix, softmax_attention
from vitrail.nn.layout import Layout
from vitrail.nn.linear_attention import LinearMix
from vitrail.nn.relative import RelativeTable
from vitrail.nn.sparse_attention import SparseMix
from vitrail.nn.windowed_attention import WindowedMix

GRID = Size(5, 7)
EXACT = {"rtol": 0, "atol": 1e-12}  # float64 rounding of sums of at most a few dozen terms


def layout(prefix: int, mask: torch.Tensor | None = None) -> Layout:
    return Layout(grid=GRID, frame=GRID, mask=mask).with_prefix(prefix)


def qkv(tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 3, tokens, 8, dtype=torch.float64)
    return q, k, v


def ragged() -> torch.Tensor:
    """(2, N): the first image is whole, the second 3×4 of the grid."""
    inside = torch.zeros(2, *GRID, dtype=torch.bool)
    inside[0], inside[1, :3, :4] = True, True
    return inside.flatten(1)


def masked(q, k, v, allowed: torch.Tensor) -> torch.Tensor:
    """The reference for every pattern: full attention with what may not meet taken out."""
    return softmax_attention(q, k, v, allowed)


def meet(prefix: int, rule) -> torch.Tensor:
    """(T, T): prefix tokens meet everything, patches meet the prefix and the patches that the rule allows."""
    allowed = torch.ones(prefix + GRID.area, prefix + GRID.area, dtype=torch.bool)
    for query in range(GRID.area):
        for key in range(GRID.area):
            allowed[prefix + query, prefix + key] = rule(*divmod(query, GRID.width), *divmod(key, GRID.width))
    return allowed


def test_the_explicit_form_is_the_textbooks_sum():
    q, k, v = qkv(4)
    found = softmax_attention(q, k, v)
    for b in range(2):
        for h in range(3):
            for i in range(4):
                weights = [math.exp(float(q[b, h, i] @ k[b, h, j]) / math.sqrt(8)) for j in range(4)]
                expected = sum(w * v[b, h, j] for j, w in enumerate(weights)) / sum(weights)
                torch.testing.assert_close(found[b, h, i], expected, **EXACT)


@pytest.mark.parametrize("prefix", [0, 2])
@pytest.mark.parametrize("with_mask", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
def test_the_fused_kernel_agrees_with_the_explicit_form(prefix: int, with_mask: bool, with_bias: bool):
    q, k, v = qkv(prefix + 35)
    where = layout(prefix, ragged() if with_mask else None)
    bias = torch.randn(3, prefix + 35, prefix + 35, dtype=torch.float64) if with_bias else None
    fused, explicit = (FullMix(fused=fused)(q, k, v, where, bias, 0.0) for fused in (True, False))
    torch.testing.assert_close(fused, explicit, **EXACT)


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("prefix", [0, 2])
def test_one_window_is_full_attention(prefix: int, shifted: bool):
    q, k, v = qkv(prefix + 35)
    found = WindowedMix(Size(9, 7), shifted=shifted)(q, k, v, layout(prefix), None, 0.0)
    torch.testing.assert_close(found, FullMix(fused=True)(q, k, v, layout(prefix), None, 0.0), **EXACT)


@pytest.mark.parametrize("prefix", [0, 2])
@pytest.mark.parametrize("shift", [False, True])
@pytest.mark.parametrize("window", [Size(3, 4), Size(5, 2), Size(2, 7)])
def test_windows_are_full_attention_with_other_windows_taken_out(window: Size, shift: bool, prefix: int):
    q, k, v = qkv(prefix + 35)
    moved = [side // 2 if shift and length > side else 0 for side, length in zip(window, GRID, strict=True)]

    def cell(row: int, column: int) -> tuple[int, int]:
        return (row - moved[0]) // window.height, (column - moved[1]) // window.width

    allowed = meet(prefix, lambda i, j, m, n: cell(i, j) == cell(m, n))
    found = WindowedMix(window, shifted=shift)(q, k, v, layout(prefix), None, 0.0)
    torch.testing.assert_close(found, masked(q, k, v, allowed), **EXACT)


def test_windows_add_their_own_relative_bias():
    q, k, v = qkv(35)
    window, table = Size(3, 4), RelativeTable(Size(3, 4), 3, window_padding="masked").double()
    bias = torch.full((3, 35, 35), -math.inf, dtype=torch.float64)
    offsets = table.table.view(5, 7, 3)
    for query in range(35):
        for key in range(35):
            (i, j), (m, n) = divmod(query, 7), divmod(key, 7)
            if (i // 3, j // 4) == (m // 3, n // 4):
                bias[:, query, key] = offsets[i - m + 2, j - n + 3]
    found = WindowedMix(window, shifted=False)(q, k, v, layout(0), table.bias(layout(0)), 0.0)
    torch.testing.assert_close(found, softmax_attention(q, k, v, bias), **EXACT)


def padded_windows(window: Size, shift: tuple[int, int]) -> list[list[int]]:
    """timm's order: roll the grid, pad it below and to the right (−1), cut it. What wrapped is marked by the rows and
    columns that the shift leaves at the end, padding included, and stands apart."""
    places = torch.arange(GRID.area).view(*GRID).roll((-shift[0], -shift[1]), (0, 1))
    height, width = (-(-side // step) * step for side, step in zip(GRID, window, strict=True))
    groups: dict[tuple[bool, ...], list[int]] = {}
    for row in range(height):
        for column in range(width):
            inside = row < GRID.height and column < GRID.width
            group = row // window.height, column // window.width, row >= height - shift[0], column >= width - shift[1]
            groups.setdefault(group, []).append(int(places[row, column]) if inside else -1)  # type: ignore[arg-type]
    return list(groups.values())


@pytest.mark.parametrize("settings", [{}, {"qk_norm": True}, {"qkv_bias": "no_key"}, {"qkv_bias": "none"}], ids=str)
@pytest.mark.parametrize("prefix", [0, 2])
@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("window", [Size(3, 4), Size(5, 2), Size(2, 7), Size(4, 4)], ids=str)
def test_zeros_that_take_part_are_tokens_of_their_windows(window: Size, shifted: bool, prefix: int, settings: dict):
    """The textbook's sum over what each patch meets: its window's patches, the prefix, and zeros after the norm."""
    torch.manual_seed(0)
    attention = Attention(24, 3, mix=WindowedMix(window, shifted=shifted, zeros_for=GRID), **settings).double()
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    shift = tuple(side // 2 if shifted and length > side else 0 for side, length in zip(window, GRID, strict=True))
    x = torch.randn(2, prefix + 35, 24, dtype=torch.float64)
    q, k, v = attention.heads(torch.cat([x, x.new_zeros(2, 1, 24)], dim=1))  # the last token is a padded one
    found = attention(x, layout(prefix))
    expected = torch.empty(2, 3, prefix + 35, 8, dtype=torch.float64)
    expected[:, :, :prefix] = softmax_attention(q[:, :, :prefix], k[:, :, :-1], v[:, :, :-1])
    for group in padded_windows(window, (shift[0], shift[1])):
        keys = [*range(prefix), *(-1 if place < 0 else prefix + place for place in group)]
        real = [prefix + place for place in group if place >= 0]
        expected[:, :, real] = softmax_attention(q[:, :, real], k[:, :, keys], v[:, :, keys])
    torch.testing.assert_close(found, attention.out(expected.transpose(1, 2).flatten(2)), **EXACT)


def test_zeros_that_take_part_have_gradients():
    torch.manual_seed(0)
    attention = Attention(24, 3, mix=WindowedMix(Size(3, 4), shifted=True, zeros_for=GRID)).double()
    torch.nn.init.normal_(attention.qkv.bias)
    x = torch.randn(1, 35, 24, dtype=torch.float64)

    def loss(bias: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(attention, {"qkv.bias": bias}, (x, layout(0))).square().sum()

    assert torch.autograd.gradcheck(loss, (attention.qkv.bias.detach().requires_grad_(),))


@pytest.mark.parametrize("prefix", [0, 2])
def test_sparse_attention_is_full_attention_on_rows_and_columns(prefix: int):
    q, k, v = qkv(prefix + 35)
    allowed = meet(prefix, lambda i, j, m, n: i == m or j == n)
    found = SparseMix()(q, k, v, layout(prefix), None, 0.0)
    torch.testing.assert_close(found, masked(q, k, v, allowed), **EXACT)


@pytest.mark.parametrize("with_mask", [False, True])
def test_linear_attention_is_its_quadratic_form(with_mask: bool):
    q, k, v = qkv(2 + 35)
    where = layout(2, ragged() if with_mask else None)
    weights = (torch.nn.functional.elu(q) + 1) @ (torch.nn.functional.elu(k) + 1).mT
    if where.mask is not None:
        weights = weights * where.mask[:, None, None, :]
    expected = weights / weights.sum(dim=-1, keepdim=True) @ v
    torch.testing.assert_close(LinearMix()(q, k, v, where, None, 0.0), expected, **EXACT)


def test_attention_is_pytorchs_own_multi_head_attention():
    torch.manual_seed(0)
    ours = Attention(24, 3, mix=FullMix(fused=True)).double().eval()
    theirs = torch.nn.MultiheadAttention(24, 3, batch_first=True).double().eval()
    torch.nn.init.normal_(ours.qkv.bias)
    theirs.in_proj_weight.data, theirs.in_proj_bias.data = ours.qkv.weight.data, ours.qkv.bias.data
    theirs.out_proj.weight.data, theirs.out_proj.bias.data = ours.out.weight.data, ours.out.bias.data
    x = torch.randn(2, 35, 24, dtype=torch.float64)
    torch.testing.assert_close(ours(x, layout(0)), theirs(x, x, x, need_weights=False)[0], **EXACT)


def test_attention_has_four_width_squared_weights():
    attention = Attention(24, 3, mix=FullMix(fused=True))
    assert sum(p.numel() for p in attention.parameters()) == 4 * 24 * 24 + 4 * 24


def test_a_bias_of_the_keys_changes_nothing():
    torch.manual_seed(0)
    whole = Attention(24, 3, mix=FullMix(fused=True)).double()
    lean = Attention(24, 3, mix=FullMix(fused=True), qkv_bias="no_key").double()
    torch.nn.init.normal_(whole.qkv.bias)
    q_bias, _, v_bias = whole.qkv.bias.data.chunk(3)
    lean.load_state_dict(
        {
            "qkv.weight": whole.qkv.weight,
            "q_bias": q_bias,
            "v_bias": v_bias,
            "out.weight": whole.out.weight,
            "out.bias": whole.out.bias,
        }
    )
    x = torch.randn(2, 35, 24, dtype=torch.float64)
    torch.testing.assert_close(whole(x, layout(0)), lean(x, layout(0)), **EXACT)


def test_qk_norm_makes_scores_blind_to_the_length_of_the_tokens():
    attention = Attention(24, 3, mix=FullMix(fused=True), qk_norm=True, qkv_bias="none", norm_eps=0.0).double()
    x = torch.randn(2, 35, 24, dtype=torch.float64)
    torch.testing.assert_close(attention.heads(x)[0], attention.heads(100 * x)[0], **EXACT)


@pytest.mark.parametrize("mix", [SparseMix(), WindowedMix(Size(3, 2), shifted=True)], ids=type)
def test_padding_that_meets_nobody_stays_finite(mix):
    """Without a prefix some padding has neither a row, a column nor a window with anything real in it."""
    q, k, v = qkv(35)
    assert mix(q, k, v, layout(0, ragged()), None, 0.0).isfinite().all()
