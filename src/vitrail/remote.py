"""Files that are named by a URL: s3://, gs://, hf://, hdfs://, https://, through fsspec.

A `Remote` has the part of pathlib's interface that jobs use, so that most code takes either (`Location`). Bytes are
read by ranges; nothing is copied to disk. A write is one PUT, which an object store makes visible whole or not at all,
and with `replace=False` a conditional one, of which exactly one succeeds.

Requests are repeated here and nowhere else: the libraries' own repetitions are switched off where they can be. What
was repeated is counted by reason (`take_retries`), so that a run can say it.
"""

from __future__ import annotations

import io
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from vitrail.errors import VitrailError, one_line, require

__all__ = ["Entry", "Location", "Remote", "RemoteError", "local_copy", "location_of", "take_retries"]

SCHEMES = ("s3", "gs", "hf", "hdfs", "http", "https")
WRITABLE = ("s3", "gs")
"""Stores with a conditional PUT, by which two runs at one moment are told apart."""
CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID or AWS_PROFILE",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "hf": "HF_TOKEN",
}
TRIES = 7
FIRST_PAUSE = 0.25
"""Seconds before the first repetition; each further pause is twice as long, 16 s in all."""
PATIENCE = 30.0
"""Seconds in which a request must be answered, besides those that its bytes take at `SLOWEST`."""
SLOWEST = 2**17
"""Bytes per second: a read that is slower is given up and repeated."""
UNKNOWN = 2**25
"""Bytes that a read of unknown length is given time for."""
LOST = {
    *("ConnectionError", "ClientConnectionError", "ClientPayloadError", "HTTPClientError"),
    *("TransportError", "IncompleteRead", "ResponseParserError"),
}
"""Names of the libraries' exceptions for a connection that ended early."""
BLOCK = 2**20
"""Bytes that a sequential reader asks for at a time."""

_retried: Counter[str] = Counter()
_counting = threading.Lock()


class RemoteError(VitrailError):
    """Raised when a store refuses a request, or has not answered it after `TRIES` attempts."""


class Entry(NamedTuple):
    """A file or folder of a listing."""

    name: str
    is_folder: bool
    size: int
    version: int
    """A number that changes with the content: made of the ETag, or of what the store has in its place."""


