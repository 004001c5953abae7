"""Room 1, patch size: tokens, attention, FLOPs and memory as functions of image and patch size."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel

from vitrail.config import ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size, attention_elements, fit
from vitrail.plan.folklore import Folklore, claim
from vitrail.plan.laws import Laws, block_flops, laws, neighbouring_patches
from vitrail.plan.ledger import Ledger, ledger
from vitrail.plan.memory import memory
from vitrail.plan.workload import Memory, Workload
from vitrail.server.controls import Work
from vitrail.server.formulas import Formula, short
from vitrail.server.plan_formulas import (
    attention_formula,
    forward_formula,
    parameters_formula,
    peak_formula,
    tokens_formula,
)
from vitrail.server.plans import Pair, Shape, described, divides, sizes, workload_of
from vitrail.server.rooms.patch import visual_tokens
from vitrail.server.rooms.patch.visual_tokens import Reader
from vitrail.server.session import SessionDep

__all__ = ["Question", "router"]

router = APIRouter()
router.include_router(visual_tokens.router)


class Question(Shape, Work, Reader):
    """Image and patch sizes, a model and a workload; and a vision-language model that reads the photograph."""


Asked = Annotated[Question, Query()]


class Way(BaseModel):
    """One way to handle an image that patches do not divide."""

    remainder: str
    fitted: Pair
    grid: Pair
    tokens: int
    changed_pixels: int
    """Pixels added by padding, lost by cropping, or resampled by resizing."""
    flops: int
    chosen: bool


class BlockFlops(BaseModel):
    """FLOPs of one block against tokens, for the chart of the crossover."""

    tokens: list[int]
    attention: list[int]
    mlp: list[int]
    linear: list[int]
    """Projections and MLP together."""


class Density(BaseModel):
    """`plan.laws.Density` with floats instead of fractions."""

    pixels_per_token: float
    effective_resolution: float
    summarised_share: float
    attention_per_pixel: float


class PixelTokens(BaseModel):
    """`plan.laws.PixelTokens` with floats instead of fractions."""

    pixels: float
    values: float
    attention_cut_from_pixels: float
    attention_cut_from_values: float


class Answer(BaseModel):
    divides: bool
    image: Pair
    drawn: Pair
    """The image before padding or cropping: the question's, or the resized one."""
    fitted: Pair
    offset: Pair
    """Row and column of the first patch's top left pixel; a crop keeps the centre."""
    patch: Pair
    grid: Pair
    tokens: int
    prefix: int
    attention_elements: int
    attention_flops: int
    """FLOPs of attention in one block."""
    params: int
    flops_forward: int
    flops_train: int
    peak_bytes: int
    exact: bool
    num_heads: int
    attention_share: float
    """Attention's share of a block's FLOPs."""
    crossover_mlp: int
    crossover_linear: int
    density: Density
    pixels: PixelTokens
    ways: list[Way]
    """Empty if patches divide the image."""
    block_flops: BlockFlops
    formulas: list[Formula]
    folklore: list[Folklore]


@router.get("/patch")
def patch(asked: Asked, session: SessionDep) -> Answer:
    """Return everything that follows from one image size and one patch size."""
    config, workload = described(asked, session), workload_of(asked)
    image, size = sizes(asked)
    cut = config.fit(config.image)
    prefix, mlp_width = config.prefix.count, config.mlp.width
    costs, peak = ledger(config), memory(config, workload)
    derived = laws(cut.fitted, size, width=config.width, mlp_width=mlp_width, channels=config.channels, prefix=prefix)
    return Answer(
        divides=divides(asked),
        image=image,
        drawn=config.image,
        fitted=cut.fitted,
        offset=cut.offset,
        patch=size,
        grid=cut.grid,
        tokens=config.tokens,
        prefix=prefix,
        attention_elements=derived.impact.attention_elements_with_prefix,
        attention_flops=block_flops(config.tokens, config.width, mlp_width).attention,
        params=costs.params,
        flops_forward=costs.flops_forward,
        flops_train=costs.flops_train,
        peak_bytes=peak.peak_bytes,
        exact=peak.exact,
        num_heads=config.num_heads,
        attention_share=float(derived.attention_share),
        crossover_mlp=derived.crossover.mlp_tokens,
        crossover_linear=derived.crossover.linear_tokens,
        density=Density(**asdict(derived.density)),
        pixels=PixelTokens(**asdict(derived.pixels)),
        ways=[] if divides(asked) else _ways(asked, config),
        block_flops=_block_flops(config),
        formulas=_formulas(derived, config, costs, peak),
        folklore=[claim(key) for key in CLAIMS],
    )


