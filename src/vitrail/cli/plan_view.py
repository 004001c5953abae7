"""A plan as people read it: what it costs, where the bytes go, whether it fits, what to change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vitrail.charts.numbers import bytes_text, count_text, seconds_text
from vitrail.cli.tables import show, table
from vitrail.config import Config, MobileConfig, ViTConfig
from vitrail.parts import Adaptive, Tubelets
from vitrail.plan.cards import Card
from vitrail.plan.hardware import Verdict
from vitrail.plan.report import Report
from vitrail.plan.workload import Memory, Workload

if TYPE_CHECKING:
    from vitrail.tracking.compiled import Compiled

__all__ = ["memory_table", "percent", "show_compiled", "show_report", "title", "verdict_table"]


def title(name: str, config: Config, work: Workload) -> str:
    parts = [name, f"image {config.image}"]
    if not isinstance(config, MobileConfig):
        parts.append(f"patch {config.patch}")
    if isinstance(config, ViTConfig) and isinstance(config.embedding, Tubelets):
        parts[1:] = [f"{config.frames} frames of {config.image}", f"patch {config.embedding.tubelet}x{config.patch}"]
    step = "training" if work.train else "inference"
    parts += [work.pretraining.words if work.pretraining else step, f"batch {work.batch}"]
    parts += [f"× {work.accumulate}"] if work.accumulate > 1 else []
    parts.append(work.precision)
    parts += [work.optimizer] if work.train else []
    parts.append(f"{work.attention} attention")
    parts += [work.checkpointing.words] if work.checkpointing else []
    parts += [f"{work.shard.kind} over {work.shard.devices}"] if work.shard else []
    parts += [f"{name}={value}" for name, value in work.shard.options.items()] if work.shard else []
    parts += ["offload"] if work.offload else []
    parts += [f"as {work.library}"] if work.library != "vitrail" else []
    return " · ".join(parts)


def show_report(found: Report, name: str) -> None:
    show(
        f"\n[bold]{title(name, found.config, found.workload)}[/]",
        table("", ("", ""), _facts(found), "ll"),
        memory_table(found.memory, "exact" if found.memory.exact else "an estimate"),
        *([verdict_table(found.card, found.verdicts, found.max_batch)] if found.card else []),
        *_changes(found),
        *(f"[dim]note: {note}[/]" for note in found.notes),
    )


def show_compiled(found: Compiled) -> None:
    """What a compiled step saves for backward, beside eager mode."""
    from vitrail.tracking.compiled import NOTE

    rows = [
        ("eager", bytes_text(found.eager_saved_bytes), f"{found.eager_saved_tensors:,}"),
        ("compiled", bytes_text(found.saved_bytes), f"{found.saved_tensors:,}"),
    ]
    show(table("Saved for backward", ("", "bytes", "tensors"), rows, "lrr"), f"[dim]note: {NOTE}[/]")


def _facts(found: Report) -> list[tuple[str, str]]:
    books, config = found.books, found.config
    adaptive = isinstance(config, ViTConfig) and isinstance(config.embedding, Adaptive)
    most = " at most" if adaptive and found.workload.adaptive_tokens is None else ""
    steps = f"{config.steps} step{'s' * (config.steps > 1)} of "
    grids, unit = (steps, "a clip") if config.frames > 1 else ("", "an image")
    rows = [
        ("tokens", f"{found.tokens:,}{most}, {grids}grid {config.grid}"),
        ("parameters", f"{books.params:,}"),
        (
            "forward",
            f"{count_text(books.flops_forward, 'FLOP')} {unit} ({count_text(books.macs_forward, 'MAC')})",
        ),
    ]
    if found.saving is not None:
        share = found.saving.trained_params / found.saving.params
        rows.insert(2, ("trained", f"{found.saving.trained_params:,} ({share:.2%}): {found.workload.tuning}"))
    if found.workload.train:
        rows.append(("forward + backward", f"{count_text(books.flops_train, 'FLOP')} {unit}"))
    if found.step_bound is not None:
        bound = found.step_bound
        rows.append(("a step takes at least", f"{seconds_text(bound.seconds)}, bound by {bound.limited_by}"))
        if found.workload.train and config.frames == 1:
            epoch = seconds_text(bound.seconds_per_epoch)
            rows.append(
                ("an epoch of ImageNet-1k", f"at least {epoch}, {seconds_text(bound.seconds_per_image)} an image")
            )
    return rows


def memory_table(held: Memory, label: str) -> Any:
    """The components at the peak, largest first, and the peaks of the phases."""
    rows = [
        (name.replace("_", " "), bytes_text(size), percent(size / held.peak_bytes), _bar(size / held.peak_bytes))
        for name, size in sorted(held.bytes.items(), key=lambda item: -item[1])
        if size
    ]
    phases = "   ".join(f"{phase} {bytes_text(size)}" for phase, size in held.phase_peaks.items())
    return table(
        f"Memory at the peak: {bytes_text(held.peak_bytes)} ({label})",
        ("component", "bytes", "share", ""),
        [(name, size, share, f"[cyan]{bar}[/]") for name, size, share, bar in rows],
        "lrrl",
        caption=f"peaks by phase   {phases}",
    )


def percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.005 else "< 1%"


def _bar(share: float, width: int = 24) -> str:
    eighths = round(share * width * 8)
    bar = "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()
    return bar.ljust(width)


def verdict_table(target: Card, verdicts: Sequence[Verdict], max_batch: dict[str, int]) -> Any:
    """Whether a step fits the card, by verdict, and the largest batch where it is known."""
    rows = [
        (
            verdict.name,
            "[green]fits[/]" if verdict.fits else "[red]does not fit[/]",
            bytes_text(verdict.needed_bytes),
            f"{bytes_text(abs(verdict.free_bytes))} {'free' if verdict.fits else 'missing'}",
            *([f"{max_batch[verdict.name]:,}"] if max_batch else []),
        )
        for verdict in verdicts
    ]
    return table(
        f"On {target.name}, {bytes_text(target.visible_bytes)} visible",
        ("verdict", "", "needs", "", *(["largest batch"] if max_batch else [])),
        rows,
        "llrlr",
        caption="tensors plus context, workspaces and allocator: modelled, not measured",
    )


def _changes(found: Report) -> list[Any]:
    if not found.changes:
        return []
    rows = [
        (
            change.what,
            _bytes(change.alone_bytes, change.alone_fits),
            "" if change.together_bytes is None else _bytes(change.together_bytes, change.together_fits),
            change.price,
        )
        for change in found.changes
    ]
    return [
        table(
            "What to change, in this order (likely needs)",
            ("change", "alone", "so far", "price"),
            rows,
            "lrrw",
            caption="" if any(change.together_fits for change in found.changes) else "all of it together does not fit",
        )
    ]


def _bytes(size: int, fits: bool) -> str:
    return f"{bytes_text(size)} [green]✓[/]" if fits else f"{bytes_text(size)} [red]✗[/]"
