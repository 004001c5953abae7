"""The planner's model mirrors nn: the same files, parameters row by row, and FLOPs as torch's counter has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import vitrail.nn
import vitrail.plan.model
from libraries import make
from vitrail.checkpointing import Checkpointing
from vitrail.config import Config, MobileConfig, MobileStage, PyramidConfig, ViTConfig
from vitrail.geometry import Size
from vitrail.nn.build import build
from vitrail.parts import (
    Adaptive,
    AttentionPool,
    FullAttention,
    Hierarchical,
    Learned,
    LinearAttention,
    LinearMerger,
    MaxPool,
    MeanPool,
    Mlp,
    MlpMerger,
    NoPosition,
    Patches,
    Prefix,
    RelativeBias,
    ResNetStem,
    Rotary,
    Rotary3d,
    RotaryMixed,
    SeparableAttention,
    SinCos1d,
    SinCos2d,
    SinCos3d,
    SparseAttention,
    Stem,
    SwiGLU,
    Tubelets,
    WindowedAttention,
)
from vitrail.plan import Workload, ledger, memory
from vitrail.plan.step import run_step
from vitrail.presets import PRESETS, preset
from vitrail.training.tuning import tune
from vitrail.tuning import Lora, Tuning

PLAIN = ViTConfig(image=Size(80, 112), width=96, depth=3, num_heads=3, mlp=Mlp(width=160), classes=11)

CONFIGS: dict[str, Config] = {
    "plain": PLAIN,
    "one block": PLAIN.but(depth=1),
    "overlapping": PLAIN.but(embedding=Patches(stride=Size(8, 16), bias=False)),
    "stem": PLAIN.but(embedding=Stem(widths=(8, 16, 24, 40))),
    "cut stem": PLAIN.but(embedding=Stem(widths=(8, 16), overlap=False, activation="gelu")),
    "hybrid": PLAIN.but(embedding=ResNetStem(depths=(2, 1), width=16, groups=4, cells=Size(2, 2))),
    "hierarchical": PLAIN.but(embedding=Hierarchical(widths=(24, 40))),
    "registers": PLAIN.but(prefix=Prefix(registers=4), position=Learned(prefix="cls")),
    "distilled": PLAIN.but(prefix=Prefix(distillation=True), head_bias=False),
    "sines": PLAIN.but(position=SinCos2d(), embedding_norm=True),
    "sines 1d": PLAIN.but(position=SinCos1d(), final_norm="none"),
    "rotary": PLAIN.but(position=Rotary(), qkv_bias="no_key"),
    "rotary mixed": PLAIN.but(position=RotaryMixed(), qkv_bias="none"),
    "no position": PLAIN.but(position=NoPosition(), prefix=Prefix(cls=False), pool=MeanPool()),
    "relative": PLAIN.but(position=RelativeBias(), attention=FullAttention(fused=False)),
    "relative shared": PLAIN.but(position=RelativeBias(shared=True), attention=FullAttention(fused=False)),
    "eager": PLAIN.but(attention=FullAttention(fused=False), qk_norm=True, layer_scale=1e-5),
    "linear": PLAIN.but(attention=LinearAttention(), pool=MaxPool(), final_norm="pooled"),
    "sparse": PLAIN.but(attention=SparseAttention(), prefix=Prefix(cls=False), pool=MeanPool()),
    "swiglu": PLAIN.but(mlp=SwiGLU(width=72), classes=0),
    "pooled by attention": PLAIN.but(pool=AttentionPool(num_heads=4, mlp_width=144)),
    "pooled by attention to all": PLAIN.but(pool=AttentionPool(num_heads=4, mlp_width=144, prefix=True)),
    "merged by an MLP": PLAIN.but(
        image=Size(64, 96),
        classes=0,
        merger=MlpMerger(width=40, mlp_width=56, norm="rms", activation="quick_gelu"),
    ),
    "merged and then normalised": PLAIN.but(
        image=Size(64, 96), classes=0, merger=MlpMerger(width=40, mlp_width=56, norm_merged=True)
    ),
    "projected": PLAIN.but(classes=0, merger=MlpMerger(width=40, mlp_width=56, merge=1, norm="none", bias=False)),
    "averaged": PLAIN.but(image=Size(64, 96), classes=0, merger=LinearMerger(width=40, merge=2, norm="rms")),
    "windows": PLAIN.but(attention=WindowedAttention(window=Size(3, 4)), position=RelativeBias(prefix=False)),
    "windows and a full block": PLAIN.but(
        attention=WindowedAttention(window=Size(3, 4), shift=False, full=(1,)), norm="rms", out_bias=False
    ),
    "norms inside": PLAIN.but(
        position=Learned(rotary=Rotary(reference=Size(3, 5))),
        patch_norm=True,
        attention_norm=True,
        mlp=SwiGLU(width=72, bias=False, norm=True),
    ),
    "learned and mixed": PLAIN.but(position=Learned(rotary=RotaryMixed()), mlp=Mlp(width=160, norm=True)),
    "windows with zeros": PLAIN.but(
        attention=WindowedAttention(window=Size(3, 4), window_padding="zeros"), qk_norm=True, qkv_bias="no_key"
    ),
    "clip": PLAIN.but(embedding=Tubelets(frames=6, tubelet=2)),
    "clip of one step": PLAIN.but(embedding=Tubelets(frames=3, tubelet=3, bias=False), position=SinCos3d()),
    "clip, rotary": PLAIN.but(embedding=Tubelets(frames=4, tubelet=1), position=Rotary3d(), pool=MeanPool()),
    "adaptive": PLAIN.but(
        image=Size(64, 96), embedding=Adaptive(selector="learned"), position=SinCos2d(), prefix=Prefix(registers=1)
    ),
    "pyramid": PyramidConfig(image=Size(64, 96), attention=WindowedAttention(window=Size(3, 4)), classes=11),
    "pyramid with zeros": PyramidConfig(
        image=Size(64, 96), attention=WindowedAttention(window=Size(3, 4), window_padding="zeros"), classes=11
    ),
    "pooling pyramid": preset("pit-Ti-distilled", image=Size(72, 104), classes=11),
    "pooling pyramid of windows": preset(
        "pit-Ti",
        image=Size(72, 104),
        prefix=Prefix(cls=False),
        position=RelativeBias(prefix=False),
        attention=WindowedAttention(window=Size(3, 4)),
        pool=MeanPool(),
    ),
    "pooled queries": preset("hiera-T", image=Size(64, 96), classes=11),
    "pooled queries, tiled": preset(
        "sam2-hiera-T",
        image=Size(128, 160),
        attention=WindowedAttention(window=Size(4, 4), shift=False, window_padding="zeros", full=(5, 7)),
        stages=tuple(stage.but(window=Size(4, 4)) for stage in preset("sam2-hiera-T").stages),
    ),
    "mobile": MobileConfig(image=Size(64, 128), classes=11),
    "mobile v2": MobileConfig(image=Size(64, 128), attention=SeparableAttention(), last_width=0, classes=11),
    "resnet": MobileConfig(
        image=Size(24, 40),
        stem_width=12,
        stem_stride=1,
        residual="basic",
        expansion=2,
        stages=(MobileStage(width=12, depth=3), MobileStage(width=20, stride=2)),
        last_width=0,
        classes=11,
    ),
}


def own_parameters(model: nn.Module) -> dict[str, int]:
    """By path, the parameters that a module has itself, where it has any."""
    own = {
        path: sum(parameter.numel() for parameter in part.parameters(recurse=False))
        for path, part in model.named_modules()
    }
    return {path: count for path, count in own.items() if count}


def planned_parameters(config: Config, workload: Workload | None = None) -> dict[str, int]:
    return {row.path: row.params for row in ledger(config, workload).rows if row.params}


def test_each_file_has_the_name_of_the_file_whose_modules_it_costs() -> None:
    rooms = [Path(str(room.__file__)).parent for room in (vitrail.plan.model, vitrail.nn)]
    costs, modules = ({file.stem for file in room.glob("*.py")} for room in rooms)
    assert costs <= modules
    assert modules - costs == {
        "checkpointing",
        "compile",
        "image",
        "initialise",
        "intermediates",
        "lora",
        "mimetic",
        "resample",
        "teacher",
    }  # they take no part in a step; an adapter is a part of a linear layer (ops.linear)


@pytest.mark.parametrize("name", CONFIGS)
def test_each_rows_parameters_are_its_modules_own(name: str) -> None:
    with torch.device("meta"):
        model = build(CONFIGS[name])
    assert planned_parameters(CONFIGS[name]) == own_parameters(model)


@pytest.mark.parametrize("name", CONFIGS)
def test_first_sides_are_those_of_the_modules_tensors(name: str) -> None:
    """FSDP cuts tensors along them."""
    with torch.device("meta"):
        model = build(CONFIGS[name])
    leaves = run_step(CONFIGS[name], Workload()).tape.leaves
    planned = sorted((leaf.path, leaf.count, leaf.rows) for leaf in leaves)
    run = {leaf.path for leaf in leaves}
    own = ((key.rpartition(".")[0], tensor) for key, tensor in model.named_parameters())
    assert planned == sorted((path, tensor.numel(), tensor.shape[0]) for path, tensor in own if path in run)


@pytest.mark.parametrize("name", PRESETS)
def test_every_presets_parameters_are_its_modules_own(name: str) -> None:
    with torch.device("meta"):
        model = build(PRESETS[name])
    assert planned_parameters(PRESETS[name]) == own_parameters(model)


@pytest.mark.parametrize("workload", [Workload(library="timm"), Workload(library="huggingface")])
def test_other_libraries_have_their_own_paths_and_the_same_flops(
    workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", fused_attention)
    with torch.device("meta"):
        model = make(PLAIN, workload)
    own = {path.removeprefix("model."): count for path, count in own_parameters(model).items()}
    assert planned_parameters(PLAIN, workload) == own
    books = ledger(PLAIN, workload)
    assert (books.flops_forward, books.flops_train) == count_flops(model, PLAIN)
    assert books.flops_train == ledger(PLAIN).flops_train


def _fixed_convolution_backward(grad_out: Any, x: Any, weight: Any, *rest: Any, out_val: Any = None, **_: Any) -> int:
    """Two products as large as the forward's; torch's own formula forgets groups in the weight's."""
    mask = rest[-1]
    one = 2 * weight.numel() * grad_out.shape[0] * grad_out.shape[2] * grad_out.shape[3]
    return one * (bool(mask[0]) + bool(mask[1]))


