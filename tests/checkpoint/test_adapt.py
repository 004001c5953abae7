from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from configs import any_configs
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.preprocessing import IMAGENET, Preprocessing
from vitrail.checkpoint.read import load
from vitrail.checkpoint.surgery.adapt import adapt
from vitrail.checkpoint.surgery.changes import Changes, Resized
from vitrail.config import Config, PyramidConfig, PyramidStage, ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.nn.build import build
from vitrail.nn.vit import ViT
from vitrail.parts import (
    AttentionPool,
    ClsPool,
    Learned,
    MaxPool,
    MeanPool,
    Mlp,
    NoPosition,
    Patches,
    Prefix,
    RelativeBias,
    Rotary,
    RotaryMixed,
    SinCos2d,
    WindowedAttention,
)

SMALL = ViTConfig(
    image=Size(20, 28),
    embedding=Patches(patch=Size(4, 4)),
    width=24,
    depth=2,
    num_heads=3,
    mlp=Mlp(width=40),
    classes=6,
)


CHANGED = "all vectors change; fine-tune, or measure it on images"


def made(config: Config) -> Checkpoint:
    """Weights of every size, so that nothing can pass by being small."""
    generator = torch.Generator().manual_seed(11)
    tensors = {
        name: torch.randn(value.shape, generator=generator) * 0.3 if value.is_floating_point() else value
        for name, value in build(config).state_dict().items()
    }
    mean, std = ((values * 2)[: config.channels] for values in IMAGENET)
    return Checkpoint(
        config=config, tensors=tensors, preprocessing=Preprocessing(image=config.image, mean=mean, std=std)
    )


def vit(checkpoint: Checkpoint) -> ViTConfig:
    assert isinstance(checkpoint.config, ViTConfig)
    return checkpoint.config


def image(size: Size, channels: int = 3) -> torch.Tensor:
    return torch.randn(2, channels, *size, generator=torch.Generator().manual_seed(12))


def resized(changes: Changes) -> list[Resized]:
    return [change.resized for change in changes.tensors if change.resized is not None]


# ── identity ────────────────────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(any_configs)
def test_any_model_at_its_native_size_is_itself(config):
    checkpoint = made(config)
    adapted, changes = adapt(checkpoint, config)
    assert adapted is checkpoint
    assert set(changes.kept) == set(checkpoint.tensors)
    assert (changes.resampled, changes.missing, changes.unused, changes.notes) == ((), (), (), ())


def test_changes_that_change_nothing_are_the_identity():
    checkpoint = made(SMALL)
    adapted, _ = adapt(checkpoint, {"image": "20x28", "patch": 4, "classes": 6, "channels": 3})
    assert adapted is checkpoint


def test_the_input_is_never_touched():
    checkpoint = made(SMALL)
    copies = {name: tensor.clone() for name, tensor in checkpoint.tensors.items()}
    adapt(checkpoint, {"image": "32x20", "patch": 2, "channels": 4, "prefix": Prefix(registers=2), "classes": 3})
    assert all(torch.equal(checkpoint.tensors[name], copy) for name, copy in copies.items())


def test_what_needs_nothing_is_the_same_object():
    checkpoint = made(SMALL)
    adapted, changes = adapt(checkpoint, {"image": "32x20"})
    assert changes.resampled == ("position.table",)
    assert all(adapted.tensors[name] is checkpoint.tensors[name] for name in changes.kept)


# ── image ───────────────────────────────────────────────────────────────────────────────────────────────────────

POSITIONS = [
    *(Learned(prefix=prefix, convention="timm") for prefix in ("all", "cls", "none")),
    *(Learned(convention=name) for name in ("huggingface", "dinov2", "torchvision", "big_vision", "siglip2")),
    RelativeBias(),
    RelativeBias(shared=True, prefix=False),
    RelativeBias(convention="timm"),
    Rotary(),
    Rotary(coordinates="normalised"),
    RotaryMixed(),
    SinCos2d(),
    NoPosition(),
]


