"""The tracker is the truth: fake tensors and real allocations agree to the byte."""

from __future__ import annotations

import pytest
import torch

from truth import follow_step
from vitrail.checkpointing import Checkpointing
from vitrail.config import Config, MobileConfig, MobileStage, PyramidConfig, PyramidStage, ViTConfig
from vitrail.geometry import Size
from vitrail.parts import (
    AttentionPool,
    FullAttention,
    Hierarchical,
    LinearAttention,
    MaxPool,
    MeanPool,
    Mlp,
    Patches,
    Prefix,
    RelativeBias,
    Rotary,
    RotaryMixed,
    SinCos2d,
    SparseAttention,
    Stem,
    SwiGLU,
    WindowedAttention,
)
from vitrail.plan import Workload
from vitrail.presets import preset
from vitrail.tracking.tracker import Tracker
from vitrail.tuning import Lora, Tuning

PLAIN = ViTConfig(image=Size(48, 80), width=24, depth=1, num_heads=3, mlp=Mlp(width=40), classes=5)
TRAIN = Workload(batch=2, train=True)
STAGES = (PyramidStage(width=12, depth=2, num_heads=3), PyramidStage(width=24, depth=1, num_heads=3))

CASES: list[tuple[Config, Workload]] = [
    (PLAIN.but(depth=3), TRAIN),
    (PLAIN, Workload(batch=2)),
    (PLAIN, Workload(batch=1, train=True)),
    (PLAIN, Workload(batch=2, train=True, optimizer="sgd")),
    (PLAIN, Workload(batch=2, train=True, optimizer="momentum")),
    (PLAIN, Workload(batch=2, train=True, optimizer="adamw-fused", accumulate=2)),
    (PLAIN.but(depth=2), Workload(batch=2, train=True, checkpointing=Checkpointing())),
    (PLAIN, Workload(batch=2, train=True, precision="bf16")),
    (PLAIN, Workload(batch=2, train=True, precision="amp-bf16")),
    (PLAIN.but(depth=3), Workload(batch=2, train=True, tuning=Tuning(last=1))),
    (PLAIN, Workload(batch=2, train=True, tuning=Tuning(only=("norms", "head")))),
    (PLAIN.but(depth=2), Workload(batch=2, train=True, tuning=Tuning(lora=Lora(rank=3, on=("qkv", "mlp"))))),
    (
        PLAIN.but(depth=2),
        Workload(batch=2, train=True, checkpointing=Checkpointing(), tuning=Tuning(lora=Lora(rank=3))),
    ),
    (PLAIN.but(attention=FullAttention(fused=False)), TRAIN),
    (PLAIN.but(attention=LinearAttention()), TRAIN),
    (PLAIN.but(attention=SparseAttention()), TRAIN),
    (PLAIN.but(attention=WindowedAttention(window=Size(2, 3))), TRAIN),
    (PLAIN.but(attention=WindowedAttention(window=Size(2, 3), window_padding="zeros"), depth=2), TRAIN),
    (PLAIN.but(position=RelativeBias(), attention=FullAttention(fused=False)), TRAIN),
    (PLAIN.but(position=Rotary()), TRAIN),
    (PLAIN.but(position=RotaryMixed()), TRAIN),
    (PLAIN.but(position=SinCos2d(), prefix=Prefix(registers=3)), TRAIN),
    (PLAIN.but(mlp=SwiGLU(width=32), layer_scale=1e-5), TRAIN),
    (PLAIN.but(pool=AttentionPool(num_heads=2, mlp_width=40), qk_norm=True), TRAIN),
    (PLAIN.but(pool=AttentionPool(num_heads=2, mlp_width=40, prefix=True)), TRAIN),
    (PLAIN.but(pool=MaxPool(), qkv_bias="no_key", final_norm="pooled"), TRAIN),
    (PLAIN.but(dropout=0.1, drop_path=0.2, pool=MeanPool()), TRAIN),
    (PLAIN.but(embedding=Hierarchical(widths=(8, 16))), TRAIN),
    (PLAIN.but(embedding=Stem(widths=(4, 8, 8, 16))), TRAIN),
    (PLAIN.but(embedding=Patches(stride=Size(8, 8)), classes=0), TRAIN),
    (
        PyramidConfig(
            image=Size(32, 48),
            stages=STAGES,
            attention=WindowedAttention(window=Size(3, 4)),
            classes=5,
        ),
        TRAIN,
    ),
    (preset("pit-Ti", image=Size(40, 56), stages=STAGES, classes=5), TRAIN),
    (
        MobileConfig(
            image=Size(32, 64),
            stem_width=8,
            stages=(MobileStage(width=8), MobileStage(width=12, stride=2, transformer_width=16, transformer_depth=2)),
            last_width=16,
            classes=5,
        ),
        TRAIN,
    ),
    (
        MobileConfig(
            image=Size(24, 40),
            stem_width=8,
            residual="basic",
            expansion=1,
            stages=(MobileStage(width=8), MobileStage(width=12, stride=2)),
            last_width=0,
            classes=5,
        ),
        TRAIN,
    ),
]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_fake_peaks_equal_real_ones_to_the_byte(case: int) -> None:
    config, workload = CASES[case]
    real = follow_step(config, workload, device="cpu", fake=False)
    fake = follow_step(config, workload, device="cpu", fake=True)
    assert real.peak_bytes > 0
    assert fake.phase_peaks == real.phase_peaks


def test_a_storage_lives_as_long_as_a_view_of_it() -> None:
    tracker = Tracker("cpu")
    with tracker:
        whole = torch.zeros(7, 5)
        part = whole[2:3]
        assert tracker.live_bytes == 140
        del whole
        assert tracker.live_bytes == 140
        del part
        assert tracker.live_bytes == 0


def test_a_peak_is_the_highest_point_of_its_phase() -> None:
    tracker = Tracker("cpu")
    with tracker:
        with tracker.phase("forward"):
            torch.zeros(11, 4)
        with tracker.phase("backward"):
            kept = torch.zeros(3)
            torch.zeros(2)
    assert tracker.phase_peaks == {"forward": 176, "backward": 20}
    assert tracker.peak_bytes == 176
    assert kept.shape == (3,)
