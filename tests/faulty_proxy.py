"""A real S3 server on loopback, and a proxy before it that loses connections, cuts bodies, is slow and refuses."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

from command import until

__all__ = ["Fault", "FaultyProxy", "s3_server"]

Fault = Literal["drop", "cut", "slow", "503", "expired", "unconditional"]
EXPIRED = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


@contextmanager
def s3_server() -> Iterator[int]:
    """Run moto's server as a process of its own; give its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            until(lambda: _answers(port) or server.poll() is not None)
            yield port
        finally:
            os.kill(server.pid, signal.SIGKILL)


def _answers(port: int) -> bool:
    with socket.socket() as attempt:
        return attempt.connect_ex(("127.0.0.1", port)) == 0


class FaultyProxy:
    """Forward every request, except those for which `fault` names a fault; count requests, faults and bytes read."""

    def __init__(self, target: int) -> None:
        self.target, self.slow_seconds = target, 0.2
        self.lock = threading.Lock()
        self.reset()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def reset(self, fault: Callable[[int, str, str], Fault | None] = lambda number, method, path: None) -> None:
        """Begin to count anew; `fault` gets the number, the method and the path of a request."""
        with self.lock:
            self.fault, self.requests, self.bytes, self.faults = fault, 0, 0, Counter[str]()

    def judge(self, method: str, path: str) -> Fault | None:
        with self.lock:
            self.requests += 1
            fault = self.fault(self.requests, method, path)
            if fault:
                self.faults[fault] += 1
            return fault

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def _handler(proxy: FaultyProxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one_request(self) -> None:
            try:
                super().handle_one_request()
            except (ConnectionError, TimeoutError):
                self.close_connection = True

        def forward(self) -> None:
            body = self._body()
            fault = proxy.judge(self.command, self.path)
            if fault == "drop":
                self.close_connection = True
                return
            if fault in ("503", "expired"):
                self._answer(503 if fault == "503" else 400, {}, SLOW_DOWN if fault == "503" else EXPIRED)
                return
            headers = dict(self.headers.items())
            if fault == "unconditional":
                headers.pop("If-None-Match", None)
            upstream = http.client.HTTPConnection("127.0.0.1", proxy.target, timeout=60)
            upstream.request(self.command, self.path, body, headers)
            answer = upstream.getresponse()
            data = answer.read()
            upstream.close()
            proxy.bytes += len(data)
            if fault == "slow":
                time.sleep(proxy.slow_seconds)
            kept = {name: value for name, value in answer.getheaders() if name.lower() not in ("connection", "date")}
            self._answer(answer.status, kept, data, cut=fault == "cut")

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
                body = b""
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                while self.rfile.readline().strip():
                    pass
                del self.headers["Transfer-Encoding"]
                return body
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))

        def _answer(self, status: int, headers: dict[str, str], data: bytes, *, cut: bool = False) -> None:
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() not in ("content-length", "transfer-encoding", "server"):
                    self.send_header(name, value)
            length = headers.get("Content-Length", headers.get("content-length", str(len(data))))
            self.send_header("Content-Length", length if self.command == "HEAD" else str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data[: len(data) // 2] if cut else data)
            if cut:
                self.close_connection = True

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = forward  # noqa: N815 — http.server's names

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Say nothing."""

    return Handler
