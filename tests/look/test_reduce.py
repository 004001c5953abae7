from __future__ import annotations

import math

import pytest
import torch

from vitrail import parts
from vitrail.config import MobileConfig, PyramidConfig, PyramidStage, ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.look import (
    AttentionMap,
    attention_distance,
    capture,
    cells_of,
    filter_responses,
    fuse_heads,
    head_entropy,
    norm_outliers,
    pca_colours,
    position_similarity,
    projection_filters,
    rollout,
    token_norms,
    tokens_after,
)
from vitrail.nn.build import build
from vitrail.nn.layout import Layout
from vitrail.nn.positions import sincos_2d
from vitrail.nn.vit import ViT
from vitrail.presets import preset

EXACT = {"rtol": 0, "atol": 1e-12}  # float64 rounding of short sums
GRID = Size(5, 7)


def a_map(weights: torch.Tensor, *, prefix: int = 0, layer: int = 0, mask: torch.Tensor | None = None) -> AttentionMap:
    layout = Layout(grid=GRID, frame=GRID, mask=mask).with_prefix(prefix)
    return AttentionMap(
        layer=layer, name="attention", weights=weights, queries=torch.arange(weights.shape[2]), layout=layout
    )


def random_map(seed: int = 0, *, prefix: int = 0, layer: int = 0) -> AttentionMap:
    torch.manual_seed(seed)
    tokens = prefix + GRID.area
    scores = torch.randn(2, 3, tokens, tokens, dtype=torch.float64)
    return a_map(scores.softmax(dim=-1), prefix=prefix, layer=layer)


def small(**changes) -> ViT:
    torch.manual_seed(0)
    common = {
        "image": Size(20, 28),
        "embedding": parts.Patches(patch=Size(4, 4)),
        "width": 24,
        "depth": 2,
        "num_heads": 3,
        "mlp": parts.Mlp(width=32),
        "classes": 5,
    }
    return ViT(ViTConfig(**{**common, **changes})).double().eval()  # type: ignore[arg-type]


# ── rollout ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("residual", [0.0, 0.5])
def test_rollout_of_identity_attention_is_identity(residual: float):
    eye = torch.eye(GRID.area, dtype=torch.float64).expand(2, 3, -1, -1)
    maps = {layer: a_map(eye, layer=layer) for layer in range(4)}
    found = rollout(maps, residual=residual)
    torch.testing.assert_close(found, torch.eye(GRID.area, dtype=torch.float64).expand(2, -1, -1), **EXACT)


def test_rollout_is_the_product_of_layers_last_first():
    maps = {layer: random_map(layer, layer=layer) for layer in range(3)}
    expected = torch.eye(GRID.area, dtype=torch.float64)
    for layer in range(3):
        half = 0.5 * maps[layer].weights.mean(dim=1) + 0.5 * torch.eye(GRID.area, dtype=torch.float64)
        expected = half @ expected
    torch.testing.assert_close(rollout(maps), expected, **EXACT)


@pytest.mark.parametrize("fusion", ["mean", "max", "min"])
@pytest.mark.parametrize("discard", [0.0, 0.6])
def test_rows_of_a_rollout_sum_to_one(fusion, discard: float):
    maps = {layer: random_map(layer, prefix=2, layer=layer) for layer in range(3)}
    sums = rollout(maps, fusion=fusion, discard=discard).sum(dim=-1)
    torch.testing.assert_close(sums, torch.ones_like(sums), **EXACT)


def test_heads_fused_before_or_inside_a_rollout_are_the_same():
    maps = {layer: random_map(layer, layer=layer) for layer in range(3)}
    before = {layer: fuse_heads(found, "max") for layer, found in maps.items()}
    torch.testing.assert_close(rollout(before), rollout(maps, fusion="max"), **EXACT)


