"""A file of vitrail's own is described from its header as the full reader describes it, and without torch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings

from configs import any_configs
from vitrail.checkpoint.assess.describe import describe
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.header import read_own, written_config
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.checkpoint.read import load
from vitrail.checkpoint.write import save
from vitrail.config import Config, ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.nn.build import build
from vitrail.parts import Mlp, Patches

SMALL = ViTConfig(
    image=Size(12, 20),
    embedding=Patches(patch=Size(4, 4)),
    width=24,
    depth=2,
    num_heads=3,
    mlp=Mlp(width=40),
    classes=5,
)


def written(path: Path, config: Config = SMALL, dialect: str | None = None, **tensors: torch.Tensor) -> Path:
    channels = (0.5,) * config.channels
    steps = Preprocessing(image=config.image, mean=channels, std=channels, crop_share=0.875)
    held = {**build(config).state_dict(), **{name.replace("__", "."): value for name, value in tensors.items()}}
    save(Checkpoint(config=config, tensors=held, preprocessing=steps), path, dialect=dialect)
    return path


@given(config=any_configs)
@settings(max_examples=25)
def test_the_header_gives_what_the_full_reader_gives_or_leaves_the_file_to_it(tmp_path_factory, config: Config):
    path = written(tmp_path_factory.mktemp("own") / "w.safetensors", config)
    assert written_config(path) == config
    own = read_own(path)
    if isinstance(config, ViTConfig) and isinstance(config.embedding, Patches):
        assert own is not None
    if own is not None:
        assert describe(own) == describe(load(path))


def test_the_bundled_model_is_read_from_its_header():
    own = read_own("default")
    assert own is not None
    assert describe(own) == describe(load("default"))


def test_values_that_are_not_finite_are_found_in_the_mapped_file(tmp_path: Path):
    bias = torch.zeros(24)
    bias[7] = torch.inf
    own = read_own(written(tmp_path / "w.safetensors", norm__bias=bias))
    assert own is not None
    assert describe(own).checks.not_finite == ("norm.bias",)


def test_another_librarys_names_are_left_to_the_full_reader_and_the_config_is_known(tmp_path: Path):
    path = written(tmp_path / "w.safetensors", dialect="timm")
    assert read_own(path) is None
    assert written_config(path) == SMALL


def test_a_file_that_lacks_values_is_left_to_the_full_reader(tmp_path: Path):
    from safetensors.torch import load_file, save_file

    path = written(tmp_path / "w.safetensors")
    tensors, own = load_file(path), read_own(path)
    assert own is not None
    from vitrail.checkpoint.formats.safetensors import read_safetensors

    metadata = read_safetensors(path)[1]
    save_file({**tensors, "head.weight": tensors["head.weight"][:4].clone()}, path, metadata=metadata)
    assert read_own(path) is None
    with pytest.raises(VitrailError, match=r"head.weight has shape"):
        load(path)
