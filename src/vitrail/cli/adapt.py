"""vitrail adapt: carry trained weights to another image, patch, number of frames, prefix, pool or head."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from vitrail.checkpoint.sources.names import short_name
from vitrail.cli.options import Architecture, FromImage, Json, Numbers, NumHeads, PrefixOption, SizeOption, Weights
from vitrail.cli.tables import show, table, write_json, written

if TYPE_CHECKING:
    from vitrail.checkpoint.assess.report import Report

__all__ = ["adapt"]

MOST_IMAGES = 64
"""Images of a folder that the drift is measured on, at even steps."""


def adapt(
    weights: Weights,
    out: Path,
    /,
    *,
    image: SizeOption | None = None,
    patch: SizeOption | None = None,
    frames: int | None = None,
    tubelet: int | None = None,
    prefix: PrefixOption | None = None,
    pool: Literal["cls", "mean", "max", "cls_mean", "attention"] | None = None,
    channels: int | None = None,
    classes: int | None = None,
    drop_blocks: Numbers | None = None,
    to: str | None = None,
    method: str | None = None,
    projection: Literal["pinv", "natural", "interpolate"] = "pinv",
    images: Path | None = None,
    heal: Path | None = None,
    minutes: float = 20.0,
    heal_view: SizeOption | None = None,
    report: Path | None = None,
    from_image: FromImage = None,
    num_heads: NumHeads = None,
    architecture: Architecture = None,
    seed: int = 0,
    json: Json = False,
) -> int | None:
    """Carry trained weights to another image, patch, clip, prefix, pool or head, and say what that did.

    With --heal, the adapted model then gets the original's features back, from unlabelled images alone.

    Parameters
    ----------
    out
        The file to write, whose ending sets the format; or a folder for huggingface.
    image
        New image size, HEIGHTxWIDTH or one number for a square, e.g. 384x640 (default: unchanged).
    patch
        New patch size, e.g. 14 or 16x8; the projection is resized (default: unchanged).
    frames
        Frames of the clips, or slices of the volumes, that the model is to take; a clip of equal frames gives the
        features of the still image. 1 makes a model of still images from one of clips (default: unchanged).
    tubelet
        Depth of a patch in frames, which divides --frames (default: unchanged, and 2 for a model of still images).
    prefix
        New tokens before the patches: cls, distillation and registers=N, joined by commas, e.g. cls,registers=4; or
        none (default: unchanged).
    pool
        New pooling of the tokens (default: unchanged).
    channels
        New number of image channels (default: unchanged).
    classes
        Number of outputs of a new head, or 0 for no head; the same number keeps the head (default: unchanged).
    drop_blocks
        Numbers of blocks to leave out, counted from 0, e.g. 5,9; use it with --heal (default: none).
    to
        Library whose names and layout are written: timm, huggingface, torchvision, google, dino, dinov2, dinov3,
        openclip, sam or vitrail (default: the input's own).
    method
        How positions are resampled: timm, huggingface, dinov2, torchvision, big_vision, siglip2, bilinear, area or
        exact (default: as the library that trained the weights does).
    projection
        How the patch projection is resized.
    images
        Folder of images on which to measure how far the model's vectors move, and what healing gave back
        (default: none, not measured; healing is then judged on a tenth of its own images).
    heal
        Folder of unlabelled images to heal with, 16 or more: the model learns to give the original's features again.
        Whatever does not help on images held out is left out (default: none, no healing).
    minutes
        Time for healing; 0 fits projection, positions and norm in closed form only, which takes seconds.
    heal_view
        Image size at which the original is the example (default: the one with the same grid if image and patch both
        change, otherwise the original's own).
    report
        HTML file to write the report to (default: none).
    seed
        Seed for the values of new tokens.
    """
    from vitrail.atomic import write_file
    from vitrail.checkpoint.assess.describe import few
    from vitrail.checkpoint.assess.report import assess, to_json
    from vitrail.checkpoint.assess.report_html import to_html
    from vitrail.checkpoint.read import load
    from vitrail.checkpoint.surgery.adapt import adapt as carry
    from vitrail.checkpoint.write import save
    from vitrail.cli.adapt_heal import remove_work, run_healing, show_healing
    from vitrail.cli.progress import working
    from vitrail.healing.report import to_json as healing_to_json
    from vitrail.healing.report_html import STYLE, to_section
    from vitrail.images.folder import image_files

    checkpoint = load(weights, from_image=from_image, num_heads=num_heads, architecture=architecture)
    given = {"image": image, "patch": patch, "frames": frames, "tubelet": tubelet, "prefix": prefix, "pool": pool}
    given |= {"channels": channels, "classes": classes}
    wanted = {name: value for name, value in given.items() if value is not None}
    adapted, changes = carry(
        checkpoint, wanted, method=method, projection=projection, drop_blocks=drop_blocks or (), seed=seed
    )
    healing = None
    if heal is not None:
        adapted, healing = run_healing(
            checkpoint, adapted, heal, out, minutes=minutes, judge=images, view=heal_view, seed=seed, quiet=json
        )
        if healing.stopped is not None:
            show(f"[yellow]![/] {healing.reason}; nothing is written yet")
            return 128 + healing.stopped
        if os.environ.get("RANK", "0") != "0":  # under torchrun, one process writes
            return None
    files = None if images is None else image_files(images, limit=MOST_IMAGES)
    with working(f"assessing {out.name}") as tell:
        assessed = assess(
            checkpoint,
            adapted,
            changes,
            images=files,
            watch=lambda done, total: tell(f"measuring on images, {done:,} of {total:,}", done, total),
        )
        tell(f"writing {out.name}")
        encoded = save(adapted, out, dialect=to)
    if healing is not None:
        remove_work(out)
    unused = changes.source.grid != changes.target.grid and encoded.carried
    carried = (f"not used by the model, and written as they were: {few(encoded.carried)}",) if unused else ()
    assessed = replace(assessed, notes=(*assessed.notes, *carried, *encoded.notes))
    if report is not None:
        sections = () if healing is None else (to_section(healing),)
        title = f"{short_name(weights)} → {out.name}"
        page = to_html(assessed, title=title, sections=sections, style=STYLE if sections else "").encode()
        write_file(report, lambda file: file.write(page))
    if json:
        write_json(
            {
                "written": str(out),
                "dialect": encoded.dialect,
                "grid_known_from": checkpoint.evidence.grid,
                **to_json(assessed),
                **({} if healing is None else {"healing": healing_to_json(healing)}),
            }
        )
    else:
        _show(assessed)
        if healing is not None:
            show_healing(healing)
        written(out, note=f", in {encoded.dialect}'s names")
        if report is not None:
            written(report)
    return None


def _show(report: Report) -> None:
    from rich.markup import escape

    from vitrail.checkpoint.surgery.changes import STATUSES, input_text, shape_text

    changes = report.changes
    old, new = changes.source, changes.target
    title, after = input_text(old), input_text(new)
    title = title[0].upper() + title[1:] + ("" if title == after else f" → {after}")
    counts = [(status, f"{len(changes.named(status)):,}", meaning) for status, meaning in STATUSES.items()]
    show(table(title, ("", "", ""), counts, "lrw"))
    changed = [
        (change.name, change.status, shape_text(change.before), shape_text(change.after), change.note)
        for change in changes.tensors
        if change.status != "kept"
    ]
    if changed:
        show(table("What changed", ("tensor", "", "before", "after", ""), changed, "lllww"))
    figures = []
    for each in report.tables[:4]:
        alike = "" if each.agreement is None else f", similarity maps agree at {each.agreement:.4f}"
        figures.append((f"{each.name}, {each.method}", f"{each.round_trip:.1%} lost there and back{alike}"))
    if len(report.tables) > 4:
        figures.append(("…", f"{len(report.tables) - 4} more tables"))
    if report.projection is not None:
        loss = report.projection
        figures.append(
            (
                f"projection {loss.old} → {loss.new}, {loss.how}",
                f"off by {loss.natural:.1%} on photographs, {loss.white:.1%} on noise (predicted)",
            )
        )
    if report.drift is not None:
        drift = report.drift
        figures.append(
            (f"vectors of {len(drift.images)} images", f"cosine old · new {drift.mean:.4f}, lowest {drift.lowest:.4f}")
        )
    if figures:
        show(table("Figures", ("", ""), figures, "lw"))
    for note in (*report.notes, *(report.drift.failed if report.drift else ())):
        show(f"[yellow]![/] {escape(note)}")
