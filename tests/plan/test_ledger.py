"""Rows are the model's, and their paths are the state dict's."""

from __future__ import annotations

import pytest
import torch

from vitrail.config import ViTConfig
from vitrail.geometry import Size
from vitrail.nn.build import build
from vitrail.parts import AttentionPool, Mlp, WindowedAttention
from vitrail.plan import Workload, ledger

CONFIG = ViTConfig(image=Size(80, 112), width=96, depth=7, num_heads=3, mlp=Mlp(width=160), classes=11, drop_path=0.1)


def test_rows_are_unique_and_in_the_models_order() -> None:
    paths = [row.path for row in ledger(CONFIG).rows]
    assert len(set(paths)) == len(paths)
    with torch.device("meta"):
        order = [name.rpartition(".")[0] for name in build(CONFIG).state_dict()]
    with_params = [row.path for row in ledger(CONFIG).rows if row.params]
    assert sorted(with_params, key=order.index) == sorted(set(order), key=order.index)
    numbers = [int(path.split(".")[1]) for path in paths if path.startswith("blocks.")]
    assert numbers == sorted(numbers)


def test_blocks_that_are_alike_have_rows_that_are_alike() -> None:
    rows = {row.path: row for row in ledger(CONFIG.but(attention=WindowedAttention(window=Size(3, 4)))).rows}
    for path, row in rows.items():
        if path.startswith("blocks.1."):
            for other in (3, 5):
                like = rows[path.replace("blocks.1.", f"blocks.{other}.")]
                assert (row.params, row.flops, row.train_flops) == (like.params, like.flops, like.train_flops)


@pytest.mark.parametrize(
    "config", [CONFIG, CONFIG.but(pool=AttentionPool(num_heads=3, mlp_width=64))], ids=["cls", "attention"]
)
def test_flops_are_per_image_whatever_the_batch(config: ViTConfig) -> None:
    one, many = ledger(config), ledger(config, Workload(batch=5, train=True))
    assert [(row.flops, row.train_flops) for row in one.rows] == [(row.flops, row.train_flops) for row in many.rows]
    assert many.saved_bytes > one.saved_bytes
