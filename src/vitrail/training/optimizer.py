"""The optimizers of a recipe."""

from __future__ import annotations

import torch
from torch import nn

from vitrail.training.muon import Muon
from vitrail.training.recipe import FRESH_RATE, Recipe

__all__ = ["build_optimizers"]


def build_optimizers(objective: nn.Module, recipe: Recipe) -> tuple[torch.optim.Optimizer, ...]:
    """Build AdamW and, if the recipe says so, Muon for the encoder's matrices; their state exists from the start.

    Only matrices have weight decay, not vectors nor tables of positions and tokens nor adapters. Frozen weights are
    left out. A group's "rate" is the factor of its learning rate.
    """
    named = {name: parameter for name, parameter in objective.named_parameters() if parameter.requires_grad}
    decayed = {name: p for name, p in named.items() if name.endswith(".weight") and p.ndim > 1}
    hidden = {name: p for name, p in decayed.items() if p.ndim == 2 and not name.endswith("head.weight")}
    turned = hidden if recipe.optimizer == "muon" else {}
    fresh = {name for name in named if name.removeprefix("model.") in recipe.fresh and name not in turned}
    matrices = [p for name, p in decayed.items() if name not in turned and name not in fresh]
    others = [p for name, p in named.items() if name not in decayed and name not in fresh]
    adamw = torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": recipe.weight_decay, "rate": recipe.matrix_rate},
            {"params": others, "weight_decay": 0.0, "rate": 1.0},
            {"params": [named[name] for name in named if name in fresh], "weight_decay": 0.0, "rate": FRESH_RATE},
        ],
        lr=recipe.lr,
        betas=(recipe.beta1, recipe.beta2),
        fused=True,
    )
    for parameter in (p for name, p in named.items() if name not in turned):
        adamw.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
            "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
        }
    if not turned:
        return (adamw,)
    return adamw, Muon(turned.values(), lr=recipe.lr, weight_decay=recipe.weight_decay)
