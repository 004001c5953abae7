"""Apply a `Tuning` to a model: adapters are put in, and what is not trained needs no gradient."""

from __future__ import annotations

from torch import nn

from vitrail.nn.lora import LoraLinear
from vitrail.training.objective import Model
from vitrail.tuning import Tuning

__all__ = ["tune"]


def tune(model: Model, tuning: Tuning) -> None:
    """Prepare a model in training mode; a batch norm without trained weights keeps its statistics, too."""
    if tuning.is_everything:
        return
    tuned = tuning.on(model.config)
    if tuned.lora is not None:
        for path, layer in list(model.named_modules()):
            if isinstance(layer, nn.Linear) and tuned.adapts(path):
                parent, _, name = path.rpartition(".")
                adapted = LoraLinear(layer, rank=tuned.lora.rank, scale=tuned.lora.scale)
                setattr(model.get_submodule(parent), name, adapted)
    for name, parameter in model.named_parameters():
        path, _, own = name.rpartition(".")
        parameter.requires_grad_(tuned.trains(path, own))
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise tuning.refuse()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d) and not any(p.requires_grad for p in module.parameters()):
            module.eval()
