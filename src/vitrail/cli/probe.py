"""vitrail probe: what frozen features are worth."""

from __future__ import annotations

from dataclasses import asdict

from vitrail.cli.options import Json, SizeOption, Words
from vitrail.cli.tables import show, table, write_json

__all__ = ["probe"]


def probe(
    model: str,
    /,
    *,
    data: Words,
    image: SizeOption | None = None,
    limit: int = 10_000,
    neighbours: int = 20,
    seed: int = 0,
    json: Json = False,
) -> None:
    """Measure how well a linear classifier and nearest neighbours read a model's frozen features.

    Parameters
    ----------
    model
        Weights, or a run's folder; or a preset with fresh weights, as a baseline.
    data
        Dataset, as for vitrail train: the training split is fitted, the test split scored.
    image
        Image size, HEIGHTxWIDTH or one number for a square, e.g. 384x640 (default: the model's own).
    limit
        Use at most this many images of each split, at even steps.
    neighbours
        Number of nearest neighbours that vote.
    seed
        Seed of fresh weights.
    """
    from vitrail.cli.progress import working
    from vitrail.training.probe import probe as run

    with working(f"computing the features of {model}, then fitting"):
        found = run(model, data, image=image, limit=limit, neighbours=neighbours, seed=seed)
    if json:
        write_json(asdict(found))
        return
    rows = [
        ("linear probe", f"{found.linear:.2%}"),
        (f"{neighbours} nearest neighbours", f"{found.nearest:.2%}"),
        ("chance", f"{1 / found.classes:.2%}"),
    ]
    images = f"{found.train_images:,} images fitted, {found.test_images:,} judged"
    caption = f"{images}, {found.width} features at {found.image}"
    fresh = ", fresh weights" if found.fresh else ""
    show(table(f"Frozen features of {model}{fresh}", ("", "accuracy"), rows, "lr", caption=caption))
