"""vitrail laws: how tokens, attention and detail follow from image and patch."""

from __future__ import annotations

from fractions import Fraction

from vitrail.charts.numbers import bytes_text, count_text, number_text
from vitrail.cli.options import Flag, Json, PrefixOption, SizeOption
from vitrail.cli.tables import plain, show, table, write_json
from vitrail.geometry import Size
from vitrail.parts import Prefix
from vitrail.plan.folklore import folklore as corrections
from vitrail.plan.laws import TEXT_VOCABULARY, Laws
from vitrail.plan.laws import laws as all_laws

__all__ = ["laws"]


def laws(
    *,
    image: SizeOption = Size(224, 224),
    patch: SizeOption = Size(16, 16),
    width: int = 768,
    mlp_width: int | None = None,
    channels: int = 3,
    prefix: PrefixOption = Prefix(),
    folklore: Flag = False,
    json: Json = False,
) -> None:
    """Show how tokens, attention and detail follow from the image's and the patch's size.

    Parameters
    ----------
    image
        Image size, HEIGHTxWIDTH or one number for a square, e.g. 384x640.
    patch
        Patch size, e.g. 14 or 16x8.
    width
        Width of a token.
    mlp_width
        Width of the MLP (default: four times the token's).
    channels
        Number of image channels.
    prefix
        Tokens before the patches: cls, distillation and registers=N, joined by commas, e.g. cls,registers=4; or none.
    folklore
        Show instead what is often claimed about ViTs, what is true, and where that is known from.
    """
    if folklore:
        write_json(corrections()) if json else _show_corrections()
        return
    found = all_laws(image, patch, width=width, mlp_width=mlp_width, channels=channels, prefix=prefix.count)
    if json:
        rest = plain(found)
        write_json({**rest.pop("impact"), **rest})
    else:
        _show(found)


def _show(found: Laws) -> None:
    here, density, pixels, projection = found.impact, found.density, found.pixels, found.projection
    chosen = here.attention_elements
    neighbours = [
        (
            f"[bold]{entry.patch}[/]" if entry.patch == here.patch else str(entry.patch),
            str(entry.grid),
            f"{entry.tokens:,}",
            f"{entry.attention_elements:,}",
            _ratio(Fraction(entry.attention_elements, chosen)),
            bytes_text(4 * entry.attention_elements),
        )
        for entry in found.neighbours
    ]
    kept = "nothing need be lost" if projection.lost_directions == 0 else f"{projection.lost_directions:,} are lost"
    facts = [
        ("one token carries", f"{density.pixels_per_token:,} pixels, {projection.inputs:,} values"),
        ("effective resolution", f"{number_text(density.effective_resolution)} tokens a side"),
        ("detail it must summarise", f"{float(density.summarised_share):.2%}"),
        ("attention per pixel", f"{number_text(density.attention_per_pixel)} multiply-adds of QKᵀ, N²·D/(H·W)"),
        (
            "pixels as tokens",
            f"{pixels.pixels:,}: {number_text(pixels.attention_cut_from_pixels)}× the attention; "
            f"{number_text(pixels.attention_cut_from_values)}× for {pixels.values:,} values",
        ),
        (
            "patch projection",
            f"{projection.params:,} parameters, {projection.inputs:,} values into {projection.width:,}; "
            f"rank ≤ {projection.rank_bound:,}, {kept}",
        ),
        (
            "a text lookup table",
            f"{TEXT_VOCABULARY:,} × {projection.width} = {count_text(projection.lookup_params)} parameters, "
            f"{number_text(projection.lookup_ratio)}× the projection",
        ),
        ("attention here", f"{float(found.attention_share):.1%} of a block's FLOPs"),
        (
            "attention catches up",
            f"with the MLP at {found.crossover.mlp_tokens:,} tokens, "
            f"with all linear layers at {found.crossover.linear_tokens:,}",
        ),
        (
            "half the patch, or twice the image",
            f"{number_text(found.twice_as_fine.tokens)}× tokens, "
            f"{number_text(found.twice_as_fine.attention)}× attention",
        ),
    ]
    show(
        table(
            f"Image {here.image}, patch {here.patch}, width {projection.width}",
            ("patch", "grid", "tokens", "attention elements", "relative", "fp32 map"),
            neighbours,
            "lrrrrr",
            caption="attention: patches squared, per head and image; tokens include the prefix",
        ),
        table("", ("", ""), facts, "lw"),
        " [dim]what is often claimed about these, and what is true: vitrail laws --folklore[/]",
    )


def _show_corrections() -> None:
    """One block per claim: a table of six columns would not fit a terminal."""
    for entry in corrections():
        show(
            f"[bold]{entry.about}[/]",
            f"  said   [dim]{entry.said}[/]",
            f"  true   [bold]{entry.true}[/]",
            f"  why    {entry.why}",
            f"  source [dim]{entry.source}[/]",
            "",
        )


def _ratio(value: Fraction) -> str:
    return f"{number_text(value)}×" if value >= 1 else f"1/{number_text(1 / value)}"
