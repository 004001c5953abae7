"""A sweep's arrays hold what the scalar planner says of each config."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from vitrail.config import ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.parts import MeanPool, Mlp, Patches, Prefix, Rotary, SinCos2d, SwiGLU
from vitrail.plan import Workload, ledger, memory, sweep

BASE = ViTConfig(image=Size(96, 64), width=96, depth=3, num_heads=3, mlp=Mlp(width=160), classes=11)


@pytest.mark.parametrize(
    "config",
    [
        BASE,
        BASE.but(mlp=SwiGLU(width=96), position=SinCos2d(), prefix=Prefix(cls=False), pool=MeanPool(), qk_norm=True),
    ],
)
@pytest.mark.parametrize(
    "workload",
    [
        Workload(train=True),
        Workload(train=True, precision="amp-bf16", optimizer="adamw-fused"),
        Workload(train=True, precision="bf16", checkpointing=True, accumulate=2, optimizer="momentum"),
        Workload(train=True, precision="amp-fp16", attention="eager"),
        Workload(precision="amp-bf16", attention="efficient"),
    ],
)
def test_a_sweep_equals_the_scalar_plans(config: ViTConfig, workload: Workload) -> None:
    random = np.random.default_rng(3)
    count = 40
    heads, patch = random.integers(1, 7, count), random.choice([8, 16], count)
    sizes = {
        "batch": random.integers(1, 6, count),
        "width": heads * random.choice([8, 20, 64], count),
        "depth": random.integers(1, 9, count),
        "num_heads": heads,
        "mlp_width": random.integers(8, 300, count),
        "classes": random.integers(1, 99, count),
    }
    image = (patch * random.integers(1, 9, count), patch * random.integers(1, 9, count))
    found = sweep(config, workload, image=image, patch=patch, **sizes)
    for i in range(count):
        one = {name: int(values[i]) for name, values in sizes.items()}
        batch, hidden = one.pop("batch"), one.pop("mlp_width")
        each = config.but(
            image=Size(int(image[0][i]), int(image[1][i])),
            embedding=Patches(patch=Size(int(patch[i]), int(patch[i]))),
            mlp=replace(config.mlp, width=hidden),
            **one,
        )
        asked = replace(workload, batch=batch)
        books = ledger(each, asked)
        assert found.tokens[i] == each.tokens
        assert found.params[i] == books.params
        assert (found.flops_forward[i], found.flops_train[i]) == (books.flops_forward, books.flops_train)
        plan = memory(each, asked)
        assert (found.peak_bytes[i], found.exact[i]) == (plan.peak_bytes, plan.exact)


def test_combinations_that_break_a_rule_are_marked_and_left_zero() -> None:
    found = sweep(BASE, Workload(), image=np.array([[64], [60]]), patch=np.array([16, 8, 7]))
    assert found.valid.tolist() == [[True, True, False], [False, False, False]]
    assert (found.peak_bytes[~found.valid] == 0).all()


def test_a_sweep_refuses_what_it_cannot_vectorise() -> None:
    with pytest.raises(VitrailError, match="call memory"):
        sweep(BASE.but(position=Rotary()), Workload())
