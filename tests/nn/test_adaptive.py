"""Adaptive patches: the tree, its limits, and the way back to a dense map."""

import math
from itertools import product
from typing import Literal

import pytest
import torch
import torch.nn.functional as F

from vitrail.config import ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.nn.adaptive import AdaptiveEmbed, detail_scores, quadtree, to_dense, tokens_saved
from vitrail.nn.layout import Layout
from vitrail.nn.patches import PatchEmbed
from vitrail.nn.remainder import pad_batch
from vitrail.nn.vit import ViT
from vitrail.parts import Adaptive, Hierarchical, Mlp

SIZES = {
    "8/16/32": (Size(8, 8), Size(16, 16), Size(32, 32)),
    "4/8/16": (Size(4, 4), Size(8, 8), Size(16, 16)),
    "non-square": (Size(6, 4), Size(12, 8)),
}
SELECTORS = ["detail", "local", "learned", "random"]


def busy_image(height: int, width: int, *, batch: int = 2, channels: int = 3, dtype=torch.float64) -> torch.Tensor:
    """Flat, but for noise in a corner that grows with the image's number."""
    generator = torch.Generator().manual_seed(0)
    image = torch.full((batch, channels, height, width), 0.3, dtype=dtype)
    for number, one in enumerate(image):
        corner = one[:, : height // 3, : width // (3 - number)]
        corner += torch.randn(corner.shape, generator=generator, dtype=torch.float64).to(dtype)
    return image


def embed(
    patches,
    *,
    threshold=0.5,
    selector: Literal["detail", "local", "learned", "random"] = "detail",
    channels=3,
    width=5,
) -> AdaptiveEmbed:
    torch.manual_seed(1)
    spec = Adaptive(patches=patches, threshold=threshold, selector=selector)
    return AdaptiveEmbed(spec, width, channels=channels).double()


def projection(model: AdaptiveEmbed, level: int) -> PatchEmbed:
    module = model.projections[level]
    assert isinstance(module, PatchEmbed)
    return module


def rectangles_and_mask(layout: Layout) -> tuple[torch.Tensor, torch.Tensor]:
    assert layout.rectangles is not None
    everything = torch.ones(layout.rectangles.shape[:2], dtype=torch.bool)
    return layout.rectangles, everything if layout.patch_mask is None else layout.patch_mask


def tree_by_recursion(image: torch.Tensor, patches, threshold: float, selector: str) -> list[tuple[int, int, int]]:
    """Leaves (top, left, side) in cells of the finest patch: the definition, one cell at a time."""
    fine, coarse = patches[0], patches[-1]
    cells = image.unfold(1, coarse.height, coarse.height).unfold(2, coarse.width, coarse.width)
    spread = image.var((1, 2), correction=0).sum()
    if selector == "local":
        spread = cells.var((-2, -1), correction=0).sum(0).mean()

    def walk(top: int, left: int, level: int):
        side = 2**level
        rows, columns = (
            slice(top * fine.height, (top + side) * fine.height),
            slice(left * fine.width, (left + side) * fine.width),
        )
        score = (image[:, rows, columns].var((1, 2), correction=0).sum() / spread).sqrt()
        if level == 0 or score < threshold:
            yield top, left, side
            return
        for down in (0, side // 2):
            for right in (0, side // 2):
                yield from walk(top + down, left + right, level - 1)

    side = 2 ** (len(patches) - 1)
    rows, columns = image.shape[1] // fine.height, image.shape[2] // fine.width
    tops = [(top, left) for top in range(0, rows, side) for left in range(0, columns, side)]
    return sorted(leaf for top, left in tops for leaf in walk(top, left, len(patches) - 1))


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.parametrize(("threshold", "place"), [(0.0, 0), (math.inf, -1)])
def test_threshold_of_zero_or_infinity_is_the_finest_or_coarsest_regular_grid(name, selector, threshold, place):
    patches = SIZES[name]
    model = embed(patches, threshold=threshold, selector=selector)
    image = busy_image(6 * patches[-1].height, 5 * patches[-1].width)
    tokens, layout = model(image)
    linear = projection(model, place)
    regular = F.conv2d(image, linear.weight, linear.bias, stride=tuple(patches[place])).flatten(2).mT
    assert tokens.shape == regular.shape
    assert layout.mask is None
    torch.testing.assert_close(tokens, regular, rtol=0, atol=1e-12)  # one float64 sum in another order


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("selector", ["detail", "local"])
def test_leaves_are_those_of_the_recursive_definition(name, selector):
    patches = SIZES[name]
    image = busy_image(4 * patches[-1].height, 5 * patches[-1].width)
    _, layout = embed(patches, threshold=0.7, selector=selector)(image)
    for one, rectangles, mask in zip(image, *rectangles_and_mask(layout), strict=True):
        leaves = tree_by_recursion(one, patches, 0.7, selector)
        assert [tuple(r[:3]) for r in rectangles[mask].tolist()] == leaves
        assert len({side for _, _, side in leaves}) == len(patches)  # the case has leaves of every size


def test_every_token_is_its_rectangle_projected_by_its_own_size():
    patches = SIZES["non-square"]
    model, image = embed(patches), busy_image(48, 40)
    tokens, layout = model(image)
    corners, mask = rectangles_and_mask(layout)
    for b, n in mask.nonzero().tolist():
        top, left, side, _ = corners[b, n].tolist()
        pixels = image[b, :, 6 * top : 6 * (top + side), 4 * left : 4 * (left + side)]
        linear = projection(model, side.bit_length() - 1)
        assert linear.bias is not None
        expected = (linear.weight * pixels).sum((1, 2, 3)) + linear.bias
        torch.testing.assert_close(tokens[b, n], expected, rtol=0, atol=1e-12)
    assert not mask.all()  # the images of this case differ in their number of tokens
    assert not tokens[~mask].any()


@pytest.mark.parametrize("selector", SELECTORS)
def test_rectangles_tile_the_grid_once(selector):
    _, layout = embed(SIZES["8/16/32"], selector=selector)(busy_image(96, 160))
    corners, mask = rectangles_and_mask(layout)
    cover = torch.zeros(2, *layout.grid)
    for b, n in mask.nonzero().tolist():
        top, left, rows, columns = corners[b, n].tolist()
        cover[b, top : top + rows, left : left + columns] += 1
    assert (cover == 1).all()


def test_dense_map_fills_every_rectangle_with_its_token():
    tokens, layout = embed(SIZES["4/8/16"])(busy_image(64, 80))
    dense = to_dense(tokens, layout)
    assert dense.shape == (2, 5, 16, 20)
    corners, mask = rectangles_and_mask(layout)
    for b, n in mask.nonzero().tolist():
        top, left, rows, columns = corners[b, n].tolist()
        patch = dense[b, :, top : top + rows, left : left + columns]
        assert torch.equal(patch, tokens[b, n][:, None, None].expand_as(patch))


def test_dense_map_of_the_finest_grid_is_the_grid():
    tokens, layout = embed(SIZES["4/8/16"], threshold=0.0)(busy_image(32, 48))
    assert torch.equal(to_dense(tokens, layout), tokens.mT.unflatten(2, (8, 12)))
    assert torch.equal(to_dense(tokens, Layout(grid=layout.grid, frame=layout.grid)), to_dense(tokens, layout))


def test_an_image_is_embedded_alike_alone_and_in_a_batch():
    model, image = embed(SIZES["8/16/32"]), busy_image(64, 96)
    together, layout = model(image)
    assert layout.mask is not None
    for b in range(2):
        alone, _ = model(image[b : b + 1])
        torch.testing.assert_close(together[b, layout.mask[b]], alone[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("selector", SELECTORS)
def test_cells_outside_a_padded_image_become_no_tokens(selector):
    model, image = embed(SIZES["8/16/32"], selector=selector), busy_image(64, 96, batch=1)
    alone, small = model(image)
    inside = torch.zeros(1, 16, 20, dtype=torch.bool)
    inside[:, :8, :12] = True
    padded, large = model(F.pad(image, (0, 64, 0, 64)), inside)
    torch.testing.assert_close(padded, alone, rtol=0, atol=1e-12)
    assert large.grid == Size(16, 20)
    assert large.rectangles is not None
    assert small.rectangles is not None
    assert torch.equal(large.rectangles, small.rectangles)
    dense = to_dense(padded, large)
    torch.testing.assert_close(dense[:, :, :8, :12], to_dense(alone, small), rtol=0, atol=1e-12)
    assert not dense[:, :, 8:].any()


@pytest.mark.parametrize(
    "embedding",
    [
        Adaptive(patches=(Size(4, 4), Size(8, 8))),
        Adaptive(patches=(Size(4, 4), Size(8, 8)), selector="local"),
        Hierarchical(widths=(8,)),
    ],
)
def test_a_padded_batch_gives_every_image_what_it_gives_alone(embedding):
    torch.manual_seed(0)
    config = ViTConfig(
        image=Size(48, 64), embedding=embedding, width=12, depth=2, num_heads=3, mlp=Mlp(width=24), remainder="pad"
    )
    model = ViT(config).eval().double()
    images = [busy_image(43, 30)[0], busy_image(20, 50)[1]]
    batch, sizes = pad_batch(images)
    with torch.no_grad():
        together = model(batch, sizes)
        for image, logits in zip(images, together, strict=True):
            torch.testing.assert_close(model(image[None])[0], logits, rtol=0, atol=1e-12)


def test_bytes_unit_range_and_normalised_pixels_split_alike():
    patches = SIZES["8/16/32"]
    pixels = torch.randint(0, 256, (2, 3, 64, 96), generator=torch.Generator().manual_seed(3), dtype=torch.uint8)
    pixels[:, :, 20:] //= 16
    mean = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
    for image in (pixels / 255, (pixels / 255 - mean) / 0.226, -pixels.double()):
        for score, expected in zip(detail_scores(image, patches), detail_scores(pixels, patches), strict=True):
            torch.testing.assert_close(score, expected, rtol=1e-4, atol=1e-4, check_dtype=False)  # float32 pixels


def test_local_detail_does_not_mind_how_bright_other_cells_are():
    """Where "detail" is told of a bright sky, what else is in the image becomes flat."""
    patches, image = SIZES["8/16/32"], busy_image(64, 96)
    brighter = image.clone()
    brighter[:, :, 32:, 64:] += 50
    pairs = zip(detail_scores(image, patches, local=True), detail_scores(brighter, patches, local=True), strict=True)
    for score, expected in pairs:
        torch.testing.assert_close(score, expected, rtol=1e-9, atol=1e-9)
    assert detail_scores(brighter, patches)[0].max() < 0.1 < detail_scores(image, patches)[0].max()


@pytest.mark.parametrize("value", [0.0, 0.1, 255.0, -1e6])
@pytest.mark.parametrize("local", [False, True])
def test_uniform_image_has_no_detail(value, local):
    image = torch.full((1, 3, 64, 96), value)
    for score in detail_scores(image, SIZES["8/16/32"], local=local):
        assert score.max() < 0.05
    _, layout = AdaptiveEmbed(Adaptive(selector="local" if local else "detail"), 2)(image)
    assert tokens_saved(layout).kept == (6,)


def test_smallest_image_is_one_coarsest_cell():
    tokens, layout = embed(SIZES["8/16/32"], threshold=math.inf)(busy_image(32, 32))
    assert tokens.shape == (2, 1, 5)
    assert layout.grid == Size(4, 4)


def test_image_that_the_coarsest_patch_does_not_divide_is_refused():
    with pytest.raises(VitrailError, match="not divisible by patch 32x32"):
        embed(SIZES["8/16/32"], selector="learned")(busy_image(40, 64))
    with pytest.raises(VitrailError, match="not divisible by patch 32x32"):
        embed(SIZES["8/16/32"])(busy_image(48, 64))


def test_gradients_reach_the_learned_selector_and_every_projection():
    model = embed(SIZES["4/8/16"], selector="learned")
    tokens, layout = model(busy_image(64, 96))
    tokens.square().sum().backward()
    assert len(rectangles_and_mask(layout)[0][..., 2].unique()) == 3
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


def test_learned_selector_changes_no_token_of_the_tree_it_chose():
    model = embed(SIZES["4/8/16"], selector="learned")
    image = busy_image(64, 96)
    tokens, layout = model(image)
    corners, mask = rectangles_and_mask(layout)
    for level in range(3):
        linear = projection(model, level)
        coarse = F.conv2d(image, linear.weight, linear.bias, stride=4 * 2**level)
        batch, slot = ((corners[..., 2] == 2**level) & mask).nonzero(as_tuple=True)
        top, left = (corners[batch, slot, :2] // 2**level).unbind(1)
        torch.testing.assert_close(tokens[batch, slot], coarse[batch, :, top, left], rtol=0, atol=1e-12)


def test_a_trained_selector_learns_to_split_where_it_pays():
    torch.manual_seed(0)
    model = embed(SIZES["4/8/16"][:2], channels=1, width=3, selector="learned").float()
    image = busy_image(64, 96, channels=1, dtype=torch.float32)
    assert model.selector is not None
    optimizer = torch.optim.Adam(model.selector.parameters(), lr=0.02)
    for _ in range(60):
        tokens, layout = model(image)
        assert layout.rectangles is not None
        fine = layout.rectangles[..., 2:3] == 1
        (tokens * torch.where(fine, -1, 1) * tokens.detach().sign()).sum().backward()  # fine tokens lower the loss
        optimizer.step()
        optimizer.zero_grad()
    assert tokens_saved(model(image)[1]).share < 0.1


def test_saved_tokens_are_counted_per_image():
    _, layout = embed(SIZES["8/16/32"])(busy_image(96, 160))
    saved = tokens_saved(layout)
    assert layout.mask is not None
    assert saved.kept == tuple(layout.mask.sum(1).tolist())
    assert saved.finest == 12 * 20
    assert saved.share == pytest.approx(1 - sum(saved.kept) / 480)
    assert str(saved) == f"{saved.kept[0]}, {saved.kept[1]} of 240 tokens kept: {saved.share:.1%} saved"
    with pytest.raises(VitrailError, match="saves no tokens"):
        tokens_saved(Layout(grid=Size(2, 3), frame=Size(2, 3)))


@pytest.mark.parametrize("threshold", [0.0, 0.4, 0.9, math.inf])
def test_a_quadtree_from_scores_is_the_embedding_s_own(threshold):
    image = busy_image(96, 160, batch=1)
    _, layout = embed(SIZES["8/16/32"], threshold=threshold)(image)
    tree = quadtree(detail_scores(image, SIZES["8/16/32"]), threshold)
    assert layout.rectangles is not None
    assert tree.rectangles is not None
    assert torch.equal(tree.rectangles, layout.rectangles)
    assert tree.grid == layout.grid
    with pytest.raises(VitrailError, match="scores has 2 images"):
        quadtree(detail_scores(busy_image(96, 160), SIZES["8/16/32"]), threshold)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_tokens_have_the_image_dtype(dtype):
    model = embed(SIZES["4/8/16"], channels=4, width=6, selector="learned").to(dtype)
    tokens, _ = model(busy_image(32, 48, channels=4, dtype=dtype))
    assert tokens.dtype == dtype


# ── a token budget ──────────────────────────────────────────────────────────────────────────────────────────────


def test_random_scores_depend_on_the_place_alone():
    model = embed(SIZES["4/8/16"], selector="random")
    fine, coarse = model.scores(busy_image(32, 48))
    assert fine.shape == (2, 4, 6)
    assert coarse.shape == (2, 2, 3)
    assert torch.equal(fine[0], fine[1])
    assert torch.equal(model.scores(torch.zeros(1, 3, 64, 48))[0][0, :4], fine[0])  # a larger grid begins the same
    assert 0 <= float(fine.min()) < 0.3
    assert 0.7 < float(fine.max()) < 1


def test_the_share_of_tokens_is_the_trees_and_its_gradient_that_of_the_expected_share(monkeypatch):
    """Expected over all trees, each weighted by its probability: 2 coarse cells of 4 finer ones, all independent."""
    model = embed(SIZES["4/8/16"], selector="learned")
    random = torch.Generator().manual_seed(0)
    fine = torch.rand(1, 2, 4, generator=random, dtype=torch.float64).requires_grad_()
    coarse = torch.tensor([[[0.4, 0.7]]], dtype=torch.float64, requires_grad=True)
    monkeypatch.setattr(model, "scores", lambda image: [fine, coarse])
    share = model.token_share(torch.zeros(1, 3, 16, 32))
    kept = 1 + sum(4 if score >= 0.5 else 1 for score in fine[0, :, 2:].flatten())
    assert share.item() == pytest.approx(kept / 32)
    share.backward()
    expected = torch.zeros((), dtype=torch.float64)
    ps, qs = fine.detach().clone().requires_grad_(), coarse.detach().clone().requires_grad_()
    for cell in range(2):
        below = ps[0, :, 2 * cell : 2 * cell + 2].flatten()
        expected = expected + (1 - qs[0, 0, cell])
        for splits in product((0, 1), repeat=4):
            chance = torch.stack([p if split else 1 - p for p, split in zip(below, splits, strict=True)]).prod()
            expected = expected + qs[0, 0, cell] * chance * (4 + 3 * sum(splits))
    (expected / 32).backward()
    torch.testing.assert_close(fine.grad, ps.grad)
    torch.testing.assert_close(coarse.grad, qs.grad)
