"""vitrail probe: what frozen features are worth."""

from __future__ import annotations

from vitrail.cli.options import Flag, Words
from vitrail.cli.tables import show, table, write_json
from vitrail.errors import require
from vitrail.geometry import Size

__all__ = ["probe"]


def probe(
    model: str,
    *,
    data: Words,
    image: str | None = None,
    limit: int = 10_000,
    neighbours: int = 20,
    seed: int = 0,
    json: Flag = False,
) -> None:
    """Freeze a model's features and see how well a linear classifier and the nearest neighbours read them.

    Parameters
    ----------
    model
        A checkpoint or a run; or a preset, whose fresh weights show what training is worth.
    data
        As for vitrail train: features of the training split are fitted, those of the test split judged.
    image
        HEIGHTxWIDTH in pixels, or one number for a square; by default the model's own.
    limit
        At most so many images of each split, evenly spread.
    neighbours
        Votes of the nearest neighbours.
    seed
        Seed of fresh weights (default: 0).
    json
        Exact values as JSON.
    """
    import numpy as np
    import torch

    from vitrail.checkpoint.bundled import names_weights
    from vitrail.checkpoint.surgery.adapt import adapt
    from vitrail.data.open import open_source
    from vitrail.data.source import Part
    from vitrail.nn.build import build
    from vitrail.presets import preset
    from vitrail.train.batches import statistics
    from vitrail.train.prepare import open_checkpoint
    from vitrail.train.probe import extract, linear_probe, nearest_neighbours

    require(limit > 0 and neighbours > 0, f"limit {limit} and neighbours {neighbours} must be 1 or more")
    checkpoint = open_checkpoint(model) if names_weights(model) else None
    config = preset(model) if checkpoint is None else checkpoint.config
    size = config.image if image is None else Size.of(image)
    splits = [open_source(data, split, image=size) for split in ("train", "test")]
    if checkpoint is None:
        torch.manual_seed(seed)
        built = build(config.but(image=size, channels=splits[0].channels))
        mean, std = statistics(splits[0])
    else:
        adapted, _ = adapt(checkpoint, {"image": size, "channels": splits[0].channels})
        built, mean, std = adapted.model(), adapted.preprocessing.mean, adapted.preprocessing.std
    few = [Part(each, np.arange(min(limit, len(each))) * len(each) // min(limit, len(each))) for each in splits]
    train, test = (extract(built, each, image=size, mean=mean, std=std) for each in few)
    classes = len(splits[0].classes)
    linear = linear_probe(train, test, classes)
    nearest = nearest_neighbours(train, test, classes, k=neighbours)
    if json:
        write_json({"linear": linear, "nearest": nearest, "neighbours": neighbours, "train_images": len(train[1]),
                    "test_images": len(test[1]), "width": train[0].shape[1], "image": size})  # fmt: skip
        return
    rows = [
        ("linear probe", f"{linear:.2%}"),
        (f"{neighbours} nearest neighbours", f"{nearest:.2%}"),
        ("chance", f"{1 / classes:.2%}"),
    ]
    caption = f"{len(train[1]):,} images fitted, {len(test[1]):,} judged, {train[0].shape[1]} features at {size}"
    fresh = "" if checkpoint is not None else ", fresh weights"
    show(table(f"Frozen features of {model}{fresh}", ("", "accuracy"), rows, "lr", caption=caption))
