"""A studio that was started with a model's weights."""

from __future__ import annotations

from pathlib import Path

import torch
from client import HOST, client
from starlette.testclient import TestClient

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.checkpoint.write import save
from vitrail.config import Config, ViTConfig
from vitrail.geometry import Size
from vitrail.nn.build import build
from vitrail.parts import Learned, Mlp, Patches, Prefix
from vitrail.server.app import create_app
from vitrail.server.session import Session

__all__ = ["OWN", "SMALL", "studio_with"]

OWN = "own.safetensors"
"""What the weights are called there."""
SMALL = ViTConfig(
    image=Size(25, 49),
    embedding=Patches(patch=Size(5, 7)),
    prefix=Prefix(registers=3),
    position=Learned(prefix="cls"),
    width=24,
    depth=2,
    num_heads=3,
    mlp=Mlp(width=40),
    classes=0,
)


def studio_with(config: Config, folder: Path) -> tuple[Session, TestClient]:
    """The session, and who asks it."""
    torch.manual_seed(1)
    tensors = build(config).state_dict()
    checkpoint = Checkpoint(config=config, tensors=tensors, preprocessing=Preprocessing(image=config.image))
    save(checkpoint, folder / OWN)
    session = Session([folder / OWN])
    return session, client(create_app(session, hosts=frozenset({HOST})))
