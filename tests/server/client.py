"""The studio without a browser: an application and a client whose headers are the page's."""

from __future__ import annotations

from functools import cache

from fastapi import FastAPI
from starlette.testclient import TestClient

from vitrail.server.app import create_app
from vitrail.server.session import Session

__all__ = ["HOST", "app", "client"]

HOST = "127.0.0.1:8123"


@cache
def app() -> FastAPI:
    return create_app(Session(), hosts=frozenset({HOST}))


def client(application: FastAPI | None = None) -> TestClient:
    """Asks as the studio's own page does; a bug raises here rather than answering 500."""
    return TestClient(application or app(), base_url=f"http://{HOST}", follow_redirects=False)
