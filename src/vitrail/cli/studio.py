"""vitrail studio: the page."""

from __future__ import annotations

import os
import sys
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
        Port to listen on; 0 takes a free one.
    host
        Address to listen on.
    weights
        Weights to choose from on the page, e.g. vit.safetensors facebook/dinov2-small; it opens with the first
        (default: the bundled model, which is always there, as is what vitrail weights fetch has got).
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
    serve(host=host, port=port, weights=weights or (), expose=expose, open_browser=not no_open, say=_say)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
