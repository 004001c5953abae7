"""The studio in a real Chromium, for tests: one server and one browser a session, a fresh page a test.

A page fails its test by itself when the console says an error, or when anything but the studio is asked.
Tests wait for conditions and never for times: a loaded machine is slow, not wrong.
"""

from __future__ import annotations

import ipaddress
import re
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn
from playwright.sync_api import ConsoleMessage, Page, Request, expect, sync_playwright

from vitrail.server.app import create_app
from vitrail.server.listening import listen
from vitrail.server.session import Session

__all__ = ["SIZE", "address", "opened", "opener", "page", "settled", "violations"]

PATIENCE = 120_000
"""Milliseconds until a condition is given up."""
SIZE = {"width": 1280, "height": 900}
AXE = Path(__file__).parents[2] / "web/node_modules/axe-core/axe.min.js"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # what is asked elsewhere goes nowhere
]


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """A running studio's address, without the last slash."""
    with listen(ipaddress.ip_address("127.0.0.1"), 0) as listening:
        host = f"127.0.0.1:{listening.getsockname()[1]}"
        session = Session()
        app = create_app(session, hosts=frozenset({host}))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield f"http://{host}"
        server.should_exit = True
        thread.join(10)
        session.close()


@pytest.fixture(scope="session")
def opener(address: str) -> Iterator[Page]:
    """A page that opens others: they share its process, which takes a second of computing to start."""
    found = shutil.which("chromium")
    assert found, "install chromium: the page is tested in a real browser"
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS, timeout=PATIENCE)
        context = browser.new_context(base_url=address, viewport=SIZE, reduced_motion="reduce")  # type: ignore[arg-type]
        context.set_default_timeout(PATIENCE)
        first = context.new_page()
        first.goto("/api/controls")
        yield first
        browser.close()


@contextmanager
def opened(opener: Page, address: str) -> Iterator[Page]:
    """A page at 1280 × 900 that has visited nothing yet."""
    opener.evaluate("localStorage.clear()")
    with opener.expect_popup() as popup:
        opener.evaluate("() => { window.open('about:blank') }")
    page, wrong = popup.value, []

    def only_here(request: Request) -> None:
        if not request.url.startswith((f"{address}/", "blob:", "data:")):
            wrong.append(f"asked {request.url}")

    page.on("request", only_here)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if _is_wrong(said) else None)
    yield page
    page.close()
    assert not wrong, wrong


@pytest.fixture
def page(opener: Page, address: str) -> Iterator[Page]:
    with opened(opener, address) as page:
        yield page


def _is_wrong(said: ConsoleMessage) -> bool:
    """Errors and warnings; but that an upload was refused is the browser's own remark, and the page tells it."""
    refused = re.search(r"/api/(images$|weights\?)", said.location["url"]) and "400 (Bad Request)" in said.text
    return said.type in ("error", "warning") and not refused


def settled(page: Page) -> None:
    """Wait until every question of the page is answered and shown."""
    expect(page.locator("html")).to_have_attribute("data-idle", "")


def violations(page: Page) -> list[str]:
    """What axe finds wrong with the settled page: WCAG A and AA, by rule and place."""
    settled(page)
    # the content policy lets no foreign script in: evaluated by the debugger, it is none
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text())
    levels = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]
    found = page.evaluate("options => axe.run(options)", {"runOnly": levels, "resultTypes": ["violations"]})
    return [f"{rule['id']}: {node['html'][:160]}" for rule in found["violations"] for node in rule["nodes"]]
