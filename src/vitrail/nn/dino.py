"""Self-distillation with crops (DINO, arXiv 2104.14294): global and local crops of images → a loss.

Shapes: B images, V crops of each, C channels, H×W pixels, D width, d bottleneck, K prototypes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import ViTConfig
from vitrail.nn.initialise import initialise_table
from vitrail.nn.mlp import linear
from vitrail.nn.teacher import follow, teacher_of
from vitrail.nn.vit import ViT
from vitrail.pretraining import Dino

__all__ = ["SelfDistillation"]

CENTRE_MOMENTUM = 0.9


class Prototypes(nn.Module):
    """(B, D) → cosines (B, K) with learned directions, after three linear layers."""

    def __init__(self, width: int, spec: Dino) -> None:
        super().__init__()
        self.fc1 = linear(width, spec.hidden)
        self.fc2 = linear(spec.hidden, spec.hidden)
        self.fc3 = linear(spec.hidden, spec.bottleneck)
        self.directions = nn.Parameter(torch.empty(spec.prototypes, spec.bottleneck))
        initialise_table(self.directions.data)

    def forward(self, vector: Tensor) -> Tensor:
        x = self.fc3(F.gelu(self.fc2(F.gelu(self.fc1(vector)))))
        return F.linear(F.normalize(x, dim=-1), F.normalize(self.directions, dim=-1))


class Compared(nn.Module):
    """An encoder and its prototypes. Crops of one size are one batch: a pass of the encoder per size."""

    def __init__(self, config: ViTConfig, spec: Dino) -> None:
        super().__init__()
        self.encoder = ViT(config)
        self.prototypes = Prototypes(config.vector_width, spec)

    def forward(self, *crops: Tensor) -> Tensor:
        vectors = [self.encoder.vector(each) for each in crops]
        return self.prototypes(torch.cat(vectors) if len(vectors) > 1 else vectors[0])


class SelfDistillation(nn.Module):
    """Global crops (2·B, C, H, W) and local ones (n·B, C, h, w), crop by crop → the loss. `advance` follows an
    optimizer step."""

    centre: Tensor

    def __init__(self, config: ViTConfig, spec: Dino) -> None:
        super().__init__()
        self.spec = spec
        self.student = Compared(config, spec)
        self.teacher = teacher_of(self.student)
        self.register_buffer("centre", torch.zeros(spec.prototypes))

    def train(self, mode: bool = True) -> SelfDistillation:
        super().train(mode)
        self.teacher.eval()
        return self

    def forward(self, global_crops: Tensor, *local_crops: Tensor) -> Tensor:
        with torch.no_grad():
            targets = self._targets(self.teacher(global_crops)).unflatten(0, (2, -1))  # (2, B, K)
        logits = self.student(global_crops, *local_crops) / self.spec.temperature
        logs = logits.log_softmax(dim=-1).unflatten(0, (-1, targets.shape[1]))  # (V, B, K)
        every = (targets.sum(dim=0) * logs.sum(dim=0)).sum()  # all pairs, of which a crop with itself is none
        own = (targets * logs[:2]).sum()
        return (own - every) / ((2 * len(logs) - 2) * targets.shape[1])

    def _targets(self, logits: Tensor) -> Tensor:
        """Centre and sharpen the teacher's logits; the centre follows their mean."""
        targets = ((logits - self.centre) / self.spec.teacher_temperature).softmax(dim=-1)
        self.centre.lerp_(logits.mean(dim=0).to(self.centre), 1 - CENTRE_MOMENTUM)
        return targets

    def advance(self) -> None:
        follow(self.teacher, self.student, self.spec.momentum)