@pytest.mark.parametrize("position", POSITIONS, ids=repr)
@pytest.mark.parametrize("size", [Size(32, 20), Size(12, 16), Size(40, 14 * 4)], ids=str)
def test_an_adapted_model_is_the_old_one_at_the_new_size(position, size):
    """The model resamples by its own convention as it runs; adapting does it once, for good."""
    checkpoint = made(SMALL.but(position=position, prefix=Prefix(registers=2)))
    adapted, changes = adapt(checkpoint, {"image": size})
    pixels = image(size)
    assert torch.equal(adapted.model()(pixels), checkpoint.model()(pixels))
    assert adapted.config.grid == Size(size.height // 4, size.width // 4)
    assert any(type(position).__name__ in note for note in changes.notes)


@pytest.mark.parametrize("window", [Size(3, 2), Size(5, 9)], ids=str)
def test_windows_that_stay_keep_their_biases(window):
    attention = WindowedAttention(window=window)
    checkpoint = made(SMALL.but(position=RelativeBias(prefix=False), attention=attention))
    for size in (Size(32, 20), Size(12, 16)):
        adapted, _ = adapt(checkpoint, {"image": size})
        assert torch.equal(adapted.model()(image(size)), checkpoint.model()(image(size)))


def test_a_pyramid_keeps_its_tables_and_cuts_those_of_windows_that_shrink():
    stages = (PyramidStage(width=8, depth=2, num_heads=2), PyramidStage(width=16, depth=2, num_heads=4))
    config = PyramidConfig(image=Size(48, 64), stages=stages, attention=WindowedAttention(window=Size(5, 7)), classes=6)
    checkpoint = made(config)
    larger, changes = adapt(checkpoint, {"image": "64x96"})
    assert not changes.resampled
    assert torch.equal(larger.model()(image(Size(64, 96))), checkpoint.model()(image(Size(64, 96))))
    smaller, changes = adapt(checkpoint, {"image": "24x40"})
    assert all("near offsets" in change.note for change in changes.tensors if change.status == "resampled")
    assert torch.equal(smaller.model()(image(Size(24, 40))), checkpoint.model()(image(Size(24, 40))))
    _, changes = adapt(checkpoint, {"attention": WindowedAttention(window=Size(7, 7))})
    assert {(each.what, each.old, each.by) for each in resized(changes)} == {("biases", Size(5, 7), "timm")}
    assert [each.new for each in resized(changes)] == [Size(7, 7)] * 2 + [Size(6, 7)] * 2  # a grid of 6x8 at the end


@pytest.mark.parametrize("padding", ["masked", "zeros"])
def test_windows_that_do_not_divide_the_new_grid_say_what_pads_them(padding):
    stages = (PyramidStage(width=8, depth=2, num_heads=2), PyramidStage(width=16, depth=2, num_heads=4))
    pyramid = PyramidConfig(
        image=Size(40, 56), stages=stages, attention=WindowedAttention(window=Size(5, 7), window_padding=padding)
    )
    attention = WindowedAttention(window=Size(5, 7), window_padding=padding)
    for config, odd in ((pyramid, "16x24, 8x12"), (SMALL.but(attention=attention), "16x24")):
        _, changes = adapt(made(config), {"image": "64x96"})
        (note,) = (note for note in changes.notes if "windows" in note)
        assert note.startswith(f"windows of 5x7 do not divide grid {odd}: ")
        assert f"window_padding {padding!r}" in note
        _, changes = adapt(made(config), {"image": "80x112"})  # whole windows, on every grid
        assert not any("windows" in note for note in changes.notes)


def test_a_method_resamples_and_a_convention_goes_along():
    checkpoint = made(SMALL)
    named, _ = adapt(checkpoint, {"image": "32x40"}, method="torchvision")
    assert vit(named).position == Learned(convention="torchvision")
    exact, changes = adapt(checkpoint, {"image": "32x40"}, method="exact")
    assert vit(exact).position == Learned(convention="timm")
    assert resized(changes) == [Resized(what="positions", old=Size(5, 7), new=Size(8, 10), by="exact")]
    assert not torch.equal(named.tensors["position.table"], exact.tensors["position.table"])
    back, _ = adapt(exact, {"image": "20x28"}, method="exact")
    # float32 twice rounded
    assert torch.allclose(back.tensors["position.table"], checkpoint.tensors["position.table"], atol=1e-6)


def test_relative_biases_go_by_their_own_convention_and_the_changes_name_it():
    tables, name = {}, "blocks.0.attention.position.table"
    for convention in ("timm", "huggingface"):
        checkpoint = made(SMALL.but(position=RelativeBias(convention=convention)))
        adapted, changes = adapt(checkpoint, {"image": "32x40"})
        assert {each.by for each in resized(changes)} == {convention}
        assert f"5x7 → 8x10 by {convention} over offsets" in {change.note for change in changes.tensors}
        tables[convention] = adapted.tensors[name]
        named, changes = adapt(made(SMALL.but(position=RelativeBias())), {"image": "32x40"}, method=convention)
        assert torch.equal(named.tensors[name], tables[convention])
        assert vit(named).position == RelativeBias(convention=convention)
    assert not torch.allclose(tables["timm"], tables["huggingface"], atol=0.01)


def test_a_convention_alone_changes_the_config_and_no_tensor():
    checkpoint = made(SMALL)
    adapted, changes = adapt(checkpoint, {}, method="dinov2")
    assert vit(adapted).position == Learned(convention="dinov2")
    assert not changes.resampled


@pytest.mark.parametrize(
    ("name", "method"), [("hf", "huggingface"), ("bicubic", "huggingface"), ("scipy", "big_vision"), ("exact", "exact")]
)
def test_a_method_may_be_given_by_its_short_name(name, method):
    found, expected = (adapt(made(SMALL), {"image": "32x40"}, method=each) for each in (name, method))
    assert torch.equal(found[0].tensors["position.table"], expected[0].tensors["position.table"])
    assert found[0].config == expected[0].config
    assert resized(found[1])[0].by == method


@pytest.mark.parametrize("changes", [{}, {"image": "32x40"}])
@pytest.mark.parametrize("position", [Learned(), RelativeBias(), Rotary()])
def test_an_unknown_method_is_refused_whether_it_is_used_or_not(position, changes):
    for method in ("cubic", "", 3, ["timm"]):
        with pytest.raises(VitrailError, match="is unknown; use one of timm, huggingface"):
            adapt(made(SMALL.but(position=position)), changes, method=method)  # type: ignore[arg-type]
    with pytest.raises(VitrailError, match="projection 'magic' is unknown; use one of pinv, natural, interpolate"):
        adapt(made(SMALL.but(position=position)), changes, projection="magic")


def test_a_method_with_nothing_to_resample_is_said():
    nothing = ("method exact has nothing to resample here: no table of positions goes to another grid",)
    assert adapt(made(SMALL), {"channels": 3}, method="exact")[1].notes == nothing
    assert adapt(made(SMALL.but(position=Rotary())), {"image": "32x40"}, method="exact")[1].notes[:1] == nothing
    assert adapt(made(SMALL), {"image": "32x40"}, method="exact")[1].notes[0].startswith("positions (Learned)")


# ── patch and channels ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_larger_patch_on_a_larger_image_gives_the_same_tokens():
    checkpoint = made(SMALL.but(position=NoPosition()))
    adapted, changes = adapt(checkpoint, {"image": "40x56", "patch": 8})
    patches = image(Size(20, 28)).unfold(2, 4, 4).unfold(3, 4, 4)  # each resized alone, as the projection assumes
    larger = torch.nn.functional.interpolate(patches.reshape(-1, 1, 4, 4), size=(8, 8), mode="bicubic", antialias=True)
    larger = larger.view(2, 3, 5, 7, 8, 8).permute(0, 1, 2, 4, 3, 5).reshape(2, 3, 40, 56)
    assert torch.allclose(adapted.model()(larger), checkpoint.model()(image(Size(20, 28))), atol=1e-4)
    assert changes.notes == ()


def test_filters_that_grow_as_pictures_are_said_to_change_tokens():
    _, changes = adapt(made(SMALL), {"image": "40x56", "patch": 8}, projection="interpolate")
    assert changes.notes == (
        "the patch projection 4x4 → 8x8 (interpolate) changes tokens, where pinv would keep them; "
        "fine-tune, or measure it on images",
    )


def test_a_smaller_patch_is_said_to_lose_detail():
    for how in ("pinv", "natural", "interpolate"):
        _, changes = adapt(made(SMALL), {"patch": "2x4"}, projection=how)
        assert any(f"({how}) loses detail" in note and "fine-tune" in note for note in changes.notes)


def test_channels_change_filters_and_statistics():
    adapted, changes = adapt(made(SMALL), {"channels": 1})
    assert adapted.model()(image(Size(20, 28), 1)).shape == (2, 6)
    assert adapted.preprocessing.mean == (pytest.approx(sum(IMAGENET[0]) / 3),)
    assert changes.resampled == ("embedding.weight",)
    wide, _ = adapt(made(SMALL), {"channels": 13})
    assert len(wide.preprocessing.std) == 13
    assert wide.tensors["embedding.weight"].shape == (24, 13, 4, 4)


def test_a_grey_image_is_exact_in_one_channel_where_the_channels_have_the_same_statistics():
    checkpoint = made(SMALL)
    checkpoint = checkpoint.but(preprocessing=replace(checkpoint.preprocessing, mean=(0.5,) * 3, std=(0.5,) * 3))
    grey = image(Size(20, 28), 1)
    adapted, changes = adapt(checkpoint, {"channels": 1})
    assert torch.allclose(adapted.model()(grey), checkpoint.model()(grey.expand(-1, 3, -1, -1)), atol=1e-5)
    assert "which is exact for grey images" in changes.notes[0]
    assert "which is nearly exact for grey images" in adapt(made(SMALL), {"channels": 1})[1].notes[0]


# ── prefix, pool, head ──────────────────────────────────────────────────────────────────────────────────────────


def test_registers_are_added_behind_and_removed_from_behind():
    checkpoint = made(SMALL.but(prefix=Prefix(registers=2)))
    more, changes = adapt(checkpoint, {"prefix": Prefix(registers=4)})
    assert torch.equal(more.tensors["prefix.registers"][:, :2], checkpoint.tensors["prefix.registers"])
    old, new = checkpoint.tensors["position.table"], more.tensors["position.table"]
    assert torch.equal(new[:3], old[:3])
    assert not new[3:5].any()
    assert torch.equal(new[5:], old[3:])
    assert changes.notes == (f"2 registers are new and untrained, and every token attends to them: {CHANGED}",)
    fewer, changes = adapt(more, {"prefix": Prefix(registers=1)})
    assert changes.notes == (f"3 registers are dropped, and every other token attended to them: {CHANGED}",)
    assert torch.equal(fewer.tensors["prefix.registers"], checkpoint.tensors["prefix.registers"][:, :1])
    assert torch.equal(fewer.tensors["position.table"], torch.cat([old[:2], old[3:]]))


def test_cls_gives_way_to_the_mean_of_patches():
    checkpoint = made(SMALL)
    adapted, changes = adapt(checkpoint, {"prefix": Prefix(cls=False), "pool": MeanPool()})
    assert changes.unused == ("prefix.cls",)
    assert torch.equal(adapted.tensors["position.table"], checkpoint.tensors["position.table"][1:])
    assert adapted.model()(image(Size(20, 28))).shape == (2, 6)
    assert any("pooled by MeanPool" in note for note in changes.notes)


def test_relative_biases_lose_their_prefix_entries_with_the_prefix():
    checkpoint = made(SMALL.but(position=RelativeBias(), pool=MeanPool()))
    adapted, _ = adapt(checkpoint, {"prefix": Prefix(cls=False)})
    name = "blocks.0.attention.position.table"
    assert torch.equal(adapted.tensors[name], checkpoint.tensors[name][:-3])
    back, _ = adapt(adapted, checkpoint.config)
    assert torch.equal(back.tensors[name][:-3], checkpoint.tensors[name][:-3])
    assert not back.tensors[name][-3:].any()


@pytest.mark.parametrize("rows", ["cls", "none"])
def test_position_rows_that_go_are_added_to_their_tokens(rows):
    checkpoint = made(SMALL.but(prefix=Prefix(registers=2)))
    adapted, _ = adapt(checkpoint, SMALL.but(prefix=Prefix(registers=2), position=Learned(prefix=rows)))
    pixels = image(Size(20, 28))
    assert torch.allclose(adapted.model()(pixels), checkpoint.model()(pixels), atol=1e-5)


def test_an_attention_pool_comes_and_goes():
    checkpoint = made(SMALL)
    adapted, changes = adapt(checkpoint, {"pool": AttentionPool(num_heads=3, mlp_width=40)})
    assert all(name.startswith("pool.") for name in changes.missing)
    assert torch.equal(adapted.tensors["pool.norm.weight"], torch.ones(24))
    adapted.model()(image(Size(20, 28)))
    back, changes = adapt(adapted, {"pool": ClsPool()})
    assert all(name.startswith("pool.") for name in changes.unused)
    assert torch.equal(back.model()(image(Size(20, 28))), checkpoint.model()(image(Size(20, 28))))


def test_a_new_head_is_zero_and_the_same_count_keeps_the_old():
    adapted, changes = adapt(made(SMALL), {"classes": 9})
    assert changes.missing == ("head.weight", "head.bias")
    assert not adapted.model()(image(Size(20, 28))).any()
    headless, changes = adapt(made(SMALL), {"classes": 0})
    assert changes.unused == ("head.weight", "head.bias")
    assert headless.model()(image(Size(20, 28))).shape == (2, 24)


def test_new_tokens_follow_the_seed():
    checkpoint = made(SMALL)
    first, again, other = (
        adapt(checkpoint, {"prefix": Prefix(registers=3)}, seed=seed)[0].tensors["prefix.registers"]
        for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_new_tensors_have_the_weights_type():
    checkpoint = made(SMALL)
    half = checkpoint.but(tensors={name: tensor.bfloat16() for name, tensor in checkpoint.tensors.items()})
    adapted, _ = adapt(half, {"image": "32x20", "patch": 2, "prefix": Prefix(registers=3), "classes": 4})
    assert {tensor.dtype for tensor in adapted.tensors.values()} == {torch.bfloat16}


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_weights_in_eight_bits_are_adapted_and_run(dtype):
    checkpoint = made(SMALL)
    narrow = checkpoint.but(tensors={name: tensor.to(dtype) for name, tensor in checkpoint.tensors.items()})
    target = {"image": "32x20", "patch": 2, "channels": 1, "prefix": "cls,registers=3", "classes": 4}
    adapted, changes = adapt(narrow, target)
    assert {tensor.dtype for tensor in adapted.tensors.values()} == {dtype}
    assert all(adapted.tensors[name] is narrow.tensors[name] for name in changes.kept)
    wide, _ = adapt(narrow.but(tensors={name: tensor.float() for name, tensor in narrow.tensors.items()}), target)
    assert all(torch.equal(adapted.tensors[name].float(), t.to(dtype).float()) for name, t in wide.tensors.items())
    assert adapted.model()(image(Size(32, 20), 1)).dtype == torch.float32


def test_evidence_and_preprocessing_follow():
    adapted, _ = adapt(made(SMALL), {"image": "32x20"})
    assert adapted.preprocessing.image == Size(32, 20)
    assert adapted.evidence.grid == "adapted to 8x5 from 5x7"
    assert adapt(made(SMALL), {"classes": 3})[0].evidence.grid == "made here"


# ── mistakes ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"width": 48}, "width changes from 24 to 48, and weights cannot follow"),
        ({"depth": 3}, "depth changes from 2 to 3"),
        ({"mlp": Mlp(width=44)}, "mlp changes from"),
        ({"position": Rotary()}, "position changes from Learned to Rotary"),
        (
            {"prefix": Prefix(cls=False)},
            "the new prefix has no cls, which the model pools by; choose another pool as well, such as mean",
        ),
        ({"image": "30x28"}, "30x28 is not divisible by patch 4x4"),
        ({"imag": "20x28"}, "has no field imag"),
        ({"prefix": "token"}, "prefix 'token' is not understood at 'token'; write cls, distillation and registers=4"),
        ({"prefix": 4}, "prefix 4 is neither a Prefix nor text; write cls"),
        ({"pool": "avg"}, "pool 'avg' is unknown; use one of cls, mean, max, cls_mean, attention"),
        ({"pool": MeanPool}, "is unknown; use one of cls, mean, max, cls_mean, attention"),
        ({"final_norm": "token"}, "final_norm 'token' is not one of tokens, pooled, none; did you mean 'tokens'"),
        ({"channels": "4"}, "channels '4' is not a positive whole number"),
        ({"image": 3.5}, "image: size 3.5 is not HEIGHTxWIDTH; write 384x640"),
        ({"patch": 2, "embedding": Patches()}, "patch and embedding both say the patch"),
    ],
)
def test_what_weights_cannot_follow_is_refused_in_one_line(changes, reason):
    with pytest.raises(VitrailError, match=reason) as error:
        adapt(made(SMALL), changes)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ({"prefix": "cls, registers=2"}, {"prefix": Prefix(registers=2)}),
        ({"prefix": "none", "pool": "mean"}, {"prefix": Prefix(cls=False), "pool": MeanPool()}),
        ({"pool": "cls"}, {"pool": ClsPool()}),
        ({"pool": "attention"}, {"pool": AttentionPool(num_heads=3, mlp_width=40, activation="gelu")}),
        ({"image": (32, 20), "patch": "2x4"}, {"image": Size(32, 20), "embedding": Patches(patch=Size(2, 4))}),
    ],
)
def test_words_are_values(words, value):
    assert adapt(made(SMALL), words)[0].config == SMALL.but(**value)


