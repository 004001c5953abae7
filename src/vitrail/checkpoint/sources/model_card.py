"""A model card: README.md with the facts that the Hugging Face Hub reads, and the text that people read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from vitrail.checkpoint.assess.describe import Description, describe, pixels_in_words
from vitrail.checkpoint.assess.report import Report
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.surgery.changes import STATUSES

__all__ = ["LIBRARIES", "model_card"]

LIBRARIES = {"timm": "timm", "huggingface": "transformers", "vitrail": "vitrail"}
"""The library that loads each dialect."""
MOST_LABELS = 20


def model_card(
    checkpoint: Checkpoint,
    repo: str,
    dialect: str,
    *,
    licence: str | None = None,
    report: Report | None = None,
    notes: Iterable[str] = (),
) -> str:
    """Return the README.md of a model that is stored in a dialect's names under `repo`."""
    found = describe(checkpoint)
    parts = [
        _front_matter(found, LIBRARIES[dialect], licence),
        f"# {repo.rpartition('/')[2]}",
        f"A Vision Transformer of {found.parameters:,} parameters for images of {found.image}.",
        _table(("", ""), _facts(found)),
        "## Use",
        *_usage(repo, dialect, classifies=found.classes > 0),
        f"Preprocessing: {pixels_in_words(found.preprocessing)}.",
        *_labels(checkpoint.labels),
        *_caveats("Notes", notes),
        *(_transfer(report) if report is not None else ()),
    ]
    return "\n\n".join(parts) + "\n"


def _front_matter(found: Description, library: str, licence: str | None) -> str:
    task = "image-classification" if found.classes else "image-feature-extraction"
    tags = dict.fromkeys((task, "vision-transformer", library, "vitrail"))
    lines = [f"library_name: {library}", f"pipeline_tag: {task}", "tags:", *(f"- {tag}" for tag in tags)]
    return "\n".join(["---", *([f"license: {licence}"] if licence else []), *lines, "---"])


def _facts(found: Description) -> Iterator[tuple[str, str]]:
    yield "same shape as", found.variant
    yield "image", f"{found.image}, {found.channels} channels"
    yield "patch", f"{found.patch}, grid {found.grid}"
    if found.width is not None:
        yield "width, depth, heads", f"{found.width}, {found.depth}, {found.num_heads}"
    for number, stage in enumerate(found.stages, start=1):
        yield f"stage {number}", f"grid {stage.grid}, width {stage.width}, depth {stage.depth}"
    yield "prefix", ", ".join(found.prefix) or "none"
    yield "positions", f"{found.position}; on another grid, {found.convention}"
    yield "pooling", found.pool
    yield "head", f"{found.classes:,} classes" if found.classes else "none"
    yield "values", ", ".join(found.dtypes)
    if found.source:
        yield "made from", found.source


def _usage(repo: str, dialect: str, *, classifies: bool) -> Iterator[str]:
    ours = f'import vitrail\n\ncheckpoint = vitrail.load("{repo}")\nvector = checkpoint.model().vector'
    ours += '(checkpoint.transform("photo.jpg"))'
    if classifies:
        ours += '\nlabels = checkpoint.predict("photo.jpg")'
    theirs = {
        "timm": f'import timm\n\nmodel = timm.create_model("hf-hub:{repo}", pretrained=True)',
        "huggingface": (
            f"from transformers import {'AutoModelForImageClassification' if classifies else 'AutoModel'} as Auto\n\n"
            f'model = Auto.from_pretrained("{repo}")'
        ),
    }
    for code in (theirs.get(dialect), ours):
        if code:
            yield f"```python\n{code}\n```"


def _labels(labels: Sequence[str]) -> Iterator[str]:
    if labels:
        more = f" and {len(labels) - MOST_LABELS:,} more" if len(labels) > MOST_LABELS else ""
        yield f"## Labels\n\n{', '.join(labels[:MOST_LABELS])}{more}."


def _transfer(report: Report) -> Iterator[str]:
    changes = report.changes
    old, new = changes.source, changes.target
    yield "## Transfer report"
    yield f"Adapted from image {old.image}, grid {old.grid}, to image {new.image}, grid {new.grid}."
    counted = [(status, f"{len(changes.named(status)):,}", words) for status, words in STATUSES.items()]
    yield _table(("tensors", "", ""), counted)
    if report.tables:
        rows = [
            (
                each.name,
                f"{each.old} → {each.new}, as {each.method} does",
                f"{each.round_trip:.1%}",
                "" if each.agreement is None else f"{each.agreement:.4f}",
            )
            for each in report.tables
        ]
        yield _table(("positions", "", "error there and back", "agreement of similarity maps"), rows)
    if report.projection is not None:
        yield (
            f"Tokens of the new patch {report.projection.new} are off by {report.projection.natural:.1%} on "
            "photographs, as predicted from the filters."
        )
    if report.drift is not None:
        drift = report.drift
        yield (
            f"Cosine of the vectors before and after, on {len(drift.images)} images: {drift.mean:.4f} on average, "
            f"{drift.lowest:.4f} at the lowest."
        )
    yield from _caveats("Caveats", report.notes)


def _caveats(title: str, notes: Iterable[str]) -> Iterator[str]:
    lines = [f"- {note}" for note in notes]
    if lines:
        yield f"### {title}\n\n" + "\n".join(lines)


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
