"""vitrail advise: what to build for this work, these images and this budget."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from vitrail.charts.numbers import bytes_text, number_text
from vitrail.cli.options import CardOption, Json, SizeOption
from vitrail.cli.tables import show, table, write_json
from vitrail.plan.advise import Advice
from vitrail.plan.advise import advise as decide
from vitrail.plan.guidance import Question
from vitrail.plan.rank import measured

__all__ = ["advise"]

SHOWN = 5


def advise(
    *,
    images: Path | None = None,
    application: str = "classification",
    image: SizeOption | None = None,
    object_: Annotated[int | None, Parameter(name="--object", allow_leading_hyphen=True)] = None,
    boxes: Path | None = None,
    gpu: CardOption | None = None,
    data_size: Annotated[int | None, Parameter(allow_leading_hyphen=True)] = None,
    images_per_second: float | None = None,
    limit: int = 200,
    json: Json = False,
) -> None:
    """Advise on patch, embedding, positions, model and batch, from your images and budget.

    Parameters
    ----------
    images
        Folder of your images, whose sizes, aspect ratios and detail are measured (default: none).
    application
        What the model is for: classification, medical, satellite, face, detection or mobile.
    image
        Image size that the model takes, HEIGHTxWIDTH or one number for a square, e.g. 384x640 (default: chosen from
        your images, or usual for the application).
    object_
        Side of a typical object, in pixels of the stored images (default: unknown).
    boxes
        COCO JSON file from whose boxes the size of a typical object is taken (default: none).
    gpu
        Card by name, e.g. rtx-4090, or by memory, e.g. 24GiB (default: none).
    data_size
        Number of training images (default: those in the --images folder).
    images_per_second
        Speed that inference must reach, one image at a time (default: any).
    limit
        Measure at most this many images of the folder, at even steps.
    """
    if boxes is not None:
        from vitrail.images.boxes import typical_object

        object_ = typical_object(boxes)
    question = Question(
        application=application,
        image=image,
        object_pixels=object_,
        card=gpu,
        data_size=data_size,
        images_per_second=images_per_second,
    )
    if images is not None:
        question = _measured(question, images, limit)
    advice = decide(question)
    if json:
        write_json(advice.to_json())
    else:
        _show(advice)


def _measured(question: Question, folder: Path, limit: int) -> Question:
    """Add a survey of the folder to the question; its images are the training images unless their number is given."""
    from dataclasses import replace

    from vitrail.cli.progress import counted
    from vitrail.images.folder import image_files
    from vitrail.images.measure import survey

    paths = image_files(folder, limit=limit)
    question = replace(question, data_size=question.data_size or len(image_files(folder)))
    return measured(question, lambda image: survey(counted(paths, "measuring", len(paths)), image=image))


# ── for people ──────────────────────────────────────────────────────────────────────────────────────────────────


def _show(found: Advice) -> None:
    show(
        "",
        *_misfits(found),
        table("Advice", ("", "", ""), [(d.about, f"[bold]{d.choice}[/]", d.why) for d in found.decisions], "llw"),
        *_batch(found),
        *_survey(found),
        _ranking(found),
        *_reasons(found),
        *_would_change(found),
    )


def _misfits(found: Advice) -> list[Any]:
    return [
        f"[yellow]⚠ {misfit.name}:[/] {misfit.why}.\n  [bold]Consider[/] {misfit.instead}.\n"
        for misfit in found.misfits
    ]


def _reasons(found: Advice) -> list[Any]:
    return [
        "\n [bold]What speaks for a ViT[/]",
        *(f" • {reason.name}: {reason.why}" for reason in found.reasons),
        *([] if found.measured is None else [f"\n [bold]Measured[/]\n • {found.measured}"]),
        f"\n [bold]Alternatives for {found.question.application}[/]",
        *(f" • {each}" for each in found.alternatives),
        "",
    ]


def _batch(found: Advice) -> list[Any]:
    target = found.question.card
    if target is None:
        return [" [dim]give --gpu for the batch that fits[/]\n"]
    return [
        f" On {target.name} ({bytes_text(target.visible_bytes)}): train in {found.precision} with batch "
        f"[bold]{found.batch}[/], accumulate [bold]{found.accumulate}[/]; up to {found.max_batch:,} likely fit.\n"
    ]


def _survey(found: Advice) -> list[Any]:
    survey = found.question.survey
    if survey is None:
        return []
    rows = [
        (str(detail.patch), f"{detail.within_share:.0%}", f"{detail.above_nyquist_share:.0%}")
        for detail in survey.details
    ]
    lost = ", ".join(f"{side}: {share:.0%}" for side, share in survey.lost_by_resizing.items())
    lines = [
        f" {survey.images} images measured, {survey.smallest} to {survey.largest}, half of them below {survey.median}; "
        f"width over height {survey.aspect_low:.2f} to {survey.aspect_high:.2f}",
        f" variance lost by resizing to {lost}",
    ]
    if survey.adaptive_tokens is not None:
        lines.append(f" adaptive patches of 8 to 32 would make {survey.adaptive_tokens:,} tokens on average")
    lines += [f" [yellow]not read:[/] {path} ({reason})" for path, reason in survey.failed[:5]]
    if len(survey.failed) > 5:
        lines.append(f" [yellow]and {len(survey.failed) - 5} more that could not be read[/]")
    return [
        table(
            f"Your images at {survey.image}",
            ("patch", "variance inside patches", "power above the grid"),
            rows,
            "lrr",
            caption="medians; what a token's content, rather than the grid, must carry",
        ),
        *lines,
        "",
    ]


def _ranking(found: Advice) -> Any:
    names = list(found.ranking[0].factors)
    rows = [
        (
            f"[bold]{candidate.name}[/]",
            str(candidate.image),
            f"{candidate.tokens:,}",
            number_text(candidate.flops_forward / 1e9),
            *(f"{candidate.factors[name]:.2f}" for name in names),
            f"[bold]{candidate.score:.2f}[/]",
        )
        for candidate in found.ranking[:SHOWN]
    ]
    return table(
        f"Best {min(SHOWN, len(found.ranking))} of {len(found.ranking)}",
        ("model", "image", "tokens", "GFLOP", *(name[:7] for name in names), "score"),
        rows,
        "ll" + "r" * (len(names) + 3),
        caption="the score is the product of the factors before it",
    )


def _would_change(found: Advice) -> list[str]:
    if not found.would_change:
        return [" Nothing that was tried would change this answer."]
    return [" [bold]What would change this answer[/]", *(f"   {line}" for line in found.would_change)]
