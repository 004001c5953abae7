"""Google Cloud Storage on loopback: the part of its JSON API that the real client asks, from objects in memory.

Generations are honoured as the store does it: an upload with `ifGenerationMatch=0` succeeds once.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

__all__ = ["Bucket", "gcs_server"]

PAGE = 25
"""Objects a page of a listing, few, so that a listing has pages."""


@dataclass
class Bucket:
    """Objects with their generations, and what the store is to refuse."""

    name: str
    objects: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    refused: bool = False
    busy: int = 0
    """Number of requests that are still answered with 503."""
    url: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def put(self, name: str, content: bytes, *, new: bool) -> bool:
        with self.lock:
            if new and name in self.objects:
                return False
            generation = 1 + max((held for held, _ in self.objects.values()), default=0)
            self.objects[name] = (generation, content)
            return True

    def facts(self, name: str) -> dict[str, Any]:
        generation, content = self.objects[name]
        return {
            **{"kind": "storage#object", "name": name, "bucket": self.name, "size": str(len(content))},
            **{"generation": str(generation), "updated": "2020-01-01T00:00:00.000Z"},
        }


@contextmanager
def gcs_server(name: str) -> Iterator[Bucket]:
    bucket = Bucket(name)
    handler = type("Handler", (_Handler,), {"bucket": bucket})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        bucket.url = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield bucket
        server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    bucket: Bucket

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 — the base class's name
        pass

    def answer(self, status: int, content: bytes = b"", kind: str = "application/json", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def say(self, value: Any, status: int = 200) -> None:
        self.answer(status, json.dumps(value).encode())

    def refuse(self, status: int, message: str) -> None:
        self.say({"error": {"code": status, "message": message}}, status)

    def do_GET(self) -> None:
        self.serve(b"")

    do_DELETE = do_GET  # noqa: N815 — the base class's name

    def do_POST(self) -> None:
        self.serve(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def serve(self, body: bytes) -> None:
        bucket, address = self.bucket, urlsplit(self.path)
        query = {key: value[0] for key, value in parse_qs(address.query).items()}
        found = re.fullmatch(r"(?:/upload|/download)?/storage/v1/b/([^/]+)(/o)?(?:/(.+))?", address.path)
        if bucket.busy > 0:
            bucket.busy -= 1
            self.refuse(503, "backend error")
        elif bucket.refused:
            self.refuse(403, "the caller does not have storage.objects.list access")
        elif found is None or found[1] != bucket.name:
            self.refuse(404, "the bucket does not exist")
        elif found[2] is None:
            self.say({"name": bucket.name, "locationType": "region"})
        elif self.command == "POST":
            self.upload(body, new=query.get("ifGenerationMatch") == "0")
        elif found[3] is None:
            self.list(query)
        elif (name := unquote(found[3])) not in bucket.objects:
            self.refuse(404, f"no such object: {name}")
        elif self.command == "DELETE":
            del bucket.objects[name]
            self.answer(204)
        elif query.get("alt") == "media":
            self.transfer(bucket.objects[name][1])
        else:
            self.say(bucket.facts(name))

    def upload(self, body: bytes, *, new: bool) -> None:
        boundary = b"--" + self.headers["Content-Type"].partition('boundary="')[2].rstrip('"').encode()
        facts, content = (part.split(b"\n\n", 1)[1] for part in body.split(boundary, 2)[1:])
        content = content.rpartition(b"\n" + boundary)[0]
        name = json.loads(facts.strip())["name"]
        if self.bucket.put(name, content, new=new):
            self.say(self.bucket.facts(name))
        else:
            self.refuse(412, "at least one of the pre-conditions did not hold")

    def list(self, query: dict[str, str]) -> None:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        names, folders = [], set()
        for name in sorted(each for each in self.bucket.objects if each.startswith(prefix)):
            inner, mark, _ = name[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            if mark:
                folders.add(prefix + inner + mark)
            else:
                names.append(name)
        start = int(query.get("pageToken", 0))
        items = [self.bucket.facts(name) for name in names[start : start + PAGE]]
        more = {"nextPageToken": str(start + PAGE)} if start + PAGE < len(names) else {}
        self.say({"kind": "storage#objects", "items": items, "prefixes": sorted(folders), **more})

    def transfer(self, content: bytes) -> None:
        if found := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            start, stop = int(found[1]), int(found[2] or len(content) - 1) + 1
            place = f"bytes {start}-{min(stop, len(content)) - 1}/{len(content)}"
            self.answer(206, content[start:stop], "application/octet-stream", **{"Content-Range": place})
        else:
            self.answer(200, content, "application/octet-stream")
