"""One device of tensor parallelism, by PyTorch's `ColwiseParallel` and `RowwiseParallel`.

Every block's heads and hidden units are split; everything else, and the images, is whole on every device.
"""

from __future__ import annotations

from typing import Any

from vitrail.config import Config, ViTConfig
from vitrail.errors import require
from vitrail.parts import FullAttention, Rotary
from vitrail.plan import ops
from vitrail.plan.graph import Tensor
from vitrail.plan.tape import Tape
from vitrail.plan.workload import Workload

__all__ = ["TensorTape", "check_splits", "column_linear", "is_split", "row_linear", "ways_of"]

_SPLIT = (".attention.qkv", ".attention.out", ".mlp.fc1", ".mlp.fc2")
"""Layers of a block that are split: by their outputs the first of each two, by their inputs the second."""


class TensorTape(Tape):
    """A tape on which `column_linear` and `row_linear` split their layers `ways` ways."""

    def __init__(self, *args: Any, ways: int, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.ways = ways


def is_split(path: str) -> bool:
    """Return whether the layer at `path` is split; a pool's MLP is not."""
    return path.startswith("blocks.") and path.endswith(_SPLIT)


def ways_of(t: Tape, path: str) -> int:
    return t.ways if t.ways > 1 and is_split(path) else 1


def column_linear(t: Tape, path: str, x: Tensor, width: int, out: int, bias: bool | Tensor = True) -> Tensor:
    """A linear layer whose outputs may be split over devices, which sum the gradients of its input."""
    ways = ways_of(t, path)
    return ops.linear(t, path, x if ways == 1 else ops.copied_back(t, x), width, out // ways, bias)


def row_linear(t: Tape, path: str, x: Tensor, width: int, out: int, bias: bool = True) -> Tensor:
    """A linear layer whose inputs may be split over devices, which sum its outputs."""
    ways = ways_of(t, path)
    y = ops.linear(t, path, x, width // ways, out, bias, partial=ways > 1 and bias)
    return y if ways == 1 else ops.copy(t, y)


def check_splits(config: Config, workload: Workload) -> None:
    """Raise VitrailError for a model whose blocks do not split by heads and hidden units alone."""
    assert workload.shard is not None
    plain = (
        isinstance(config, ViTConfig)
        and isinstance(config.attention, FullAttention)
        and (config.position.inside is None or isinstance(config.position.inside, Rotary))
        and not (config.qk_norm or config.cosine_attention or config.attention_norm or config.mlp.norm)
        and config.qkv_bias != "no_key"
        and workload.library == "vitrail"
        and workload.tuning.lora is None
    )
    require(
        plain,
        "tensor parallelism is planned for vitrail's ViTs with full attention, without tensors of single heads "
        "(relative biases, learned rotations, norms or biases of queries) and adapters; use fsdp",
    )
    assert isinstance(config, ViTConfig)
    devices = workload.shard.devices
    for name, count in ("num_heads", config.num_heads), ("mlp width", config.mlp.width):
        require(
            count % devices == 0,
            f"{name} {count} does not split over {devices} devices; give a number of devices that divides it",
        )