def test_discarding_drops_the_lowest_patches_and_keeps_the_prefix():
    found = random_map(prefix=2)
    weights = found.weights.clone()
    weights[..., :2] = 1e-9  # the lowest of all
    kept = rollout({0: a_map(weights, prefix=2)}, residual=0.0, discard=0.8)
    patches = weights.mean(dim=1)[..., 2:]
    lowest = patches.argsort(dim=-1)[..., : int(0.8 * 35)]
    assert not kept[..., 2:].gather(-1, lowest).any()
    assert (kept[..., 2:] > 0).sum(dim=-1).eq(35 - 28).all()
    assert (kept[..., :2] > 0).all()


def test_padding_keeps_to_itself_in_a_rollout():
    mask = torch.ones(2, GRID.area, dtype=torch.bool)
    mask[1, 20:] = False
    weights = random_map().weights * mask[:, None, None, :] * mask[:, None, :, None]
    weights = torch.nn.functional.normalize(weights, p=1, dim=-1)
    found = rollout({0: a_map(weights, mask=mask), 1: a_map(weights, layer=1, mask=mask)})
    assert not found[1, :20, 20:].any()
    torch.testing.assert_close(found[1, 20:, 20:], torch.eye(15, dtype=torch.float64), **EXACT)


def test_rollout_says_what_it_needs():
    one = random_map()
    with pytest.raises(VitrailError, match="rows for 1 of 35 tokens"):
        rollout(
            {
                0: AttentionMap(
                    layer=0, name="", weights=one.weights[:, :, :1], queries=torch.zeros(1), layout=one.layout
                )
            }
        )
    with pytest.raises(VitrailError, match="layer 1 has 36 tokens and layer 0 35"):
        rollout({0: one, 1: random_map(prefix=1, layer=1)})
    with pytest.raises(VitrailError, match="maps is empty"):
        rollout({})


# ── heads ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("prefix", [0, 3])
@pytest.mark.parametrize("step", [(1, 1), (16, 12)])
def test_the_distance_of_uniform_attention_is_its_closed_form(prefix: int, step: tuple[int, int]):
    """The mean over pairs of √(dy² + dx²), where an offset of r rows occurs (height − |r|) times on each side."""
    tokens = prefix + GRID.area
    uniform = a_map(torch.full((2, 3, tokens, tokens), 1 / tokens, dtype=torch.float64), prefix=prefix)
    total = 0.0
    for row in range(-4, 5):
        for column in range(-6, 7):
            times = (5 - abs(row)) * (7 - abs(column))
            total += times * math.hypot(row * step[0], column * step[1])
    expected = torch.full((2, 3), total / GRID.area**2, dtype=torch.float64)
    torch.testing.assert_close(attention_distance(uniform, step), expected, **EXACT)


def test_the_distance_of_attention_to_itself_is_zero_and_to_the_neighbour_one():
    eye = torch.eye(GRID.area, dtype=torch.float64).expand(2, 3, -1, -1)
    assert not attention_distance(a_map(eye)).any()
    below = eye.roll(GRID.width, dims=-1)[:, :, : -GRID.width]  # the last row has none
    torch.testing.assert_close(attention_distance(a_map(below)), torch.ones(2, 3, dtype=torch.float64), **EXACT)


