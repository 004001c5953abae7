"""A trained model as a value: what it is, its weights, what it expects of its pixels, and how all that is known."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor, nn

from vitrail.checkpoint.classify import Prediction, classify
from vitrail.checkpoint.pixels import Image
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.config import Config
from vitrail.errors import VitrailError
from vitrail.nn.build import build
from vitrail.nn.mobile import MobileViT
from vitrail.nn.positions import PositionModule
from vitrail.nn.pyramid import PyramidViT
from vitrail.nn.vit import ViT

__all__ = ["Checkpoint", "Evidence"]


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """How a checkpoint's config is known, in words."""

    config: str
    """What says the parts that shapes do not show: a config beside the weights, metadata, or a known preset."""
    grid: str
    """What says how the positions are laid out."""
    assumed: tuple[str, ...] = ()
    """What neither a config nor the weights say: given the value that is usual for such a model."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Weights under vitrail's own names, with the config that they fit; surgery gives new ones.

    Tensors may be mapped from their file: they are read when they are used, and must not be written to.
    """

    config: Config
    tensors: Mapping[str, Tensor]
    preprocessing: Preprocessing
    format: str = "memory"
    """How the file stored it."""
    dialect: str = "vitrail"
    family: str = "vit"
    """Which of the dialect's tables of names the file followed."""
    name_prefix: str = ""
    """What the file puts before the model's names."""
    evidence: Evidence = Evidence(config="made here", grid="made here")
    labels: tuple[str, ...] = ()
    """What the head's outputs are called, in their order; empty where the file does not say."""
    extra: Mapping[str, Tensor] = field(default_factory=dict)
    """Tensors that the architecture has no place for, under the dialect's names: written back to the same dialect."""
    origin: Mapping[str, Any] = field(default_factory=dict)
    """The config beside the weights, as it was read: what it says beyond `config` goes back to the same family."""

    def model(
        self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> ViT | PyramidViT | MobileViT:
        """The model in eval mode with these weights, every tensor accounted for."""
        with torch.device("meta"):
            model = build(self.config)
        expected = model.state_dict()
        missing, unknown = sorted(expected.keys() - self.tensors.keys()), sorted(self.tensors.keys() - expected.keys())
        if missing or unknown:
            raise VitrailError(
                f"the weights do not fit the config: missing {_few(missing)}, without a place {_few(unknown)}; "
                "adapt the checkpoint to the config"
            )
        for name, tensor in self.tensors.items():
            if tensor.shape != expected[name].shape:
                raise VitrailError(
                    f"{name} has shape {tuple(tensor.shape)} where the config has {tuple(expected[name].shape)}; "
                    "adapt the checkpoint to the config"
                )
        dtype = dtype or _dtype(self.tensors)
        # assigned, not copied into: fresh weights are never made; copied once, so that training leaves these alone
        own = {
            name: tensor.to(device, dtype if tensor.is_floating_point() else None, copy=True)
            for name, tensor in self.tensors.items()
        }
        model.load_state_dict(own, strict=True, assign=True)
        _compute_buffers(model, device, dtype)
        return model.eval()

    def transform(self, *images: Image) -> Tensor:
        """Prepare files, bytes, Pillow images or uint8 arrays as the model takes them: (B, C, H, W).

        >>> import numpy as np
        >>> from vitrail import load
        >>> load("default").transform(np.zeros((48, 64, 3), np.uint8)).shape
        torch.Size([1, 3, 32, 32])
        """
        return self.preprocessing(*images)

    def predict(self, image: Image, *, top: int = 5) -> tuple[Prediction, ...]:
        """Return the most likely labels of one image, most likely first; for many images, use `classify`.

        >>> from vitrail import load, synthesize_image
        >>> [type(each.label) for each in load("default").predict(synthesize_image(0), top=2)]
        [<class 'str'>, <class 'str'>]
        """
        found = next(classify(self, [image], top=top))
        if isinstance(found, Exception):
            raise found
        return found

    def but(self, **changes: Any) -> Self:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)


def _compute_buffers(model: nn.Module, device: torch.device | str | None, dtype: torch.dtype) -> None:
    """Fixed tables are a function of the config and not in the state dict: replace the meta ones by their values."""
    for module in model.modules():
        if isinstance(module, PositionModule):
            module.compute_buffers(device, dtype)
    assert not any(buffer.is_meta for buffer in model.buffers())


def _dtype(tensors: Mapping[str, Tensor]) -> torch.dtype:
    """The type of most weights: files mix, for instance half precision with norms in float32. No layer computes in
    float8, so that such weights become float32."""
    sizes: dict[torch.dtype, int] = {}
    for tensor in tensors.values():
        if tensor.is_floating_point():
            sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.numel()
    found = max(sizes, key=lambda dtype: sizes[dtype], default=torch.float32)
    return found if found.itemsize > 1 else torch.float32


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "") or "nothing"
