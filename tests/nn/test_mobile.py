"""MobileViT: equal to timm's, whose weights are copied by the names below."""

import pytest
import torch

from peers import timm
from vitrail.config import MobileConfig, MobileStage
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.nn.adaptive import to_dense
from vitrail.nn.mobile import MobileViT
from vitrail.nn.separable import SeparableAttention, fold, unfold
from vitrail.presets import preset


def mobile(
    widths: tuple[int, ...], transformer_widths: tuple[int, ...], last_width: int, expansion: int
) -> MobileConfig:
    return MobileConfig(
        stem_width=16,
        stages=(
            MobileStage(width=widths[0]),
            MobileStage(width=widths[1], depth=3, stride=2),
            *(
                MobileStage(width=width, stride=2, transformer_width=inner, transformer_depth=depth)
                for width, inner, depth in zip(widths[2:], transformer_widths, (2, 4, 3), strict=True)
            ),
        ),
        expansion=expansion,
        last_width=last_width,
    )


VARIANTS = {
    "mobilevit_xxs": mobile((16, 24, 48, 64, 80), (64, 80, 96), 320, expansion=2),
    "mobilevit_xs": mobile((32, 48, 64, 80, 96), (96, 120, 144), 384, expansion=4),
    "mobilevit_s": mobile((32, 64, 96, 128, 160), (144, 192, 240), 640, expansion=4),
}
NAMES = (
    (".bn.", ".norm."),
    (".conv1_1x1.", ".expand."),
    (".conv2_kxk.", ".depthwise."),
    (".conv3_1x1.", ".project."),
    (".conv_kxk.", ".local."),
    (".conv_1x1.", ".into."),
    (".transformer.", ".blocks."),
    (".attn.proj.", ".attention.out."),
    (".attn.", ".attention."),
    (".conv_proj.", ".back."),
    (".conv_fusion.", ".fuse."),
    ("final_conv.", "last."),
    ("head.fc.", "head."),
)


def renamed(name: str, config: MobileConfig) -> str:
    for theirs, ours in NAMES:
        name = name.replace(theirs, ours)
    if name.startswith("stages."):
        _, stage, block, rest = name.split(".", 3)
        depth = config.stages[int(stage)].depth
        name = f"stages.{stage}." + (f"residuals.{block}.{rest}" if int(block) < depth else f"transformer.{rest}")
    return name


def pair(variant: str) -> tuple[torch.nn.Module, MobileViT]:
    """timm's model with every parameter and statistic set at random, and ours with the same."""
    torch.manual_seed(0)
    theirs, ours = timm.create_model(variant).eval(), MobileViT(VARIANTS[variant]).eval()
    state = theirs.state_dict()
    for name, value in state.items():  # as initialised, norms hide a swap and linear layers are too faint to matter
        if value.ndim > 1:
            state[name] = torch.randn_like(value) * (2 / value[0].numel()) ** 0.5
        elif value.is_floating_point():
            noise = torch.rand_like(value)
            state[name] = noise + 0.5 if name.endswith(("weight", "var")) else noise - 0.5
    theirs.load_state_dict(state)
    ours.load_state_dict({renamed(name, ours.config): value for name, value in state.items()})
    return theirs, ours


@pytest.mark.parametrize("variant", VARIANTS)
def test_outputs_equal_timm_on_non_square_images(variant):
    theirs, ours = pair(variant)
    image = torch.randn(2, 3, 64, 128)
    with torch.no_grad():
        expected = theirs(image)
        torch.testing.assert_close(ours(image), expected, rtol=0, atol=1e-5 * float(expected.abs().max()))
        expected = theirs.double()(image.double())
        torch.testing.assert_close(ours.double()(image.double()), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("variant", VARIANTS)
def test_parameters_equal_timm(variant):
    with torch.device("meta"):
        theirs, ours = timm.create_model(variant), MobileViT(VARIANTS[variant])
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())


def test_default_config_is_the_small_variant():
    assert MobileConfig() == VARIANTS["mobilevit_s"]


def test_levels_are_the_maps_of_every_stage():
    model = MobileViT(VARIANTS["mobilevit_xxs"].but(channels=5)).eval()
    image = torch.randn(2, 5, 64, 192)
    maps = model.levels(image)
    assert [tuple(x.shape) for x in maps] == [
        (2, 16, 32, 96),
        (2, 24, 16, 48),
        (2, 48, 8, 24),
        (2, 64, 4, 12),
        (2, 80, 2, 6),
    ]
    tokens, layout = model.features(image)
    assert layout.grid == Size(2, 6)
    assert model.last is not None
    assert torch.equal(to_dense(tokens, layout), model.last(maps[-1]))
    assert torch.equal(model(image), model.head(tokens.mean(1)))  # type: ignore[operator]


def test_a_place_of_the_patch_attends_only_to_its_own_kind():
    tokens = torch.randn(2, 8, 6, 15, generator=torch.Generator().manual_seed(0))
    patch, grid = Size(2, 3), Size(3, 5)
    unfolded = unfold(tokens, patch, grid)
    assert unfolded.shape == (2, 6, 15, 8)
    assert torch.equal(unfolded[1, 0 * 3 + 2], tokens[1, :, 0::2, 2::3].flatten(1).T)
    assert torch.equal(fold(unfolded, patch, grid), tokens)


def test_separable_attention_is_one_context_for_all_patches_of_a_place():
    """The closed form in float64: out(relu(V) · Σ softmax(q) K), each place of a patch by itself."""
    torch.manual_seed(0)
    module, x = SeparableAttention(5).double(), torch.randn(2, 3, 7, 5, dtype=torch.float64)
    q, k, v = torch.einsum("bpnd,ed->bpne", x, module.qkv.weight).split([1, 5, 5], dim=-1)
    context = torch.einsum("bpn,bpnd->bpd", q[..., 0].exp() / q[..., 0].exp().sum(-1, keepdim=True), k)
    expected = (v.clamp(min=0) * context[:, :, None]) @ module.out.weight.T
    torch.testing.assert_close(module(x), expected, rtol=0, atol=1e-12)


def test_gradients_reach_every_parameter_of_the_second_version():
    model = MobileViT(preset("mobilevitv2-0.5"))
    model(torch.randn(2, 3, 128, 64)).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().max() > 0 for parameter in model.parameters())


def test_model_without_a_head_gives_the_vector():
    model = MobileViT(VARIANTS["mobilevit_xxs"].but(classes=0)).eval()
    image = torch.randn(1, 3, 128, 64)
    assert model(image).shape == (1, 320)
    assert torch.equal(model(image), model.vector(image))


def test_image_whose_maps_the_patch_does_not_divide_is_refused():
    with pytest.raises(VitrailError, match="image height 224 is not a multiple of 64"):
        MobileConfig(image=Size(224, 256))
    with pytest.raises(VitrailError, match="image width 96 is not a multiple of 64"):
        MobileViT(VARIANTS["mobilevit_xxs"])(torch.zeros(1, 3, 64, 96))


def test_gradients_reach_every_parameter():
    model = MobileViT(VARIANTS["mobilevit_xxs"])
    model(torch.randn(2, 3, 128, 64)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name
