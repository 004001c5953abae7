"""Measure where the time of an image goes (decode, patches, attention, MLP), and the share of the machine's peak.

Shapes: B images, N patches, T tokens, D width, m mlp_width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from torch import Tensor

from vitrail import parts
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.errors import require
from vitrail.geometry import Size
from vitrail.nn.attention import within
from vitrail.vectors.engines.engine import LeanEngine

__all__ = ["SECTIONS", "Profile", "Row", "gemm_flops_per_second", "profile"]

SECTIONS: tuple[str, ...] = ("decode", "patches", "attention", "mlp", "rest")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One part of the work at one batch size."""

    batch: int
    section: str
    seconds_per_image: float
    share: float
    """Share of the total time, decoding included."""
    flops_per_image: int
    """Two per multiply-add; 0 for sections without products."""
    peak_share: float
    """Share of the machine's float32 GEMM peak, in the same run."""


@dataclass(frozen=True, kw_only=True)
class Profile:
    engine: str
    threads: int
    gemm_flops_per_second: float
    rows: tuple[Row, ...]


def profile(
    checkpoint: Checkpoint,
    engine: LeanEngine,
    files: Sequence[Path | bytes],
    *,
    batches: Sequence[int] = (1, 8, 64),
    seconds: float = 2.0,
    watch: Callable[[str], None] = lambda _: None,
) -> Profile:
    """Time every section at every batch size, for about `seconds` each; files are decoded repeatedly."""
    require(len(files) > 0, "there are no images to time with; give some")
    require(all(batch > 0 for batch in batches), f"batches {tuple(batches)} are not all above 0; give some like 1,8,64")
    watch("the machine's peak")
    peak = gemm_flops_per_second()
    watch("decode")
    steps = checkpoint.preprocessing
    pixels = [steps.pixels(file).pixels for file in files]
    decode = _repeat(lambda: {"decode": _clock(lambda: [steps.pixels(file) for file in files]) / len(files)}, seconds)[
        "decode"
    ]
    flops, rows = _flops(engine), list[Row]()
    for batch in batches:
        watch(f"batch {batch}")
        images = torch.stack([torch.from_numpy(pixels[index % len(pixels)]) for index in range(batch)])
        forward = _repeat(lambda images=images: _timed(engine, images), seconds)
        spent = {"decode": decode} | {section: time / batch for section, time in forward.items()}
        whole = sum(spent.values())
        for section in SECTIONS:
            work, time = flops.get(section, 0), spent[section]
            rows.append(
                Row(
                    batch=batch,
                    section=section,
                    seconds_per_image=time,
                    share=time / whole,
                    flops_per_image=work,
                    peak_share=work / time / peak,
                )
            )
    return Profile(engine=engine.name, threads=torch.get_num_threads(), gemm_flops_per_second=peak, rows=tuple(rows))


def gemm_flops_per_second(size: int = 1024) -> float:
    """Measure the machine's peak: the fastest of several large float32 products."""
    a, b = torch.randn(2, size, size)
    return 2 * size**3 / min(_clock(lambda: a @ b) for _ in range(9))


def _clock(work: Callable[[], object]) -> float:
    start = perf_counter()
    work()
    return perf_counter() - start


def _repeat(once: Callable[[], dict[str, float]], seconds: float) -> dict[str, float]:
    """Return medians over at least three runs, after a warm-up."""
    once()
    found, until = list[dict[str, float]](), perf_counter() + seconds
    while len(found) < 3 or perf_counter() < until:
        found.append(once())
    return {name: median(each[name] for each in found) for name in found[0]}


@torch.inference_mode()
def _timed(engine: LeanEngine, images: Tensor) -> dict[str, float]:
    """Return the seconds of one forward pass by section, timing the engine's own steps."""
    spent = dict.fromkeys(SECTIONS[1:], 0.0)
    last = perf_counter()

    def passed(section: str) -> None:
        nonlocal last
        now = perf_counter()
        spent[section] += now - last
        last = now

    for part in engine.parts(images):
        x, layout = engine.embed(part)
        position = within(engine.model.position, layout, x)
        passed("patches")
        for block in engine.lean:
            h = block.norm1(x)
            mixed = block.attend(block.project(h, h[:, : block.keep]), layout, position)
            x = x[:, : block.keep] + block.out(mixed)
            passed("attention")
            x = block.with_mlp(x)
            passed("mlp")
        engine.pooled(x, layout)
        passed("rest")
    return spent


def _flops(engine: LeanEngine) -> dict[str, int]:
    """Return FLOPs per image by section, as the engine computes them: the last block may keep only some tokens."""
    config, size = engine.model.config, engine.preprocessing.image
    grid: Size = config.fit(size).grid
    tokens, width = config.prefix.count + grid.area, config.width
    matrices = 3 if isinstance(config.mlp, parts.SwiGLU) else 2
    attention = mlp = 0
    for block in engine.lean:
        kept = tokens if block.keep is None else block.keep
        attention += 2 * width * width * (2 * tokens + 2 * kept) + 4 * tokens * kept * width
        mlp += 2 * kept * matrices * width * config.mlp.width
    patches = 2 * grid.area * config.channels * config.patch.area * width
    return {"patches": patches, "attention": attention, "mlp": mlp}
