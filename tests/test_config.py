from __future__ import annotations

import json
from typing import get_args

import pytest
from hypothesis import HealthCheck, given, settings

from configs import any_configs
from vitrail import parts
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.checkpoint.surgery.adapt import adapt
from vitrail.config import Config, MobileConfig, PyramidConfig, ViTConfig, config_from_json
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.nn.build import build
from vitrail.presets import PRESETS


@given(any_configs)
@settings(max_examples=300, suppress_health_check=[HealthCheck.filter_too_much])
def test_a_config_comes_back_from_its_json(config: Config):
    assert config_from_json(config.to_json()) == config


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_comes_back_from_its_json(name: str):
    config = PRESETS[name]
    assert type(config).from_json(config.to_json()) == config


def test_the_defaults_are_vit_b_16():
    assert ViTConfig() == PRESETS["B/16"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 770}, "width 770 is not divisible by num_heads 12; try 768 or 780"),
        ({"depth": 0}, "depth 0 is not a positive whole number; give 1 or more"),
        ({"classes": -1}, "classes -1 is not a whole number of 0 or more; use 0 for none"),
        ({"dropout": 1.0}, "dropout 1.0 is not a number of 0 or more and below 1; use 0 for none"),
        ({"image": Size(8, 8)}, "patch 16x16 is larger than image 8x8"),
        ({"image": Size(230, 224)}, "image 230x224 is not divisible by patch 16x16 (230 leaves 6); use 224 or 240"),
        ({"prefix": parts.Prefix(cls=False)}, "ClsPool needs a CLS token; use Prefix(cls=True) or MeanPool()"),
        ({"pool": parts.AttentionPool(num_heads=7)}, "width 768 is not divisible by pool num_heads 7; try 763 or 770"),
        ({"position": parts.Rotary(), "num_heads": 128}, "head width 6 is not a multiple of 4, which Rotary needs"),
        ({"position": parts.SinCos2d(), "width": 6, "num_heads": 1}, "width 6 is not a multiple of 4"),
        (
            {"attention": parts.LinearAttention(), "position": parts.RelativeBias()},
            "LinearAttention has no score matrix that RelativeBias could be added to",
        ),
        (
            {"embedding": parts.Adaptive(), "attention": parts.WindowedAttention()},
            "WindowedAttention needs a regular grid, and adaptive patches have none",
        ),
        ({"prefix": parts.Prefix(distillation=True), "pool": parts.MeanPool()}, "use ClsPool()"),
        ({"attention_dropout": 0.1, "attention": parts.SparseAttention()}, "use 0"),
        (
            {"attention": parts.WindowedAttention(window_padding="zeros"), "remainder": "pad"},
            "window_padding 'zeros' includes padding in attention, which remainder 'pad' rules out; "
            "use window_padding 'masked', or another remainder",
        ),
    ],
)
def test_a_broken_rule_gives_the_value_the_rule_and_the_remedy(changes: dict, message: str):
    with pytest.raises(VitrailError) as error:
        ViTConfig(**changes)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: parts.Patches(patch=Size(16, 16), stride=Size(17, 8)), "stride 17x8 is larger than patch 16x16"),
        (lambda: parts.Stem(patch=Size(16, 16), widths=(8, 16)), "reduces by 4, not by patch 16x16; give 4 widths"),
        (lambda: parts.Adaptive(patches=(Size(8, 8), Size(24, 24))), "24x24 is not twice 8x8"),
        (lambda: parts.Adaptive(patches=(Size(8, 8),)), "are fewer than two sizes; give two or more"),
        (lambda: parts.Adaptive(threshold=-1.0), "threshold -1.0 is not a number of 0 or more; 0 splits"),
        (lambda: parts.Prefix(registers=-1), "registers -1 is not a whole number of 0 or more"),
        (lambda: parts.Mlp(width=0), "width 0 is not a positive whole number"),
        (lambda: MobileConfig(num_heads=5), "transformer_width 144 is not divisible by num_heads 5"),
    ],
)
def test_a_part_checks_itself(make, message: str):
    with pytest.raises(VitrailError) as error:
        make()
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda data: data.update(kind="resnet"), "config.kind 'resnet' is not one of vit, pyramid, mobile"),
        (lambda data: data.update(heads=3), "config has unknown key heads; it takes image, channels"),
        (lambda data: data.update(width="wide"), "config.width 'wide' is not a positive whole number"),
        (lambda data: data.update(width=True), "config.width True is not a positive whole number"),
        (lambda data: data["position"].update(kind="magic"), "config.position.kind 'magic' is not one of learned"),
        (lambda data: data["embedding"].update(patch=1.5), "config.embedding.patch: size 1.5 is not HEIGHTxWIDTH"),
        (lambda data: data.update(prefix=3), "config.prefix 3 is not a Prefix; give Prefix(...)"),
    ],
)
def test_json_that_is_not_a_config_is_refused_with_its_place(edit, message: str):
    data = json.loads(ViTConfig().to_json())
    edit(data)
    with pytest.raises(VitrailError) as error:
        config_from_json(json.dumps(data))
    assert message in str(error.value)


