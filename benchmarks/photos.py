"""Photographs, and models that are the same in vitrail and in timm: what benchmarks of images → vectors begin with."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from forward import MODELS, _ours, _shaped

from peers import timm
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.preprocessing import HALF, Preprocessing
from vitrail.checkpoint.read import load
from vitrail.checkpoint.sources.catalogue import fetched
from vitrail.checkpoint.surgery.adapt import adapt
from vitrail.checkpoint.write import save
from vitrail.geometry import Size
from vitrail.nn.build import build
from vitrail.presets import preset

__all__ = ["DINO", "DINO_IN_TIMM", "STEPS", "make_photos", "models"]

STEPS = Preprocessing(image=Size(224, 224), mean=HALF[0], std=HALF[1], crop_share=224 / 248)
"""As timm's cfg of these models says: the shorter side to 224 / 0.9, rounded down, and the middle of that."""


def make_photos(folder: Path, given: Path | None, most: int) -> list[Path]:
    """Real photographs at 1–2 megapixels, as JPEG."""
    import skimage

    own = ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg", "hubble_deep_field.jpg", "retina.jpg")
    data = Path(skimage.__file__).parent / "data"
    paths = sorted(given.rglob("*")) if given else [data / name for name in own]
    pictures = []
    for path in paths:
        if path.suffix.lower() in (".jpg", ".jpeg", ".png"):
            with Image.open(path) as image:
                if given is None or image.width * image.height >= 800_000:
                    pictures.append(image.convert("RGB"))
    made = []
    for index in range(most):
        image = pictures[index % len(pictures)]
        pixels = (1.0, 1.4, 1.9)[index % 3] * 1e6
        scale = (pixels / (image.width * image.height)) ** 0.5
        image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.LANCZOS)
        if index // len(pictures) % 2:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        path = folder / f"{index:03}.jpg"
        image.save(path, quality=88)
        made.append(path)
    return made


DINO, DINO_IN_TIMM = "DINOv2-S/14", "vit_small_patch14_dinov2"
"""The trained model that vitrail fetches, at 224 pixels."""


def models(name: str) -> tuple[Checkpoint, torch.nn.Module]:
    """The same weights for vitrail and for timm: random ones, but for the fetched DINOv2-S/14."""
    torch.manual_seed(0)
    if name == DINO:
        return _trained()
    theirs = timm.create_model(MODELS[name], num_classes=0).eval()
    config = preset(name, classes=0)
    tensors = {_ours(key): _shaped(key, value) for key, value in theirs.state_dict().items()}
    return Checkpoint(config=config, tensors=tensors, preprocessing=STEPS), theirs


def _trained() -> tuple[Checkpoint, torch.nn.Module]:
    """The fetched dinov2-S/14; random weights of its shapes where it has not been fetched, which is said."""
    if "dinov2-S/14" in fetched():
        checkpoint = adapt(load("dinov2-S/14"), {"image": 224})[0]
    else:
        print("dinov2-S/14 has not been fetched: its weights are random here", file=sys.stderr)
        config = preset("dinov2-S/14", image=Size(224, 224), classes=0)
        checkpoint = Checkpoint(config=config, tensors=build(config).state_dict(), preprocessing=STEPS)
    checkpoint = checkpoint.but(preprocessing=replace(checkpoint.preprocessing, crop_share=1.0))  # as timm has it
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{DINO_IN_TIMM}.safetensors"
        save(checkpoint, path, dialect="timm")
        theirs = timm.create_model(DINO_IN_TIMM, img_size=224, num_classes=0, checkpoint_path=str(path))
    return checkpoint, theirs.eval()
