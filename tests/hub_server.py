"""A Hugging Face Hub on loopback: what the real client asks of it, from repositories in memory.

Models are listed and resolved as the Hub does it: small files from git, named by git's SHA-1; large ones behind a
redirect, named by their SHA-256. Repositories are created, and commits arrive as lines of JSON, their large files
through the LFS protocol.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

__all__ = ["Hub", "Repo", "serving"]

LARGE = (".safetensors", ".bin")
TOKEN = "hf_loopback"


@dataclass
class Repo:
    files: dict[str, bytes]
    gated: bool = False
    private: bool = False
    tags: tuple[str, ...] = ("main",)
    past: dict[str, Repo] = field(default_factory=dict)
    """What it was before, by commit."""

    def at(self, revision: str) -> Repo | None:
        return self if revision in (*self.tags, self.commit) else self.past.get(revision)

    @property
    def commit(self) -> str:
        """The commit of these files: others have another."""
        sums = {name: hashlib.sha1(content).hexdigest() for name, content in self.files.items()}
        return hashlib.sha1(json.dumps(sums, sort_keys=True).encode()).hexdigest()


@dataclass
class Hub:
    """The repositories, what is to go wrong, and what was asked."""

    repos: dict[str, Repo] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)
    cut: dict[str, int] = field(default_factory=dict)
    """Files whose next transfer ends after so many bytes."""
    damaged: set[str] = field(default_factory=set)
    """Files that arrive with a changed byte."""
    asked: list[str] = field(default_factory=list)
    """Method, path and range of every request, in order."""
    uploaded: dict[str, bytes] = field(default_factory=dict)
    """Large files by their sum, before a commit names them."""
    endpoint: str = ""

    def add_folder(self, name: str, folder: Path, **facts: Any) -> Repo:
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
        before = self.repos.get(name)
        past = {} if before is None else {**before.past, before.commit: before}
        self.repos[name] = Repo(files, past=past, **facts)
        return self.repos[name]

    def transferred(self, file: str) -> list[str]:
        """The requests that asked for a file's content."""
        return [line for line in self.asked if line.startswith("GET") and file in line]


