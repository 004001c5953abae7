"""Planned bytes equal the tracker's: golden answers everywhere, and the tracker itself where the shim compiles."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from vitrail.checkpointing import Checkpointing
from vitrail.codec import from_plain
from vitrail.config import MobileConfig, PyramidConfig, ViTConfig, config_from_json
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.parts import (
    Adaptive,
    FullAttention,
    Mlp,
    Prefix,
    Rotary,
    SinCos2d,
    SparseAttention,
    Stem,
    WindowedAttention,
)
from vitrail.plan import Shard, Workload, memory

ROOT = Path(__file__).parent.parent
GOLDEN_NAMES = (
    "memory",
    "degenerate",
    "tuned",
    "sharded",
    "checkpointed",
    "pretraining",
    "families",
    "clips",
    "parts",
    "mergers",
    "stems",
)
GOLDEN_FILES = [ROOT / "golden" / f"{name}.json" for name in GOLDEN_NAMES]
GOLDEN = [case for file in GOLDEN_FILES for case in json.loads(file.read_text())]
SMALL = ViTConfig(image=Size(80, 112), width=96, depth=5, num_heads=3, mlp=Mlp(width=160), classes=11)


@pytest.mark.parametrize("case", range(len(GOLDEN)))
def test_every_phase_peaks_where_the_tracker_says(case: int) -> None:
    golden = GOLDEN[case]
    workload = from_plain(golden["workload"], Workload, "workload")
    plan = memory(config_from_json(json.dumps(golden["config"])), workload)
    if plan.exact:
        assert plan.phase_peaks == golden["phase_peaks"]
    else:
        assert plan.peak_bytes == pytest.approx(max(golden["phase_peaks"].values()), rel=0.15), plan.note


@pytest.mark.skipif(shutil.which("g++") is None, reason="the tracker's stand-in for a GPU is compiled")
def test_the_tracker_still_gives_the_golden_answers() -> None:
    command = [sys.executable, ROOT / "proof" / "run.py", "--check", *GOLDEN_FILES, "--count", "10"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


# MiB of ViT-B/16, foreach AdamW, one step: 224 at batch 8 and 32, then 384 at 8 and 32; measured on timm with a tracker
MEASURED = {
    ("fp32", "flash"): (1918.1, 4664.6, 3687.1, 11730.6),
    ("fp32", "eager"): (2087.7, 5342.8, 5199.8, 17747.3),
    ("amp-bf16", "flash"): (1684.1, 3252.8, 2696.1, 7290.6),
    ("amp-bf16", "eager"): (1939.1, 4272.6, 4961.7, 16336.1),
}


@pytest.mark.parametrize(("precision", "attention"), MEASURED)
def test_vit_b_peaks_where_it_was_measured(precision, attention) -> None:
    found = [
        memory(
            ViTConfig(image=Size(image, image)),
            Workload(batch=batch, train=True, precision=precision, attention=attention, library="timm"),
        ).peak_bytes
        for image in (224, 384)
        for batch in (8, 32)
    ]
    assert [round(peak / 2**20, 1) for peak in found] == list(MEASURED[precision, attention])


@pytest.mark.parametrize(
    "workload",
    [
        Workload(batch=3),
        Workload(batch=3, train=True, precision="amp-bf16"),
        Workload(batch=3, train=True, accumulate=2, optimizer="adamw-fused"),
        Workload(batch=3, train=True, checkpointing=Checkpointing(), attention="eager"),
        Workload(batch=3, train=True, shard=Shard("fsdp", 4)),
        Workload(batch=3, train=True, shard=Shard("ddp", 2, gradient_as_bucket_view=True), accumulate=3),
        Workload(batch=3, train=True, optimizer="adafactor"),
    ],
)
@pytest.mark.parametrize("config", [SMALL, PyramidConfig(), MobileConfig()])
def test_components_add_up_to_the_peak(config, workload: Workload) -> None:
    if not isinstance(config, ViTConfig):
        workload = replace(workload, attention="flash")
    plan = memory(config, workload)
    assert sum(plan.bytes.values()) == plan.peak_bytes == max(plan.phase_peaks.values())
    assert min(plan.bytes.values()) >= 0
    assert list(plan.phase_peaks) == (["forward", "backward", "optimizer"] if workload.train else ["forward"])


def test_a_longer_model_costs_the_same_more_for_every_block() -> None:
    """Blocks between the first and the last are skipped: the peak is affine in depth all the same."""
    workload = Workload(batch=4, train=True, precision="amp-bf16", optimizer="sgd")
    peaks = [memory(SMALL.but(depth=depth), workload).phase_peaks["forward"] for depth in (4, 5, 6, 40)]
    assert peaks[1] - peaks[0] == peaks[2] - peaks[1]
    assert peaks[3] - peaks[2] == 34 * (peaks[1] - peaks[0])


def test_bytes_beyond_64_bits_are_exact() -> None:
    """Peaks are affine in the batch: whole numbers of any size, not of a machine's word."""
    low, high, huge = (memory(SMALL, Workload(batch=batch)).peak_bytes for batch in (2, 3, 10**18))
    assert huge == low + (10**18 - 2) * (high - low) > 2**64


