"""vitrail plan: tokens, parameters, FLOPs and bytes, whether it fits, and what to change first."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from vitrail.cli.models import config_named
from vitrail.cli.options import (
    CardOption,
    Flag,
    Json,
    Names,
    PretrainingOption,
    ShardOption,
    SizeOption,
    Words,
    checkpointing_of,
    tuning_of,
)
from vitrail.cli.plan_reading import run_reading
from vitrail.cli.plan_timeline import check_timeline, write_timeline
from vitrail.cli.plan_view import show_compiled, show_report, title
from vitrail.cli.tables import write_csv, write_json, written
from vitrail.config import Config, ViTConfig
from vitrail.errors import VitrailError, require
from vitrail.geometry import Remainder, Size
from vitrail.parts import Adaptive
from vitrail.plan.fit import on_card
from vitrail.plan.report import report
from vitrail.plan.timeline import timeline as planned_timeline
from vitrail.plan.vision_language import vision_language
from vitrail.plan.workload import AttentionKernel, Library, Optimizer, Precision, Workload

if TYPE_CHECKING:
    from vitrail.tracking.compiled import Compiled

__all__ = ["plan"]


def plan(
    model: str | None = None,
    *,
    image: SizeOption | None = None,
    patch: SizeOption | None = None,
    frames: int | None = None,
    tubelet: int | None = None,
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
    checkpoint_every: int | None = None,
    selective: Flag = False,
    accumulate: Annotated[int, Parameter(allow_leading_hyphen=True)] = 1,
    freeze: Names | None = None,
    train_last: int | None = None,
    train_only: Names | None = None,
    lora: int | None = None,
    lora_on: Names | None = None,
    pretrain: PretrainingOption | None = None,
    compile: Flag = False,  # noqa: A002 — torch's word
    shard: ShardOption | None = None,
    offload: Flag = False,
    adaptive_tokens: int | None = None,
    images: Path | None = None,
    as_: Annotated[Library, Parameter(name="--as")] = "vitrail",
    gpu: CardOption | None = None,
    sweep: Words | None = None,
    why: Words | None = None,
    largest: Literal["batch", "image", "train-last"] | None = None,
    smallest: Literal["patch"] | None = None,
    module: str | None = None,
    input_: Annotated[str | None, Parameter(name="--input")] = None,
    chart: Path | None = None,
    timeline: Path | None = None,
    json: Json = False,
    csv: Flag = False,
) -> None:
    """Say what a model costs before anything runs, and whether it fits a card.

    Parameters
    ----------
    model
        Preset, e.g. B/16 or dinov2-S/14 (vitrail presets lists them); weights, a run, or a JSON file of a config; or a
        vision-language model, whose tokens for an image are counted too: qwen2-vl, qwen2.5-vl, qwen3-vl, internvl3,
        llava-next, siglip2-naflex, deepseek-vl-hybrid (default: B/16).
    image
        Image size, HEIGHTxWIDTH or one number for a square, e.g. 384x640 (default: the model's own).
    patch
        Patch size, e.g. 14 or 16x8 (default: the model's own).
    frames
        Frames of a clip, or slices of a volume; 1 for still images (default: the model's own).
    tubelet
        Depth of a patch in frames (default: the model's own, and 2 for a model of still images).
    remainder
        What to do with pixels that the patch does not divide (default: the model's own).
    width
        Width of a token; the MLP's width keeps its ratio (default: the model's own).
    depth
        Number of blocks (default: the model's own).
    num_heads
        Number of attention heads (default: the model's own).
    classes
        Number of outputs of the head, or 0 for no head (default: the model's own).
    batch
        Images per device and forward pass.
    train
        Plan a training step.
    infer
        Plan inference, which is the default.
    precision
        Number type of weights and arithmetic.
    optimizer
        Optimizer whose state and temporaries count in training; adafactor and adamw-8bit are estimates.
    attention
        Attention kernel: eager keeps attention maps in memory, the others do not.
    checkpointing
        Keep only each block's input for backward, and recompute the rest.
    checkpoint_every
        Checkpoint only every k-th block; the others keep everything (default: 1, all blocks).
    selective
        With --checkpointing, also keep the outputs of matrix products and attention: only cheap operations run again.
    accumulate
        Forward and backward passes per optimizer step.
    freeze
        Parts that are not trained, by the model's own names, e.g. embedding,blocks[:8]; norms and biases name tensors
        of every part (default: none).
    train_last
        Train only the last blocks, and the norm, pool and head that follow them; 0 is these alone (default: none).
    train_only
        Train nothing but these parts, e.g. head, or norms,head, or biases,head (default: none).
    lora
        Train low-rank adapters of this rank in every block that is not frozen, and the head or what --train-only names
        (default: none).
    lora_on
        Layers with an adapter: qkv, out, fc1, fc2, or mlp for both of the last (default: qkv).
    pretrain
        Self-supervised step: dino (a teacher and crops), mae (masked patches and a decoder) or moco (a teacher and a
        queue of keys), with settings as KEY=VALUE, e.g. dino,local_crops=6,local_image=96 (default: none, a step with
        labels).
    compile
        Also trace the step as torch.compile does, and say what it saves for backward; takes seconds to a minute.
    shard
        How a step is spread over devices, KIND:DEVICES[,OPTION…] with ddp, zero1, zero2, fsdp or tensor, e.g. fsdp:8.
        Options: gradient_as_bucket_view for ddp; reshard_after_forward=no, param_dtype=bf16 and reduce_dtype=fp32 for
        fsdp (default: one device).
    offload
        Keep the optimizer's state on the CPU and step there; with fsdp, weights and gradients too, as its
        CPUOffloadPolicy does.
    adaptive_tokens
        Mean number of patch tokens per image, for adaptive patches (default: measured on --images).
    images
        Folder of images on which to measure --adaptive-tokens (default: none).
    as_
        Library whose implementation of the config is planned.
    gpu
        Card by name, e.g. rtx-4090, or by memory, e.g. 24GiB (default: none).
    sweep
        Plan every combination of values, e.g. patch=8,16,32 image=224,384x640. Keys: model, image, patch, width, depth,
        num_heads, classes, batch, precision, optimizer, attention, accumulate (default: none).
    why
        Two plans, whose difference is attributed to its causes, each MODEL[,KEY=VALUE…], e.g. B/16
        dinov2-B/14,attention=eager; the other options are those of both. A MODEL may be a module, as --module takes it:
        both are then followed on fake tensors, and their bytes compared (default: none).
    largest
        Find the largest batch or image, or the most of the last blocks to train, that fits --gpu, by each verdict
        (default: none).
    smallest
        Find the smallest patch that fits --gpu, by each verdict (default: none).
    module
        Any nn.Module instead of a config, followed on fake tensors, without weights and memory: FILE.py:NAME, a
        function or class without arguments, whose file is run; timm:NAME; or transformers:FOLDER with a config.json
        (default: none).
    input_
        Shape of what a module takes, e.g. 8x3x224x224, or 8x3x224x224,8x77:int64 for two (default: --batch images of
        the size that a model of timm or transformers names).
    chart
        File to draw the sweep, or memory against image size, into: .png, .svg or .pdf (default: none).
    timeline
        File to draw the bytes alive through a step into, of one device with --shard: .png, .svg or .pdf; or .pickle, a
        snapshot for PyTorch's memory viewer (default: none).
    csv
        Print the sweep, or the model's modules, as CSV.
    """
    require(not (train and infer), "--train and --infer were both given; choose one")
    require(not (json and csv), "--json and --csv were both given; choose one")
    given, model = model, "B/16" if model is None else model
    asked = {
        "model": model,
        "image": image,
        "patch": patch,
        "frames": frames,
        "tubelet": tubelet,
        "remainder": remainder,
        "width": width,
        "depth": depth,
        "num_heads": num_heads,
        "classes": classes,
    }
    tuning = tuning_of(freeze=freeze, train_last=train_last, train_only=train_only, lora=lora, lora_on=lora_on)
    require(train or tuning.is_everything, "--freeze, --train-last, --train-only and --lora need --train; add it")
    require(train or not offload, "--offload is about the optimizer and needs --train; add it")
    require(train or pretrain is None, "--pretrain is a training step and needs --train; add it")
    workload = Workload(
        batch=batch,
        train=train,
        precision=precision,
        optimizer=optimizer,
        attention=attention,
        checkpointing=checkpointing_of(
            checkpointing=checkpointing, checkpoint_every=checkpoint_every, selective=selective
        ),
        accumulate=accumulate,
        shard=shard,
        offload=offload,
        library=as_,
        adaptive_tokens=adaptive_tokens,
        tuning=tuning,
        pretraining=pretrain,
    )
    check_timeline(timeline)
    backward = {"--checkpointing": checkpointing, f"--accumulate {accumulate}": accumulate > 1}
    for name in (name for name, given in backward.items() if given and not train and why is None):
        raise VitrailError(f"{name} is about training and needs --train; add it")
    elsewhere = {f"MODEL {given}": given is not None, "--sweep": sweep, "--chart": chart, "--images": images}
    if why is not None:
        from vitrail.cli.plan_why import run_why

        others = {"--compile": compile, "--module": module, "--gpu": gpu, "--timeline": timeline, "--csv": csv}
        _alone("--why", elsewhere | others)
        run_why(why, asked, workload, build=build, shapes=input_, json=json)
        return
    if module is not None:
        from vitrail.cli.plan_module import run_module

        shape = {
            f"--{name.replace('_', '-')}": value for name, value in asked.items() if name not in ("model", "image")
        }
        parts = {"--freeze": freeze, "--train-last": train_last is not None, "--train-only": train_only, "--lora": lora}
        limits = {"--largest": largest, "--smallest": smallest, "--shard": shard, "--offload": offload}
        steps = {"--compile": compile, "--pretrain": pretrain}
        _alone("--module", elsewhere | shape | limits | parts | steps)
        run_module(module, input_, image, workload, gpu, timeline=timeline, json=json, csv=csv)
        return
    require(input_ is None, f"--input {input_} is the shape that --module takes, and there is none; give --image")
    quantity = largest or smallest
    if quantity is not None:
        from vitrail.cli.plan_limit import run_limit

        require(not (largest and smallest), "--largest and --smallest were both given; choose one")
        if gpu is None:
            raise VitrailError(f"what fits ({quantity}) needs a card; give --gpu, e.g. rtx-4090 or 24GiB")
        others = {"--chart": chart, "--timeline": timeline, "--csv": csv, "--compile": compile, "--images": images}
        _alone("--largest" if largest else "--smallest", {"--sweep": sweep, **others})
        config = build(**asked)
        run_limit(quantity, config, workload, gpu, title=title(model, config, on_card(workload, gpu)), json=json)
        return
    if sweep is not None:
        from vitrail.cli.sweep import run_sweep

        _alone("--sweep", {"--compile": compile, "--timeline": timeline, "--images": images})
        run_sweep(sweep, asked, workload, gpu, build=build, chart=chart, json=json, csv=csv)
        return
    if (known := vision_language(model)) is not None:
        shape = {f"--{name}": value for name, value in asked.items() if name not in ("model", "image")}
        others = {"--chart": chart, "--timeline": timeline, "--csv": csv, "--compile": compile, "--images": images}
        _alone(model, shape | others)
        run_reading(model, known, image, workload, gpu, json=json)
        return
    described = build(**asked)
    if images is not None:
        workload = replace(workload, adaptive_tokens=_measured_tokens(described, images))
    found = report(described, workload, gpu)
    traced = _traced(described, workload) if compile else None
    name = Path(model).name if Path(model).exists() else model
    if chart is not None:
        from vitrail.cli.plan_charts import memory_chart

        memory_chart(described, found.workload, gpu, chart, name=name)
    if timeline is not None:
        alive = planned_timeline(described, found.workload)
        step, said = "training" if train else "inference", title(name, described, found.workload)
        write_timeline(alive, gpu, timeline, title=f"{name}: memory of {step}", subtitle=said)
    if json:
        write_json({"model": name, **found.to_json(), **({"compiled": asdict(traced)} if traced else {})})
    elif csv:
        columns = ("path", "params", "flops", "macs", "train_flops", "saved_bytes")
        write_csv(columns, ([getattr(row, name) for name in columns] for row in found.books.rows))
    else:
        show_report(found, name)
        if traced is not None:
            show_compiled(traced)
        written(*(path for path in (chart, timeline) if path is not None))


def _traced(config: Config, workload: Workload) -> Compiled:
    from vitrail.cli.progress import working
    from vitrail.tracking.compiled import track_compiled

    with working("tracing the step"):
        return track_compiled(config, workload)


def _alone(option: str, others: dict[str, object]) -> None:
    """Refuse options that a question does not take."""
    beside = [name for name, value in others.items() if value]
    require(
        not beside,
        f"{option} was given with {', '.join(beside).replace('_', '-')}, which it does not take; leave that out",
    )


# ── the question ────────────────────────────────────────────────────────────────────────────────────────────────


def build(
    *,
    model: str,
    image: Size | None,
    patch: Size | None,
    frames: int | None,
    tubelet: int | None,
    remainder: Remainder | None,
    width: int | None,
    depth: int | None,
    num_heads: int | None,
    classes: int | None,
) -> Config:
    """Return the config that the options describe."""
    base = config_named(model)
    changed: dict[str, Any] = {}
    if image is not None:
        changed["image"] = image
    if classes is not None:
        changed["classes"] = classes
    if any(value is not None for value in (remainder, width, depth, num_heads)):
        if not isinstance(base, ViTConfig):
            kind = type(base).__name__
            raise VitrailError(
                f"--remainder, --width, --depth and --num-heads change a ViT, not a {kind}; give a config's JSON file"
            )
        given = {"remainder": remainder, "width": width, "depth": depth, "num_heads": num_heads}
        changed |= {name: value for name, value in given.items() if value is not None}
        if width is not None:
            changed["mlp"] = replace(base.mlp, width=max(1, base.mlp.width * width // base.width))
    if patch is not None:
        base = base.with_patch(patch)
    if frames is not None or tubelet is not None:
        base = base.with_frames(base.frames if frames is None else frames, tubelet)
    return base.but(**changed) if changed else base


def _measured_tokens(config: Config, folder: Path) -> int:
    """Measure the mean number of adaptive patches per image of a folder."""
    from vitrail.cli.progress import counted
    from vitrail.images.folder import image_files
    from vitrail.images.measure import survey

    if not isinstance(config, ViTConfig) or not isinstance(config.embedding, Adaptive):
        raise VitrailError("--images counts adaptive patches, and this config has none; leave it out")
    require(
        config.embedding.looks_at_pixels,
        f"--images counts what the selectors 'detail' and 'local' split, and this one is {config.embedding.selector}; "
        "give --adaptive-tokens",
    )
    fitted = config.fit(config.image).fitted
    files = image_files(folder, limit=256)
    found = survey(counted(files, "measuring", len(files)), image=fitted, adaptive=config.embedding).adaptive_tokens
    assert found is not None  # a fitted image is divided by its cells
    return found
