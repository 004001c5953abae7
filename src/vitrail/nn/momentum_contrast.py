"""Momentum contrast (MoCo v2, arXiv 2003.04297): two views of images → a loss.

Shapes: B images, C channels, H×W pixels, D width, d dimension of keys, K keys in the queue.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import ViTConfig
from vitrail.nn.mlp import linear
from vitrail.nn.teacher import follow, teacher_of
from vitrail.nn.vit import ViT
from vitrail.pretraining import MomentumContrast

__all__ = ["Contrast"]


class Projector(nn.Module):
    """An encoder and two linear layers: (B, C, H, W) → unit vectors (B, d)."""

    def __init__(self, config: ViTConfig, dimension: int) -> None:
        super().__init__()
        self.encoder = ViT(config)
        self.fc1 = linear(config.vector_width, config.vector_width)
        self.fc2 = linear(config.vector_width, dimension)

    def forward(self, image: Tensor) -> Tensor:
        return F.normalize(self.fc2(F.relu(self.fc1(self.encoder.vector(image)))), dim=-1)


class Contrast(nn.Module):
    """Two views, (B, C, H, W) each → the loss. `advance` follows an optimizer step."""

    queue: Tensor

    def __init__(self, config: ViTConfig, spec: MomentumContrast) -> None:
        super().__init__()
        self.spec = spec
        self._keys: list[Tensor] = []
        self._place = 0
        self.student = Projector(config, spec.dimension)
        self.teacher = teacher_of(self.student)
        self.register_buffer("queue", F.normalize(torch.randn(spec.dimension, spec.queue), dim=0))

    def train(self, mode: bool = True) -> Contrast:
        super().train(mode)
        self.teacher.eval()
        return self

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        queries = self.student(first)
        with torch.no_grad():
            keys = self.teacher(second)
        own = (queries * keys).sum(dim=-1, keepdim=True)  # (B, 1)
        logits = torch.cat([own, queries @ self.queue], dim=1) / self.spec.temperature  # (B, 1 + K)
        self._keys.append(keys)
        return F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long, device=logits.device))

    @torch.no_grad()
    def advance(self) -> None:
        """Let the new keys replace the oldest, which backward no longer reads, and the teacher follow."""
        size = self.spec.queue
        for keys in self._keys:
            new = keys[-size:].T
            before = min(new.shape[1], size - self._place)  # the others begin at the front again
            self.queue[:, self._place : self._place + before] = new[:, :before]
            self.queue[:, : new.shape[1] - before] = new[:, before:]
            self._place = (self._place + new.shape[1]) % size
        self._keys.clear()
        follow(self.teacher, self.student, self.spec.momentum)
