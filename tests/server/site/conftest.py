"""One exported site for all tests of it, opened from a disk and from a plain web server, with the network off."""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from browser import SIZE, settled
from playwright.sync_api import ConsoleMessage, Page, Request

from vitrail.lock import lock
from vitrail.server.site import sizes, tables, write

NOBODY = "http://127.0.0.1:9/"
"""What a test asks for in a page, to see that the browser refuses it and says so."""


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of the bundled model, written once for all processes of the run; its packages are fetched once."""
    own = tmp_path_factory.getbasetemp()
    shared = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "exported-site"
    shared.mkdir(exist_ok=True)
    while (locked := lock(shared)) is None:
        time.sleep(0.2)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("VITRAIL_CACHE")  # what npm and pip brought is the same for every test
        # fewer than a user gets, which takes seconds less
        patch.setattr(tables, "NEW_GRIDS", range(14, 26, 6))
        patch.setattr(sizes, "GRID_SIDES", range(12, 20, 4))
        patch.setattr(write, "GRID_SIDES", sizes.GRID_SIDES)
        if not (shared / "site").exists():
            write.export_site(shared / "site")
    os.close(locked)
    return shared / "site"


@pytest.fixture(scope="session")
def hosted(exported: Path) -> Iterator[str]:
    """The address of the site on a web server that knows nothing but files."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:  # type: ignore[override]
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(exported)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()
    thread.join()


@contextmanager
def visit(opener: Page, address: str) -> Iterator[Page]:
    """A page in a browser of its own that fails its test when it asks for anything outside the site."""
    browser = opener.context.browser
    assert browser is not None
    context = browser.new_context(viewport=SIZE, reduced_motion="reduce")  # type: ignore[arg-type]
    context.set_default_timeout(120_000)
    if address.startswith("file:"):
        context.set_offline(True)
    page, wrong = context.new_page(), []

    def only_here(request: Request) -> None:
        if not request.url.startswith((address, "blob:", "data:")):
            wrong.append(f"asked {request.url}")

    context.on("request", only_here)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if _is_wrong(said) else None)
    page.goto(f"{address}index.html?room=patch")
    settled(page)
    yield page
    context.close()
    assert not wrong, wrong


def _is_wrong(said: ConsoleMessage) -> bool:
    return said.type in ("error", "warning") and NOBODY not in said.text


@pytest.fixture(scope="module")
def on_disk(opener: Page, exported: Path) -> Iterator[Page]:
    with visit(opener, f"{exported.as_uri()}/") as page:
        yield page


@pytest.fixture(scope="module")
def on_a_host(opener: Page, hosted: str) -> Iterator[Page]:
    with visit(opener, hosted) as page:
        yield page
