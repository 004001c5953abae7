"""vitrail probe: what frozen features are worth."""

from __future__ import annotations

from dataclasses import asdict

from vitrail.cli.options import Flag, Words
from vitrail.cli.tables import show, table, write_json

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
    from vitrail.train.probe import probe as run

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