def test_checkpointing_and_fused_attention_save_bytes() -> None:
    eager = Workload(batch=8, train=True, attention="eager")
    peaks = [
        memory(ViTConfig(), workload).peak_bytes
        for workload in (
            eager,
            replace(eager, attention="flash"),
            replace(eager, attention="flash", checkpointing=Checkpointing()),
        )
    ]
    assert peaks == sorted(peaks, reverse=True)


def test_adaptive_tokens_change_the_bytes_and_cannot_exceed_the_grid() -> None:
    config = SMALL.but(image=Size(64, 96), embedding=Adaptive(), position=SinCos2d(), prefix=Prefix())
    few = memory(config, Workload(batch=2, adaptive_tokens=20))
    assert few.peak_bytes < memory(config, Workload(batch=2)).peak_bytes
    assert not few.exact
    with pytest.raises(VitrailError, match="at most 96"):
        memory(config, Workload(adaptive_tokens=97))


@pytest.mark.parametrize("library", ["timm", "huggingface"])
def test_a_library_that_cannot_express_the_config_is_refused(library) -> None:
    with pytest.raises(VitrailError, match="cannot express Rotary"):
        memory(SMALL.but(position=Rotary()), Workload(library=library))


def test_heads_that_no_kernel_takes_are_labelled() -> None:
    plan = memory(SMALL.but(width=54), Workload())
    assert not plan.exact
    assert "heads of width 18" in plan.note
    assert memory(SMALL.but(width=54, attention=FullAttention(fused=False)), Workload()).exact


@pytest.mark.parametrize(
    ("config", "word"),
    [
        (SMALL.but(width=12, num_heads=1), "flash pads"),
        (SMALL.but(width=3), "heads of width 1"),
        (SMALL.but(attention=SparseAttention(), num_heads=1), "one head or one row"),
        (SMALL.but(attention=SparseAttention(), image=Size(16, 112)), "one head or one row"),
        (SMALL.but(attention=WindowedAttention(window=Size(2, 7))), "windows of whole rows"),
        (MobileConfig(image=Size(64, 128)), "mobile map"),
    ],
)
def test_degenerate_sizes_that_are_not_proven_are_labelled(config, word: str) -> None:
    plan = memory(config, Workload(batch=2, train=True, precision="bf16"))
    assert not plan.exact
    assert word in plan.note


def test_a_step_that_pytorch_refuses_is_not_called_exact() -> None:
    """Batch norm cannot be trained on one value per channel."""
    stem = SMALL.but(embedding=Stem(), image=Size(16, 16))
    assert memory(stem, Workload(batch=1)).exact
    assert memory(stem, Workload(batch=2, train=True)).exact
    refused = memory(stem, Workload(batch=1, train=True))
    assert not refused.exact
    assert "PyTorch cannot train; use a batch of 2" in refused.note
