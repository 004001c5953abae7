"""A timeline is the plan, event by event; a snapshot is the timeline in PyTorch's words."""

from __future__ import annotations

import pickle
import pickletools
from collections import defaultdict
from pathlib import Path

import pytest

from command import call
from vitrail.checkpointing import Checkpointing
from vitrail.config import Config, PyramidConfig, PyramidStage
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.parts import LinearAttention, RelativeBias, Rotary, SparseAttention, SwiGLU, WindowedAttention
from vitrail.plan import Shard, Timeline, Workload, memory, timeline
from vitrail.plan.snapshot import snapshot, write_snapshot
from vitrail.presets import preset
from vitrail.tuning import Lora, Tuning

TRAIN = Workload(batch=3, train=True)
SMALL = preset("Ti/16", image=Size(48, 80), depth=5)
CASES: list[tuple[Config, Workload]] = [
    (SMALL, TRAIN),
    (SMALL, Workload(batch=3)),
    (SMALL, TRAIN.but(precision="amp-bf16", checkpointing=Checkpointing(), attention="eager")),
    (SMALL, TRAIN.but(precision="bf16", optimizer="adamw-fused", accumulate=2)),
    (SMALL, TRAIN.but(library="timm")),
    (SMALL, TRAIN.but(tuning=Tuning(last=2))),
    (SMALL, TRAIN.but(precision="amp-bf16", tuning=Tuning(lora=Lora(rank=3, on=("qkv", "mlp")), only=("norms",)))),
    (SMALL, Workload(batch=2, precision="amp-fp16", library="huggingface")),
    (
        SMALL.but(position=RelativeBias(shared=True, prefix=False), attention=WindowedAttention(window=Size(2, 3))),
        TRAIN,
    ),
    (SMALL.but(position=Rotary(), mlp=SwiGLU(width=96), layer_scale=1e-5, drop_path=0.1), TRAIN),
    (SMALL.but(attention=SparseAttention()), TRAIN.but(precision="amp-bf16")),
    (SMALL.but(attention=LinearAttention()), Workload(batch=2)),
    (SMALL.but(position=Rotary()), TRAIN.but(tuning=Tuning(lora=Lora(rank=1, on=("mlp",))))),
    *(
        (SMALL.but(depth=11, attention=WindowedAttention(window=Size(2, 3), shift=False, full=(2, 5, 8))), workload)
        for workload in (
            Workload(batch=2),
            TRAIN,
            TRAIN.but(precision="amp-bf16", checkpointing=Checkpointing()),
            TRAIN.but(checkpointing=Checkpointing(every=2)),
            TRAIN.but(precision="amp-bf16", tuning=Tuning(last=4)),
            TRAIN.but(shard=Shard("fsdp", 4)),
        )
    ),
    (preset("swin-T"), TRAIN.but(optimizer="sgd")),
    (PyramidConfig(image=Size(64, 96), stages=(PyramidStage(width=24, depth=7, num_heads=3),)), Workload(batch=2)),
    (preset("pit-Ti"), TRAIN.but(precision="amp-bf16")),
    (preset("mobilevit-XXS"), TRAIN),
    *(
        (SMALL, TRAIN.but(shard=Shard.of(shard), accumulate=accumulate))
        for shard in ("ddp:2", "ddp:2,gradient_as_bucket_view", "zero1:4", "fsdp:4", "tensor:3")
        for accumulate in (1, 2)
    ),
    (SMALL, TRAIN.but(shard=Shard.of("fsdp:8,param_dtype=bf16,reduce_dtype=fp32"), checkpointing=Checkpointing())),
    (SMALL, Workload(batch=2, shard=Shard("fsdp", 2))),
    (preset("swin-T"), TRAIN.but(shard=Shard("fsdp", 8), offload=True)),
]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_a_timeline_has_the_plans_peaks_although_it_skips_no_block(case: int):
    config, workload = CASES[case]
    planned, found = memory(config, workload), timeline(config, workload)
    assert found.peak_bytes == planned.peak_bytes
    assert found.phase_peaks == planned.phase_peaks
    assert found.at_peak() == {name: size for name, size in planned.bytes.items() if size}


def test_every_block_is_released_once_and_by_its_own_size():
    alive: dict[int, int] = defaultdict(int)
    for event in timeline(SMALL, TRAIN).events:
        alive[event.block] += event.bytes
        assert alive[event.block] >= 0
    left = {event.component for event in timeline(SMALL, TRAIN).events if alive[event.block]}
    assert left == {"weights", "optimizer", "input", "gradients", "temporary"}  # a gradient begins as temporary


