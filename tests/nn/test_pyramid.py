"""Pyramids: levels and merges, and Swin equal to timm's, whose weights are copied by the names below."""

import pytest
import torch
import torch.nn.functional as F

from peers import timm
from vitrail.config import PyramidConfig, PyramidStage
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.nn.layout import Layout
from vitrail.nn.pyramid import GridPool, PatchMerge, PyramidEmbed, PyramidViT
from vitrail.parts import Hierarchical, Patches, WindowedAttention
from vitrail.presets import preset


def swin(width: int, depths: tuple[int, ...], num_heads: tuple[int, ...], **changes) -> PyramidConfig:
    stages = tuple(
        PyramidStage(width=width * 2**level, depth=depth, num_heads=heads)
        for level, (depth, heads) in enumerate(zip(depths, num_heads, strict=True))
    )
    return PyramidConfig(stages=stages, **changes)


def padded(config: PyramidConfig, padding: str) -> PyramidConfig:
    return config.but(attention=config.attention.but(window_padding=padding))


VARIANTS = {
    "swin_tiny_patch4_window7_224": swin(96, (2, 2, 6, 2), (3, 6, 12, 24)),
    "swin_small_patch4_window7_224": swin(96, (2, 2, 18, 2), (3, 6, 12, 24)),
    "swin_base_patch4_window7_224": swin(128, (2, 2, 18, 2), (4, 8, 16, 32)),
}
NAMES = (
    ("patch_embed.proj.", "embedding."),
    ("patch_embed.norm.", "embedding_norm."),
    ("layers.", "stages."),
    (".downsample.reduction.", ".merge.reduce."),
    (".downsample.", ".merge."),
    (".attn.relative_position_bias_table", ".attention.position.table"),
    (".attn.proj.", ".attention.out."),
    (".attn.", ".attention."),
    ("head.fc.", "head."),
)


def renamed(name: str) -> str:
    for theirs, ours in NAMES:
        name = name.replace(theirs, ours)
    return name


def pair(variant: str, config: PyramidConfig, **settings) -> tuple[torch.nn.Module, PyramidViT]:
    """timm's model at the config's image size with every parameter set at random, and ours with the same."""
    torch.manual_seed(0)
    depths, heads = [s.depth for s in config.stages], [s.num_heads for s in config.stages]
    assert isinstance(config.attention, WindowedAttention)
    width, image, window = config.stages[0].width, tuple(config.image), tuple(config.attention.window)
    theirs = timm.create_model(
        variant, img_size=image, depths=depths, num_heads=heads, embed_dim=width, window_size=window, **settings
    ).eval()
    ours = PyramidViT(config).eval()
    state = theirs.state_dict()
    for name, value in state.items():  # as initialised, biases are 0 and tables too faint to matter
        if "table" in name:
            state[name] = torch.randn_like(value)
        elif value.ndim > 1:
            state[name] = torch.randn_like(value) * (1 / value[0].numel()) ** 0.5
        else:
            state[name] = torch.rand_like(value) + (0.5 if name.endswith("weight") else -0.5)
    theirs.load_state_dict(state)
    ours.load_state_dict({renamed(name): value for name, value in state.items()})
    return theirs, ours


CASES = {
    "wide": swin(24, (2, 3, 2), (2, 3, 4), image=Size(112, 224)),
    "tall": swin(24, (2, 2), (3, 6), image=Size(336, 56)),
    "grid lower than the window": swin(24, (2, 2, 2), (2, 3, 4), image=Size(16, 112)),
}


@pytest.mark.parametrize("case", CASES)
def test_outputs_equal_timm(case):
    theirs, ours = pair("swin_tiny_patch4_window7_224", CASES[case])
    image = torch.randn(2, 3, *CASES[case].image)
    with torch.no_grad():
        expected = theirs(image)
        torch.testing.assert_close(ours(image), expected, rtol=0, atol=1e-5)
        expected = theirs.double()(image.double())
        torch.testing.assert_close(ours.double()(image.double()), expected, rtol=0, atol=1e-10)


