"""Write the studio as a static site: the page, Python and FastAPI for it, vitrail's own code, models and images."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from shutil import rmtree
from typing import Any

from vitrail._version import __version__
from vitrail.atomic import flush, temporary_folder
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.checkpoint.sources.names import short_name
from vitrail.codec import to_plain
from vitrail.config import ViTConfig
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size
from vitrail.server.app import read_page
from vitrail.server.default_size import automatic_side
from vitrail.server.limits import Limit
from vitrail.server.pictures import PICTURES
from vitrail.server.rooms.shared import describe_controls
from vitrail.server.session import DEFAULT, Session, png
from vitrail.server.site.answers import answers_of, why_without
from vitrail.server.site.assets import scripts_of
from vitrail.server.site.browser import ELSEWHERE, SiteSession
from vitrail.server.site.cuts import cut_graphs
from vitrail.server.site.first import record_answers
from vitrail.server.site.graph import Graph, trace
from vitrail.server.site.matching import match_graph
from vitrail.server.site.packages import PACKAGES, WHEELS, fetched_files
from vitrail.server.site.resize import resize_graph
from vitrail.server.site.sizes import GRID_SIDES, other_sides
from vitrail.server.site.stored import pack_results
from vitrail.server.site.tables import limits_of_tables, tables_of

__all__ = ["ExportedModel", "ExportedSite", "export_site"]

MARK = "vitrail-site.txt"
"""The file by which an earlier export is recognised."""
POLICY = (
    "default-src 'none'; script-src 'self' blob: 'wasm-unsafe-eval'; worker-src blob:; style-src 'self'; "
    "img-src 'self' blob: data:; connect-src 'none'; base-uri 'none'; form-action 'none'"
)
"""No connection at all: files come as scripts beside the page, and nothing can be sent anywhere."""
LARGEST_SIDE = 2**12
PLAIN_RESIZE = Preprocessing(image=Size(1, 1)).interpolation
"""How images are resized where no model looks at them."""

Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class ExportedModel:
    """A model of a site."""

    name: str
    cosine: float | None
    """Of its vector in ONNX Runtime to torch's; None for a model that the page cannot run."""
    why_not: str = ""


@dataclass(frozen=True, kw_only=True)
class ExportedSite:
    """What was written."""

    folder: Path
    files: int
    bytes: int
    models: list[ExportedModel]


def export_site(folder: Path, *, weights: Sequence[str | Path] = (), tell: Tell = lambda _: None) -> ExportedSite:
    """Write a site with these models (default: the bundled one) into a new folder, or over an earlier export."""
    _check_place(folder)
    page = read_page("site")
    session = Session(weights)
    session.most_patches = SiteSession.most_patches
    try:
        session.open_weights()
        names = session.given or [DEFAULT]
        packages = fetched_files(tell)
        with temporary_folder(folder) as written:
            models = _write(written, names, session, page, packages, tell)
            sizes = [path.stat().st_size for path in written.rglob("*") if path.is_file()]
            tell("moving the site into place")
            _replace(folder, written)
    except OSError as error:
        raise VitrailError(
            f"{folder} was not written ({error.strerror or error}); free some space or choose another folder"
        ) from None
    finally:
        session.close()
    return ExportedSite(folder=folder, files=len(sizes), bytes=sum(sizes), models=models)


def _check_place(folder: Path) -> None:
    require(not folder.exists() or folder.is_dir(), f"--export {folder} is a file; name a folder")
    if folder.is_dir() and any(folder.iterdir()):
        require(
            (folder / MARK).is_file(),
            f"--export {folder} is a folder with other files, which an export would replace; name a new folder",
        )


def _replace(folder: Path, written: Path) -> None:
    """Give the new site its name; an earlier one is moved away first, and comes back if that fails."""
    earlier = folder.with_name(f"{written.name}.earlier")
    if folder.exists():
        folder.rename(earlier)
    try:
        written.rename(folder)
    except OSError:
        with suppress(OSError):
            earlier.rename(folder)
        raise
    flush(folder.parent)
    rmtree(earlier, ignore_errors=True)


def _write(
    folder: Path, names: list[str], session: Session, page: dict[str, bytes], packages: dict[str, Path], tell: Tell
) -> list[ExportedModel]:
    models, facts, own = [], {}, {}
    for number, name in enumerate(names):
        model, facts[name], data = _model(name, session, f"model-{number}", tell)
        models.append(model)
        own |= data
    tell("writing the site")
    site = {
        "version": __version__,
        "wheels": [next(iter(wheel.files)) for wheel in WHEELS],
        "images": {name: draw().shape[:2] for name, draw in PICTURES.items()},
        "elsewhere": ELSEWHERE,
        "resize": f"resize-{PLAIN_RESIZE}",
        "models": facts,
    }
    site["controls"] = _controls(site)
    site["recorded"] = record_answers(site)
    assets = {
        "site": _json(site),
        **{f"picture-{name}": png(draw(), LARGEST_SIDE) for name, draw in PICTURES.items()},
        **own,
        f"resize-{PLAIN_RESIZE}": resize_graph(PLAIN_RESIZE),
        **cut_graphs(),
        "match": match_graph(),
        **{name: path.read_bytes() for name, path in packages.items()},
        "vitrail.zip": _own_code(),
    }
    for name, data in _files(page, assets):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        flush(path)
    return models


