"""Small models of the peers with random weights everywhere, saved as the peers save them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from peers import timm, transformers

__all__ = ["randomise", "relative_error", "save_timm", "save_transformers"]


def randomise(module: nn.Module, seed: int = 0) -> Any:
    """Every parameter at random, norms and scales and biases included, so that a tensor that is missed shows."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in module.named_parameters():
            noise = torch.randn(value.shape, generator=generator)
            centre = 1.0 if value.ndim == 1 and name.endswith("weight") else 0.0
            value.copy_(centre + noise * (0.3 if value.ndim < 2 else value[0].numel() ** -0.5))
        for name, value in module.named_buffers():
            if name.endswith(("running_mean", "running_var")):
                value.copy_(torch.rand(value.shape, generator=generator) + (0.5 if name.endswith("var") else 0))
    return module.eval()


def save_timm(directory: Path, name: str, **arguments: Any) -> Any:
    """timm's model, saved by timm with its config.json."""
    model = randomise(timm.create_model(name, **arguments))
    plain = {key: list(value) if isinstance(value, tuple) else value for key, value in arguments.items()}
    timm.models.save_for_hf(model, directory, model_args=plain, safe_serialization=True)
    return model


def save_transformers(directory: Path, model: str, config: str, **arguments: Any) -> Any:
    """transformers' model, saved by transformers."""
    module = randomise(getattr(transformers, model)(getattr(transformers, config)(**arguments)))
    module.save_pretrained(directory)
    return module


def relative_error(found: Tensor, expected: Tensor) -> float:
    """The largest difference, in units of the largest value."""
    assert found.shape == expected.shape
    return float((found - expected).abs().max() / expected.abs().max())
