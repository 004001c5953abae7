"""An endpoint that runs in a thread of the test's process, with a model of one block."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from ipaddress import ip_address
from pathlib import Path

import httpx
import pytest

from command import PATIENCE
from embedding import save_weights
from vitrail.server.listening import names_of, server_of
from vitrail.serving.app import Model, Service, create_app
from vitrail.serving.batches import Limits
from vitrail.serving.serve import model_of

NAME = "tiny"


@dataclass(frozen=True)
class Endpoint:
    url: str
    service: Service

    def client(self, **options) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=PATIENCE, **options)


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_weights(tmp_path_factory.mktemp("serving") / "w.safetensors")


@pytest.fixture(scope="session")
def model(weights: Path) -> Model:
    return model_of(weights, name=NAME)


@pytest.fixture
def started(model: Model) -> Iterator[Callable[..., Endpoint]]:
    """Start an endpoint, with other limits, another way to compute, or a token."""
    running = []

    def start(*, compute=None, token: str | None = None, max_body: int = 2**20, **limits) -> Endpoint:
        listening = socket.create_server(("127.0.0.1", 0))
        host, port = listening.getsockname()
        service = Service(model if compute is None else replace(model, compute=compute), Limits(**limits))
        hosts = names_of(ip_address(host), port) if token is None else None
        server = server_of(create_app(service, hosts=hosts, token=token, max_body=max_body))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        running.append((server, thread, listening, service))
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        return Endpoint(f"http://{host}:{port}", service)

    yield start
    for server, thread, listening, service in running:
        server.should_exit = True
        thread.join(PATIENCE)
        listening.close()
        service.close()
