"""The forward pass beside timm, transformers and vit-pytorch: the same architecture and weights sizes, in turns.

    python benchmarks/forward.py [--json] [--seconds 3] [--threads 2]

ViT-S/16 and ViT-B/16 at 224, float32, batch 1, 8 and 32, in inference mode. timm runs eager with fused attention,
transformers with sdpa. vitrail and timm share their weights (outputs are compared first); the other two have their own
of the same shapes, which changes nothing about the work. A ratio above 1 means that vitrail is that much faster.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median

import torch
from measure import arguments, finish, gemm_flops_per_second, machine, ratio, take_turns

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from peers import timm, transformers, vit_pytorch
from vitrail.config import ViTConfig
from vitrail.nn.vit import ViT
from vitrail.plan import ledger
from vitrail.presets import preset

MODELS = {"S/16": "vit_small_patch16_224", "B/16": "vit_base_patch16_224"}
BATCHES = (1, 8, 32)


def build_all(name: str) -> dict[str, torch.nn.Module]:
    config = preset(name)
    assert isinstance(config, ViTConfig)
    theirs = timm.create_model(MODELS[name]).eval()
    ours = ViT(config).eval()
    ours.load_state_dict({_ours(key): _shaped(key, value) for key, value in theirs.state_dict().items()})
    hub = transformers.ViTConfig(
        hidden_size=config.width,
        num_hidden_layers=config.depth,
        num_attention_heads=config.num_heads,
        intermediate_size=config.mlp.width,
        attn_implementation="sdpa",
        num_labels=1000,
    )
    return {
        "vitrail": ours,
        "timm": theirs,
        "transformers": transformers.ViTForImageClassification(hub).eval(),
        "vit-pytorch": vit_pytorch.ViT(
            image_size=224,
            patch_size=16,
            num_classes=1000,
            dim=config.width,
            depth=config.depth,
            heads=config.num_heads,
            mlp_dim=config.mlp.width,
            dim_head=config.head_width,
        ).eval(),
    }


def _ours(key: str) -> str:
    names = {
        "patch_embed.proj": "embedding",
        "cls_token": "prefix.cls",
        "pos_embed": "position.table",
        "attn.qkv": "attention.qkv",
        "attn.proj": "attention.out",
    }
    for theirs, ours in names.items():
        key = key.replace(theirs, ours)
    return key


def _shaped(key: str, value: torch.Tensor) -> torch.Tensor:
    return value[0] if key == "pos_embed" else value


def main() -> None:
    options = arguments(__doc__)
    peak = gemm_flops_per_second()
    cells = []
    for name in MODELS:
        models = build_all(name)
        flops = ledger(preset(name)).flops_forward
        for batch in BATCHES:
            image = torch.randn(batch, 3, 224, 224)
            with torch.inference_mode():
                torch.testing.assert_close(models["vitrail"](image), models["timm"](image), rtol=1e-4, atol=1e-4)
                spent = take_turns(
                    {who: lambda model=model, image=image: model(image) for who, model in models.items()},
                    seconds=options.seconds,
                    at_least=2,
                )
            fastest = min((who for who in models if who != "vitrail"), key=lambda who: median(spent[who]))
            cells.append(
                {
                    "model": name,
                    "batch": batch,
                    "milliseconds": {who: 1e3 * median(times) for who, times in spent.items()},
                    "ratio": {who: ratio(spent, "vitrail", who) for who in models if who != "vitrail"},
                    "fastest_peer": fastest,
                    "share_of_gemm_peak": flops * batch / median(spent["vitrail"]) / peak,
                }
            )
    result = {"machine": machine(), "gemm_gflops": peak / 1e9, "cells": cells}
    lines = [f"GEMM peak {peak / 1e9:.0f} GFLOP/s, {options.threads} threads; ratio = peer's time / vitrail's"]
    for cell in cells:
        ratios = "  ".join(f"{who} {value:.2f}×" for who, value in cell["ratio"].items())
        lines.append(
            f"{cell['model']:5} batch {cell['batch']:2}  {cell['milliseconds']['vitrail']:8.1f} ms  "
            f"{cell['share_of_gemm_peak']:4.0%} of peak   {ratios}"
        )
    finish(result, options.json, lines)


if __name__ == "__main__":
    main()