_fixed_convolution_backward._get_raw = True  # type: ignore[attr-defined]


def fused_attention(q: Any, k: Any, v: Any, attn_mask: Any = None, dropout_p: float = 0.0, **_: Any) -> Any:
    """PyTorch's fused kernel by name: the meta device would fall back to plain math, whose backward is cheaper."""
    if attn_mask is not None:
        attn_mask = attn_mask.to(q.dtype).expand(*q.shape[:-1], k.shape[-2])
    kernel = torch.ops.aten._scaled_dot_product_efficient_attention
    return kernel(q, k, v, attn_mask, compute_log_sumexp=True, dropout_p=dropout_p)[0]


def count_flops(model: nn.Module, config: Config) -> tuple[int, int]:
    """(forward, forward and backward) for one image, on the meta device."""
    mapping = {torch.ops.aten.convolution_backward: _fixed_convolution_backward}
    image = torch.zeros(1, *config.input_shape, device="meta")
    with FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        out = model(image)
        forward = counter.get_total_flops()
        out.sum().backward()
    return forward, counter.get_total_flops()


@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "adaptive"])
def test_flops_equal_the_counters(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", fused_attention)
    with torch.device("meta"):
        model = build(CONFIGS[name])
    books = ledger(CONFIGS[name])
    assert (books.flops_forward, books.flops_train) == count_flops(model, CONFIGS[name])


TUNINGS = [
    Tuning(last=1),
    Tuning(only=("head",)),
    Tuning(only=("norms", "biases")),
    Tuning(freeze=("blocks[1]", "head")),
    Tuning(lora=Lora(rank=3, on=("qkv", "out", "mlp"))),
    Tuning(lora=Lora(rank=2, on=("fc2",)), last=1, only=("norms",)),
]


@pytest.mark.parametrize("tuning", TUNINGS, ids=str)
@pytest.mark.parametrize("name", ["eager", "swiglu", "windows with zeros", "pyramid", "mobile"])
def test_flops_and_parameters_of_a_part_equal_the_counters(
    name: str, tuning: Tuning, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frozen weight has no gradient, and nothing below the first trained tensor has any."""
    if CONFIGS[name].classes == 0 and "head" in (*tuning.freeze, *tuning.only):
        tuning = Tuning(only=("blocks[-1]",))
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", fused_attention)
    with torch.device("meta"):
        model = build(CONFIGS[name]).train()
        tune(model, tuning)
    workload = Workload(train=True, tuning=tuning)
    books = ledger(CONFIGS[name], workload)
    assert planned_parameters(CONFIGS[name], workload) == own_parameters(model)
    assert (books.flops_forward, books.flops_train) == count_flops(model, CONFIGS[name])


def test_training_the_head_costs_its_weight_gradient_alone() -> None:
    books = ledger(ViTConfig(), Workload(tuning=Tuning(only=("head",))))
    assert books.trained_params == 769_000
    assert books.flops_train - books.flops_forward == 2 * 768 * 1000
    assert books.saved_bytes == 4 * 197 * 768  # the CLS row is a view of all tokens, which therefore stay


def test_checkpointing_adds_what_it_computes_again() -> None:
    """A block's last product is not needed: PyTorch stops before it."""
    plain, again = ledger(PLAIN), ledger(PLAIN, Workload(checkpointing=Checkpointing()))
    block = sum(row.flops for row in plain.rows if row.path.startswith("blocks."))
    last = sum(row.flops for row in plain.rows if row.path.endswith("mlp.fc2"))
    assert again.flops_train - plain.flops_train == block - last


@pytest.mark.parametrize(
    ("workload", "share"), [(Workload(attention="flash"), (7, 2)), (Workload(attention="eager"), (6, 2))]
)
def test_training_a_vit_costs_what_the_closed_form_says(workload: Workload, share: tuple[int, int]) -> None:
    """ViT-B/16: forward once and backward twice, but for the images' gradient, and fused attention 2.5 times."""
    tokens, width, hidden = 197, 768, 3072
    conv, head = 2 * 196 * 768 * width, 2 * width * 1000
    linear, attention = 12 * 2 * tokens * (4 * width**2 + 2 * width * hidden), 12 * 4 * tokens**2 * width
    books = ledger(ViTConfig(), workload)
    assert books.flops_forward == conv + linear + attention + head == 35_127_656_448
    assert books.flops_train == 2 * conv + 3 * (linear + head) + attention * share[0] // share[1]
    assert books.macs_forward * 2 == books.flops_forward


@pytest.mark.parametrize(
    ("patch", "width", "depth", "heads", "hidden", "params"),
    [
        (16, 192, 12, 3, 768, 5_717_416),
        (16, 384, 12, 6, 1536, 22_050_664),
        (16, 768, 12, 12, 3072, 86_567_656),
        (32, 768, 12, 12, 3072, 88_224_232),
        (16, 1024, 24, 16, 4096, 304_326_632),
        (14, 1280, 32, 16, 5120, 632_045_800),
    ],
)
def test_the_published_models_have_their_published_parameters(
    patch: int, width: int, depth: int, heads: int, hidden: int, params: int
) -> None:
    """Counts from Google's own tests, with 1,000 classes."""
    config = ViTConfig(
        embedding=Patches(patch=Size(patch, patch)), width=width, depth=depth, num_heads=heads, mlp=Mlp(width=hidden)
    )
    assert ledger(config).params == params


def test_saved_bytes_are_the_activations_that_forward_leaves() -> None:
    """At the end of forward only what is saved lives, beside the logits and the loss."""
    workload = Workload(batch=3, train=True)
    books, plan = ledger(PLAIN, workload), memory(PLAIN, workload)
    assert 0 < books.saved_bytes < plan.phase_peaks["forward"] - plan.bytes["weights"] - plan.bytes["optimizer"]
