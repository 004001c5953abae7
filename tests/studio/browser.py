"""The studio in a real Chromium, for tests: one server and one browser a session, a fresh page a test.

A page fails its test by itself when the console says an error, or when anything but the studio is asked.
"""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from playwright.sync_api import Browser, ConsoleMessage, Page, Route, expect, sync_playwright

from vitrail.studio.app import create_app
from vitrail.studio.session import Session

__all__ = ["AXE", "address", "browser", "page", "violations"]

AXE = Path(__file__).parents[2] / "web/node_modules/axe-core/axe.min.js"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """A running studio's address, without the last slash."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(64)
        host = f"127.0.0.1:{listening.getsockname()[1]}"
        session = Session()
        app = create_app(session, hosts=frozenset({host}))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield f"http://{host}"
        server.should_exit = True
        thread.join(10)
        session.close()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    found = shutil.which("chromium")
    assert found, "install chromium: the page is tested in a real browser"
    expect.set_options(timeout=30_000)  # a loaded machine is slow, not wrong
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    """A page at 1280 × 900 that has visited nothing yet."""
    context = browser.new_context(
        base_url=address, viewport={"width": 1280, "height": 900}, color_scheme="light", accept_downloads=True
    )
    opened, wrong = context.new_page(), []
    opened.set_default_timeout(30_000)

    def only_here(route: Route) -> None:
        if route.request.url.startswith(f"{address}/"):
            route.continue_()
        else:
            wrong.append(f"asked {route.request.url}")
            route.abort()

    context.route(lambda url: not url.startswith(("blob:", "data:")), only_here)
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("console", lambda said: wrong.append(said.text) if _is_wrong(said) else None)
    yield opened
    context.close()
    assert wrong == []


def _is_wrong(said: ConsoleMessage) -> bool:
    """Errors and warnings; but that an upload was refused is the browser's own remark, and the page tells it."""
    refused = said.location["url"].endswith("/api/images") and "400 (Bad Request)" in said.text
    return said.type in ("error", "warning") and not refused


def violations(page: Page) -> list[str]:
    """What axe finds wrong: WCAG A and AA, by rule and place."""
    # the content policy lets no foreign script in: evaluated by the debugger, it is none
    page.evaluate(AXE.read_text())
    found = page.evaluate("axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa']})")
    return [f"{rule['id']}: {node['html'][:160]}" for rule in found["violations"] for node in rule["nodes"]]
