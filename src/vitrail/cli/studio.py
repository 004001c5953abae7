"""vitrail studio: the page."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from vitrail.cli.options import Flag, Words
from vitrail.errors import VitrailError

__all__ = ["studio"]


def studio(
    *,
    port: Annotated[int, Parameter(allow_leading_hyphen=True)] = 0,
    host: str = "127.0.0.1",
    weights: Words | None = None,
    expose: Flag = False,
    no_open: Flag = False,
) -> None:
    """Open the studio: a local page that shows tokens, costs and attention on your own image.

    Parameters
    ----------
    port
        0 takes a free one.
    host
        The address to listen on; this machine alone unless given.
    weights
        Checkpoints that vitrail reads, to look through beside the bundled model.
    expose
        Let a --host beyond this machine listen; its link carries a token.
    no_open
        Print the link without opening a browser.
    """
    # threads that spin between small kernels hold each other up on a busy machine, by a hundred times and more
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        from vitrail.studio.serve import serve
    except ModuleNotFoundError as error:
        raise VitrailError(f"the studio needs {error.name}; pip install 'vitrail[studio]'") from None
    paths = [Path(name) for name in weights or ()]
    serve(host=host, port=port, weights=paths, expose=expose, open_browser=not no_open, say=_say)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
