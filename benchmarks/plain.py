"""What people write: a folder of JPEGs → vectors, by timm and Pillow or by transformers' pipeline.

    python benchmarks/plain.py timm IMAGES --weights vit_small_patch16_224.safetensors --out vectors.npy
    python benchmarks/plain.py transformers IMAGES --weights DIRECTORY --out vectors.npy

timm's weights are named after its model; transformers' directory holds config and processor. Without --out, every
--batch with every --threads is tried on one load of the model, and [seconds, batch, threads] of each is printed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import torch
from measure import take_turns
from PIL import Image
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
import peers

Extract = Callable[[list[Path], int], Tensor]


def by_timm(weights: Path) -> Extract:
    timm = peers.timm
    model = timm.create_model(weights.stem, img_size=224, num_classes=0, checkpoint_path=str(weights)).eval()
    transform = timm.data.create_transform(**timm.data.resolve_data_config({"img_size": 224}, model=model))

    @torch.inference_mode()
    def extract(paths: list[Path], batch: int) -> Tensor:
        found = []
        for start in range(0, len(paths), batch):
            images = [transform(Image.open(path).convert("RGB")) for path in paths[start : start + batch]]
            found.append(model(torch.stack(images)))
        return torch.cat(found)

    return extract


def by_transformers(weights: Path) -> Extract:
    from_pretrained = peers.transformers.AutoModel.from_pretrained
    plain = json.loads((weights / "config.json").read_text())["model_type"] == "vit"  # its pooler would be untrained
    model = from_pretrained(weights, add_pooling_layer=False) if plain else from_pretrained(weights)
    pipe = peers.transformers.pipeline("image-feature-extraction", model=model, image_processor=str(weights))

    def extract(paths: list[Path], batch: int) -> Tensor:
        tokens = pipe((str(path) for path in paths), batch_size=batch, return_tensors=True)
        return torch.cat([each[:, 0].clone() for each in tokens])  # CLS, without holding on to the others

    return extract


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=("timm", "transformers"))
    parser.add_argument("images", type=Path)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--batch", type=int, nargs="+", default=[8])
    parser.add_argument("--threads", type=int, nargs="+", default=[torch.get_num_threads()])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    paths = sorted(options.images.glob("*.jpg"))
    extract = by_timm(options.weights) if options.peer == "timm" else by_transformers(options.weights)

    def run(batch: int, threads: int) -> Tensor:
        torch.set_num_threads(threads)
        return extract(paths, batch)

    if options.out:
        np.save(options.out, run(options.batch[0], options.threads[0]).numpy())
        return
    settings = {str(each): each for each in product(options.batch, options.threads)}
    spent = take_turns({name: lambda each=each: run(*each) for name, each in settings.items()}, seconds=0, at_least=1)
    print(json.dumps([[min(spent[name]), *each] for name, each in settings.items()]))


if __name__ == "__main__":
    main()