@dataclass(frozen=True)
class Remote:
    """A file or folder that is named by a URL.

    >>> place = Remote("s3://bucket/vectors") / "part-00000.parquet"
    >>> str(place), place.name, place.suffix
    ('s3://bucket/vectors/part-00000.parquet', 'part-00000.parquet', '.parquet')
    """

    url: str

    def __truediv__(self, name: str) -> Remote:
        return Remote(f"{self.url.rstrip('/')}/{name}")

    def __str__(self) -> str:
        return self.url

    @property
    def scheme(self) -> str:
        return self.url.partition("://")[0]

    @property
    def name(self) -> str:
        path = urlsplit(self.url).path if self.scheme.startswith("http") else self.url
        return path.rstrip("/").rpartition("/")[2]

    @property
    def suffix(self) -> str:
        return Path(self.name).suffix

    @property
    def parent(self) -> Remote:
        return Remote(self.url.rstrip("/").rpartition("/")[0])

    def with_suffix(self, suffix: str) -> Remote:
        return self.with_name(f"{Path(self.name).stem}{suffix}")

    def with_name(self, name: str) -> Remote:
        return self.parent / name

    def absolute(self) -> Remote:
        return self

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────

    def exists(self) -> bool:
        try:
            self.entry()
        except FileNotFoundError:
            return False
        return True

    def is_dir(self) -> bool:
        if self.scheme.startswith("http"):
            return False
        try:
            return self.entry().is_folder
        except FileNotFoundError:
            return False

    def entry(self) -> Entry:
        """Ask for the size and the version."""
        return _entry(self._ask("_info", "info", length=0))

    def entries(self) -> list[Entry]:
        """List a folder, by name."""
        listed = self._ask("_ls", "ls", detail=True, length=UNKNOWN)
        own = self.url.partition("://")[2].strip("/")  # an object of the folder's own name, which consoles create
        return sorted(_entry(each) for each in listed if each["name"].strip("/") != own)

    def names(self, prefix: str = "") -> list[str]:
        """List the names in a folder that begin with a prefix; none if there is no such folder."""
        try:
            return [each.name for each in self.entries() if each.name.startswith(prefix)]
        except FileNotFoundError:
            return []

    def read_bytes(self, start: int = 0, length: int | None = None) -> bytes:
        """Read the file, or a range of it, in one request."""
        if length is None:
            return self._ask("_cat_file", "cat_file", length=UNKNOWN)
        return self._ask("_cat_file", "cat_file", start=start, end=start + length, length=length) if length else b""

    def open(self, *, block: int = 0) -> RangeFile:
        """Open the file for reads at any place; with `block`, at least as many bytes are read at a time."""
        return RangeFile(self, self.entry().size, block)

    # ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────

    def check_writable(self) -> None:
        require(
            self.scheme in WRITABLE,
            f"{self} cannot be written: outputs go to a folder, s3:// or gs://, whose commits are atomic; choose one",
        )

    def write(self, data: bytes, *, replace: bool = True) -> bool:
        """Write the file whole, or with `replace=False` keep one that exists; return whether it was written."""
        self.check_writable()
        tries = 0

        def put(call: Callable[..., Any], path: str) -> bool:
            nonlocal tries
            tries += 1
            try:
                call(path, data, mode="overwrite" if replace else "create")
            except FileExistsError:
                # after a lost answer the file may be our own
                return tries > 1 and self.read_bytes() == data
            except OSError as error:
                if replace or _status(error) != 412:
                    raise
                return tries > 1 and self.read_bytes() == data
            return True

        return self._ask("_pipe_file", "pipe_file", length=len(data), use=put)

    def unlink(self, missing_ok: bool = False) -> None:
        try:
            self._ask("_rm_file", "rm_file", length=0)
        except FileNotFoundError:
            if not missing_ok:
                raise

    # ── asking ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _ask(
        self,
        coroutine: str,
        function: str,
        *,
        length: int,
        use: Callable[[Callable[..., Any], str], Any] | None = None,
        **arguments: Any,
    ) -> Any:
        """Call a function of the file system; repeat it while the reason may pass, and explain any other error."""
        seconds = PATIENCE + length / SLOWEST
        for attempt in range(TRIES):
            try:
                system, path = _open_system(self)
                call = _bounded(system, coroutine, function, seconds)
                found = use(call, path) if use else call(path, **arguments)
                if function == "cat_file" and "end" in arguments and len(found) != length:
                    raise ConnectionError(f"{len(found):,} of {length:,} bytes came")
                return found
            except Exception as error:
                if isinstance(error, VitrailError) or (
                    isinstance(error, FileNotFoundError) and "bucket does not exist" not in str(error)
                ):
                    raise
                reason = _passing(error)
                if reason is None:
                    raise self._explained(error, function) from None
                with _counting:
                    _retried[reason] += 1
                if attempt == TRIES - 1:
                    raise RemoteError(
                        f"{self} was asked {TRIES} times in vain ({reason}); what is done stays: run the same command "
                        "again when the store answers"
                    ) from None
                time.sleep(FIRST_PAUSE * 2**attempt * random.uniform(0.75, 1.25))
        raise AssertionError

    def _explained(self, error: Exception, function: str) -> Exception:
        """Say in one line what a store refused, and what to do."""
        status, words = _status(error), one_line(str(error))[:120]
        if self.scheme.startswith("http"):
            return RemoteError(f"{self} cannot be read ({status or words}); check the URL")
        if function == "info" and status in (400, 403):  # HEAD has no body that could say why
            try:
                system, path = _open_system(self)
                system.cat_file(path, start=0, end=1)
            except Exception as other:
                words = one_line(str(other))[:120]
        if "expired" in words.lower() or "ExpiredToken" in words:
            return RemoteError(
                f"{self}: the store says that the token has expired; renew your credentials and run the same command "
                "again: what is done stays"
            )
        names = _class_names(error)
        denied = {"PermissionError", "NoCredentialsError", "PartialCredentialsError"}
        if status in (401, 403) or names & denied or words.startswith("Forbidden"):  # gcsfs gives no status
            return RemoteError(
                f"{self}: access was denied ({words}); set the store's credentials, e.g. "
                f"{CREDENTIALS.get(self.scheme, 'its token')}, and run the same command again"
            )
        return RemoteError(f"{self} cannot be used ({words}); check the URL and the store's settings")


Location = Path | Remote


def location_of(place: str | Path | Remote) -> Location:
    """Return the path or the URL that a text names; a scheme that is not read is refused.

    >>> location_of("photos").name, location_of("s3://bucket/photos").name
    ('photos', 'photos')
    """
    if not isinstance(place, str):
        return place
    scheme, mark, rest = place.partition("://")
    if not mark or "/" in scheme:
        return Path(place)
    require(
        scheme in SCHEMES and bool(rest.strip("/")),
        f"{place!r} is not a URL that is read; give a path or one of {', '.join(f'{each}://…' for each in SCHEMES)}",
    )
    return Remote(place if scheme.startswith("http") else place.rstrip("/"))