def test_text_that_is_not_json_is_refused():
    with pytest.raises(VitrailError, match="config is not JSON"):
        config_from_json("{")


@pytest.mark.parametrize("kind", get_args(parts.Position))
def test_a_position_says_what_happens_to_its_weights_on_a_new_grid(kind):
    config = ViTConfig(image=Size(20, 28), embedding=parts.Patches(patch=Size(4, 4)), width=24, depth=1, num_heads=3)
    if kind is parts.DecomposedBias:  # it is between patches
        config = config.but(prefix=parts.Prefix(cls=False), pool=parts.MeanPool())
    config = config.but(mlp=parts.Mlp(width=40), position=kind())
    preprocessing = Preprocessing(image=config.image)
    checkpoint = Checkpoint(config=config, tensors=build(config).state_dict(), preprocessing=preprocessing)
    _, changes = adapt(checkpoint, {"image": "24x16"})
    said = kind().describe().on_new_grid.startswith("resampled")
    assert bool(changes.resampled) == kind.resampled == said


@pytest.mark.parametrize("name", PRESETS)
def test_a_model_takes_its_unit_and_its_multiples_and_no_half_of_it(name: str):
    """Patches that overlap by half fit into halves too."""
    config = PRESETS[name]
    unit = config.unit
    overlap = isinstance(config, PyramidConfig) and config.embedding.stride is not None
    times = 8 if name.startswith("sam2-") else 1  # its windows must fit into the grid
    taken = config.but(image=Size(2 * times * unit.height, 3 * times * unit.width))
    assert taken.image.width == 3 * times * unit.width
    if unit.height % 2 == 0 and not overlap:
        with pytest.raises(VitrailError, match=r"height|divisible|patch"):
            config.but(image=Size(2 * unit.height + unit.height // 2, 3 * unit.width), **_strict(config))


def _strict(config: Config) -> dict[str, str]:
    return {"remainder": "error"} if isinstance(config, ViTConfig) else {}


EMBEDDINGS = {
    "patches": (parts.Patches(patch=Size(16, 8)), Size(32, 24)),
    "overlapping": (parts.Patches(patch=Size(16, 16), stride=Size(8, 12)), Size(8, 4)),
    "hierarchical": (parts.Hierarchical(finest=Size(4, 2), widths=(8,)), Size(16, 12)),
    "adaptive": (parts.Adaptive(patches=(Size(4, 2), Size(8, 4))), Size(6, 8)),
}


@pytest.mark.parametrize("name", EMBEDDINGS)
def test_another_patch_keeps_the_embedding_in_proportion_and_back_is_identity(name: str):
    embedding, patch = EMBEDDINGS[name]
    changed = embedding.with_patch(patch)
    assert changed.patch == patch
    assert changed.with_patch(embedding.patch) == embedding
    assert embedding.with_patch(embedding.patch) is embedding


@pytest.mark.parametrize(
    ("embedding", "patch"),
    [
        (parts.Patches(patch=Size(16, 16), stride=Size(8, 8)), Size(15, 16)),
        (parts.Hierarchical(finest=Size(4, 4), widths=(8,)), Size(9, 8)),
        (parts.Stem(patch=Size(16, 16)), Size(8, 8)),
    ],
)
def test_a_patch_that_an_embedding_cannot_have_is_refused(embedding: parts.Embedding, patch: Size):
    with pytest.raises(VitrailError, match=f"patch {patch}"):
        embedding.with_patch(patch)
