"""Run the endpoint: load the model, open a socket, and serve until Ctrl-C or SIGTERM, which answers what is asked."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.checkpoint.pixels import Prepared, prepare
from vitrail.checkpoint.read import load
from vitrail.checkpoint.sources.names import weights_path
from vitrail.config import ViTConfig
from vitrail.errors import require
from vitrail.server.listening import address_of, listen, names_of, server_of, url_of
from vitrail.serving.app import MAX_BODY, Model, Service, create_app
from vitrail.serving.batches import Limits
from vitrail.serving.engines import EngineChoice, open_engine
from vitrail.vectors.job.options import Options

__all__ = ["model_of", "serve"]

GRACE = 30
"""Seconds that a stopped server has for the requests that it has begun to answer."""
LEAST_TOKEN = 16


def model_of(
    weights: str | Path,
    *,
    name: str | None = None,
    engine: EngineChoice = "torch",
    limits: Limits | None = None,
    threads: int | None = None,
    exact: bool = False,
) -> Model:
    """Load weights as what the endpoint serves: prepared and computed as `vitrail embed` does."""
    path, limits = weights_path(weights), limits or Limits()
    checkpoint = load(path)
    checkpoint.config.require_still("serve")
    Options(exact=exact).check(checkpoint.config)
    opened = open_engine(path, checkpoint, engine, batch=limits.batch, workers=limits.workers, threads=threads)
    config = checkpoint.config
    return Model(
        name=name or (Path(weights).name if Path(weights).exists() else str(weights)),
        engine=f"{opened.choice.engine} ({opened.choice.why})",
        width=opened.width,
        tokens=config.tokens if isinstance(config, ViTConfig) else 0,
        prepare=partial(prepare, steps=checkpoint.preprocessing, exact=exact),
        compute=partial(_vectors, opened.vectors),
    )


def _vectors(vectors: Callable[[Tensor], Tensor], images: Sequence[Prepared]) -> NDArray[np.float32]:
    return vectors(torch.stack([torch.from_numpy(image.pixels) for image in images])).numpy()


def serve(
    open_model: Callable[[], Model],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    expose: bool = False,
    limits: Limits | None = None,
    max_body: int = MAX_BODY,
    say: Callable[[str], None],
) -> None:
    """Open a model and serve it until Ctrl-C or SIGTERM.

    A host beyond loopback requires `expose`, and then every request needs a token: that of the environment variable
    VITRAIL_TOKEN, or a new one, which is printed.
    """
    address = address_of(host, expose=expose, what="this endpoint")
    given = os.environ.get("VITRAIL_TOKEN")
    require(
        given is None or len(given) >= LEAST_TOKEN,
        f"VITRAIL_TOKEN has {len(given or '')} characters; give at least {LEAST_TOKEN}",
    )
    token = given or (None if address.is_loopback else secrets.token_urlsafe(24))
    model = open_model()  # after the cheap checks
    service = Service(model, limits or Limits())
    with listen(address, port) as listening:
        port = listening.getsockname()[1]
        # a token in a header is what no other site can make a browser send, so that the server's name is free
        hosts = names_of(address, port) if address.is_loopback and token is None else None
        server = server_of(create_app(service, hosts=hosts, token=token, max_body=max_body))
        server.config.timeout_graceful_shutdown = GRACE
        say(f"vitrail serve: {url_of(address, port)}/v1/embeddings  (Ctrl-C ends it)")
        say(f"model {model.name}, vectors of {model.width} numbers, float32 by {model.engine}")
        if token is not None and given is None:
            say(f"token {token}")
        threading.Thread(target=_warm, args=(service,), daemon=True).start()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # uvicorn raises it again once it has stopped in order
        with contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[listening])
    service.close()


def _warm(service: Service) -> None:
    """Compute once before the first request, so that it does not pay for threads and kernels."""
    from vitrail.images.synthesize import synthesize_image

    service.model.compute([service.model.prepare(synthesize_image(0))])  # type: ignore[arg-type]
    service.ready = True