@contextmanager
def serving() -> Iterator[Hub]:
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield hub
        server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 — the base class's name
        pass

    # ── answers ─────────────────────────────────────────────────────────────────────────────────────────────────

    def answer(self, status: int, content: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def say(self, value: Any, status: int = 200) -> None:
        self.answer(status, json.dumps(value).encode(), Content_Type="application/json")

    def refuse(self, status: int, code: str, message: str) -> None:
        self.answer(status, json.dumps({"error": message}).encode(), X_Error_Code=code, X_Error_Message=message)

    def find(self, name: str, revision: str | None = None, *, content: bool = False) -> Repo | None:
        """The repository, or None once the refusal is sent."""
        known = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        repo = self.hub.repos.get(name)
        if repo is None or (repo.private and not known):
            self.refuse(404 if known else 401, "RepoNotFound", "Repository not found")
        elif revision is not None and repo.at(revision) is None:
            self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        elif content and repo.gated and not known:
            self.refuse(401, "GatedRepo", f"Access to model {name} is restricted.")
        else:
            return repo if revision is None else repo.at(revision)
        return None

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        path, query = address.path, parse_qs(address.query)
        self.hub.asked.append(f"{self.command} {unquote(path)} {self.headers.get('Range', '')}".strip())
        for old, new in self.hub.renamed.items():
            if f"/{old}" in path:
                self.answer(307, Location=self.path.replace(f"/{old}", f"/{new}"))
                return
        path = re.sub("^/datasets/", "/", path)  # one name is one repository here, of whatever kind
        if found := re.fullmatch(r"/api/(?:models|datasets)/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            self.list_files(found[1], unquote(found[2] or "main"), blobs="blobs" in query)
        elif found := re.fullmatch(r"/api/datasets/([^/]+/[^/]+)/tree/([^/]+)(?:/(.+))?", path):
            self.list_folder(found[1], unquote(found[2]), unquote(found[3] or ""))
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self.resolve(found[1], unquote(found[2]), unquote(found[3]))
        elif found := re.fullmatch(r"/storage/([^/]+/[^/]+)/(.+)", path):
            repo = self.hub.repos[found[1]].at(query["commit"][0])
            assert repo is not None
            self.transfer(found[2], repo.files[found[2]])
        else:
            self.refuse(404, "", f"nothing at {path}")

    do_HEAD = do_GET  # noqa: N815 — the base class's name

    def list_files(self, name: str, revision: str, *, blobs: bool) -> None:
        repo = self.find(name, revision)
        if repo is None:
            return
        siblings = [
            {"rfilename": file, **(_facts(file, content) if blobs else {})} for file, content in repo.files.items()
        ]
        self.say({"id": name, "sha": repo.commit, "siblings": siblings, "private": repo.private, "tags": []})

    def list_folder(self, name: str, revision: str, folder: str) -> None:
        repo = self.find(name, revision)
        if repo is None:
            return
        start = f"{folder}/" if folder else ""
        below = sorted({file.removeprefix(start).partition("/")[0] for file in repo.files if file.startswith(start)})
        if below:
            self.say([_entry(repo, start + each) for each in below])
        else:
            self.refuse(404, "EntryNotFound", f"{folder} does not exist")

    def list_paths(self, name: str, revision: str, paths: list[str]) -> None:
        repo = self.find(name, revision)
        if repo is not None:
            known = [each for each in paths if any(f"{file}/".startswith(f"{each}/") for file in repo.files)]
            self.say([_entry(repo, each) for each in known])

    def resolve(self, name: str, revision: str, file: str) -> None:
        repo = self.find(name, revision, content=True)
        if repo is None:
            return
        if file not in repo.files:
            self.refuse(404, "EntryNotFound", f"{file} does not exist")
            return
        facts = _facts(file, repo.files[file])
        if "lfs" in facts:
            sum_, size = facts["lfs"]["sha256"], str(facts["size"])
            # the real Hub's storage has another host: the client then goes on without the token
            storage = self.hub.endpoint.replace("127.0.0.1", "localhost")
            self.answer(
                302,
                Location=f"{storage}/storage/{name}/{file}?commit={repo.commit}",
                X_Repo_Commit=repo.commit,
                X_Linked_Etag=f'"{sum_}"',
                X_Linked_Size=size,
            )
        else:
            self.transfer(file, repo.files[file], X_Repo_Commit=repo.commit, ETag=f'"{facts["blobId"]}"')

    def transfer(self, file: str, content: bytes, **headers: str) -> None:
        if file in self.hub.damaged:
            content = content[:-1] + bytes([content[-1] ^ 1])
        whole, start = len(content), 0
        stop = whole
        if found := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            start, stop = int(found[1]), min(whole, int(found[2] or whole - 1) + 1)
            headers["Content_Range"] = f"bytes {start}-{stop - 1}/{whole}"
        rest = content[start:stop]
        if self.command == "GET" and file in self.hub.cut:
            headers["Content_Length"] = str(len(rest))
            rest = rest[: self.hub.cut.pop(file)]
            self.close_connection = True
        self.answer(206 if "Content_Range" in headers else 200, rest, **headers)

    # ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────

    def do_POST(self) -> None:
        path = unquote(urlsplit(self.path).path)
        body = self.body()
        self.hub.asked.append(f"POST {path}")
        if found := re.fullmatch(r"/api/datasets/([^/]+/[^/]+)/paths-info/(.+)", path):
            self.list_paths(found[1], found[2], parse_qs(body.decode())["paths"])
        elif self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self.refuse(401, "", "Invalid username or password.")
        elif path == "/api/repos/create":
            self.create(json.loads(body))
        elif path == "/api/validate-yaml":
            self.say({"errors": [], "warnings": []})
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/preupload/(.+)", path):
            if self.find(found[1], found[2]):
                modes = [
                    {"path": file["path"], "uploadMode": _mode(file["path"]), "shouldIgnore": False}
                    for file in json.loads(body)["files"]
                ]
                self.say({"files": modes})
        elif found := re.fullmatch(r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", path):
            objects = [
                each | {"actions": {"upload": {"href": f"{self.hub.endpoint}/upload/{each['oid']}"}}}
                for each in json.loads(body)["objects"]
            ]
            self.say({"transfer": "basic", "objects": objects})
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/(.+)", path):
            self.commit(found[1], found[2], [json.loads(line) for line in body.splitlines()])
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/branch/(.+)", path):
            repo = self.hub.repos[found[1]]
            repo.tags = (*repo.tags, found[2])
            self.say({})
        else:
            self.refuse(404, "", f"nothing at {path}")

    def do_PUT(self) -> None:
        self.hub.asked.append(f"PUT {self.path}")
        content = self.body()
        assert hashlib.sha256(content).hexdigest() == self.path.rpartition("/")[2]
        self.hub.uploaded[self.path.rpartition("/")[2]] = content
        self.answer(200)

    def create(self, asked: dict[str, Any]) -> None:
        name = f"{asked['organization']}/{asked['name']}"
        status = 409 if name in self.hub.repos else 200
        self.hub.repos.setdefault(name, Repo({}, private=asked.get("visibility") == "private"))
        self.say({"url": f"{self.hub.endpoint}/{name}"}, status)

    def commit(self, name: str, revision: str, lines: list[dict[str, Any]]) -> None:
        repo = self.find(name, revision)
        if repo is None:
            return
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                repo.files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                repo.files[value["path"]] = self.hub.uploaded[value["oid"]]
        self.say({"commitUrl": f"{self.hub.endpoint}/{name}/commit/{repo.commit}", "commitOid": repo.commit})

    def body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)


def _entry(repo: Repo, path: str) -> dict[str, Any]:
    """What a dataset's listing says of a file or folder."""
    if path not in repo.files:
        return {"type": "directory", "path": path, "oid": hashlib.sha1(path.encode()).hexdigest()}
    facts = _facts(path, repo.files[path])
    lfs = {"lfs": {**facts["lfs"], "oid": facts["lfs"]["sha256"]}} if "lfs" in facts else {}
    return {"type": "file", "path": path, "oid": facts["blobId"], "size": facts["size"], **lfs}


def _mode(file: str) -> str:
    return "lfs" if file.endswith(LARGE) else "regular"


def _facts(file: str, content: bytes) -> dict[str, Any]:
    """What the Hub lists of a file."""
    blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    facts: dict[str, Any] = {"size": len(content), "blobId": blob}
    if _mode(file) == "lfs":
        facts["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
    return facts