def test_distance_is_the_plain_sum_over_queries_and_keys():
    found = random_map(prefix=1)
    expected = 0.0
    for query in range(GRID.area):
        weights = found.weights[1, 2, 1 + query, 1:]
        for key in range(GRID.area):
            away = math.hypot(query // 7 - key // 7, query % 7 - key % 7)
            expected += float(weights[key] / weights.sum()) * away / GRID.area
    assert float(attention_distance(found)[1, 2]) == pytest.approx(expected, rel=1e-12)


def test_padding_neither_asks_nor_counts():
    mask = torch.zeros(2, *GRID, dtype=torch.bool)
    mask[0], mask[1, :3, :4] = True, True
    mask = mask.flatten(1)
    weights = (mask[:, None, :, None] & mask[:, None, None, :]).double()
    found = a_map(torch.nn.functional.normalize(weights, p=1, dim=-1), mask=mask)
    alone = AttentionMap(
        layer=0,
        name="",
        weights=torch.full((1, 1, 12, 12), 1 / 12, dtype=torch.float64),
        queries=torch.arange(12),
        layout=Layout(grid=Size(3, 4), frame=Size(3, 4)),
    )
    torch.testing.assert_close(attention_distance(found)[1], attention_distance(alone)[0], **EXACT)
    torch.testing.assert_close(head_entropy(found)[1], head_entropy(alone)[0], **EXACT)


def test_entropy_is_log2_of_as_many_equal_weights():
    uniform = a_map(torch.full((2, 3, 35, 35), 1 / 35, dtype=torch.float64))
    torch.testing.assert_close(head_entropy(uniform), torch.full((2, 3), math.log2(35), dtype=torch.float64), **EXACT)
    eye = torch.eye(35, dtype=torch.float64).expand(2, 3, -1, -1)
    assert not head_entropy(a_map(eye)).any()


def test_cells_of_overlapping_patches_lie_around_their_centres():
    config = ViTConfig(image=Size(40, 56), embedding=parts.Patches(patch=Size(16, 16), stride=Size(8, 8)))
    cells = cells_of(config, config.grid, config.image)
    assert config.grid == Size(4, 6)
    assert cells.extent == (4, 52, 36, 4)
    plain = cells_of(ViTConfig(image=Size(32, 48)), Size(2, 3), Size(32, 48))
    assert plain.extent == (0, 48, 32, 0)
    assert plain.box(1, 2) == (16, 32, 16, 16)


def test_cells_of_a_pooled_grid_lie_around_every_other_centre():
    """A convolution of three, stride 2 and one cell of padding reads around the patches 0, 2, 4 …"""
    config = preset("pit-S", image=Size(48, 80))
    for level, grid in enumerate(config.grids):
        cells = cells_of(config, grid, config.image)
        top, left, height, width = cells.box(1, 0)
        assert (height, width) == (8 * 2**level, 8 * 2**level)
        assert (top + height / 2, left + width / 2) == (8 + 8 * 2**level, 8)


# ── tokens ──────────────────────────────────────────────────────────────────────────────────────────────────────


def tokens_of(seed: int = 0) -> tuple[torch.Tensor, Layout]:
    torch.manual_seed(seed)
    scales = torch.tensor([5.0, 3.0, 2.0] + [0.3] * 9, dtype=torch.float64)
    skewed = torch.randn(2, 1 + GRID.area, 12, dtype=torch.float64).exp()
    return skewed * scales, Layout(grid=GRID, frame=GRID).with_prefix(1)


def test_colours_do_not_change_when_features_turn_shift_or_scale():
    tokens, layout = tokens_of()
    turn, _ = torch.linalg.qr(torch.randn(12, 12, dtype=torch.float64))
    expected = pca_colours(tokens, layout)
    for changed in (tokens @ turn, -tokens, tokens * 7.0, tokens + torch.randn(12, dtype=torch.float64)):
        found = pca_colours(changed, layout)
        torch.testing.assert_close(found.rgb, expected.rgb, rtol=0, atol=1e-6)  # colours are float32
        assert found.shares == pytest.approx(expected.shares)


def test_colours_follow_their_tokens():
    tokens, layout = tokens_of()
    order = torch.cat([torch.zeros(1, dtype=torch.long), 1 + torch.randperm(GRID.area)])
    moved = pca_colours(tokens[:, order], layout).rgb
    torch.testing.assert_close(moved, pca_colours(tokens, layout).rgb[:, order[1:] - 1], rtol=0, atol=1e-6)


def test_colours_are_the_principal_components_of_an_svd():
    tokens, layout = tokens_of()
    x = tokens[:, 1:].flatten(0, 1)
    x = x - x.mean(dim=0)
    u, s, _ = torch.linalg.svd(x, full_matrices=False)
    scores = u[:, :3] * s[:3]
    scores = scores * scores.pow(3).sum(dim=0).sign()
    low, high = scores.quantile(0.02, dim=0), scores.quantile(0.98, dim=0)
    expected = ((scores - low) / (high - low)).clamp(0, 1).view(2, GRID.area, 3).float()
    found = pca_colours(tokens, layout)
    torch.testing.assert_close(found.rgb, expected, rtol=0, atol=1e-6)
    assert found.shares == pytest.approx((s[:3] ** 2 / (s**2).sum()).tolist())


def test_one_wild_token_does_not_take_all_the_contrast():
    tokens, layout = tokens_of()
    tokens[0, 1] += 1e3
    colours = pca_colours(tokens, layout).rgb.flatten(0, 1)
    assert (colours[:, 0].quantile(0.9) - colours[:, 0].quantile(0.1)) > 0.05


def test_the_foreground_is_the_side_away_from_the_border():
    inside = torch.zeros(GRID.height, GRID.width, dtype=torch.bool)
    inside[1:4, 2:5] = True
    torch.manual_seed(0)
    tokens = torch.randn(1, GRID.area, 12, dtype=torch.float64)
    tokens[0, :, 0] += 40.0 * inside.flatten()
    layout = Layout(grid=GRID, frame=GRID)
    for sign in (1, -1):
        found = pca_colours(sign * tokens, layout, foreground=True)
        assert torch.equal(found.shown[0], inside.flatten())
        assert not found.rgb[0, ~inside.flatten()].any()


def test_padding_is_black_and_changes_no_colour():
    tokens, _ = tokens_of()
    mask = torch.ones(2, GRID.area, dtype=torch.bool)
    mask[1, 30:] = False
    layout = Layout(grid=GRID, frame=GRID, mask=mask).with_prefix(1)
    wild = tokens.clone()
    wild[1, 31:] = 1e6
    found = pca_colours(wild, layout)
    assert not found.rgb[1, 30:].any()
    torch.testing.assert_close(found.rgb, pca_colours(tokens, layout).rgb, rtol=0, atol=1e-6)


def test_equal_tokens_have_one_colour():
    layout = Layout(grid=GRID, frame=GRID)
    assert pca_colours(torch.ones(1, 35, 2), layout).rgb.unique().tolist() == [0.5]


def test_norms_are_lengths_and_artefacts_stand_out():
    tokens, layout = tokens_of()
    norms = token_norms(tokens, layout)
    torch.testing.assert_close(norms, tokens[:, 1:].square().sum(dim=-1).sqrt(), **EXACT)
    steady = torch.randn(2, 36, 12).div(10) + 1
    steady[1, 9] *= 6
    assert norm_outliers(token_norms(steady, layout), layout).nonzero().tolist() == [[1, 8]]


def test_tokens_after_a_layer_are_what_the_next_one_gets():
    model = small()
    image = torch.randn(2, 3, 20, 28, dtype=torch.float64)
    first, layout = tokens_after(model, image, 0)
    last, _ = tokens_after(model, image, -1)
    with torch.no_grad():
        torch.testing.assert_close(model.blocks[1](first, layout, None), last, **EXACT)
        assert torch.equal(tokens_after(model, image)[0], model.features(image)[0])
        torch.testing.assert_close(model.norm(last), model.features(image)[0], **EXACT)  # type: ignore[misc]
    assert not any(module._forward_hooks for module in model.modules())


# ── filters ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("embedding", "shape", "stage"),
    [
        (parts.Patches(patch=Size(4, 2)), (24, 3, 4, 2), "patch projection"),
        (parts.Stem(patch=Size(4, 4), widths=(5, 7)), (5, 3, 3, 3), "first convolution of the stem"),
        (
            parts.ResNetStem(depths=(), width=6, groups=3),
            (6, 3, 7, 7),
            "first convolution of the ResNet, standardised",
        ),
        (parts.Hierarchical(finest=Size(2, 2), widths=(6,)), (6, 3, 2, 2), "finest patch projection"),
        (parts.Adaptive(patches=(Size(2, 2), Size(4, 4))), (24, 3, 2, 2), "projection of 2x2 patches"),
    ],
)
def test_filters_are_sums_of_the_principal_ones(embedding, shape: tuple[int, ...], stage: str):
    found = projection_filters(small(embedding=embedding))
    assert found.filters.shape == shape
    assert found.stage == stage
    flat, basis = found.filters.flatten(1), found.principal.flatten(1)
    torch.testing.assert_close(flat @ basis.T @ basis, flat, **EXACT)
    torch.testing.assert_close(basis @ basis.T, torch.eye(len(basis), dtype=torch.float64), **EXACT)
    carried = (flat @ basis.T).square().sum(dim=0) / flat.square().sum()
    torch.testing.assert_close(found.shares, carried, **EXACT)
    assert (found.shares.diff() <= 0).all()