def test_another_kind_of_model_is_refused():
    with pytest.raises(VitrailError, match="a ViTConfig cannot become a PyramidConfig"):
        adapt(made(SMALL), PyramidConfig())


def test_stride_scales_with_the_patch_or_is_asked_for():
    config = SMALL.but(embedding=Patches(patch=Size(8, 8), stride=Size(4, 4)))
    adapted, _ = adapt(made(config), {"patch": 4})
    assert vit(adapted).embedding == Patches(patch=Size(4, 4), stride=Size(2, 2))
    with pytest.raises(VitrailError, match="give the whole embedding"):
        adapt(made(config), {"patch": 5})


def test_max_pool_and_dropout_change_nothing_else():
    checkpoint = made(SMALL)
    adapted, changes = adapt(checkpoint, replace(SMALL, pool=MaxPool(), dropout=0.1))
    assert set(changes.kept) == set(checkpoint.tensors)
    assert vit(adapted).pool == MaxPool()


def test_a_model_without_blocks_is_the_model_whose_blocks_are_skipped():
    checkpoint = load("default")
    changed, changes = adapt(checkpoint, {}, drop_blocks=(1, 4))
    whole, less = checkpoint.model(), changed.model()
    assert isinstance(whole, ViT)
    image = torch.randn(2, 3, 32, 32)
    whole.blocks = torch.nn.ModuleList(whole.blocks[index] for index in (0, 2, 3, 5))
    with torch.no_grad():
        assert torch.equal(less(image), whole(image))
    assert changed.tensors["blocks.1.norm1.weight"] is checkpoint.tensors["blocks.2.norm1.weight"]
    assert {name.split(".")[1] for name in changes.unused} == {"1", "4"}
    assert "blocks 1, 4 are dropped" in changes.notes[0]


@pytest.mark.parametrize(
    ("dropped", "said"),
    [((6,), r"blocks 6 are not all among the model's 0 to 5"), (range(6), r"all 6 blocks would be dropped; leave one")],
)
def test_blocks_that_cannot_be_dropped_are_refused(dropped, said):
    with pytest.raises(VitrailError, match=said):
        adapt(load("default"), {}, drop_blocks=dropped)
