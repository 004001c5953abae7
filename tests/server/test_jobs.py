"""A question is computed once, and stops between layers when nobody waits for its answer."""

from __future__ import annotations

import asyncio
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from client import HOST
from loaded import OWN, studio_with

from vitrail import parts
from vitrail.config import ViTConfig
from vitrail.geometry import Size
from vitrail.look.record import record
from vitrail.nn.block import Block
from vitrail.server.app import create_app
from vitrail.server.cache import Cache, held_bytes
from vitrail.server.jobs import Asker, StoppedError, Worker, asking, each

DEEP = ViTConfig(
    image=Size(8, 12),
    embedding=parts.Patches(patch=Size(4, 4)),
    width=12,
    depth=7,
    num_heads=3,
    mlp=parts.Mlp(width=8),
    classes=5,
)
PATIENCE = 60.0


def ask(worker: Worker, asker: Asker, key: str, compute):
    asking.set(asker)
    return worker.run(key, compute, PATIENCE)


@pytest.fixture
def worker():
    worker = Worker()
    yield worker
    worker.close()


def test_equal_questions_at_the_same_time_are_one_computation(worker):
    count, go, both = 0, threading.Event(), [Asker(), Asker()]

    def compute() -> int:
        nonlocal count
        count += 1
        go.wait(PATIENCE)
        return 17

    with ThreadPoolExecutor(2) as threads:
        answers = [threads.submit(ask, worker, asker, "same", compute) for asker in both]
        while len(worker._jobs["same"].askers if "same" in worker._jobs else ()) < 2:
            pass
        go.set()
        assert [answer.result() for answer in answers] == [17, 17]
    assert count == 1
    assert worker._jobs == {}


def test_a_computation_stops_between_layers_once_the_last_asker_has_left(worker):
    first, second, done = Asker(), Asker(), []
    started, left, go = threading.Event(), threading.Event(), threading.Event()

    def compute() -> None:
        for layer in each(range(9)):
            done.append(layer)
            started.set()
            (left if layer == 0 else go).wait(PATIENCE)
            if layer == 3:
                second.leave()

    with ThreadPoolExecutor(2) as threads:
        answers = [threads.submit(ask, worker, asker, "same", compute) for asker in (first, second)]
        started.wait(PATIENCE)
        while len(worker._jobs["same"].askers) < 2:
            pass
        first.leave()  # the other still waits
        left.set()
        go.set()
        for answer in answers:
            with pytest.raises(StoppedError):
                answer.result()
    assert done == [0, 1, 2, 3]
    assert ask(worker, Asker(), "same", lambda: "again") == "again"


def test_a_question_that_waits_for_its_turn_never_begins(worker):
    go, asker, begun = threading.Event(), Asker(), []
    with ThreadPoolExecutor(2) as threads:
        running = threads.submit(ask, worker, Asker(), "running", lambda: go.wait(PATIENCE))
        while "running" not in worker._jobs:
            pass
        waiting = threads.submit(ask, worker, asker, "waiting", lambda: begun.append(1))
        asker.leave()  # before or after its question arrives
        with pytest.raises(StoppedError):
            waiting.result()
        go.set()
        running.result()
    assert begun == []


def test_a_closed_connection_stops_the_model_between_blocks(tmp_path):
    """The whole way: the client hangs up during the third block, and the fourth never runs."""
    session, _ = studio_with(DEEP, tmp_path)
    app = create_app(session, hosts=frozenset({HOST}))
    blocks: list[Block] = []

    async def request() -> None:
        hung_up, loop = asyncio.Event(), asyncio.get_running_loop()
        left = threading.Event()

        def count(module, *_) -> None:
            if not isinstance(module, Block):
                return
            blocks.append(module)
            if len(blocks) == 3:
                loop.call_soon_threadsafe(hung_up.set)
                while not any(job.stopped for job in session._worker._jobs.values()):
                    left.wait(0.001)

        messages = iter([{"type": "http.request", "body": b"", "more_body": False}])

        async def receive():
            for message in messages:
                return message
            await hung_up.wait()
            return {"type": "http.disconnect"}

        async def send(_) -> None:
            pass

        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "path": "/api/attention",
            "raw_path": b"/api/attention",
            "query_string": f"weights={OWN}&seen=16".encode(),
            "headers": [(b"host", HOST.encode())],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8123),
            "scheme": "http",
        }
        hook = torch.nn.modules.module.register_module_forward_hook(count)
        try:
            await app(scope, receive, send)
        finally:
            hook.remove()

    with ThreadPoolExecutor(1) as alone:  # the browser of other tests has this thread's event loop
        alone.submit(lambda: asyncio.run(asyncio.wait_for(request(), PATIENCE))).result()
    assert len(blocks) == 3
    assert session._results.get(("pass", "cat", OWN, Size(16, 16))) is None
    session.close()


def test_a_cache_is_bounded_by_bytes_and_keeps_the_newest():
    cache = Cache[np.ndarray](9, max_bytes=100)
    for key in range(4):
        cache.put(key, np.zeros(40, np.uint8))
    assert [cache.get(key) is not None for key in range(4)] == [False, False, True, True]
    cache.put("large", np.zeros(1000, np.uint8))
    assert cache.get(3) is None
    assert cache.get("large") is not None


def test_a_value_is_measured_while_another_thread_loads_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))  # half loaded: it has no names yet
    assert held_bytes({"levels": [np.zeros((3, 5), np.float32)]}) == 60


def test_the_bytes_of_a_pass_are_its_queries_keys_and_tokens(tmp_path):
    session, _ = studio_with(DEEP, tmp_path)
    subject = session.subject("cat", OWN)
    recording = record(subject.model, subject.image)
    tokens, width, depth = 7, 12, 7  # 2 · 3 patches and CLS
    passing = 4 * tokens * width * (2 * depth + depth + 1)  # queries, keys, the tokens after each block, features
    assert held_bytes(recording) == passing + 4 * 5
    assert held_bytes(subject.model) == 4 * sum(weights.numel() for weights in subject.model.state_dict().values())
    session.close()
