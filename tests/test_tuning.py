"""What is trained: parts of a model by its own names, settled for a config."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings

from configs import any_configs
from vitrail.codec import from_plain, to_plain
from vitrail.config import Config, MobileConfig, PyramidConfig, PyramidStage, ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.nn.build import build
from vitrail.parts import Prefix
from vitrail.tuning import Lora, Tuning, parts_of

MODEL = ViTConfig(width=12, depth=5, num_heads=3)
STAGES = tuple(PyramidStage(width=12 * 2**level, depth=level + 1, num_heads=3) for level in range(3))
PYRAMID = PyramidConfig(image=Size(64, 96), stages=STAGES)


def tensors_of(config: Config) -> list[tuple[str, str]]:
    with torch.device("meta"):
        named = build(config).named_parameters()
    return [(path, name) for path, _, name in (full.rpartition(".") for full, _ in named)]


def trained_parts(tuning: Tuning, config: Config) -> set[str]:
    """The parts that have a trained tensor."""
    tuned = tuning.on(config)
    found = {path for path, name in tensors_of(config) if tuned.trains(path, name)}
    return {part for part in parts_of(config) for path in found if path == part or path.startswith(f"{part}.")}


@given(any_configs)
@settings(max_examples=40, deadline=None)
def test_every_tensor_belongs_to_one_part_and_every_part_has_one(config: Config) -> None:
    parts, held = parts_of(config), set()
    for path, _ in tensors_of(config):
        [owner] = [part for part in parts if path == part or path.startswith(f"{part}.")]
        held.add(owner)
    assert held == set(parts)


@given(any_configs)
@settings(max_examples=20, deadline=None)
def test_freezing_a_part_freezes_its_tensors_and_no_other(config: Config) -> None:
    name = parts_of(config)[0].split(".")[0]
    tuned = Tuning(freeze=(name,)).on(config)
    for path, own in tensors_of(config):
        assert tuned.trains(path, own) == (path.split(".")[0] != name)


@pytest.mark.parametrize(
    ("tuning", "parts"),
    [
        (Tuning(freeze=("embedding", "prefix", "position", "blocks[:3]")), {"blocks.3", "blocks.4", "norm", "head"}),
        (Tuning(last=2), {"blocks.3", "blocks.4", "norm", "head"}),
        (Tuning(last=0), {"norm", "head"}),
        (Tuning(only=("head",)), {"head"}),
        (Tuning(only=("blocks[-1]", "blocks[1:3]")), {"blocks.4", "blocks.1", "blocks.2"}),
        (Tuning(only=("norms",), last=1), {"blocks.4", "norm"}),
        (Tuning(lora=Lora()), {"head"}),
        (Tuning(lora=Lora(), only=("position",)), {"position"}),
    ],
)
def test_names_select_parts(tuning: Tuning, parts: set[str]) -> None:
    assert trained_parts(tuning, MODEL) == parts


def test_blocks_of_a_pyramid_are_numbered_through_its_stages() -> None:
    last = {"stages.2.blocks.0", "stages.2.blocks.1", "stages.2.blocks.2", "norm", "head"}
    assert trained_parts(Tuning(last=3), PYRAMID) == last
    assert trained_parts(Tuning(only=("blocks[3:]",)), PYRAMID) == last - {"norm", "head"}
    assert trained_parts(Tuning(only=("stages[-1]",)), PYRAMID) == (last - {"norm", "head"}) | {"stages.2.merge"}


def test_both_heads_of_a_distilled_model_are_its_head() -> None:
    config = MODEL.but(prefix=Prefix(distillation=True))
    assert trained_parts(Tuning(only=("head",)), config) == {"head", "distillation_head"}


def test_norms_and_biases_are_tensors_of_every_part() -> None:
    tuned = Tuning(only=("norms", "biases")).on(MODEL)
    found = {name for path, name in tensors_of(MODEL) if tuned.trains(path, name) and path == "blocks.2.norm1"}
    assert found == {"weight", "bias"}
    assert tuned.trains("blocks.2.mlp.fc1", "bias")
    assert not tuned.trains("blocks.2.mlp.fc1", "weight")


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ("block", r"'block' is no part of this model; name embedding, prefix, position, blocks, norm, head, norms"),
        ("pool", r"'pool' is no part of this model"),
        ("head[0]", r"numbers head, which is one part"),
        ("blocks[5]", r"beyond the model's 5 blocks; give at most 4"),
        ("blocks[7:]", r"goes beyond the model's 5 blocks; give at most 5"),
        ("blocks[:6]", r"goes beyond the model's 5 blocks; give at most 5"),
        ("blocks[3:2]", r"selects none of the model's 5 blocks"),
        ("blocks[]", r"does not name a part of a model; write head, blocks\[3\]"),
        ("blocks[1", r"does not name a part of a model"),
    ],
)
def test_a_name_that_the_model_does_not_have_is_refused_in_a_line(terms: str, message: str) -> None:
    with pytest.raises(VitrailError, match=message) as caught:
        Tuning(freeze=(terms,)).on(MODEL)
    assert "\n" not in str(caught.value)


def test_more_last_blocks_than_there_are_and_adapters_without_a_block_are_refused() -> None:
    with pytest.raises(VitrailError, match="more than the model's 5; give 5 or less"):
        Tuning(last=6).on(MODEL)
    with pytest.raises(VitrailError, match="leaves no block to adapt"):
        Tuning(lora=Lora(), freeze=("blocks",)).on(MODEL)
    with pytest.raises(VitrailError, match=r"'qkw' is not one of qkv, out, mlp, fc1, fc2; did you mean 'qkv'"):
        Lora(on=("qkw",))  # type: ignore[arg-type]


@pytest.mark.parametrize("tuning", [Tuning(), Tuning(last=3, freeze=("norms",)), Tuning(lora=Lora(rank=3, alpha=6))])
def test_json_reads_back_as_the_same_value(tuning: Tuning) -> None:
    assert from_plain(to_plain(tuning), Tuning, "tuning") == tuning


def test_a_mobile_network_has_blocks_inside_its_stages() -> None:
    assert trained_parts(Tuning(only=("blocks[0]",)), MobileConfig()) == {"stages.2.transformer.blocks.0"}
