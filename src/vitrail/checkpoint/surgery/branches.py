"""Both towers of a vision-language model that has two, and what joins them, from the file of the whole model.

The first tower is read as every tower is, and the rest of its file is kept aside: the second tower and the merger are
found there by the names that transformers has for DeepSeek-VL.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.dialects.table import POINTWISE, Row, Sizes, both, read_rows
from vitrail.checkpoint.formats.file import Stored
from vitrail.checkpoint.read import read_stored
from vitrail.config import TwoBranches, ViTConfig
from vitrail.errors import VitrailError, require
from vitrail.nn.branches import TwoBranchEncoder
from vitrail.parts import BranchMerger, MeanPool

__all__ = ["with_second_branch"]

HIGH, CONFIG = "high_res_vision_model.", "high_res_vision_config"
ROWS = (
    Row(("neck.project.weight",), ("{p}high_res_vision_neck.conv1.weight",), POINTWISE),
    *both("neck.norm1", "{p}high_res_vision_neck.layer_norm1"),
    Row(("neck.conv.weight",), ("{p}high_res_vision_neck.conv2.weight",)),
    *both("neck.norm2", "{p}high_res_vision_neck.layer_norm2"),
    Row(("conv1.weight",), ("{p}high_res_vision_proj.conv1.weight",)),
    Row(("conv2.weight",), ("{p}high_res_vision_proj.conv2.weight",)),
    Row(("alpha",), ("{p}high_res_vision_alpha",)),
    *both("low", "{p}aligner.vision_proj"),
    *both("high", "{p}aligner.high_res_vision_proj"),
    *both("out", "{p}aligner.proj"),
)
"""The merger's names."""


def with_second_branch(checkpoint: Checkpoint) -> TwoBranchEncoder:
    """Return both towers of a whole DeepSeek-VL and what joins them, with their weights, given its first tower.

    The model takes an image at two sizes, `model.config.low.image` and `model.config.high.image`, and gives the tokens
    of the language model.
    """
    low, beside = checkpoint.config, checkpoint.extra
    prefix = next((name.partition(HIGH)[0] for name in beside if HIGH in name), None)
    if prefix is None or not isinstance(low, ViTConfig):
        raise VitrailError(
            "no second tower is beside this one; read a whole DeepSeek-VL of two towers, with its config.json"
        )
    high = _second(beside, prefix + HIGH, checkpoint.origin)
    merger, _ = read_rows(ROWS, beside, prefix, Sizes())
    missing = [name for row in ROWS for name in row.ours if name not in merger]
    require(not missing, f"the weights of what joins the towers lack {', '.join(missing[:3])}; the file is not whole")
    assert isinstance(high.config, ViTConfig)
    spec = TwoBranches(
        low=low.but(pool=MeanPool()),
        high=high.config,
        merger=BranchMerger(width=merger["out.weight"].shape[0]),
    )
    with torch.device("meta"):
        model = TwoBranchEncoder(spec)
    patches = {name: tensor for name, tensor in checkpoint.tensors.items() if not name.startswith("pool.")}
    model.add_module("low", checkpoint.but(config=spec.low, tensors=patches).model())
    model.add_module("high", high.model())
    model.merger.load_state_dict({name: tensor.clone() for name, tensor in merger.items()}, assign=True)
    return model.eval()


def _second(beside: Mapping[str, Tensor], prefix: str, origin: Mapping[str, Any]) -> Checkpoint:
    """Read the second tower as if it were alone in its file."""
    own = {name.removeprefix(prefix): tensor for name, tensor in beside.items() if name.startswith(prefix)}
    config = origin.get(CONFIG)
    require(isinstance(config, Mapping), f"config.json has no {CONFIG}, which says what the second tower is; add it")
    assert isinstance(config, Mapping)
    stored = Stored(path=Path("the second tower"), format="memory", tensors=own, config=config)
    return read_stored(stored)