PADDED = {
    "224x288": swin(24, (2, 2, 2, 2), (2, 3, 4, 6), image=Size(224, 288)),
    "96x160": swin(24, (2, 3, 2), (2, 3, 4), image=Size(96, 160)),
    "160x96": swin(24, (2, 2, 2), (2, 3, 4), image=Size(160, 96), attention=WindowedAttention(window=Size(3, 5))),
    "32x160, one row of windows": swin(24, (2, 2), (3, 6), image=Size(32, 160)),
}


@pytest.mark.parametrize("case", PADDED)
def test_windows_padded_with_zeros_equal_timm(case):
    """Grids that windows do not divide; masked padding is another function there."""
    config = padded(PADDED[case], "zeros")
    theirs, ours = pair("swin_tiny_patch4_window7_224", config)
    masked = PyramidViT(padded(config, "masked")).eval()
    masked.load_state_dict(ours.state_dict())
    image = torch.randn(2, 3, *config.image)
    with torch.no_grad():
        torch.testing.assert_close(ours(image), theirs(image), rtol=0, atol=1e-5)
        expected = theirs.double()(image.double())
        torch.testing.assert_close(ours.double()(image.double()), expected, rtol=0, atol=1e-10)
        assert (masked.double()(image.double()) - expected).abs().max() > 0.05 * expected.std()


@pytest.mark.parametrize("other", [(112, 144), (96, 160), (48, 80), (240, 32), (112, 112)])
def test_other_images_equal_timms_with_windows_padded_with_zeros(other):
    """timm's dynamic size: windows and shifts stay those of the image that the model was made for."""
    config = swin(24, (2, 2, 2), (2, 3, 4), image=Size(112, 112), attention=WindowedAttention(window_padding="zeros"))
    theirs, ours = pair("swin_tiny_patch4_window7_224", config, strict_img_size=False)
    image = torch.randn(2, 3, *other, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(ours.double()(image), theirs.double()(image), rtol=0, atol=1e-10)


def test_where_windows_divide_the_grid_what_pads_them_does_not_matter():
    config = CASES["wide"]
    _, ours = pair("swin_tiny_patch4_window7_224", config)
    zeros = PyramidViT(padded(config, "zeros")).eval()
    zeros.load_state_dict(ours.state_dict())
    image = torch.randn(2, 3, *config.image)
    with torch.no_grad():
        assert torch.equal(zeros(image), ours(image))


def test_swin_tiny_equals_timm_at_its_own_size():
    theirs, ours = pair("swin_tiny_patch4_window7_224", VARIANTS["swin_tiny_patch4_window7_224"])
    image = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        torch.testing.assert_close(ours(image), theirs(image), rtol=0, atol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_parameters_equal_timm(variant):
    with torch.device("meta"):
        theirs, ours = timm.create_model(variant), PyramidViT(VARIANTS[variant])
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())


def test_default_config_is_swin_tiny():
    assert PyramidConfig() == VARIANTS["swin_tiny_patch4_window7_224"]


def test_levels_halve_the_grid_and_widen():
    config = swin(
        12,
        (1, 2, 1),
        (2, 3, 4),
        image=Size(96, 160),
        embedding=Patches(patch=Size(4, 8)),
        channels=2,
        attention=WindowedAttention(window=Size(3, 5)),
    )
    model = PyramidViT(config).eval()
    levels = model.levels(torch.randn(2, 2, 96, 160))
    assert [(tuple(x.shape), layout.grid) for x, layout in levels] == [
        ((2, 24 * 20, 12), Size(24, 20)),
        ((2, 12 * 10, 24), Size(12, 10)),
        ((2, 6 * 5, 48), Size(6, 5)),
    ]
    assert tuple(layout.grid for _, layout in levels) == config.grids


def test_a_model_takes_larger_images_than_its_config():
    model = PyramidViT(swin(12, (2, 2), (2, 3), image=Size(56, 56), classes=0)).eval()
    assert model(torch.randn(1, 3, 56, 168)).shape == (1, 24)


def test_image_that_the_merges_do_not_divide_is_refused():
    with pytest.raises(VitrailError, match="image width 100 is not a multiple of 32, which a pyramid needs"):
        PyramidConfig(image=Size(224, 100))
    with pytest.raises(VitrailError, match="image height 40 is not a multiple of 16"):
        PyramidViT(CASES["wide"])(torch.zeros(1, 3, 40, 64))


def test_merge_reads_the_four_neighbours():
    torch.manual_seed(0)
    merge = PatchMerge(3, 5).double()
    x = torch.randn(2, 6, 10, 3, dtype=torch.float64)
    out, layout = merge(x.flatten(1, 2), Layout(grid=Size(6, 10), frame=Size(6, 10)))
    assert layout == Layout(grid=Size(3, 5), frame=Size(3, 5))
    four = torch.cat([x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)], dim=-1)
    expected = F.layer_norm(four, (12,), eps=1e-5) @ merge.reduce.weight.T
    torch.testing.assert_close(out, expected.flatten(1, 2), rtol=0, atol=1e-12)


