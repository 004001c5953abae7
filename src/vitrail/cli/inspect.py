"""vitrail inspect: what a weights file is, and how that is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitrail.charts.numbers import count_text
from vitrail.cli.options import Architecture, FromImage, Json, NumHeads, Weights
from vitrail.cli.tables import plain, show, table, write_json
from vitrail.config import Config, MobileConfig, ViTConfig
from vitrail.parts import Mlp, Tubelets

if TYPE_CHECKING:
    from vitrail.checkpoint.assess.describe import Description, Stage

__all__ = ["inspect"]


def inspect(
    weights: Weights,
    /,
    *,
    from_image: FromImage = None,
    num_heads: NumHeads = None,
    architecture: Architecture = None,
    json: Json = False,
) -> None:
    """Say what a weights file is, how that is known, and what is wrong with it."""
    from rich.markup import escape

    from vitrail.checkpoint.assess.describe import describe, few, pixels_in_words
    from vitrail.checkpoint.header import read_own
    from vitrail.checkpoint.sources.names import weights_path
    from vitrail.cli.progress import working
    from vitrail.codec import to_plain

    asked = {"from_image": from_image, "num_heads": num_heads, "architecture": architecture}
    path = weights_path(weights)
    stored = read_own(path) if set(asked.values()) == {None} else None
    if stored is None:
        from vitrail.checkpoint.read import load

        stored = load(path, **asked)
    with working(f"reading every value of {path.name}"):
        found = describe(stored)
    if json:
        write_json({**plain(found), "config": to_plain(found.config)})
        return
    checks = found.checks
    family = "" if found.dialect in ("vitrail", found.family) else f" ({found.family})"
    rows = [
        *(zip(("on the Hub", "  commit"), found.source.split("@"), strict=True) if found.source else ()),
        ("format", f"{found.format}, {found.dialect} names{family}"),
        ("same shape as", found.variant),
        *_size(found),
        ("head", f"{found.classes:,} outputs" if found.classes else _headless(found)),
        ("parameters", f"{found.parameters:,}; stored values: {_stored(found)}"),
        ("prefix", ", ".join(found.prefix) or "none"),
        ("positions", found.position),
        ("  on another grid", found.convention),
        ("pooling", found.pool),
        ("pixels", pixels_in_words(found.preprocessing)),
        ("  known from", found.preprocessing.source),
        ("config known from", found.evidence.config),
        ("grid known from", found.evidence.grid),
        ("assumed", ", ".join(found.evidence.assumed) or "nothing"),
        ("unused tensors", few(checks.unused) or "none"),
        ("not finite", f"[bold red]{escape(few(checks.not_finite))}[/]" if checks.not_finite else "none"),
    ]
    show(table(escape(str(weights)), ("", ""), rows, "lw"))


def _headless(found: Description) -> str:
    config = found.config
    if not isinstance(config, ViTConfig) or config.merger is None:
        return "none: the model gives its pooled vector"
    merger = config.merger
    return f"none: its {type(merger).__name__} gives {config.visual_tokens:,} tokens of width {merger.width:,}"


def _size(found: Description) -> list[tuple[str, str]]:
    config, channels = found.config, f"{found.channels} channel{'s' * (found.channels > 1)}"
    if isinstance(config, ViTConfig):
        activation = config.mlp.activation if isinstance(config.mlp, Mlp) else "SwiGLU"
        attention, embedding = type(config.attention).__name__, type(config.embedding).__name__
        image, patch, grid = f"{found.image}", f"{found.patch}", f"grid {found.grid}"
        if isinstance(config.embedding, Tubelets):
            image, patch = f"clips of {config.frames} frames of {image}", f"{config.embedding.tubelet}x{patch}"
            grid = f"{config.steps} step{'s' * (config.steps > 1)} of {grid}"
        return [
            ("size", f"width {found.width}, depth {found.depth}, heads {found.num_heads}"),
            ("blocks", f"{attention}, MLP {config.mlp.width} wide ({activation}), norms with eps {config.norm_eps:g}"),
            ("image", f"{image}, {channels}, {embedding} of {patch}, {grid}"),
        ]
    stages = [
        (f"  stage {number}", f"grid {stage.grid}, width {stage.width}, {_stage(stage, config)}")
        for number, stage in enumerate(found.stages, start=1)
    ]
    size = ("size", f"{len(stages)} stages")
    if isinstance(config, MobileConfig):
        has_transformers = any(stage.transformer_depth for stage in config.stages)
        patch = f"transformers cut their map into patches of {found.patch}" if has_transformers else "no transformers"
        return [size, *stages, ("image", f"{found.image}, {channels}, {patch}")]
    stride = f" every {config.embedding.stride}" if config.embedding.stride else ""
    attention, merging = type(config.attention).__name__, type(config.merging).__name__
    return [
        size,
        *stages,
        ("blocks", f"{attention}, {merging} between stages, norms with eps {config.norm_eps:g}"),
        ("image", f"{found.image}, {channels}, patch {found.patch}{stride}"),
    ]


def _stage(stage: Stage, config: Config) -> str:
    if not isinstance(config, MobileConfig):
        return f"depth {stage.depth}, heads {stage.num_heads}"
    residuals = f"{stage.depth} {config.residual} residual{'s' * (stage.depth > 1)}"
    if stage.transformer_width is None:
        return residuals
    heads = "separable attention" if stage.num_heads is None else f"heads {stage.num_heads}"
    return (
        f"{residuals}, then a transformer of width {stage.transformer_width}, depth {stage.transformer_depth}, {heads}"
    )


def _stored(found: Description) -> str:
    return ", ".join(f"{name} {count_text(count)}" for name, count in found.dtypes.items())