def _files(page: dict[str, bytes], assets: dict[str, bytes]) -> Iterator[tuple[str, bytes]]:
    yield from page.items()
    html = (files("vitrail.server.site") / "index.html").read_text()
    yield "index.html", html.replace("POLICY", POLICY).encode()
    for name, data in assets.items():
        for script, content in scripts_of(name, data):
            yield f"assets/{script}", content
    lines = [f"Written by vitrail studio --export, vitrail {__version__}. Open index.html.", "", "It contains:"]
    lines += [f"  {package.name}, {package.licence}" for package in PACKAGES]
    yield MARK, "\n".join([*lines, ""]).encode()


def _model(
    name: str, session: Session, asset: str, tell: Tell
) -> tuple[ExportedModel, dict[str, Any], dict[str, bytes]]:
    """Return what the summary, the page and Python in the page know about a model, and its files."""
    config = session.config(name)
    preprocessing = session.checkpoint(name).preprocessing
    facts: dict[str, Any] = {
        "config": config.to_json(),
        "preprocessing": to_plain(preprocessing),
        "source": short_name(session.source(name)),  # visitors need not know the folders of this machine
        "passes": {},
    }
    files: dict[str, bytes] = {}
    if isinstance(config, ViTConfig):
        tables = tables_of(name, session)
        facts["stored"] = {room: f"{asset}-{room}" for room in tables}
        files |= {f"{asset}-{room}": pack_results(results) for room, results in tables.items()}
    why_not = why_without(name, session)
    if why_not:
        return ExportedModel(name=name, cosine=None, why_not=why_not), facts, files
    cosines, automatic = [], automatic_side(name, session)
    for side in (automatic, *other_sides(name, session)):
        seen = session.seen_size(name, side)
        tell(f"tracing {name} at {seen} and comparing it with torch")
        graph = _traced(name, session, side)
        cosines.append(graph.cosine)
        files[f"{asset}-{side}"] = graph.onnx
        answers = answers_of(name, session, graph, side)
        facts["passes"][str(side)] = {"asset": f"{asset}-{side}", "inputs": graph.inputs, "answers": answers}
    interpolation = preprocessing.interpolation
    facts |= {"automatic": automatic, "resize": f"resize-{interpolation}", "channels": preprocessing.channels}
    files[f"resize-{interpolation}"] = resize_graph(interpolation)
    return ExportedModel(name=name, cosine=min(cosines)), facts, files


def _traced(name: str, session: Session, side: int) -> Graph:
    """Return the graph at an input size, with the training size beside it where that judges the image too."""
    config = session.config(name)
    judged = config.classes and session.seen_size(name, side) != config.image
    sides = {"seen": side, **({"trained": 0} if judged else {})}
    first, other, *_ = PICTURES
    subjects, others = (
        {each: session.subject(image, name, side) for each, side in sides.items()} for image in (first, other)
    )
    pixels = {each: subject.pixels for each, subject in others.items()}
    return trace(subjects, pixels, session.checkpoint(name).preprocessing)


def _controls(site: dict[str, Any]) -> dict[str, Any]:
    """Return the controls of the page: the input sizes and the grids are those that it has."""
    session = SiteSession(site)
    controls = describe_controls(session)
    for option in controls.options["weights"]:
        seen = option.limits["seen"]
        assert seen.automatic is not None
        passes = site["models"][option.value]["passes"].values()
        sides = sorted({min(seen.automatic), *(each["inputs"]["seen"].height for each in passes)})
        step = seen.step * (GRID_SIDES.step if len(sides) > 1 else 1)
        option.limits["seen"] = seen.model_copy(update={"minimum": sides[0], "maximum": sides[-1], "step": step})
        config = session.config(option.value)
        for name, (low, high, step) in limits_of_tables(config).items() if isinstance(config, ViTConfig) else ():
            before = option.limits.get(name)
            automatic = before.automatic if before else None
            option.limits[name] = Limit(minimum=low, maximum=high, step=step, automatic=automatic)
    return controls.model_dump(mode="json")


def _own_code() -> bytes:
    """Return vitrail's own modules as an archive that Python imports from."""
    root = files("vitrail")
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(Path(str(root)).rglob("*.py")):
            name = Path("vitrail", path.relative_to(str(root))).as_posix()
            archive.writestr(zipfile.ZipInfo(name), path.read_bytes(), zipfile.ZIP_DEFLATED)
    return stream.getvalue()


def _json(value: Any) -> bytes:
    return json.dumps(value, default=list).encode()