def _ways(asked: Question, config: ViTConfig) -> list[Way]:
    image, size = sizes(asked)
    ways = []
    for remainder in ("pad", "crop", "resize"):
        try:
            cut = fit(image, size, remainder=remainder)
        except VitrailError:  # an image smaller than a patch cannot be cropped
            continue
        changed = {"pad": cut.padded_pixels, "crop": cut.cropped_pixels, "resize": cut.fitted.area}[remainder]
        whole = config.but(image=cut.fitted, remainder="error")
        ways.append(
            Way(
                remainder=remainder,
                fitted=cut.fitted,
                grid=cut.grid,
                tokens=whole.tokens,
                changed_pixels=changed,
                flops=ledger(whole).flops_forward,
                chosen=remainder == asked.remainder,
            )
        )
    return ways


def _block_flops(config: ViTConfig) -> BlockFlops:
    last = max(4 * config.tokens, 3 * (2 * config.width + config.mlp.width))
    counts = sorted({max(1, round(16 * (last / 16) ** (step / 47))) for step in range(48)})
    points = [block_flops(count, config.width, config.mlp.width) for count in counts]
    return BlockFlops(
        tokens=counts,
        attention=[point.attention for point in points],
        mlp=[point.mlp for point in points],
        linear=[point.mlp + point.projections for point in points],
    )


CLAIMS = ("finer-patches", "doubled-side", "attention-per-pixel", "exponential")
PATCHES = {"N": "number of patches, without the prefix"}


def _formulas(derived: Laws, config: ViTConfig, costs: Ledger, peak: Memory) -> list[Formula]:
    impact, density = derived.impact, derived.density
    (height, width), (down, across) = impact.image, impact.patch
    total, each, m = impact.tokens, config.width, config.mlp.width
    return [
        tokens_formula(config),
        attention_formula(total),
        forward_formula(costs),
        peak_formula("peak memory", peak.bytes),
        Formula(
            name="FLOPs of attention per block",
            symbols="4 · N² · D",
            numbers=f"4 · {short(total)}² · {each} = {short(block_flops(total, each, m).attention)}",
        ),
        Formula(
            name="FLOPs of the MLP per block",
            symbols="4 · N · D · m",
            numbers=f"4 · {short(total)} · {each} · {m} = {short(block_flops(total, each, m).mlp)}",
        ),
        Formula(
            name="both are equal at",
            symbols="4 · N² · D = 4 · N · D · m  ⇒  N = m",
            numbers=f"N = {short(derived.crossover.mlp_tokens)}; with all linear layers N = 2 · {each} + {m} = "
            f"{short(derived.crossover.linear_tokens)}",
        ),
        Formula(
            name="attention's share",
            symbols="4 · N² · D / (8 · N · D² + 4 · N · D · m + 4 · N² · D) = N / (2 · D + m + N)",
            numbers=f"{short(total)} / (2 · {each} + {m} + {short(total)}) = {float(derived.attention_share):.2%}",
        ),
        parameters_formula(costs),
        Formula(
            name="pixels per token",
            symbols="P²",
            numbers=f"{down} · {across} = {short(density.pixels_per_token)}",
        ),
        Formula(
            name="effective resolution",
            symbols="√(H · W) / P",
            numbers=f"√({height} · {width} / ({down} · {across})) = {short(density.effective_resolution)} per side",
        ),
        Formula(
            name="detail to summarise",
            symbols="1 − 1 / P²",
            numbers=f"1 − 1 / {short(density.pixels_per_token)} = {float(density.summarised_share):.4%}",
        ),
        Formula(
            name="attention per pixel",
            symbols="N² · D / (H · W) = H · W · D / P⁴",
            where=PATCHES,
            folklore=claim("attention-per-pixel").words,
            numbers=f"{short(impact.patches)}² · {each} / {short(height * width)} = "
            f"{short(float(density.attention_per_pixel))}",
        ),
        Formula(
            name="if pixels were tokens",
            symbols="(H · W / N)²",
            where=PATCHES,
            numbers=f"({short(derived.pixels.pixels)} / {short(impact.patches)})² = "
            f"{short(float(derived.pixels.attention_cut_from_pixels))} times the attention",
        ),
    ]


class Neighbour(BaseModel):
    patch: Pair
    grid: Pair
    tokens: int
    attention_elements: int
    flops_forward: int
    peak_bytes: int
    chosen: bool


@router.get("/patch/neighbours")
def neighbours(asked: Asked, session: SessionDep) -> list[Neighbour]:
    """Return the same image with the patch halved and doubled, where that divides the image."""
    config, workload = described(asked, session), workload_of(asked)
    size, fitted = sizes(asked)[1], config.fit(config.image).fitted
    whole = config.but(image=fitted, remainder="error")
    return [_neighbour(whole, other, workload, chosen=other == size) for other in neighbouring_patches(fitted, size)]


def _neighbour(config: ViTConfig, patch: Size, workload: Workload, *, chosen: bool) -> Neighbour:
    config = config.with_patch(patch)
    return Neighbour(
        patch=patch,
        grid=config.grid,
        tokens=config.tokens,
        attention_elements=attention_elements(config.tokens),
        flops_forward=ledger(config).flops_forward,
        peak_bytes=memory(config, workload).peak_bytes,
        chosen=chosen,
    )
