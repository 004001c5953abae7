"""The studio in a notebook: a page of another origin shows it in a frame, and only with its token."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from playwright.sync_api import Page, expect

from vitrail import VitrailError, studio
from vitrail.geometry import Size
from vitrail.images.synthesize import synthesize_image


def test_a_notebook_shows_it_in_place_with_the_image_that_was_given(opener: Page):
    with studio(synthesize_image(5, Size(60, 80))) as running:
        html = running._repr_html_()

        class Notebook(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(f"<!doctype html><title>notebook</title>{html}".encode())

            def log_message(self, format: str, *_: object) -> None: ...  # noqa: A002

        with HTTPServer(("127.0.0.1", 0), Notebook) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            page = opener.context.new_page()
            page.goto(f"http://127.0.0.1:{server.server_port}/")
            shown = page.frame_locator("iframe")
            expect(shown.get_by_role("img", name="Your image", exact=True)).to_be_visible()
            expect(shown.get_by_role("heading", level=2).first).to_be_visible()
            page.close()
            server.shutdown()


def test_without_its_token_it_answers_nobody_and_once_closed_not_at_all():
    running = studio()
    root = running.url.split("/", 3)[2]
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(f"http://{root}/")
    assert urllib.request.urlopen(running.url).status == 200
    running.close()
    running.close()
    with pytest.raises(urllib.error.URLError, match="refused"):
        urllib.request.urlopen(running.url)


def test_an_image_that_is_none_is_refused_before_anything_starts():
    before = threading.active_count()
    with pytest.raises(VitrailError, match="not a readable image"):
        studio(b"text")
    with pytest.raises(VitrailError, match=r"gone\.safetensors"):
        studio(weights="gone.safetensors")
    assert threading.active_count() <= before  # one of an earlier test may end meanwhile