@contextmanager
def local_copy(place: Location) -> Iterator[Path]:
    """Give a path at which the file can be mapped: its own, or that of a temporary copy."""
    if isinstance(place, Path):
        yield place
        return
    with tempfile.NamedTemporaryFile(prefix="vitrail-", suffix=place.suffix) as file:
        file.write(place.read_bytes())
        file.flush()
        yield Path(file.name)


def take_retries() -> dict[str, int]:
    """Return how often requests were repeated since the last call, by reason."""
    with _counting:
        taken = dict(_retried)
        _retried.clear()
    return taken


class RangeFile(io.RawIOBase):
    """A file that is read by ranges, as `tarfile` and pyarrow read one."""

    def __init__(self, place: Remote, size: int, block: int = 0) -> None:
        super().__init__()
        self.place, self.size, self.block = place, size, block
        self.at = 0
        self.held, self.held_from = b"", 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.at = offset + (0, self.at, self.size)[whence]
        return self.at

    def read(self, count: int = -1) -> bytes:
        end = self.size if count is None or count < 0 else min(self.size, self.at + count)
        if end <= self.at:
            return b""
        if not self.held_from <= self.at <= end <= self.held_from + len(self.held):
            length = min(max(end - self.at, self.block), self.size - self.at)
            self.held, self.held_from = self.place.read_bytes(self.at, length), self.at
        data = self.held[self.at - self.held_from : end - self.held_from]
        self.at = end
        return data

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


# ── file systems and their errors ───────────────────────────────────────────────────────────────────────────────


def _open_system(place: Remote) -> tuple[Any, str]:
    """Return fsspec's file system for a URL, which it keeps for the next call, and the path in it."""
    try:
        from fsspec.core import url_to_fs

        options: dict[str, Any] = {"use_listings_cache": False}
        if place.scheme == "s3":
            attempts = {"total_max_attempts": 1}
            options["config_kwargs"] = {"retries": attempts, "connect_timeout": 10, "read_timeout": PATIENCE}
        system, path = url_to_fs(place.url, **options)
    except (ImportError, ValueError) as error:
        if isinstance(error, ValueError) and "install" not in str(error).lower():
            raise
        raise VitrailError(
            f"{place.scheme}:// is read with fsspec ({one_line(str(error))[:60]}); pip install 'vitrail[cloud]'"
        ) from None
    if place.scheme == "s3":
        system.retries = 1
    return system, path


def _bounded(system: Any, coroutine: str, function: str, seconds: float) -> Callable[..., Any]:
    """Return a function of the file system that ends within a time, where the system is asynchronous."""
    if not getattr(system, "async_impl", False) or not hasattr(system, coroutine):
        return getattr(system, function)
    from fsspec.asyn import sync

    return lambda *args, **options: sync(system.loop, getattr(system, coroutine), *args, timeout=seconds, **options)


def _entry(info: dict[str, Any]) -> Entry:
    fields = ("ETag", "etag", "generation", "blob_id", "mtime", "LastModified", "last_modified", "Last-Modified")
    token = next((str(info[field]).strip('"') for field in fields if info.get(field)), "")
    version = int.from_bytes(blake2b(token.encode(), digest_size=8).digest()) >> 1
    name = info["name"].rstrip("/").rpartition("/")[2]
    return Entry(name, info["type"] == "directory", int(info.get("size") or 0), version)


def _class_names(error: BaseException) -> set[str]:
    return {each.__name__ for each in type(error).__mro__}


def _status(error: BaseException) -> int | None:
    """Return the HTTP status in an error of any of the libraries."""
    for each in (error, error.__cause__, error.__context__):
        response = getattr(each, "response", None)
        if isinstance(response, dict):
            return response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        for value in (
            getattr(each, "status", None),
            getattr(response, "status_code", None),
            getattr(each, "code", None),
        ):
            if isinstance(value, int) and 100 <= value < 600:
                return value
    return None


def _passing(error: BaseException) -> str | None:
    """Return the reason of an error that another attempt may not meet; None if it would."""
    names = _class_names(error)
    if names & {"TimeoutError", "ReadTimeoutError", "ConnectTimeoutError"}:
        return "no answer in time"
    if names & LOST:
        return "connection lost"
    status = _status(error)
    return f"HTTP {status}" if status is not None and (status >= 500 or status in (408, 409, 429)) else None
