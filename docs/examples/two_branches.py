"""A model that is no config of vitrail's: a convolutional branch beside a transformer, for `vitrail plan --module`."""

import torch
from torch import Tensor, nn


class TwoBranches(nn.Module):
    """Image → local features from convolutions and global ones from attention → logits."""

    def __init__(self, width: int = 192, depth: int = 6, classes: int = 100) -> None:
        super().__init__()
        self.local = nn.Sequential(
            nn.Conv2d(3, 64, 7, stride=4, padding=3),
            *(nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()) for _ in range(4)),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.patches = nn.Conv2d(3, width, 16, stride=16)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 3, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.head = nn.Linear(64 + width, classes)

    def forward(self, image: Tensor) -> Tensor:
        tokens = self.patches(image).flatten(2).mT  # (B, 3, H, W) → (B, N, D)
        for block in self.blocks:
            tokens = block(tokens)
        return self.head(torch.cat([self.local(image), tokens.mean(1)], dim=1))


def make() -> nn.Module:
    return TwoBranches()
