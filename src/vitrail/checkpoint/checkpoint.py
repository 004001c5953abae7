"""A trained model as a value: config, weights, preprocessing, and how these are known."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor, nn

from vitrail.charts.notebook import Shown, facts
from vitrail.charts.numbers import count_text
from vitrail.checkpoint.classify import Prediction, classify
from vitrail.checkpoint.header import Evidence
from vitrail.checkpoint.pixels import Image
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.config import Config
from vitrail.errors import VitrailError
from vitrail.nn.build import build
from vitrail.nn.mobile import MobileViT
from vitrail.nn.positions import PositionModule
from vitrail.nn.pyramid import PyramidViT
from vitrail.nn.vit import ViT

__all__ = ["Checkpoint"]


@dataclass(frozen=True, kw_only=True, repr=False)
class Checkpoint(Shown):
    """Weights under vitrail's own names, with the config that they fit.

    Tensors may be memory-mapped from their file: they are read on first use, and must not be changed in place.

    >>> from vitrail import load
    >>> checkpoint = load("default")
    >>> checkpoint
    <Checkpoint: ViT, image 32x32, grid 8x8, 683 k parameters, 10 classes>
    >>> checkpoint.model()(checkpoint.transform("cat.jpg")).shape  # doctest: +SKIP
    torch.Size([1, 10])
    """

    config: Config
    tensors: Mapping[str, Tensor]
    preprocessing: Preprocessing
    format: str = "memory"
    """The file format it was read from."""
    dialect: str = "vitrail"
    family: str = "vit"
    """The dialect's table of names that the file matched."""
    name_prefix: str = ""
    """The prefix of all names in the file."""
    evidence: Evidence = Evidence(config="made here", grid="made here")
    labels: tuple[str, ...] = ()
    """Names of the head's outputs, in order; empty if the file has none."""
    extra: Mapping[str, Tensor] = field(default_factory=dict)
    """Tensors that the architecture does not use, under the dialect's names; written back to the same dialect."""
    origin: Mapping[str, Any] = field(default_factory=dict)
    """The config file beside the weights; fields that `config` does not cover are written back to the same family."""
    source: str = ""
    """The model and commit on the Hugging Face Hub that it was read from: "owner/name@commit"; empty for a file."""

    def model(
        self, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None, shared: bool = False
    ) -> ViT | PyramidViT | MobileViT:
        """Build the model in eval mode with these weights; every tensor must match.

        With `shared`, tensors of that device and type are not copied: the model must not be changed.
        """
        with torch.device("meta"):
            model = build(self.config)
        expected = model.state_dict()
        missing, unknown = sorted(expected.keys() - self.tensors.keys()), sorted(self.tensors.keys() - expected.keys())
        if missing or unknown:
            raise VitrailError(
                f"the weights do not fit the config: missing {_few(missing)}, unexpected {_few(unknown)}; "
                "adapt the checkpoint to the config"
            )
        for name, tensor in self.tensors.items():
            if tensor.shape != expected[name].shape:
                raise VitrailError(
                    f"{name} has shape {tuple(tensor.shape)} where the config has {tuple(expected[name].shape)}; "
                    "adapt the checkpoint to the config"
                )
        dtype = dtype or _dtype(self.tensors)
        # assigned, so that no fresh weights are made; copied, so that training does not change these
        own = {
            name: tensor.to(device, dtype if tensor.is_floating_point() else None, copy=not shared)
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
        """Return a copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    def _summary(self) -> str:
        config, size = self.config, count_text(sum(tensor.numel() for tensor in self.tensors.values()))
        kind = type(config).__name__.removesuffix("Config")
        frames = f"{config.frames} frames, " if config.frames > 1 else ""
        return f"{kind}, {frames}image {config.image}, grid {config.grid}, {size} parameters, {config.classes} classes"

    def _panel(self) -> Iterator[str]:
        dtypes = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in self.tensors.values()})
        evidence, labels = self.evidence, self.labels
        yield facts(
            [
                ("read as", f"{self.dialect}, {self.format}"),
                ("dtype", ", ".join(dtypes)),
                ("labels", ", ".join(labels[:10]) + (" …" if len(labels) > 10 else "") or "none"),
                ("preprocessing from", self.preprocessing.source),
                ("config from", evidence.config),
                ("grid from", evidence.grid),
                *(("assumed", each) for each in evidence.assumed),
            ]
        )
        yield self.config._repr_html_()


def _compute_buffers(model: nn.Module, device: torch.device | str | None, dtype: torch.dtype) -> None:
    """Compute the fixed tables, which are not in the state dict, in place of the meta buffers."""
    for module in model.modules():
        if isinstance(module, PositionModule):
            module.compute_buffers(device, dtype)
    assert not any(buffer.is_meta for buffer in model.buffers())


def _dtype(tensors: Mapping[str, Tensor]) -> torch.dtype:
    """Return the dtype of most weights, since files may mix, e.g. half precision with float32 norms. Layers cannot
    compute in float8, so float8 becomes float32."""
    sizes: dict[torch.dtype, int] = {}
    for tensor in tensors.values():
        if tensor.is_floating_point():
            sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.numel()
    found = max(sizes, key=lambda dtype: sizes[dtype], default=torch.float32)
    return found if found.itemsize > 1 else torch.float32


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "") or "nothing"
