"""The studio inside a notebook (`vitrail.studio`): a server in a thread of this process, shown in a frame."""

from __future__ import annotations

import ipaddress
import secrets
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Self
from urllib.parse import urlencode

from vitrail.checkpoint.pixels import Image, file_of
from vitrail.errors import VitrailError

__all__ = ["Studio", "studio"]

HEIGHT = 900
"""Height of the frame, in pixels."""


class Studio:
    """A running studio. A notebook shows it in place; it ends with `close` or with the process."""

    def __init__(self, image: Image | None, weights: Sequence[str | Path], folder: str | Path | None = None) -> None:
        try:
            from vitrail.server.app import create_app
            from vitrail.server.listening import listen, server_of
            from vitrail.server.session import Session
        except ModuleNotFoundError as error:
            raise VitrailError(f"the studio needs {error.name}; pip install 'vitrail[studio]'") from None
        self._session = Session([Path(each) for each in weights], folder)
        self._session.maps.check()
        self._session.open_weights()
        query = {} if image is None else {"image": self._session.add_image(file_of(image))}
        self._listening = listen(ipaddress.ip_address("127.0.0.1"), 0)
        host, token = f"127.0.0.1:{self._listening.getsockname()[1]}", secrets.token_urlsafe(24)
        # the token, since other users of this machine can reach the port as well
        app = create_app(self._session, hosts=frozenset({host}), token=token, framed=True)
        self.url = f"http://{host}/{token}/?{urlencode(query)}".removesuffix("?")
        self._server = server_of(app)
        self._thread = threading.Thread(target=self._server.run, args=([self._listening],), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the server; a second call does nothing."""
        self._server.should_exit = True
        self._thread.join()
        self._listening.close()
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Studio({self.url!r})"

    def _repr_html_(self) -> str:
        return (
            f'<iframe src="{self.url}" title="vitrail studio" width="100%" height="{HEIGHT}" '
            'style="border: 0; border-radius: 6px"></iframe>'
        )


def studio(
    image: Image | None = None,
    weights: str | Path | Sequence[str | Path] = (),
    *,
    folder: str | Path | None = None,
) -> Studio:
    """Start the studio on this machine; as a notebook cell's value, it is shown in place.

    `image` is a file, its bytes, a Pillow image or a uint8 array; `weights` are names or paths, beside the bundled
    model; the page opens with the first. `folder` has images, which the room Folder shows as a map. In a script, open
    `.url` in a browser. `vitrail studio` is the same from the command line.

    >>> import urllib.request
    >>> from vitrail import studio, synthesize_image
    >>> with studio(synthesize_image(0)) as running:
    ...     urllib.request.urlopen(running.url).status
    200
    """
    return Studio(image, [weights] if isinstance(weights, str | Path) else weights, folder)