def test_an_event_names_its_operation_module_and_phase():
    events = timeline(SMALL, TRAIN).events
    assert any(event[:4] == ("forward", "linear", "blocks.4.mlp.fc1", "activations") for event in events)
    assert any(event[:4] == ("backward", "linear backward", "blocks.4.mlp.fc1", "gradients") for event in events)
    assert [event.phase for event in events] == sorted(
        (event.phase for event in events), key=["before", "forward", "backward", "optimizer"].index
    )


def test_a_chart_keeps_the_peak_however_few_its_points():
    found = timeline(SMALL, TRAIN)
    for points in (3, 40, 10_000):
        stack = found.stack(points)
        assert max(sum(live.values()) for _, _, live in stack) == found.peak_bytes
        assert len(stack) <= points + 1
        assert [place for place, _, _ in stack] == sorted({place for place, _, _ in stack})


def test_a_sharded_step_names_what_its_devices_exchange():
    events = timeline(SMALL, TRAIN.but(shard=Shard("fsdp", 4))).events
    exchanged = {(event.phase, event.operation, event.component) for event in events if event.module == "blocks.2"}
    assert ("forward", "all_gather", "gathered_weights") in exchanged
    assert ("backward", "reduce_scatter", "reduced_gradients") in exchanged
    buckets = [event for event in timeline(SMALL, TRAIN.but(shard=Shard("ddp", 2))).events if event.phase == "before"]
    assert ("buckets", "reduced_gradients") in {(event.operation, event.component) for event in buckets}


def test_a_stage_that_is_estimated_has_no_timeline():
    with pytest.raises(VitrailError, match="a timeline of zero2 is not modelled"):
        timeline(SMALL, TRAIN.but(shard=Shard("zero2", 8)))


# ── snapshots ───────────────────────────────────────────────────────────────────────────────────────────────────

READ_BY_THE_VIEWER = {
    *("PROTO", "FRAME", "MEMOIZE", "STOP", "MARK", "EMPTY_DICT", "EMPTY_LIST", "APPEND", "APPENDS", "SETITEM"),
    *("SETITEMS", "SHORT_BINUNICODE", "BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "BINGET", "LONG_BINGET"),
}
"""Opcodes that MemoryViz.js, the viewer's reader of pickles, knows."""


def highest(trace: list[dict]) -> int:
    """The most bytes that a trace has allocated at a time, as the viewer adds them up."""
    live, peak, sizes = 0, 0, {}
    for entry in trace:
        if entry["action"] == "alloc":
            assert not any(
                start < entry["addr"] + entry["size"] and entry["addr"] < end for start, end in sizes.items()
            )
            sizes[entry["addr"]] = entry["addr"] + entry["size"]
            live += entry["size"]
        elif entry["action"] == "free_completed":
            live -= sizes.pop(entry["addr"]) - entry["addr"]
        peak = max(peak, live)
    return peak


def test_pytorchs_own_tools_read_a_snapshot(tmp_path: Path):
    from torch.cuda import _memory_viz

    found = timeline(SMALL, TRAIN)
    write_snapshot(found, tmp_path / "snapshot.pickle")
    data = (tmp_path / "snapshot.pickle").read_bytes()
    assert {opcode.name for opcode, _, _ in pickletools.genops(data)} <= READ_BY_THE_VIEWER
    read = pickle.loads(data)
    (segment,) = read["segments"]
    assert segment["total_size"] == sum(block["size"] for block in segment["blocks"])
    assert "segments: 1" in _memory_viz.segsum(read)  # raises where sizes don't add up
    assert f"{len(read['device_traces'][0])} entries" in _memory_viz.trace(read)
    assert "snapshot.pickle" in _memory_viz.trace_plot(read)
    assert len(_memory_viz.filter_alloc_free_pairs(read)["device_traces"][0]) < len(found.events)


def test_a_snapshot_has_the_timelines_peak_and_no_two_blocks_at_one_address():
    found = timeline(SMALL, TRAIN)
    assert highest(snapshot(found)["device_traces"][0]) == found.peak_bytes


def test_a_timeline_is_written_as_picture_and_as_snapshot(tmp_path: Path, capsys):
    for name, magic in (("step.png", b"\x89PNG"), ("step.svg", b"<?xml"), ("step.pickle", b"\x80\x04")):
        assert call("plan", "Ti/16", "--train", "--timeline", str(tmp_path / name)) == 0
        assert (tmp_path / name).read_bytes().startswith(magic)
        assert f"written: {tmp_path / name}" in capsys.readouterr().out
    assert call("plan", "Ti/16", "--timeline", str(tmp_path / "step.html")) == 2
    assert "does not end in .png, .svg, .pdf or .pickle" in capsys.readouterr().err


def test_an_empty_timeline_is_of_nothing():
    assert Timeline(()).phase_peaks == {}