def test_filters_of_bytes_are_the_same_pictures():
    model = small()
    plain = projection_filters(model).filters
    folded = projection_filters(model.from_bytes(mean=(0.5,) * 3, std=(0.5,) * 3)).filters
    torch.testing.assert_close(folded * 127.5, plain, **EXACT)


def test_effective_rank_counts_equal_filters():
    model = small()
    weight = torch.zeros(24, 48, dtype=torch.float64)
    weight[torch.arange(6), torch.arange(6)] = 2.0
    model.embedding.weight.data = weight.view(24, 3, 4, 4)  # type: ignore[union-attr]
    assert projection_filters(model).effective_rank == pytest.approx(6)


def test_stems_and_adaptive_levels_have_filters_too():
    model = build(MobileConfig(image=Size(64, 128)))
    assert projection_filters(model).filters.shape == (16, 3, 3, 3)
    adaptive = small(embedding=parts.Adaptive(patches=(Size(2, 2), Size(4, 4))))
    assert projection_filters(adaptive, level=1).filters.shape == (24, 3, 4, 4)
    with pytest.raises(VitrailError, match="level 2 is out of range for 2"):
        projection_filters(adaptive, level=2)


@pytest.mark.parametrize(
    "embedding",
    [
        parts.Patches(patch=Size(4, 4)),
        parts.Patches(patch=Size(4, 4), stride=Size(2, 2)),
        parts.Hierarchical(finest=Size(2, 2), widths=(12,)),
    ],
)
def test_responses_are_the_tokens_before_positions(embedding):
    model = small(embedding=embedding)
    image = torch.randn(2, 3, *model.config.image, dtype=torch.float64)
    finest = getattr(model.embedding, "finest", model.embedding)
    tokens, layout = finest(image)
    answers = filter_responses(model, image)
    torch.testing.assert_close(answers, tokens.mT.unflatten(2, tuple(layout.grid)), **EXACT)


