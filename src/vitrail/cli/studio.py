"""vitrail studio: the page."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from vitrail.cli.options import Flag, Words
from vitrail.errors import VitrailError, require

__all__ = ["studio"]


def studio(
    *,
    port: Annotated[int, Parameter(allow_leading_hyphen=True)] = 0,
    host: str = "127.0.0.1",
    weights: Words | None = None,
    folder: Path | None = None,
    export: Path | None = None,
    expose: Flag = False,
    no_open: Flag = False,
) -> None:
    """Open the studio: a local page that shows tokens, costs and attention on your own image.

    Parameters
    ----------
    port
        Port to listen on; 0 takes a free one.
    host
        Address to listen on.
    weights
        Weights to choose from on the page, e.g. vit.safetensors facebook/dinov2-small; it opens with the first
        (default: the bundled model, which is always there, as is what vitrail weights fetch has got).
    folder
        Folder of images to show as a map, or one that vitrail embed wrote (default: a sample of drawn shapes).
    export
        Write the studio as a static site into this folder, and do not serve it. The site works from any web host and
        from index.html on a disk, without Python: planning rooms whole, image rooms with these weights (default: serve
        the page).
    expose
        Allow a --host beyond this machine; the link then has an access token.
    no_open
        Print the link without opening a browser.
    """
    # threads that spin between small kernels slow each other down on a busy machine, by a hundred times and more
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        from vitrail.server.serve import serve
    except ModuleNotFoundError as error:
        raise VitrailError(f"the studio needs {error.name}; pip install 'vitrail[studio]'") from None
    if export is not None:
        _export(export, weights or ())
        return
    serve(
        host=host,
        port=port,
        weights=weights or (),
        folder=folder,
        expose=expose,
        open_browser=not no_open,
        say=_say,
    )


def _export(folder: Path, weights: Sequence[str]) -> None:
    from vitrail.charts.numbers import bytes_text
    from vitrail.cli.progress import working

    for name in ("onnx", "onnxruntime", "onnxscript"):
        require(find_spec(name) is not None, f"--export needs {name}; pip install 'vitrail[studio,onnx]'")
    from vitrail.server.site.write import export_site

    with working("exporting the studio") as tell:
        site = export_site(folder, weights=weights, tell=tell)
    _say(f"wrote {site.folder}: {site.files} files, {bytes_text(site.bytes)}")
    for model in site.models:
        agrees = f"its vectors' cosine to torch's is {model.cosine:.6f}" if model.cosine else ""
        _say(f"model {model.name}: {agrees or f'planning rooms only, as {model.why_not}'}")
    _say(f"open  {(site.folder / 'index.html').resolve().as_uri()}")
    _say(f"or    python -m http.server --bind 127.0.0.1 --directory {shlex.quote(str(site.folder))}")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
