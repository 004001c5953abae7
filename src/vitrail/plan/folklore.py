"""Claims that are often repeated and do not hold: what is said, what is true, why, and where that is known from.

A figure that the planner can compute is computed here, and a figure from a paper is looked up in `published`, so that
no correction can differ from what vitrail shows elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from vitrail.checkpointing import Checkpointing
from vitrail.geometry import Size, offsets_of
from vitrail.plan.cards import card
from vitrail.plan.fit import largest_batches
from vitrail.plan.laws import density, impact, scaling
from vitrail.plan.ledger import ledger
from vitrail.plan.measured import DATA_HUNGER, HUNGER_COMMAND, HUNGER_SEEDS
from vitrail.plan.memory import memory
from vitrail.plan.published import Result, results
from vitrail.plan.workload import Workload
from vitrail.presets import preset

__all__ = ["Folklore", "claim", "folklore"]

ARITHMETIC = "arithmetic"


@dataclass(frozen=True, kw_only=True)
class Folklore:
    """A claim that is often repeated, and what holds instead."""

    key: str
    about: str
    said: str
    true: str
    why: str
    source: str
    """Arithmetic, the command that computes or measures it, or a paper and whether the figure was looked up there."""

    @property
    def words(self) -> str:
        """The correction as two sentences."""
        return f"Often claimed: {self.about}, {self.said}. Correct: {self.true}; {self.why}."


@cache
def folklore() -> tuple[Folklore, ...]:
    """Return all corrections.

    >>> folklore()[0].said, folklore()[0].true
    ('258×', '256×')
    """
    return (*_scaling(), *_parameters(), *_memory(), *_accuracies(), *_measured())


def claim(key: str) -> Folklore:
    """Return one correction by its key.

    >>> claim("checkpointing").said
    '2–3× slower'
    """
    return next(entry for entry in folklore() if entry.key == key)


def _scaling() -> tuple[Folklore, ...]:
    large, small = Size(1024, 1024), Size(512, 512)
    coarse, fine = impact(small, Size(32, 32)), impact(small, Size(8, 8))
    finer = scaling((small, coarse.patch), (small, fine.patch)).attention
    doubled = scaling((small, Size(16, 16)), (large, Size(16, 16)))
    per_pixel = [density(image, Size(16, 16), 768).attention_per_pixel for image in (small, large)]
    return (
        Folklore(
            key="finer-patches",
            about="patch 32 → 8 at 512 px, attention",
            said="258×",
            true=f"{finer}×",
            why=f"({fine.patches:,} / {coarse.patches})² = {fine.patches // coarse.patches}²",
            source=ARITHMETIC,
        ),
        Folklore(
            key="doubled-side",
            about="image side doubled, attention",
            said="4×",
            true=f"{doubled.attention}×",
            why=f"{doubled.tokens}× the tokens, and attention grows with their square",
            source=ARITHMETIC,
        ),
        Folklore(
            key="attention-per-pixel",
            about="attention cost per pixel",
            said="D/P²",
            true="H·W·D/P⁴",
            why="N²·D/(H·W) with N = H·W/P²: it grows with the image, "
            f"{per_pixel[1] / per_pixel[0]}× from {small.height} to {large.height} px",
            source=ARITHMETIC,
        ),
        Folklore(
            key="exponential",
            about="attention against the number of tokens",
            said="exponential",
            true="quadratic",
            why="N² elements per head: twice the tokens are 4× the attention, not its square",
            source=ARITHMETIC,
        ),
    )


def _parameters() -> tuple[Folklore, ...]:
    config = preset("B/16")
    block = [row for row in ledger(config).rows if row.path.startswith("blocks.0.attention")]
    offsets = offsets_of(config.grid).area
    return (
        Folklore(
            key="attention-parameters",
            about="parameters of attention per block",
            said="3·D²",
            true="4·D² (+ 4·D biases)",
            why=f"3·D² forgets the output projection; B/16 has {sum(row.params for row in block):,} per block",
            source="vitrail plan B/16",
        ),
        Folklore(
            key="relative-bias",
            about="parameters of a relative position bias",
            said="2·N·D",
            true="(2h − 1)·(2w − 1) per head",
            why=f"one number per offset and head: {offsets} on a grid of {config.grid}, where 2·N·D would be "
            f"{2 * config.grid.area * config.width:,}",
            source=ARITHMETIC,
        ),
    )


def _memory() -> tuple[Folklore, ...]:
    config, step = preset("B/16"), Workload(train=True, batch=1)
    params, adamw = ledger(config).params, memory(config, step).bytes["optimizer"]
    plain, again = (ledger(config, replace(step, checkpointing=how)).flops_train for how in (None, Checkpointing()))
    large, tuned = preset("B/16", image=Size(384, 384)), replace(step, precision="amp-bf16")
    batches = largest_batches(large, tuned, card("rtx-4090"))
    naive = largest_batches(large, replace(step, attention="eager"), card("rtx-4090"))
    return (
        Folklore(
            key="gradients",
            about="memory of the gradients",
            said="2× the model",
            true="1× the weights",
            why=f"one number per parameter: {params * 4:,} bytes for B/16 in fp32, until the optimizer's step",
            source="vitrail plan B/16 --train --precision fp32",
        ),
        Folklore(
            key="optimizer",
            about="memory of AdamW's state",
            said="2–3× the model",
            true=f"{adamw / (4 * params):.0f}× the weights in fp32",
            why="two moments per parameter; 3× counts the gradients again, 4× is weights, gradients and moments",
            source="vitrail plan B/16 --train --precision fp32",
        ),
        Folklore(
            key="checkpointing",
            about="activation checkpointing",
            said="2–3× slower",
            true=f"{100 * (again / plain - 1):.0f} % more FLOPs",
            why="one more forward pass of the blocks, beside a backward of twice a forward: a third at the most",
            source="vitrail plan B/16 --train --checkpointing",
        ),
        Folklore(
            key="batch-on-24-gb",
            about="training B/16 at 384 px on 24 GB",
            said="batch 4–8",
            true=f"batch {batches['safe']}–{batches['optimistic']}",
            why=f"mixed bf16 and flash attention; {naive['safe']}–{naive['optimistic']} with fp32 and eager attention; "
            "modelled, not measured on a card",
            source="vitrail plan B/16 --image 384 --train --gpu rtx-4090",
        ),
    )


def _accuracies() -> tuple[Folklore, ...]:
    base, large, giant = (_paper(*name) for name in (("B/16", "JFT-300M"), ("L/16", "JFT-300M"), ("G/14", "JFT-3B")))
    alone, middle = _paper("B/16", "ImageNet-1k"), _paper("L/16", "ImageNet-21k")
    return (
        Folklore(
            key="vit-b-jft",
            about="ViT-B/16 on ImageNet",
            said="77.9 % with JFT-300M",
            true=f"{base.accuracy} % with JFT-300M",
            why=f"{alone.accuracy} % is ImageNet-1k alone, at {alone.image} px",
            source=_source(alone, base),
        ),
        Folklore(
            key="vit-l-jft",
            about="ViT-L/16 on ImageNet",
            said="85.2 % with JFT-300M",
            true=f"{large.accuracy} % with JFT-300M",
            why=f"{middle.accuracy} % is ImageNet-21k",
            source=_source(middle, large),
        ),
        Folklore(
            key="vit-giant",
            about="ViT-G/14 on ImageNet",
            said="90.1 %",
            true=f"{giant.accuracy} % with JFT-3B",
            why="the paper's abstract has this figure; no source was found for the other",
            source=_source(giant),
        ),
    )


def _paper(model: str, pretraining: str) -> Result:
    """Return the figure of the paper, not of a later run."""
    return next(r for r in results(model) if r.pretraining == pretraining and r.source.startswith("arXiv"))


def _source(*found: Result) -> str:
    doubts = ", ".join(f"{each.accuracy} {each.check}" for each in found)
    return f"{found[0].source} ({doubts})"


def _beside(gap: float) -> str:
    """Say a difference in points; less than one is level.

    >>> _beside(-0.2), _beside(-10.2)
    ('level', '10.2 points behind')
    """
    return "level" if abs(gap) < 1 else f"{abs(gap):.1f} points {'ahead' if gap > 0 else 'behind'}"


def _measured() -> tuple[Folklore, ...]:
    few, many = min(DATA_HUNGER), max(DATA_HUNGER)
    gaps = {images: found.vit.mean - found.cnn.mean for images, found in DATA_HUNGER.items()}
    figures = "; ".join(
        f"{images:,} images: {DATA_HUNGER[images].vit} and {DATA_HUNGER[images].cnn} %" for images in (few, 5_000, many)
    )
    return (
        Folklore(
            key="data-hungry",
            about="a ViT without much data",
            said="behind a CNN with few images, level or ahead with many",
            true=f"in a short run {_beside(gaps[few])} with {few:,} images, {_beside(gaps[many])} with {many:,}",
            why=f"ViT and CNN of equal size, 390 steps of CIFAR-10 from scratch, {HUNGER_SEEDS}; {figures}",
            source=f"{HUNGER_COMMAND} (docs/experiments.md)",
        ),
        Folklore(
            key="1d-or-2d",
            about="1D or 2D sinusoidal positions",
            said="no difference",
            true="none at the trained size, 10.6 points at 24 px",
            why="CIFAR-10, one epoch at 32 px, three seeds: 51.67 ± 0.58 and 52.09 ± 1.00 %; "
            "carried to 24 px, 30.3 ± 3.0 and 40.9 ± 2.2 %",
            source="vitrail experiment positions (docs/experiments.md)",
        ),
        Folklore(
            key="fine-tune-or-resample",
            about="fine-tuning at the target resolution",
            said="always better than resampled positions alone",
            true="level from 24 to 40 px, 3.7 points ahead at 48 and 11.9 at 64, for a model of 32 px",
            why="CIFAR-10, 781 steps in all, a fifth of them at the target, three seeds: "
            "at 40 px 49.6 ± 1.0 and 49.2 ± 1.9 %, at 48 px 50.0 ± 0.9 and 46.3 ± 1.4 %, "
            "at 64 px 49.6 ± 0.8 and 37.7 ± 2.5 %",
            source="vitrail experiment transfer (docs/experiments.md)",
        ),
    )
