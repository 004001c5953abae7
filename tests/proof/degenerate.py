"""Fixed questions at sizes where PyTorch views what it copies elsewhere: one head, one image, one token, one window.

Tokens are many and weights few, so that the copies are what decides the peak.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from vitrail.checkpointing import Checkpointing
from vitrail.config import Config, MobileConfig, MobileStage, PyramidConfig, PyramidStage, ViTConfig
from vitrail.geometry import Size
from vitrail.parts import (
    AttentionPool,
    FullAttention,
    Hierarchical,
    LinearAttention,
    MeanPool,
    Mlp,
    Patches,
    Prefix,
    RelativeBias,
    Rotary,
    RotaryMixed,
    SparseAttention,
    WindowedAttention,
)
from vitrail.plan import Workload
from vitrail.presets import preset

__all__ = ["degenerate"]

INFER = Workload(batch=3)
TRAIN = Workload(batch=3, train=True, precision="amp-bf16", optimizer="sgd")
AGAIN = Workload(batch=1, train=True, precision="bf16", optimizer="sgd", checkpointing=Checkpointing())
EAGER = replace(TRAIN, attention="eager")

MANY = ViTConfig(
    image=Size(40, 56),
    channels=1,
    embedding=Patches(patch=Size(4, 4)),
    width=24,
    depth=2,
    num_heads=3,
    mlp=Mlp(width=24),
    classes=5,
)
ONE = MANY.but(num_heads=1)
ALONE = MANY.but(image=Size(4, 4), prefix=Prefix(cls=False), pool=MeanPool())


def degenerate() -> list[tuple[Config, Workload]]:
    heads = product(_kinds(ONE), (INFER, TRAIN, AGAIN))
    images = product(_kinds(MANY), (replace(INFER, batch=1), replace(TRAIN, batch=1)))
    tokens = product((ALONE, ALONE.but(attention=LinearAttention())), (INFER, TRAIN, EAGER, AGAIN))
    return [*heads, *images, *tokens, *_windows(), *_widths(), *_libraries(), *_others()]


def _kinds(c: ViTConfig) -> list[ViTConfig]:
    windows = WindowedAttention(window=Size(3, 4))
    return [
        c,
        c.but(qk_norm=True),
        c.but(attention=FullAttention(fused=False)),
        c.but(attention=FullAttention(fused=False), qk_norm=True),
        c.but(attention=LinearAttention()),
        c.but(attention=windows),
        c.but(attention=windows, position=RelativeBias(prefix=False), prefix=Prefix(cls=False), pool=MeanPool()),
        c.but(position=RelativeBias()),
        c.but(position=RelativeBias(shared=True)),
        c.but(position=Rotary()),
        c.but(position=RotaryMixed()),
        c.but(pool=AttentionPool(num_heads=1, mlp_width=24)),
    ]


def _windows() -> list[tuple[Config, Workload]]:
    """The whole grid, rows, parts of a row."""
    bare = MANY.but(prefix=Prefix(cls=False), pool=MeanPool())
    sizes = Size(10, 14), Size(2, 14), Size(1, 7), Size(1, 1)
    return [
        (c.but(attention=WindowedAttention(window=size, shift=False)), workload)
        for c, size, workload in product((bare, bare.but(num_heads=1)), sizes, (INFER, TRAIN))
    ]


def _widths() -> list[tuple[Config, Workload]]:
    """Heads wider than flash takes, and such as it has to pad."""
    wide, padded = MANY.but(width=264, num_heads=1), MANY.but(width=36, qk_norm=True)
    return [(wide, INFER), (wide, TRAIN), (wide, AGAIN), (padded, replace(INFER, precision="bf16")), (padded, TRAIN)]


def _libraries() -> list[tuple[Config, Workload]]:
    workloads = INFER, TRAIN, EAGER, replace(EAGER, batch=1), replace(EAGER, precision="fp32"), AGAIN
    questions = [
        *product(("timm",), (ONE, MANY, ONE.but(qk_norm=True)), workloads),
        *product(("huggingface",), (ONE, MANY, MANY.but(width=36)), workloads),
    ]
    return [(config, replace(workload, library=library)) for library, config, workload in questions]


def _others() -> list[tuple[Config, Workload]]:
    stages = tuple(PyramidStage(width=width, depth=2, num_heads=1) for width in (24, 48))
    mobile = MobileConfig(
        image=Size(32, 64),
        stem_width=8,
        stages=(MobileStage(width=8), MobileStage(width=8, stride=2, transformer_width=16, transformer_depth=2)),
        num_heads=1,
        last_width=16,
        classes=5,
    )
    resnet = mobile.but(
        residual="basic",
        expansion=1,
        stem_stride=1,
        stages=(MobileStage(width=8, depth=2), MobileStage(width=12, stride=2)),
        last_width=0,
    )
    pyramid = PyramidConfig(
        image=Size(32, 48), stages=stages, attention=WindowedAttention(window=Size(4, 3)), classes=5
    )
    plain = Workload(batch=3, train=True, optimizer="sgd")
    models = (
        pyramid,
        pyramid.but(attention=WindowedAttention(window=Size(8, 12))),
        mobile,
        MANY.but(attention=SparseAttention()),
    )
    pit = preset("pit-Ti", image=Size(24, 16), stages=stages, classes=5)  # a grid 2x1, and then 1x1
    return [
        *product(models, (INFER, plain, TRAIN)),
        (MANY.but(embedding=Hierarchical(finest=Size(2, 2), widths=(8,))), plain),
        *product((resnet, resnet.but(stem_stride=2, expansion=2, last_width=7)), (INFER, plain, TRAIN)),
        *product((pit, pit.but(prefix=Prefix(cls=False), pool=MeanPool())), (INFER, plain, TRAIN)),
    ]
