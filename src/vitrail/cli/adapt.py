"""vitrail adapt: carry trained weights to another image, patch, prefix, pool or head."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from vitrail.cli.tables import show, table, write_json

if TYPE_CHECKING:
    from vitrail.checkpoint.assess.report import Report

__all__ = ["adapt"]

MOST_IMAGES = 64
"""Images that drift is measured on, spread over the folder."""


def adapt(
    source: Annotated[Path, Parameter(name="IN")],
    out: Annotated[Path, Parameter(name="OUT")],
    /,
    *,
    image: str | None = None,
    from_image: str | None = None,
    patch: str | None = None,
    prefix: str | None = None,
    pool: str | None = None,
    channels: int | None = None,
    classes: int | None = None,
    to: str | None = None,
    convention: str | None = None,
    projection: str = "pinv",
    images: Path | None = None,
    report: Path | None = None,
    num_heads: int | None = None,
    architecture: str | None = None,
    seed: int = 0,
    json: bool = False,
) -> None:
    """Carry trained weights to another image, patch, prefix, pool or head, and say what that did.

    Parameters
    ----------
    source
        Weights of any dialect: a file, or a directory with its config.
    out
        Where to write: a file, by its ending, or a directory for huggingface.
    image
        The new image size, HEIGHTxWIDTH.
    from_image
        The image size that the positions were made for, where nothing in or beside the file says it.
    patch
        The new patch size, HEIGHTxWIDTH; the projection is resized.
    prefix
        The tokens before the patches: cls, distillation, registers=4, joined by commas; or none.
    pool
        cls, mean, max or attention.
    channels
        Channels of the new input.
    classes
        Outputs of a new head, or 0 for none; the same count keeps the head.
    to
        The dialect to write (default: the input's own).
    convention
        How positions are resampled: timm, hf, dinov2, torchvision, big_vision, siglip2, bilinear, area or exact; timm
        and hf resample relative biases as those libraries do. Default: what the weights were made for.
    projection
        How the patch projection is resized: pinv, natural or interpolate.
    images
        A folder of images to measure on how far the model's vectors move.
    report
        Where to write the report as a page of HTML.
    num_heads
        Heads of the model, where nothing in or beside the file says it.
    architecture
        timm's name of the model, where the file does not say and several have its shape: vit_base_patch16_clip_224.
    seed
        Seed of the values of new tokens.
    json
        The report as JSON.
    """
    from vitrail.atomic import write_file
    from vitrail.checkpoint.assess.describe import few
    from vitrail.checkpoint.assess.report import assess, to_json
    from vitrail.checkpoint.assess.report_html import to_html
    from vitrail.checkpoint.read import load
    from vitrail.checkpoint.surgery.adapt import adapt as carry
    from vitrail.checkpoint.write import save
    from vitrail.images.folder import image_files

    checkpoint = load(source, from_image=from_image, num_heads=num_heads, architecture=architecture)
    given = {"image": image, "patch": patch, "prefix": prefix, "pool": pool, "channels": channels, "classes": classes}
    wanted = {name: value for name, value in given.items() if value is not None}
    adapted, done = carry(checkpoint, wanted, method=convention, projection=projection, seed=seed)
    files = None if images is None else image_files(images, limit=MOST_IMAGES)
    found = assess(checkpoint, adapted, done, images=files)
    encoded = save(adapted, out, dialect=to)
    moved = done.source.grid != done.target.grid and encoded.carried
    carried = (f"not used by the model, and written as they were: {few(encoded.carried)}",) if moved else ()
    found = replace(found, notes=(*found.notes, *carried, *encoded.notes))
    if report is not None:
        page = to_html(found, title=f"{source.name} → {out.name}").encode()
        write_file(report, lambda file: file.write(page))
    if json:
        write_json(
            {
                "written": str(out),
                "dialect": encoded.dialect,
                "grid_known_from": checkpoint.evidence.grid,
                **to_json(found),
            }
        )
    else:
        _show(found, f"{out}, in {encoded.dialect}'s names")


def _show(report: Report, written: str) -> None:
    from rich.markup import escape

    from vitrail.checkpoint.surgery.changes import STATUSES, shape_text

    changes = report.changes
    old, new = changes.source, changes.target
    title = f"Image {old.image}, grid {old.grid}"
    if (old.image, old.grid) != (new.image, new.grid):
        title += f" → image {new.image}, grid {new.grid}"
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
    show(f"\nWritten: {escape(written)}")
