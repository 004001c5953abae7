"""vitrail inspect: what a weights file is, and how that is known."""

from __future__ import annotations

from vitrail.cli.tables import count_text, plain, show, table, write_json

__all__ = ["inspect"]


def inspect(
    file: str,
    /,
    *,
    from_image: str | None = None,
    num_heads: int | None = None,
    architecture: str | None = None,
    json: bool = False,
) -> None:
    """Say what a weights file is, how that is known, and what is wrong with it.

    Parameters
    ----------
    file
        A weights file, or a directory with weights and their config.
    from_image
        HEIGHTxWIDTH of the image that the positions were made for, where the file does not say.
    num_heads
        Attention heads, where the file does not say.
    architecture
        timm's name of the model, where the file does not say and several have its shape: vit_base_patch16_clip_224.
    json
        Everything as JSON, the config included.
    """
    from vitrail.checkpoint.describe import describe
    from vitrail.checkpoint.read import load
    from vitrail.codec import to_plain

    found = describe(load(file, from_image=from_image, num_heads=num_heads, architecture=architecture))
    if json:
        write_json({**plain(found), "config": to_plain(found.config)})
        return
    steps = found.preprocessing
    checks = found.checks
    unused = ", ".join(checks.unused[:4]) + (f" and {len(checks.unused) - 4} more" if len(checks.unused) > 4 else "")
    resize = "squashed to it" if steps.resize == "squash" else f"shorter side, middle {steps.crop_share:.1%}"
    rows = [
        ("format", f"{found.format}, {found.dialect} names ({found.family})"),
        ("variant", found.variant),
        ("size", f"width {found.width}, depth {found.depth}, heads {found.num_heads}, classes {found.classes}"),
        ("parameters", f"{found.parameters:,} ({', '.join(f'{n} {count_text(c)}' for n, c in found.dtypes.items())})"),
        ("image", f"{found.image}, patch {found.patch}, grid {found.grid}"),
        ("prefix", ", ".join(found.prefix) or "none"),
        ("positions", f"{found.position}; on another grid: {found.convention}"),
        ("pooling", found.pool),
        ("pixels", f"{steps.interpolation}, {resize}; mean {_numbers(steps.mean)}, std {_numbers(steps.std)}"),
        ("  known from", steps.source),
        ("config known from", found.evidence.config),
        ("grid known from", found.evidence.grid),
        ("assumed", ", ".join(found.evidence.assumed) or "nothing"),
        ("unused tensors", unused or "none"),
        ("not finite", f"[bold red]{', '.join(checks.not_finite[:4])}[/]" if checks.not_finite else "none"),
    ]
    show(table(file, ("", ""), rows, "lw"))


def _numbers(values: tuple[float, ...]) -> str:
    return " ".join(f"{value:.4g}" for value in values)