def test_principal_responses_add_up_to_the_filters_own():
    model = small()
    image = torch.randn(2, 3, *model.config.image, dtype=torch.float64)
    found = projection_filters(model)
    principal = filter_responses(model, image, found.principal)
    shares = found.filters.flatten(1) @ found.principal.flatten(1).T
    bias = model.embedding.bias  # type: ignore[union-attr]
    mixed = torch.einsum("dk,bkhw->bdhw", shares, principal) + bias.view(-1, 1, 1)  # type: ignore[call-issue]
    torch.testing.assert_close(filter_responses(model, image), mixed, **EXACT)


# ── positions ───────────────────────────────────────────────────────────────────────────────────────────────────

EVERY = [
    parts.Learned(),
    parts.Learned(prefix="none"),
    parts.SinCos1d(),
    parts.SinCos2d(),
    parts.Rotary(),
    parts.Rotary(coordinates="normalised"),
    parts.RotaryMixed(),
]


@pytest.mark.parametrize("position", EVERY, ids=str)
@pytest.mark.parametrize("grid", [None, Size(3, 8)])
def test_a_position_is_like_itself_and_likeness_is_mutual(position, grid: Size | None):
    found = position_similarity(small(position=position), grid=grid, head=1)
    assert found.grid == (grid or GRID)
    flat = found.values.reshape(found.grid.area, -1)
    torch.testing.assert_close(flat.diagonal(), torch.ones(found.grid.area, dtype=torch.float64), rtol=0, atol=1e-6)
    torch.testing.assert_close(flat, flat.T, rtol=0, atol=1e-9)
    assert flat.abs().max() <= 1 + 1e-6


