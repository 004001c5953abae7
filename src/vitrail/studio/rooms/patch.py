"""Room 1, patch size: what image and patch make of tokens, attention, FLOPs and memory."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel

from vitrail.config import ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size, attention_elements, fit
from vitrail.plan.laws import FOLKLORE, Folklore, Laws, block_flops, laws, neighbouring_patches
from vitrail.plan.ledger import ledger
from vitrail.plan.memory import memory
from vitrail.plan.workload import Workload
from vitrail.studio.controls import Work
from vitrail.studio.formulas import Formula, short
from vitrail.studio.plans import Pair, Shape, described, divides, sizes, workload_of
from vitrail.studio.session import Here

__all__ = ["Question", "router"]

router = APIRouter()


class Question(Shape, Work):
    """Image and patch, on a model, for a workload."""


Asked = Annotated[Question, Query()]


class Way(BaseModel):
    """One way to deal with what doesn't divide."""

    remainder: str
    fitted: Pair
    grid: Pair
    tokens: int
    changed_pixels: int
    """Added by padding, lost by cropping, or drawn anew by resizing."""
    flops: int
    chosen: bool


class Bend(BaseModel):
    """One block's FLOPs against tokens, for the chart of the crossover."""

    tokens: list[int]
    attention: list[int]
    mlp: list[int]
    linear: list[int]
    """Projections and MLP together."""


class Density(BaseModel):
    """How much image one token carries; see `plan.laws.Density`."""

    pixels_per_token: float
    effective_resolution: float
    summarised_share: float
    attention_per_pixel: float


class PixelTokens(BaseModel):
    """Pixels, or channel values, as tokens, against patches; see `plan.laws.PixelTokens`."""

    pixels: float
    values: float
    attention_cut_from_pixels: float
    attention_cut_from_values: float


class Answer(BaseModel):
    divides: bool
    image: Pair
    drawn: Pair
    """The image that is cut, padded or cropped: the one that was asked for, unless that is resized first."""
    fitted: Pair
    offset: Pair
    """Row and column of the image at which the first patch begins: a crop keeps the centre."""
    patch: Pair
    grid: Pair
    tokens: int
    prefix: int
    attention_elements: int
    attention_flops: int
    """FLOPs of one block."""
    params: int
    flops_forward: int
    flops_train: int
    peak_bytes: int
    exact: bool
    num_heads: int
    attention_share: float
    """Share of a block's FLOPs."""
    crossover_mlp: int
    crossover_linear: int
    density: Density
    pixels: PixelTokens
    ways: list[Way]
    """Empty where the patch divides the image."""
    bend: Bend
    formulas: list[Formula]
    folklore: list[Folklore]


@router.get("/patch")
def patch(asked: Asked, here: Here) -> Answer:
    """Everything that follows from one image size and one patch size."""
    config, workload = described(asked, here), workload_of(asked)
    image, size = sizes(asked)
    cut = config.fit(config.image)
    prefix, mlp_width = config.prefix.count, config.mlp.width
    books, held = ledger(config), memory(config, workload)
    found = laws(cut.fitted, size, width=config.width, mlp_width=mlp_width, channels=config.channels, prefix=prefix)
    return Answer(
        divides=divides(asked),
        image=(image.height, image.width),
        drawn=tuple(config.image),
        fitted=(cut.fitted.height, cut.fitted.width),
        offset=cut.offset,
        patch=(size.height, size.width),
        grid=(cut.grid.height, cut.grid.width),
        tokens=config.tokens,
        prefix=prefix,
        attention_elements=found.impact.attention_elements_with_prefix,
        attention_flops=block_flops(config.tokens, config.width, mlp_width).attention,
        params=books.params,
        flops_forward=books.flops_forward,
        flops_train=books.flops_train,
        peak_bytes=held.peak_bytes,
        exact=held.exact,
        num_heads=config.num_heads,
        attention_share=float(found.attention_share),
        crossover_mlp=found.crossover.mlp_tokens,
        crossover_linear=found.crossover.linear_tokens,
        density=Density(**asdict(found.density)),
        pixels=PixelTokens(**asdict(found.pixels)),
        ways=[] if divides(asked) else _ways(asked, config),
        bend=_bend(config),
        formulas=_formulas(found, config, books.flops_forward),
        folklore=list(FOLKLORE),
    )


