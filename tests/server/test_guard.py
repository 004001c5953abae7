"""Who may ask, and what they are told otherwise."""

from __future__ import annotations

import socket

import pytest
from client import HOST, client

from command import PATIENCE
from vitrail.server.app import create_app
from vitrail.server.guard import HEADERS, MAX_BODY
from vitrail.server.session import Session


def refused(response, status: int = 403) -> bool:
    said = response.json()
    return response.status_code == status == said["status"] and set(said) == {"error", "status"} and bool(said["error"])


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example:8123", "[::1]:8123", "127.0.0.1:8123 "]
)
def test_any_other_host_is_refused(host):
    assert refused(client().get("/", headers={"Host": host}))
    assert refused(client().get("/api/controls", headers={"Host": host}))


@pytest.mark.parametrize("origin", ["https://evil.example", "null", f"https://{HOST}", "http://127.0.0.1:9", "file://"])
def test_any_other_origin_is_refused(origin):
    assert refused(client().get("/api/controls", headers={"Origin": origin}))
    assert refused(client().post("/api/images", headers={"Origin": origin}, content=b""))


@pytest.mark.parametrize("site", ["cross-site", "same-site", "nonsense"])
def test_other_sites_may_not_ask(site):
    assert refused(client().get("/api/patch", headers={"Sec-Fetch-Site": site}))
    assert refused(client().get("/", headers={"Sec-Fetch-Site": site, "Sec-Fetch-Dest": "iframe"}))


def test_another_site_may_link_to_the_page_but_not_to_its_numbers():
    followed = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert client().get("/", headers=followed).status_code == 200
    assert refused(client().get("/api/controls", headers=followed))


def test_the_page_itself_may_ask():
    own = {"Origin": f"http://{HOST}", "Sec-Fetch-Site": "same-origin"}
    assert client().get("/api/controls", headers=own).status_code == 200


@pytest.mark.parametrize("path", ["/", "/api/controls", "/api/nothing", "/api/patch?height=1"])
def test_every_answer_has_the_policy_and_none_has_cors(path):
    answer = client().get(path, headers={"Origin": f"http://{HOST}"})
    for name, value in HEADERS.items():
        assert answer.headers[name] == value
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert "unsafe" not in HEADERS["Content-Security-Policy"]
    assert "server" not in answer.headers


def test_preflights_get_no_permission():
    asked = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    assert refused(client().options("/api/images", headers=asked))


@pytest.mark.parametrize(
    "path", ["/../pyproject.toml", "/assets/../../app.py", "/%2e%2e/app.py", "/assets/", "//etc/passwd", "/index.html"]
)
def test_no_path_is_opened(path):
    assert refused(client().get(path), 404)


def test_a_body_that_says_it_is_too_large_is_refused():
    assert refused(client().post("/api/images", content=b"", headers={"Content-Length": str(MAX_BODY + 1)}), 413)


def test_a_body_that_does_not_say_how_large_it_is_is_counted():
    def stream():
        for _ in range(MAX_BODY // 2**20 + 1):
            yield bytes(2**20)

    assert refused(client().post("/api/images", content=stream()), 413)


def test_a_real_server_counts_a_chunked_body_too(address):
    host, _, port = address.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as connection:
        head = f"POST /api/images HTTP/1.1\r\nHost: {host}:{port}\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head.encode())
        try:
            for _ in range(MAX_BODY // 2**20 + 2):
                connection.sendall(b"100000\r\n" + bytes(2**20) + b"\r\n")
        except OSError:
            pass  # the server hung up on us, as it should
        answer = connection.recv(4096)
    assert answer.startswith(b"HTTP/1.1 413")


def test_beyond_loopback_a_token_opens_and_nothing_else_does():
    exposed = create_app(Session(), hosts=frozenset({HOST}), token="open-sesame")
    visitor = client(exposed)
    assert refused(visitor.get("/"))
    assert refused(visitor.get("/api/controls"))
    assert refused(visitor.get("/open/api/controls"))
    assert refused(visitor.get("/open-sesame"))  # the page's own addresses would lack the token
    assert refused(visitor.get("/api/controls?token=open-sesame"))
    assert visitor.get("/open-sesame/?room=memory").status_code == 200
    assert visitor.get("/open-sesame/api/controls").status_code == 200
    assert refused(visitor.get("/open-sesame/api/controls", headers={"Sec-Fetch-Site": "cross-site"}))


def test_only_a_framed_studio_may_be_shown_in_a_notebook():
    framed = create_app(Session(), hosts=frozenset({HOST}), token="open-sesame", framed=True)
    shown = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}
    answer = client(framed).get("/open-sesame/", headers=shown)
    assert answer.status_code == 200
    assert "frame-ancestors http://localhost:* http://127.0.0.1:*" in answer.headers["Content-Security-Policy"]
    assert refused(client(framed).get("/open-sesame/api/controls", headers=shown))
    assert refused(client(framed).get("/", headers=shown))
    assert refused(client().get("/", headers=shown))