def test_sine_positions_are_alike_as_the_sum_of_their_waves_says():
    found = position_similarity(small(position=parts.SinCos2d()))
    frequency = 10_000 ** -(torch.arange(6, dtype=torch.float64) / 6)
    for row, column in ((0, 1), (2, 3), (4, 6)):
        waves = torch.cat([(row * frequency).cos(), (column * frequency).cos()])
        assert float(found.values[0, 0, row, column]) == pytest.approx(float(waves.mean()), abs=1e-6)
    table = torch.nn.functional.normalize(sincos_2d(GRID, 24, parts.SinCos2d()).double(), dim=1)
    torch.testing.assert_close(found.values.view(35, 35), table @ table.T, rtol=0, atol=1e-6)


def test_rotary_likeness_is_the_mean_cosine_of_the_turns():
    found = position_similarity(small(position=parts.Rotary(temperature=100.0)))
    frequency = 100.0 ** -(torch.arange(2, dtype=torch.float64) / 2)
    turns = torch.cat([3 * frequency, 2 * frequency]).cos().mean()
    assert float(found.values[1, 4, 4, 2]) == pytest.approx(float(turns), abs=1e-6)
    assert found.kind == "rotary, by index"


def test_relative_likeness_is_the_bias_of_the_offset():
    model = small(position=parts.RelativeBias())
    table = model.blocks[1].attention.position.table.detach()  # type: ignore[union-attr,operator]
    found = position_similarity(model, layer=1, head=2)
    offset = (2 - 4 + 4) * 13 + (5 - 1 + 6)
    assert found.kind == "relative bias, layer 1, head 2"
    assert float(found.values[2, 5, 4, 1]) == float(table[offset, 2])  # type: ignore[index]
    mean = position_similarity(model, layer=1)
    assert float(mean.values[2, 5, 4, 1]) == pytest.approx(float(table[offset].mean()))  # type: ignore[index]


def test_windows_have_a_grid_of_their_own():
    windowed = small(attention=parts.WindowedAttention(window=Size(3, 4)), position=parts.RelativeBias(prefix=False))
    assert position_similarity(windowed).grid == Size(3, 4)
    stages = (PyramidStage(width=12, depth=1, num_heads=3), PyramidStage(width=24, depth=1, num_heads=4))
    pyramid = build(
        PyramidConfig(image=Size(24, 40), stages=stages, attention=parts.WindowedAttention(window=Size(5, 6)))
    )
    assert position_similarity(pyramid, layer=0).grid == Size(5, 6)  # type: ignore[arg-type]
    assert position_similarity(pyramid, layer=1).grid == Size(3, 5)  # type: ignore[arg-type]


def test_who_has_no_positions_says_so():
    with pytest.raises(VitrailError, match="no positions"):
        position_similarity(small(position=parts.NoPosition()))
    with pytest.raises(VitrailError, match="mobile model has no positions"):
        position_similarity(build(MobileConfig(image=Size(64, 128))))  # type: ignore[arg-type]
    with pytest.raises(VitrailError, match="head 3 is out of range for 3 heads"):
        position_similarity(small(position=parts.RelativeBias()), head=3)


def test_distance_by_layer_needs_no_map_to_be_kept():
    model = small()
    image = torch.randn(2, 3, 20, 28, dtype=torch.float64)
    with torch.no_grad(), capture(model) as maps:
        model(image)
    with torch.no_grad(), capture(model, keep=attention_distance) as distances:
        model(image)
    for layer in (0, 1):
        torch.testing.assert_close(distances[layer], attention_distance(maps[layer]), **EXACT)
