"""A training step beside timm's and vit-pytorch's models in the same loop, on real images, in turns.

    python benchmarks/train.py --data CIFAR10 [--compile] [--json] [--seconds 3] [--threads 2]
    python benchmarks/train.py --data CIFAR10 --quality [--models vitrail vit-pytorch] [--model cifar-small]
                               [--recipe cifar] [--steps 2000] [--seed 0] [--compile] [--json]

32 pixels, patch 4, batch 64, float32; forward, cross-entropy, backward, clip, AdamW. All three have vitrail's optimizer
(fused AdamW, decay of matrices only); timm and vit-pytorch are also timed with torch's default AdamW, as their users'
loops have it. With --compile, all three once more by torch.compile. A ratio above 1 means that vitrail is that much
faster. `vitrail data fetch cifar10 --out CIFAR10` gets the data.

--quality trains vitrail's and vit-pytorch's ViT of the same size by the same recipe, on the same images in the same
order, and gives their test accuracies and times. vit-pytorch's positions fit one image size only, so it sees its own at
every step where the recipe has several, and begins with its own weights. Give it fewer --steps for equal times.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from measure import arguments, finish, gemm_flops_per_second, machine, ratio, take_turns
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from peers import timm, vit_pytorch
from vitrail.config import ViTConfig
from vitrail.data.open import open_source
from vitrail.nn.build import build
from vitrail.parts import Mlp
from vitrail.plan import ledger
from vitrail.presets import preset
from vitrail.training.batches import Batches, measured
from vitrail.training.folder import RunFolder
from vitrail.training.job import DataFacts, Job
from vitrail.training.loop import train
from vitrail.training.prepare import read_recipe
from vitrail.training.recipe import Recipe

BATCH = 64


def setting(width: int, depth: int, num_heads: int) -> ViTConfig:
    config = preset("cifar", width=width, depth=depth, num_heads=num_heads, mlp=Mlp(width=4 * width))
    assert isinstance(config, ViTConfig)
    return config


SETTINGS = (setting(128, 6, 4), setting(192, 9, 3))


def build_timm(config: ViTConfig) -> nn.Module:
    return timm.models.vision_transformer.VisionTransformer(
        img_size=config.image.height,
        patch_size=config.patch.height,
        num_classes=config.classes,
        embed_dim=config.width,
        depth=config.depth,
        num_heads=config.num_heads,
        mlp_ratio=config.mlp.width / config.width,
    )


def build_vit_pytorch(config: ViTConfig) -> nn.Module:
    return vit_pytorch.ViT(
        image_size=config.image.height,
        patch_size=config.patch.height,
        num_classes=config.classes,
        dim=config.width,
        depth=config.depth,
        heads=config.num_heads,
        dim_head=config.head_width,
        mlp_dim=config.mlp.width,
    )


# ── speed ───────────────────────────────────────────────────────────────────────────────────────────────────────


def stepper(model: nn.Module, batches: list[tuple[Tensor, Tensor]], *, fused: bool) -> Callable[[], None]:
    """One update after another, over the batches in turn."""
    matrices = [p for name, p in model.named_parameters() if name.endswith(".weight") and p.ndim > 1]
    chosen = {id(p) for p in matrices}
    rest = [p for p in model.parameters() if id(p) not in chosen]
    groups = [{"params": matrices, "weight_decay": 0.05}, {"params": rest, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, fused=True if fused else None)
    model.train()
    turn = 0

    def step() -> None:
        nonlocal turn
        images, targets = batches[turn % len(batches)]
        turn += 1
        F.cross_entropy(model(images), targets).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def _ours(peer: str) -> str:
    """Compiled beside compiled."""
    return "vitrail, compiled" if peer.endswith("compiled") else "vitrail"


def speed(options: argparse.Namespace) -> None:
    source = open_source(options.data)
    steps = measured(source, SETTINGS[0].image)
    maker = Batches(source, Recipe(batch=BATCH), preprocessing=steps, classes=10)
    batches = [(part.images, part.targets) for step in range(8) for part in maker(step)]
    peak, cells = gemm_flops_per_second(), []
    for config in SETTINGS:
        torch.manual_seed(0)
        candidates = {
            "vitrail": stepper(build(config), batches, fused=True),
            "timm": stepper(build_timm(config), batches, fused=True),
            "vit-pytorch": stepper(build_vit_pytorch(config), batches, fused=True),
            "timm, default AdamW": stepper(build_timm(config), batches, fused=False),
            "vit-pytorch, default AdamW": stepper(build_vit_pytorch(config), batches, fused=False),
        }
        if options.compile:
            builders = {"vitrail": build, "timm": build_timm, "vit-pytorch": build_vit_pytorch}
            for who, builder in builders.items():
                model = builder(config)
                model.compile()
                candidates[f"{who}, compiled"] = stepper(model, batches, fused=True)
        spent = take_turns(candidates, seconds=options.seconds, at_least=5)
        cells.append(
            {
                "width": config.width,
                "depth": config.depth,
                "images_per_second": {who: BATCH / median(times) for who, times in spent.items()},
                "ratio": {who: ratio(spent, _ours(who), who) for who in candidates if not who.startswith("vitrail")},
                "share_of_gemm_peak": ledger(config).flops_train * BATCH / median(spent["vitrail"]) / peak,
            }
        )
    lines = [f"GEMM peak {peak / 1e9:.0f} GFLOP/s, {options.threads} threads; ratio = peer's time / vitrail's"]
    for cell in cells:
        ratios = "  ".join(f"{who} {value:.2f}×" for who, value in cell["ratio"].items())
        lines.append(
            f"width {cell['width']} depth {cell['depth']}  {cell['images_per_second']['vitrail']:6.0f} images/s  "
            f"{cell['share_of_gemm_peak']:4.0%} of peak   {ratios}"
        )
    finish({"machine": machine(), "gemm_gflops": peak / 1e9, "batch": BATCH, "cells": cells}, options.json, lines)


# ── quality ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Peer(nn.Module):
    """vit-pytorch's model, spoken to as vitrail's loop speaks to its own: a vector, then a head."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.vit = build_vit_pytorch(config)
        self.head: nn.Module = self.vit.get_submodule("mlp_head")
        self.vit.mlp_head = nn.Identity()
        self.distillation_head = None

    def vector(self, images: Tensor) -> Tensor:
        return self.vit(images)

    def classify(self, vector: Tensor) -> Tensor:
        return self.head(vector)

    def forward(self, images: Tensor) -> Tensor:
        return self.classify(self.vector(images))

    def model(self, *, dtype: torch.dtype) -> Peer:
        """What the loop asks of a checkpoint that it starts from: here, fresh weights."""
        return self.to(dtype)