def _ways(asked: Question, config: ViTConfig) -> list[Way]:
    image, size = sizes(asked)
    found = []
    for remainder in ("pad", "crop", "resize"):
        try:
            cut = fit(image, size, remainder=remainder)
        except VitrailError:  # an image smaller than a patch cannot be cropped
            continue
        changed = {"pad": cut.padded_pixels, "crop": cut.cropped_pixels, "resize": cut.fitted.area}[remainder]
        whole = config.but(image=cut.fitted, remainder="error")
        found.append(
            Way(
                remainder=remainder,
                fitted=(cut.fitted.height, cut.fitted.width),
                grid=(cut.grid.height, cut.grid.width),
                tokens=whole.tokens,
                changed_pixels=changed,
                flops=ledger(whole).flops_forward,
                chosen=remainder == asked.remainder,
            )
        )
    return found


def _bend(config: ViTConfig) -> Bend:
    last = max(4 * config.tokens, 3 * (2 * config.width + config.mlp.width))
    counts = sorted({max(1, round(16 * (last / 16) ** (step / 47))) for step in range(48)})
    spent = [block_flops(count, config.width, config.mlp.width) for count in counts]
    return Bend(
        tokens=counts,
        attention=[each.attention for each in spent],
        mlp=[each.mlp for each in spent],
        linear=[each.mlp + each.projections for each in spent],
    )


def _formulas(found: Laws, config: ViTConfig, flops: int) -> list[Formula]:
    here, density = found.impact, found.density
    (height, width), (rows, columns), (down, across) = here.image, here.grid, here.patch
    total, each, m = here.tokens, config.width, config.mlp.width
    return [
        Formula(
            name="tokens",
            symbols="N = (H / P) · (W / P) + prefix",
            numbers=f"({height} / {down}) · ({width} / {across}) + {config.prefix.count} = {rows} · {columns} + "
            f"{config.prefix.count} = {short(total)}",
        ),
        Formula(
            name="attention elements, per head",
            symbols="N²",
            numbers=f"{short(total)}² = {short(here.attention_elements_with_prefix)}",
        ),
        Formula(
            name="attention's FLOPs, per block",
            symbols="4 · N² · D",
            numbers=f"4 · {short(total)}² · {each} = {short(block_flops(total, each, m).attention)}",
        ),
        Formula(
            name="MLP's FLOPs, per block",
            symbols="4 · N · D · m",
            numbers=f"4 · {short(total)} · {each} · {m} = {short(block_flops(total, each, m).mlp)}",
        ),
        Formula(
            name="they are equal at",
            symbols="4 · N² · D = 4 · N · D · m  ⇒  N = m",
            numbers=f"N = {short(found.crossover.mlp_tokens)}; with all linear layers N = 2 · {each} + {m} = "
            f"{short(found.crossover.linear_tokens)}",
        ),
        Formula(
            name="all FLOPs, forward",
            symbols="conv + depth · (8 · N · D² + 4 · N · D · m + 4 · N² · D) + head",
            numbers=f"{config.depth} blocks on {short(total)} tokens = {short(flops)}",
        ),
        Formula(
            name="pixels a token carries",
            symbols="P²",
            numbers=f"{down} · {across} = {short(density.pixels_per_token)}",
        ),
        Formula(
            name="effective resolution",
            symbols="√(H · W) / P",
            numbers=f"√({height} · {width} / ({down} · {across})) = {short(density.effective_resolution)} a side",
        ),
        Formula(
            name="detail that one token summarises",
            symbols="1 − 1 / P²",
            numbers=f"1 − 1 / {short(density.pixels_per_token)} = {float(density.summarised_share):.4%}",
        ),
        Formula(
            name="attention per pixel",
            symbols="N² · D / (H · W) = H · W · D / P⁴",
            numbers=f"{short(here.patches)}² · {each} / {short(height * width)} = "
            f"{short(float(density.attention_per_pixel))}",
        ),
        Formula(
            name="pixels as tokens instead",
            symbols="(H · W / N)²",
            numbers=f"({short(found.pixels.pixels)} / {short(here.patches)})² = "
            f"{short(float(found.pixels.attention_cut_from_pixels))} times the attention",
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
def neighbours(asked: Asked, here: Here) -> list[Neighbour]:
    """The same image with the patch halved and doubled, as far as it divides."""
    config, workload = described(asked, here), workload_of(asked)
    size, fitted = sizes(asked)[1], config.fit(config.image).fitted
    whole = config.but(image=fitted, remainder="error")
    return [_neighbour(whole, other, workload, chosen=other == size) for other in neighbouring_patches(fitted, size)]


def _neighbour(config: ViTConfig, patch: Size, workload: Workload, *, chosen: bool) -> Neighbour:
    config = config.with_patch(patch)
    return Neighbour(
        patch=(patch.height, patch.width),
        grid=(config.grid.height, config.grid.width),
        tokens=config.tokens,
        attention_elements=attention_elements(config.tokens),
        flops_forward=ledger(config).flops_forward,
        peak_bytes=memory(config, workload).peak_bytes,
        chosen=chosen,
    )
