"""A config and a workload of every kind that the planner knows, small enough to be planned often."""

from __future__ import annotations

from dataclasses import replace

from vitrail.checkpointing import Checkpointing
from vitrail.config import Config, MobileConfig, PyramidConfig, ViTConfig
from vitrail.geometry import Size
from vitrail.parts import (
    Adaptive,
    AttentionPool,
    FullAttention,
    GridPooling,
    Hierarchical,
    LinearAttention,
    Mlp,
    Patches,
    Prefix,
    RelativeBias,
    ResNetStem,
    Rotary,
    RotaryMixed,
    SinCos1d,
    SinCos2d,
    SparseAttention,
    Stem,
    SwiGLU,
    WindowedAttention,
)
from vitrail.plan import Workload
from vitrail.presets import preset
from vitrail.tuning import Lora, Tuning

VIT = ViTConfig(image=Size(96, 64), width=48, depth=5, num_heads=3, mlp=Mlp(width=80), classes=11)
TRAIN = Workload(batch=3, train=True)
AMP = replace(TRAIN, precision="amp-bf16", optimizer="adamw-fused")
CASES: dict[str, tuple[Config, Workload]] = {
    "plain": (VIT, TRAIN),
    "inference": (VIT, Workload(precision="amp-fp16")),
    "checkpointing": (
        VIT.but(drop_path=0.1),
        replace(AMP, checkpointing=Checkpointing(), attention="eager", accumulate=2),
    ),
    "unfused": (VIT.but(attention=FullAttention(fused=False), qk_norm=True, layer_scale=1e-5), AMP),
    "timm": (VIT, replace(AMP, library="timm")),
    "huggingface": (VIT.but(prefix=Prefix(cls=True)), replace(TRAIN, library="huggingface", optimizer="adafactor")),
    "sharded": (VIT, Workload(batch=2, train=True, precision="bf16", shard="fsdp:4")),  # type: ignore[arg-type]
    "last blocks": (VIT, replace(AMP, tuning=Tuning(last=2))),
    "adapters": (VIT.but(position=Rotary()), replace(AMP, tuning=Tuning(lora=Lora(rank=3, on=("qkv", "mlp"))))),
    "padded": (VIT.but(remainder="pad", mlp=SwiGLU(width=72), position=SinCos2d()), replace(TRAIN, optimizer="sgd")),
    "cropped": (VIT.but(remainder="crop", position=SinCos1d()), AMP),
    "stem": (VIT.but(embedding=Stem(patch=Size(16, 16), widths=(8, 12, 16, 24))), AMP),
    "hybrid": (VIT.but(embedding=ResNetStem(depths=(1, 2, 1), width=8, groups=2)), AMP),
    "hierarchical": (VIT.but(embedding=Hierarchical(finest=Size(4, 4), widths=(12, 24))), TRAIN),
    "overlapping": (VIT.but(embedding=Patches(patch=Size(16, 16), stride=Size(8, 8)), remainder="floor"), AMP),
    "adaptive": (VIT.but(embedding=Adaptive(), position=SinCos2d(), remainder="resize"), TRAIN),
    "windows": (VIT.but(attention=WindowedAttention(window=Size(3, 2)), position=RelativeBias(prefix=False)), AMP),
    "sparse": (VIT.but(attention=SparseAttention(), position=RotaryMixed()), AMP),
    "pooled by attention": (VIT.but(pool=AttentionPool(num_heads=2, mlp_width=40)), AMP),
    "linear": (VIT.but(attention=LinearAttention()), TRAIN),
    "swin": (PyramidConfig(image=Size(64, 96)), AMP),
    "pit": (preset("pit-Ti-distilled"), AMP),
    "pooled": (PyramidConfig(image=Size(64, 96), merging=GridPooling()), Workload()),
    "mobile": (MobileConfig(image=Size(64, 128)), TRAIN),
}