def test_pooling_is_a_depthwise_convolution_and_the_prefix_has_a_layer_of_its_own():
    torch.manual_seed(0)
    pool, grid = GridPool(3, 6, prefix=True).double(), Size(5, 8)
    x = torch.randn(2, 2 + grid.area, 3, dtype=torch.float64)
    out, layout = pool(x, Layout(grid=grid, frame=grid, prefix=2))
    assert layout == Layout(grid=Size(3, 4), frame=Size(3, 4), prefix=2)
    assert pool.prefix is not None
    assert pool.conv.bias is not None
    torch.testing.assert_close(out[:, :2], F.linear(x[:, :2], pool.prefix.weight, pool.prefix.bias))
    patches, seen = F.pad(x[:, 2:].unflatten(1, tuple(grid)), (0, 0, 1, 1, 1, 1)), out[:, 2:].unflatten(1, (3, 4))
    for row, column, channel in ((0, 0, 0), (2, 3, 5), (1, 2, 3)):  # two outputs read one channel
        window = patches[:, 2 * row : 2 * row + 3, 2 * column : 2 * column + 3, channel // 2]
        expected = (window * pool.conv.weight[channel, 0]).sum((1, 2)) + pool.conv.bias[channel]
        torch.testing.assert_close(seen[:, row, column, channel], expected)


def test_pyramid_embedding_gives_four_grids_of_growing_width():
    torch.manual_seed(0)
    embed = PyramidEmbed(Hierarchical(finest=Size(4, 4), widths=(6, 12, 24)), 48, channels=2)
    image = torch.randn(2, 2, 64, 96)
    levels = embed.levels(image)
    assert [(x.shape[2], layout.grid) for x, layout in levels] == [
        (6, Size(16, 24)),
        (12, Size(8, 12)),
        (24, Size(4, 6)),
        (48, Size(2, 3)),
    ]
    tokens, layout = embed(image)
    assert torch.equal(tokens, levels[-1][0])
    assert layout.grid == Size(2, 3)


def test_pyramid_embedding_sees_only_its_own_pixels():
    """A token of a level depends on exactly the pixels below it, at every level."""
    torch.manual_seed(0)
    embed = PyramidEmbed(Hierarchical(finest=Size(4, 2), widths=(6,)), 12, channels=1).double()
    image = torch.randn(1, 1, 24, 20, dtype=torch.float64, requires_grad=True)
    tokens, layout = embed(image)
    assert layout.grid == Size(3, 5)
    tokens[0, 1 * 5 + 3].square().sum().backward()
    assert image.grad is not None
    rows, columns = (image.grad[0, 0] != 0).nonzero(as_tuple=True)
    assert (rows.min(), rows.max(), columns.min(), columns.max()) == (8, 15, 12, 15)


def test_pyramid_embedding_of_one_level_is_a_patch_embedding():
    embed = PyramidEmbed(Hierarchical(finest=Size(8, 4), widths=()), 7)
    image = torch.randn(2, 3, 24, 20)
    assert torch.equal(embed(image)[0], embed.finest(image)[0])


def test_gradients_reach_every_parameter():
    check_gradients(swin(12, (2, 2), (2, 3), image=Size(112, 56)))
    check_gradients(preset("pit-Ti-distilled", image=Size(48, 32), stages=swin(12, (2, 2), (2, 3)).stages))


def check_gradients(config: PyramidConfig) -> None:
    model = PyramidViT(config)
    model(torch.randn(2, 3, *config.image)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name
