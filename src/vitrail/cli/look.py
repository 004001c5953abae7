"""vitrail look: a photograph as a model sees it, as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

from vitrail.checkpoint.sources.names import DEFAULT, short_name
from vitrail.cli.options import Flag, SizeOption, one
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size

if TYPE_CHECKING:
    from vitrail.charts.sheet import Sheet
    from vitrail.look.subject import Subject

__all__ = ["look"]

What = Literal["attention", "rollout", "positions", "filters", "pca", "patches", "adaptive", "distance"]
MOST_PIXELS = 2048 * 2048


def _read_query(text: str) -> tuple[int, int]:
    """`5x7` → (5, 7); a row or column may be 0, which a Size may not."""
    row, _, column = text.partition("x")
    require(
        row.isdecimal() and column.isdecimal(), f"query {text!r} is not ROWxCOLUMN; write 5x7, or 0x0 for the first"
    )
    return int(row), int(column)


def look(
    photo: Path | None = None,
    /,
    *,
    out: Path,
    what: What = "attention",
    weights: str | None = None,
    model: str | None = None,
    image: SizeOption | None = None,
    layer: int | None = None,
    head: int | None = None,
    query: Annotated[tuple[int, int] | None, one(_read_query)] = None,
    smooth: Flag = False,
    foreground: Flag = False,
    threshold: float | None = None,
    seed: int = 0,
) -> None:
    """Draw what a model sees in a photograph: attention, tokens, patches, filters, positions.

    Parameters
    ----------
    photo
        Image to look at (default: a drawn stained-glass window).
    out
        File to draw into: .png, .svg or .pdf.
    what
        What to draw: attention by layer and head, rollout, positions, filters, pca (tokens as colours, and their
        norms), patches, adaptive (the quadtree), or distance (how far and how widely heads look).
    weights
        Weights to look with: a file, a folder with its config, or a name (default: the bundled model, unless --model is
        given).
    model
        Preset with random weights, instead of --weights: what the architecture alone shows (default: none).
    image
        Image size that the model takes, HEIGHTxWIDTH or one number for a square, e.g. 384x640 (default: its own).
    layer
        Layer to draw, from 0; -1 is the last (default: every layer, or the last for pca).
    head
        Head to draw, from 0 (default: all).
    query
        Patch whose attention is drawn, ROWxCOLUMN, e.g. 5x7; 0x0 is at the top left (default: the CLS token).
    smooth
        Draw maps with bilinear upsampling instead of one square per token.
    foreground
        For pca: separate the background, and colour the rest.
    threshold
        For adaptive: the detail at which a cell splits (default: the model's own).
    seed
        Seed of random weights and of the drawn photograph.
    """
    from vitrail.charts.sheet import check_drawing
    from vitrail.cli.progress import working

    check_drawing(out)
    require(
        weights is None or model is None,
        f"--weights {weights} and --model {model} were both given; choose one",
    )
    with working(f"drawing {what}"):
        subject = _subject(photo, weights or DEFAULT, model, image, seed)
        sheet = _view(what, subject, layer, head, query, smooth, foreground, threshold)
        sheet.save(out)
    _say(f"{out}: {what} · {subject.words}")


def _subject(photo: Path | None, weights: str, model: str | None, size: Size | None, seed: int) -> Subject:
    import torch

    from vitrail.checkpoint.preprocessing import Preprocessing
    from vitrail.images.decode import decode
    from vitrail.images.synthesize import synthesize_image
    from vitrail.look.subject import subject_of
    from vitrail.presets import preset

    require(
        size is None or size.area <= MOST_PIXELS,
        f"image {size} is above {MOST_PIXELS:,} pixels, too many to look at in one go; use a smaller one",
    )
    if model is None:
        from vitrail.checkpoint.read import load

        checkpoint = load(weights)
        network, preprocessing = checkpoint.model(dtype=torch.float32), checkpoint.preprocessing
        name = "the bundled model" if weights == DEFAULT else short_name(weights)
    else:
        config = preset(model) if size is None else preset(model, image=size)
        torch.manual_seed(seed)
        from vitrail.nn.build import build

        network = build(config).eval()
        half = (0.5,) * config.channels
        preprocessing = Preprocessing(image=config.image, mean=half, std=half)
        name = f"{model} with random weights (seed {seed})"
    if size is not None:
        from dataclasses import replace

        preprocessing = replace(preprocessing, image=size)
    channels = network.config.channels
    if channels not in (1, 3):
        raise VitrailError(f"the model takes {channels} channels, a photograph has 1 or 3; look at it from Python")
    if photo is None:
        size = preprocessing.image
        finer = -(-384 // max(size))  # drawn finer than the model sees it, as a photograph would be
        pixels = synthesize_image(seed, Size(finer * size.height, finer * size.width))[:, :, :channels]
    else:
        pixels = decode(photo, channels=channels)
    seen = preprocessing.image
    words = f"{name} · image {seen.height}×{seen.width}"
    return subject_of(network, pixels, preprocessing, words=words)


def _view(
    what: What,
    subject: Subject,
    layer: int | None,
    head: int | None,
    query: tuple[int, int] | None,
    smooth: bool,
    foreground: bool,
    threshold: float | None,
) -> Sheet:
    from vitrail.look import views

    match what:
        case "attention":
            return views.view_attention(subject, layer=layer, head=head, query=query, smooth=smooth)
        case "rollout":
            return views.view_rollout(subject, query=query, smooth=smooth)
        case "positions":
            return views.view_positions(subject, layer=layer, head=head)
        case "filters":
            return views.view_filters(subject)
        case "pca":
            return views.view_pca(subject, layer=layer, foreground=foreground, smooth=smooth)
        case "patches":
            return views.view_patches(subject)
        case "adaptive":
            return views.view_adaptive(subject, threshold=threshold)
        case "distance":
            return views.view_distance(subject)
    raise VitrailError(f"what {what!r} is unknown; use one of {', '.join(get_args(What))}")


def _say(line: str) -> None:
    from rich.console import Console

    Console(highlight=False, soft_wrap=True).print(line, markup=False)