def quality(options: argparse.Namespace) -> None:
    config = preset(options.model, classes=10)
    assert isinstance(config, ViTConfig)
    source, test = open_source(options.data), open_source(options.data, "test")
    facts = DataFacts(
        sources=(options.data,),
        images=len(source),
        classes=source.classes,
        preprocessing=measured(source, config.image, options.data),
    )
    recipe = read_recipe(options.recipe).but(seed=options.seed, compile=options.compile)
    recipe = recipe.but(steps=options.steps or recipe.steps)
    result = []
    for who in options.models:
        torch.manual_seed(options.seed)
        start = None if who == "vitrail" else Peer(config)
        with tempfile.TemporaryDirectory() as folder:
            began = time.monotonic()
            own = recipe if who == "vitrail" else recipe.but(images=())
            job = Job(config=config, recipe=own, data=facts)
            outcome = train(job, source, RunFolder(Path(folder)), test=test, start=start)  # type: ignore[arg-type]
        result.append(
            {
                "model": who,
                "parameters": sum(p.numel() for p in outcome.model.parameters()),
                "test_accuracy": outcome.accuracy,
                "loss": outcome.loss,
                "seconds": time.monotonic() - began,
            }
        )
    lines = [f"{options.recipe}, {recipe.steps:,} steps of {recipe.batch}, seed {recipe.seed}"]
    lines += [
        f"{each['model']:12} {each['parameters']:9,} parameters  {each['test_accuracy']:.2%} test accuracy  "
        f"{each['seconds']:.0f} s"
        for each in result
    ]
    facts_of_run = {"recipe": options.recipe, "steps": recipe.steps, "seed": recipe.seed}
    finish({"machine": machine(), **facts_of_run, "models": result}, options.json, lines)


def main() -> None:
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="CIFAR-10's folder, from vitrail data fetch cifar10")
    parser.add_argument("--quality", action="store_true", help="compare test accuracies instead of speed")
    parser.add_argument("--models", nargs="+", choices=("vitrail", "vit-pytorch"), default=["vitrail", "vit-pytorch"])
    parser.add_argument("--model", default="cifar-small", help="a preset, with --quality")
    parser.add_argument("--steps", type=int, help="updates of each model instead of the recipe's, with --quality")
    parser.add_argument("--recipe", default="cifar", help="a recipe's name or file, with --quality")
    parser.add_argument("--compile", action="store_true", help="by torch.compile too; with --quality, only so")
    parser.add_argument("--seed", type=int, default=0, help="of weights, order and augmentation, with --quality")
    options = arguments(__doc__, parser)
    (quality if options.quality else speed)(options)


if __name__ == "__main__":
    main()
