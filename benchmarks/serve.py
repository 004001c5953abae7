"""`vitrail serve` under load, beside a plain FastAPI + timm server: requests per second, and the slowest of a hundred.

    python benchmarks/serve.py [--model S/16] [--clients 1 16] [--seconds 6] [--rounds 3] [--json]

Both serve the same weights on loopback and take the same JPEGs of 1–2 megapixels as bodies. Clients ask one request
after the other over a connection that stays open, in this process. Each server is first tried with some settings for a
short time and then measured with the best; only one of them runs at a time, in turns. Above 1, vitrail is better. The
processor time of a request counts on a machine that others use, where more threads get more of the machine.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any

import numpy as np
from forward import MODELS
from measure import arguments, finish, machine
from photos import make_photos, models

from vitrail.checkpoint.write import save

CORES = len(os.sched_getaffinity(0))
SETTINGS = {
    "vitrail": [[], ["--workers", str(CORES), "--threads", "1", "--batch", "4"]],
    "plain": [["--threads", str(CORES)], ["--threads", "1", "--workers", str(CORES)], ["--threads", "1"]],
}
PATIENCE = 120


def main() -> None:
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="S/16")
    parser.add_argument("--clients", type=int, nargs="*", default=[1, 16])
    parser.add_argument("--rounds", type=int, default=3)
    options = arguments(__doc__, parser)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # no server outlives this process
    with tempfile.TemporaryDirectory() as work:
        place = Path(work)
        images = [path.read_bytes() for path in make_photos(place, None, 24)]
        checkpoint, _ = models(options.model)
        weights = {"vitrail": place / "weights.safetensors", "plain": place / f"{MODELS[options.model]}.safetensors"}
        save(checkpoint, weights["vitrail"], dialect="vitrail")
        save(checkpoint, weights["plain"], dialect="timm")
        cosine = agreement(weights, images[:6])
        cells = [measured(weights, images, clients, options) for clients in options.clients]
    lines = [f"{options.model}, JPEGs of 1–2 megapixels, {CORES} cores; lowest cosine of the two vectors {cosine:.5f}"]
    for cell in cells:
        lines.append(
            f"{cell['clients']} clients: {cell['throughput_ratio']:.2f}× the requests, p99 {cell['p99_ratio']:.2f}×, "
            f"processor time {cell['cpu_ratio']:.2f}×"
        )
        for who in SETTINGS:
            found = cell[who]
            told = " ".join(found["settings"]) or "as it comes"
            lines.append(
                f"  {who:8} {found['per_second']:6.1f} a second   median {1e3 * found['p50']:6.0f} ms   "
                f"p99 {1e3 * found['p99']:6.0f} ms   processor {1e3 * found['cpu']:4.0f} ms each   {told}"
            )
    finish({**machine(), "model": options.model, "lowest_cosine": cosine, "cells": cells}, options.json, lines)


def measured(
    weights: dict[str, Path], images: list[bytes], clients: int, options: argparse.Namespace
) -> dict[str, Any]:
    """Find the best settings of each, then measure them in turns."""
    best = {}
    for who, settings in SETTINGS.items():
        tried = {}
        for place, each in enumerate(settings):
            with server(who, weights[who], each) as (port, _):
                tried[place] = len(load(port, images, clients, options.seconds / 2))
        best[who] = settings[max(tried, key=lambda place: tried[place])]
    rounds: dict[str, list[dict[str, float]]] = {who: [] for who in SETTINGS}
    order, dice = list(SETTINGS), random.Random(0)
    for _ in range(options.rounds):
        dice.shuffle(order)
        for who in order:
            with server(who, weights[who], best[who]) as (port, process):
                before = processor_seconds(process)
                spent = load(port, images, clients, options.seconds)
                cpu = (processor_seconds(process) - before) / (len(spent) + 3 * clients)
                p50, p99 = np.quantile(spent, (0.5, 0.99))
                found = {"per_second": len(spent) / options.seconds, "p50": float(p50), "p99": float(p99), "cpu": cpu}
                rounds[who].append(found)
    pairs = list(zip(rounds["vitrail"], rounds["plain"], strict=True))
    return {
        "clients": clients,
        "throughput_ratio": median(ours["per_second"] / theirs["per_second"] for ours, theirs in pairs),
        "cpu_ratio": median(theirs["cpu"] / ours["cpu"] for ours, theirs in pairs),
        "p99_ratio": median(theirs["p99"] / ours["p99"] for ours, theirs in pairs),
        **{
            who: {"settings": best[who], **{key: median(each[key] for each in rounds[who]) for key in rounds[who][0]}}
            for who in SETTINGS
        },
    }


def agreement(weights: dict[str, Path], images: list[bytes]) -> float:
    """The lowest cosine of the two servers' vectors: both must do the same work."""
    vectors = {}
    for who, settings in SETTINGS.items():
        with server(who, weights[who], settings[0]) as (port, _):
            vectors[who] = np.array([ask(http.client.HTTPConnection("127.0.0.1", port), image) for image in images])
    ours, theirs = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in vectors.values())
    return float((ours * theirs).sum(axis=1).min())


@contextmanager
def server(who: str, weights: Path, settings: list[str]) -> Iterator[tuple[int, int]]:
    """Run a server in a process of its own until the block ends; yield its port and process once it is ready."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ours = [sys.executable, "-m", "vitrail", "serve"]
    theirs = [sys.executable, str(Path(__file__).parent / "plain_server.py")]
    command = [*(ours if who == "vitrail" else theirs), "--weights", str(weights), "--port", str(port), *settings]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            until = perf_counter() + PATIENCE
            while not _ready(port):
                if process.poll() is not None or perf_counter() > until:
                    raise SystemExit(f"{' '.join(command)} did not start")
                sleep(0.1)
            yield port, process.pid
        finally:
            process.terminate()


def processor_seconds(process: int) -> float:
    """Return the processor time of a process and of those that it started."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    own = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return own + sum(processor_seconds(int(child)) for child in children)


def _ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("GET", "/health/ready")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def load(port: int, images: list[bytes], clients: int, seconds: float) -> list[float]:
    """Seconds of every request that was answered in time, after each client's first two."""
    spent: list[float] = []
    warm = threading.Barrier(clients)

    def ask_on(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        for turn in range(2):
            ask(connection, images[(number + turn) % len(images)])
        warm.wait(PATIENCE)
        until = perf_counter() + seconds
        turn = number
        while True:
            start = perf_counter()
            ask(connection, images[turn % len(images)])
            end = perf_counter()
            if end > until:
                return connection.close()
            spent.append(end - start)
            turn += 1

    threads = [threading.Thread(target=ask_on, args=(number,), daemon=True) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return spent


def ask(connection: http.client.HTTPConnection, image: bytes) -> list[float]:
    connection.request("POST", "/embed", image, {"Content-Type": "application/octet-stream"})
    answer = connection.getresponse()
    said = answer.read()
    if answer.status != 200:
        raise SystemExit(f"status {answer.status}: {said[:200]!r}")
    return json.loads(said)["vector"]


if __name__ == "__main__":
    main()
