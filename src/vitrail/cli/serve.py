"""vitrail serve: images → vectors over HTTP."""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import Annotated, Literal

from cyclopts import Parameter

from vitrail.cli.options import Flag, Weights
from vitrail.errors import VitrailError, require

__all__ = ["serve"]


def serve(
    *,
    weights: Weights = "default",
    name: str | None = None,
    engine: Literal["auto", "torch", "openvino", "onnxruntime"] = "auto",
    port: Annotated[int, Parameter(allow_leading_hyphen=True)] = 8000,
    host: str = "127.0.0.1",
    expose: Flag = False,
    batch: int = 16,
    wait_ms: float = 5.0,
    queue: int = 256,
    max_body: int = 32,
    workers: int = 1,
    threads: int | None = None,
    exact: Flag = False,
) -> None:
    """Serve a model over HTTP: images in, vectors out, batched across requests.

    POST /v1/embeddings takes OpenAI's requests with images as data: URLs or base64, and POST /embed an image file as
    its body. GET /health/live, /health/ready and /metrics are for those who run it. SIGTERM answers what was asked,
    then ends.

    Parameters
    ----------
    name
        Name that clients give as the model (default: the weights' name, without folders).
    engine
        What computes, in float32: auto compares what is installed with the plain model and takes the fastest here.
    port
        Port to listen on; 0 takes a free one.
    host
        Address to listen on.
    expose
        Allow a --host beyond this machine; requests then need a token as Authorization: Bearer TOKEN, which is that of
        the environment variable VITRAIL_TOKEN, or a new one that is printed.
    batch
        Most images that are computed together.
    wait_ms
        Milliseconds that a batch waits for images that are still being decoded.
    queue
        Most images that wait or are computed; further requests are answered with 429 and Retry-After.
    max_body
        Largest body of a request, in MiB.
    workers
        Batches that are computed at a time, each on --threads threads; one on all cores answers a single request
        soonest.
    threads
        Threads that compute a batch (default: torch's, one per core).
    exact
        Decode and resize exactly as Pillow does.
    """
    require(max_body > 0, f"--max-body {max_body} is not positive; give MiB")
    require(threads is None or threads > 0, f"--threads {threads} is not positive; give 1 or more")
    # threads that spin between small kernels slow each other down on a busy machine, by a hundred times and more
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    try:
        from vitrail.serving.batches import Limits
        from vitrail.serving.serve import model_of
        from vitrail.serving.serve import serve as run
    except ModuleNotFoundError as error:
        raise VitrailError(f"vitrail serve needs {error.name}; pip install 'vitrail[serve]'") from None
    limits = Limits(batch=batch, wait_ms=wait_ms, queue=queue, workers=workers)
    model = partial(model_of, weights, name=name, engine=engine, limits=limits, threads=threads, exact=exact)
    run(model, host=host, port=port, expose=expose, limits=limits, max_body=max_body * 2**20, say=_say)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
