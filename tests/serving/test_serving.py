"""The endpoint as clients meet it: a real server, the official client, and requests that are wrong."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import httpx
import numpy as np
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from command import PATIENCE, call, until
from embedding import CONFIG, png, save_weights
from vitrail import VitrailError, embed
from vitrail.parts import Rotary
from vitrail.serving.app import Model
from vitrail.serving.batches import Limits
from vitrail.serving.errors import RequestError
from vitrail.serving.forms import FIELDS, PARTS, read_question
from vitrail.serving.serve import model_of, serve

NAME, WIDTH = "tiny", 24


def data_url(image: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(image).decode()}"


@pytest.fixture(scope="module")
def expected(weights: Path) -> np.ndarray:
    """The vectors that vitrail embed gives of png(0), png(1), …"""
    table = embed([png(seed) for seed in range(6)], weights, workers=0)
    return np.array(table.column("vector").to_pylist(), np.float32)


def close(found, expected) -> None:
    # a batch of another size sums in another order
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_the_official_client_gets_the_vectors_of_embed(started, expected):
    endpoint = started()
    client = openai.OpenAI(base_url=f"{endpoint.url}/v1", api_key="none is needed", timeout=PATIENCE)
    answer = client.embeddings.create(model=NAME, input=[data_url(png(seed)) for seed in range(3)])
    close([each.embedding for each in answer.data], expected[:3])
    assert [each.index for each in answer.data] == [0, 1, 2]
    assert answer.usage.total_tokens == 3 * (2 * 3 + 1)
    floats = client.embeddings.create(model=NAME, input=data_url(png(4)), encoding_format="float", dimensions=WIDTH)
    close(floats.data[0].embedding, expected[4])
    assert [each.id for each in client.models.list()] == [NAME]
    unit = client.embeddings.create(model=NAME, input=data_url(png(4)), extra_body={"normalized": True})
    close(unit.data[0].embedding, expected[4] / np.linalg.norm(expected[4]))
    with pytest.raises(openai.NotFoundError, match="'other' is not served here; use 'tiny'"):
        client.embeddings.create(model="other", input=data_url(png(0)))


@pytest.mark.parametrize(
    "form",
    [
        lambda url: {"model": NAME, "input": url},
        lambda url: {"input": [url]},
        lambda url: {"input": url.partition(",")[2]},
        lambda url: {"input": [url], "modality": "image", "user": "me"},
        lambda url: {"input": [{"image": url.partition(",")[2]}], "embedding_type": "float"},
        lambda url: {"input": {"type": "image_url", "image_url": {"url": url}}},
        lambda url: {"input": [{"content": [{"type": "image_base64", "image_base64": url}]}]},
        lambda url: {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]},
        lambda url: {"messages": [{"role": "user", "content": [{"type": "input_image", "image_url": url}]}]},
    ],
)
def test_every_form_of_an_image_is_the_same_image(form, started, expected):
    with started().client() as client:
        answer = client.post("/v1/embeddings", json=form(data_url(png(2))))
    assert answer.status_code == 200, answer.text
    close(answer.json()["data"][0]["embedding"], expected[2])


def test_a_file_as_the_body_becomes_json_or_the_numbers_themselves(started, expected):
    with started().client() as client:
        close(client.post("/embed", content=png(1)).json()["vector"], expected[1])
        raw = client.post("/embed", content=png(1), headers={"Accept": "application/octet-stream"})
    assert raw.headers["content-type"] == "application/octet-stream"
    close(np.frombuffer(raw.content, "<f4"), expected[1])


URL = data_url(png(0))
FAULTS = [
    (b"{", 400, "invalid_json", "not JSON"),
    (b"[" * 100_00, 400, "invalid_json", "not JSON"),
    (b'"text"', 400, None, "not a JSON object"),
    ({}, 400, None, "give either input or messages"),
    ({"input": []}, 400, None, "input has 0 images"),
    ({"input": [URL] * 129}, 400, None, "input has 129 images; send 1 to 128"),
    ({"input": "a red car"}, 400, None, "is not base64 of an image"),
    ({"input": [[1, 2, 3]]}, 400, None, "tokens and numbers are for texts"),
    ({"input": "https://example.org/cat.png"}, 400, None, "never fetched"),
    ({"input": {"image": "file:///etc/passwd"}}, 400, None, "is not base64"),
    ({"input": {"text": "a"}}, 400, None, "embeds images only"),
    ({"input": {"video": "a"}}, 400, None, "input is not an image"),
    ({"input": {"type": ["a"], "image": URL}}, 400, None, "input is not an image"),
    ({"input": "data:image/png,abc"}, 400, None, "without ;base64"),
    ({"input": {"content": "text"}}, 400, None, "is not a list of image parts"),
    ({"messages": [{"role": "user", "content": []}]}, 400, None, "messages have 0 images"),
    ({"messages": ["hello"]}, 400, None, "a message has no content"),
    ({"input": data_url(b"not an image")}, 400, "invalid_image", "not a readable image"),
    ({"input": [URL, data_url(png(0)[:60])]}, 400, "invalid_image", "image 1: "),
    ({"input": data_url(b"")}, 400, "invalid_image", "empty"),
    ({"input": URL, "model": "gpt"}, 404, "model_not_found", "is not served here"),
    ({"input": URL, "model": 3}, 400, None, "'model' has the wrong type"),
    ({"input": URL, "dimensions": 7}, 400, None, "dimensions 7 is not the model's width"),
    ({"input": URL, "encoding_format": "int8"}, 400, None, "is not float or base64"),
    ({"input": URL, "modality": "text"}, 400, None, "modality 'text' is not image"),
    ({"input": URL, "truncate": True}, 400, None, "'truncate' is not understood"),
]


def test_a_wrong_request_is_one_line_in_openais_shape_and_the_server_lives(started):
    endpoint = started()
    with endpoint.client() as client:
        for body, status, code, words in FAULTS:
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            refused(client.post("/v1/embeddings", content=content), status, words, code)
        refused(client.post("/embed", content=b""), 400, "empty, 0 bytes", "invalid_image")
        refused(client.post("/embed", content=bytes(2**20 + 1)), 413, "above 1 MiB", "body_too_large")
        refused(client.post("/embed", files={"file": png(0)}), 415, "send the file itself", None)
        refused(client.get("/embed"), 405, "POST images to", None)
        refused(client.get("/v1/chat"), 404, "POST images to", None)
        refused(client.post("/embed", content=png(0), headers={"Host": "evil.example"}), 403, "host name", None)
        refused(client.post("/embed", content=png(0), headers={"Origin": "https://evil.example"}), 403, "origin", None)
        assert client.post("/embed", content=png(0)).status_code == 200
        assert endpoint.service.batcher.admitted == 0


def refused(answer: httpx.Response, status: int, words: str, code: str | None) -> None:
    assert answer.status_code == status, answer.text
    (error,) = answer.json().values()
    assert set(error) == {"message", "type", "param", "code"}
    assert words in error["message"], error
    assert "\n" not in error["message"]
    assert code in (None, error["code"])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from([URL, "data:,", "http://a"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from([*FIELDS, *PARTS, "content", "type", "text", "url", "role"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@given(JSON)
@settings(max_examples=300, deadline=None)
def test_any_json_is_a_question_or_a_refusal(asked):
    with suppress(RequestError):
        assert 1 <= len(read_question(json.dumps(asked).encode()).images) <= 128


def test_an_exposed_endpoint_prints_its_token_unless_the_environment_has_one(model, monkeypatch):
    apps = []

    class Server:
        def __init__(self, app) -> None:
            apps.append(app)
            self.config = SimpleNamespace()

        def run(self, sockets) -> None:
            pass

    monkeypatch.setattr("vitrail.serving.serve.server_of", Server)
    handler = signal.getsignal(signal.SIGTERM)
    try:
        for chosen, words in ((None, "token"), ("0123456789abcdef", "model")):
            if chosen:
                monkeypatch.setenv("VITRAIL_TOKEN", chosen)
            said = list[str]()
            serve(lambda: model, host="0.0.0.0", port=0, expose=True, say=said.append)
            assert said[-1].split()[0] == words
            guard = apps[-1].app
            assert guard.token == (chosen or said[-1].split()[1])
            assert len(guard.token) >= 16
            assert guard.hosts is None
    finally:
        signal.signal(signal.SIGTERM, handler)


def test_beyond_this_machine_a_token_opens_and_health_needs_none(started, expected):
    endpoint = started(token="open-sesame-open")
    with endpoint.client() as client:
        refused(client.post("/embed", content=png(0)), 401, "a token is needed", "invalid_api_key")
        refused(client.get("/metrics"), 401, "a token is needed", "invalid_api_key")
        assert client.get("/health/live").status_code == 200
    client = openai.OpenAI(base_url=f"{endpoint.url}/v1", api_key="open-sesame-open")
    close(client.embeddings.create(model=NAME, input=data_url(png(0))).data[0].embedding, expected[0])
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{endpoint.url}/v1", api_key="wrong").embeddings.create(model=NAME, input="x")


class Gate:
    """An engine that waits until it is let go, and remembers its batches."""

    def __init__(self, model: Model) -> None:
        self.model, self.opened, self.batches = model, threading.Event(), list[int]()

    def __call__(self, images):
        self.batches.append(len(images))
        assert self.opened.wait(PATIENCE)
        return self.model.compute(images)


def test_requests_share_batches_and_each_gets_its_own_vectors(started, model, expected):
    gate = Gate(model)
    endpoint = started(compute=gate, batch=3)
    with ThreadPoolExecutor(6) as threads, endpoint.client() as client:
        asked = [threads.submit(client.post, "/embed", content=png(seed)) for seed in range(6)]
        until(lambda: endpoint.service.batcher.admitted == 6 and gate.batches)
        until(lambda: endpoint.service.batcher._waiting.qsize() + gate.batches[0] == 6)
        gate.opened.set()
        close([each.result().json()["vector"] for each in asked], expected)
    assert sum(gate.batches) == 6
    assert max(gate.batches) == 3
    assert len(gate.batches) <= 4


def test_a_full_queue_answers_429_with_a_time_to_retry_and_works_again(started, model):
    gate = Gate(model)
    endpoint = started(compute=gate, batch=1, queue=2)
    with ThreadPoolExecutor(2) as threads, endpoint.client() as client:
        asked = [threads.submit(client.post, "/embed", content=png(seed)) for seed in range(2)]
        until(lambda: endpoint.service.batcher.admitted == 2)
        full = client.post("/embed", content=png(2))
        refused(full, 429, "2 images are waiting, and 1 more are above the limit of 2", "queue_full")
        assert int(full.headers["retry-after"]) >= 1
        assert client.get("/health/live").status_code == 200  # the event loop is free
        gate.opened.set()
        assert {each.result().status_code for each in asked} == {200}
        assert client.post("/embed", content=png(2)).status_code == 200
        refused(client.post("/v1/embeddings", json={"input": [URL] * 3}), 429, "3 more", "queue_full")


def test_what_a_client_hung_up_on_is_not_computed(started, model):
    gate = Gate(model)
    endpoint = started(compute=gate, batch=1)
    with ThreadPoolExecutor(1) as threads, endpoint.client() as client:
        asked = threads.submit(client.post, "/embed", content=png(0))
        until(lambda: gate.batches == [1])
        with pytest.raises(httpx.ReadTimeout):
            endpoint.client().post("/embed", content=png(1), timeout=0.2)
        until(lambda: endpoint.service.batcher.admitted == 1)
        gate.opened.set()
        assert asked.result().status_code == 200
        assert client.post("/embed", content=png(2)).status_code == 200
    assert gate.batches == [1, 1]


def test_a_body_that_ends_early_leaves_the_server_alive(started):
    endpoint = started()
    host, port = endpoint.url.removeprefix("http://").split(":")
    for head in (f"Content-Length: {2**15}", "Transfer-Encoding: chunked"):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(f"POST /embed HTTP/1.1\r\nHost: {host}:{port}\r\n{head}\r\n\r\n".encode() + b"4\r\nabcd")
    with endpoint.client() as client:
        assert client.post("/embed", content=png(0)).status_code == 200
        until(lambda: endpoint.service.batcher.admitted == 0)


def test_an_engine_that_fails_is_reported_and_the_next_batch_runs(started, model, caplog):
    broken = [True]

    def compute(images):
        if broken.pop() if broken else False:
            raise ZeroDivisionError("a bug")
        return model.compute(images)

    with started(compute=compute).client() as client:
        refused(client.post("/embed", content=png(0)), 500, "the engine failed (ZeroDivisionError)", None)
        assert client.post("/embed", content=png(0)).status_code == 200
    assert "ZeroDivisionError: a bug" in caplog.text


def test_prometheus_reads_the_metrics_and_they_count(started):
    endpoint = started()
    with endpoint.client() as client:
        for body in (png(0), png(1), b"no image"):
            client.post("/embed", content=body)
        client.post("/v1/embeddings", json={"input": [URL] * 3})
        client.get("/no/such/path")
        said = client.get("/metrics")
    assert said.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = {family.name: family for family in text_string_to_metric_families(said.text)}
    assert all(family.documentation and family.type != "unknown" for family in families.values())
    counts = {tuple(each.labels.values()): each.value for each in families["vitrail_requests"].samples}
    assert counts == {
        ("/embed", "200"): 2,
        ("/embed", "400"): 1,
        ("/v1/embeddings", "200"): 1,
        ("other", "404"): 1,
    }
    assert families["vitrail_images"].samples[0].value == 5
    assert families["vitrail_waiting_images"].samples[0].value == 0
    images = {each.name: each.value for each in families["vitrail_batch_images"].samples}
    assert images["vitrail_batch_images_sum"] == 5
    for name in ("vitrail_request_seconds", "vitrail_batch_seconds", "vitrail_batch_images"):
        buckets = [each.value for each in families[name].samples if each.name.endswith("_bucket")]
        assert buckets == sorted(buckets)
        assert buckets[-1] == next(each.value for each in families[name].samples if each.name.endswith("_count"))


def test_sigterm_answers_what_was_asked_and_ends_with_code_0(weights: Path):
    command = [sys.executable, "-m", "vitrail", "serve", "--weights", str(weights), "--port", "0", "--name", NAME]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = server.stdout.readline().split()[2].removesuffix("/v1/embeddings")
        assert server.stdout.readline().startswith("model tiny, vectors of 24 numbers, float32 by ")
        until(lambda: httpx.get(f"{url}/health/ready").status_code == 200)
        host, port = url.removeprefix("http://").split(":")
        image = png(0)
        with socket.create_connection((host, int(port)), timeout=PATIENCE) as connection:
            head = f"POST /embed HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: {len(image)}\r\n\r\n"
            connection.sendall(head.encode() + image[:20])
            httpx.get(f"{url}/health/live")  # by now the request has begun
            os.kill(server.pid, signal.SIGTERM)
            with pytest.raises((httpx.ConnectError, httpx.RemoteProtocolError)):  # refused, or dropped unanswered
                until(lambda: not httpx.get(f"{url}/health/live"))
            connection.sendall(image[20:])
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
        assert server.wait(PATIENCE) == 0


@pytest.mark.parametrize("engine", ["openvino", "onnxruntime", "auto"])
def test_every_engine_gives_the_vectors_of_embed_for_batches_of_any_size_in_several_threads(
    engine, weights: Path, model, monkeypatch, tmp_path
):
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path))
    served = model_of(weights, engine=engine, limits=Limits(batch=3, workers=2), threads=1)
    assert served.engine.startswith(engine if engine != "auto" else ("torch", "openvino", "onnxruntime"))
    images = [model.prepare(png(number)) for number in range(5)]
    counts = range(1, 6)
    with ThreadPoolExecutor(2) as pool:
        for count, found in zip(counts, pool.map(lambda count: served.compute(images[:count]), counts), strict=True):
            close(found, model.compute(images[:count]))


def test_a_model_without_a_graph_is_served_by_torch_and_another_engine_refused(tmp_path):
    weights = save_weights(tmp_path / "w.safetensors", CONFIG.but(position=Rotary()))
    assert model_of(weights, engine="auto").engine.startswith("torch (only torch runs this model: its positions")
    with pytest.raises(VitrailError, match="engine openvino cannot run this model: its positions act on"):
        model_of(weights, engine="openvino")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--host", "0.0.0.0"], "add --expose if others may use this endpoint"),
        (["--host", "nowhere"], "is not an address"),
        (["--port", "99999"], "--port 99999 is not available"),
        (["--weights", "gone.safetensors"], "gone.safetensors"),
        (["--queue", "0"], "queue 0"),
        (["--max-body", "0"], "--max-body 0 is not positive"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments: list[str], words: str, capsys):
    assert call("serve", *arguments) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_a_short_token_is_refused(weights: Path, monkeypatch, capsys):
    monkeypatch.setenv("VITRAIL_TOKEN", "short")
    assert call("serve", "--weights", str(weights)) == 2
    assert "VITRAIL_TOKEN has 5 characters; give at least 16" in capsys.readouterr().err
