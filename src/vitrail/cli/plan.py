"""vitrail plan: tokens, parameters, FLOPs and bytes, whether it fits, and what to change first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from vitrail.cli.options import Flag, Words
from vitrail.cli.tables import write_csv, write_json
from vitrail.config import Config, ViTConfig, config_from_json
from vitrail.errors import VitrailError, require
from vitrail.geometry import Remainder, Size
from vitrail.parts import Adaptive
from vitrail.plan.hardware import card
from vitrail.plan.report import report
from vitrail.plan.workload import AttentionKernel, Library, Optimizer, Precision, Shard, Workload
from vitrail.presets import preset

__all__ = ["plan"]


def plan(
    *,
    model: str = "B/16",
    config: Path | None = None,
    image: str | None = None,
    patch: str | None = None,
    remainder: Remainder | None = None,
    width: int | None = None,
    depth: int | None = None,
    num_heads: int | None = None,
    classes: int | None = None,
    batch: Annotated[int, Parameter(allow_leading_hyphen=True)] = 1,
    train: Flag = False,
    infer: Flag = False,
    precision: Precision = "fp32",
    optimizer: Optimizer = "adamw",
    attention: AttentionKernel = "flash",
    checkpointing: Flag = False,
    accumulate: Annotated[int, Parameter(allow_leading_hyphen=True)] = 1,
    shard: str | None = None,
    adaptive_tokens: int | None = None,
    images: Path | None = None,
    as_: Annotated[Library, Parameter(name="--as")] = "vitrail",
    gpu: str | None = None,
    sweep: Words | None = None,
    chart: Path | None = None,
    json: Flag = False,
    csv: Flag = False,
) -> None:
    """Say what a model costs before anything runs, and whether it fits a card.

    Parameters
    ----------
    model
        A preset: B/16, L/14, dinov2-S/14 …
    config
        A config as JSON, instead of a preset.
    image
        HEIGHTxWIDTH in pixels, or one number for a square.
    patch
        HEIGHTxWIDTH in pixels, or one number for a square.
    remainder
        What happens to an image that the patch doesn't divide.
    width
        The token's width; the MLP's follows in proportion.
    depth
        Blocks.
    num_heads
        Attention heads.
    classes
        Outputs of the head; 0 for none.
    batch
        Images per device and forward pass.
    train
        Plan a training step.
    infer
        Plan inference (the default).
    precision
        Number type of weights and arithmetic (default: fp32).
    optimizer
        Its state and temporaries count in training; adafactor and adamw-8bit are estimates.
    attention
        The kernel: eager keeps attention maps, the others do not.
    checkpointing
        Keep only each block's input, and compute the rest again in backward.
    accumulate
        Forward and backward passes per optimizer step.
    shard
        KIND:DEVICES, with ddp, zero1, zero2 or fsdp: fsdp:8.
    adaptive_tokens
        Patch tokens per image, for adaptive patches.
    images
        A folder of images to measure that number on, instead.
    as_
        Whose implementation of the config is planned.
    gpu
        A card by name (rtx-4090, a100-80) or by its memory (24GiB).
    sweep
        Several questions at once: patch=8,16,32 image=224,384. Keys: model, image, patch, batch, precision,
        optimizer, attention, accumulate.
    chart
        A PNG or SVG: of the sweep, or of memory against image size.
    json
        Exact values as JSON.
    csv
        The sweep, or the model's modules row by row, as CSV.
    """
    require(not (train and infer), "--train and --infer were both given; choose one")
    require(not (json and csv), "--json and --csv were both given; choose one")
    asked = {
        "model": model,
        "config": config,
        "image": image,
        "patch": patch,
        "remainder": remainder,
        "width": width,
        "depth": depth,
        "num_heads": num_heads,
        "classes": classes,
    }
    target = None if gpu is None else card(gpu)
    workload = Workload(
        batch=batch,
        train=train,
        precision=precision,
        optimizer=optimizer,
        attention=attention,
        checkpointing=checkpointing,
        accumulate=accumulate,
        shard=None if shard is None else Shard.of(shard),
        library=as_,
        adaptive_tokens=adaptive_tokens,
    )
    if sweep is not None:
        from vitrail.cli.sweep import run_sweep

        run_sweep(sweep, asked, workload, target, build=build, chart=chart, json=json, csv=csv)
        return
    described = build(**asked)
    if images is not None:
        workload = replace(workload, adaptive_tokens=_measured_tokens(described, images))
    found = report(described, workload, target)
    name = model if config is None else config.name
    if chart is not None:
        from vitrail.cli.plan_charts import memory_chart

        memory_chart(described, found.workload, target, chart, name=name)
    if json:
        write_json({"model": name, **found.to_json()})
    elif csv:
        columns = ("path", "params", "flops", "macs", "train_flops", "saved_bytes")
        write_csv(columns, ([getattr(row, name) for name in columns] for row in found.books.rows))
    else:
        from vitrail.cli.plan_view import show_report

        show_report(found, name)


# ── the question ────────────────────────────────────────────────────────────────────────────────────────────────


def build(
    *,
    model: str,
    config: Path | None,
    image: str | None,
    patch: str | None,
    remainder: Remainder | None,
    width: int | None,
    depth: int | None,
    num_heads: int | None,
    classes: int | None,
) -> Config:
    """The config that the options describe."""
    base = preset(model) if config is None else config_from_json(_text(config))
    changed: dict[str, Any] = {}
    if image is not None:
        changed["image"] = Size.of(image)
    if classes is not None:
        changed["classes"] = classes
    if any(value is not None for value in (remainder, width, depth, num_heads)):
        require(
            isinstance(base, ViTConfig),
            f"--remainder, --width, --depth and --num-heads change a ViT, not a {type(base).__name__}; use --config",
        )
        assert isinstance(base, ViTConfig)
        given = {"remainder": remainder, "width": width, "depth": depth, "num_heads": num_heads}
        changed |= {name: value for name, value in given.items() if value is not None}
        if width is not None:
            changed["mlp"] = replace(base.mlp, width=max(1, base.mlp.width * width // base.width))
    if patch is not None:
        base = base.with_patch(Size.of(patch))
    return base.but(**changed) if changed else base


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise VitrailError(f"config {path} cannot be read ({error.strerror}); give a JSON file") from None
    except UnicodeDecodeError:
        raise VitrailError(f"config {path} is not text; give a JSON file") from None


def _measured_tokens(config: Config, folder: Path) -> int:
    """The mean number of patch tokens that adaptive patches make of a folder's images."""
    from vitrail.images.folder import image_files
    from vitrail.images.measure import survey

    if not isinstance(config, ViTConfig) or not isinstance(config.embedding, Adaptive):
        raise VitrailError("--images counts the tokens of adaptive patches, which this config has not; leave it out")
    require(
        config.embedding.selector == "detail",
        "--images counts what the 'detail' selector splits, and this one is learned; give --adaptive-tokens",
    )
    fitted = config.fit(config.image).fitted
    found = survey(image_files(folder, limit=256), image=fitted, adaptive=config.embedding).adaptive_tokens
    assert found is not None  # a fitted image is divided by its cells
    return found
