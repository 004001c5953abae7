"""Weights that are dropped on the page: streamed to temporary files, which are removed when the studio ends."""

from __future__ import annotations

import asyncio
import atexit
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import mkdtemp

from vitrail.checkpoint.formats.safetensors_header import is_safetensors
from vitrail.errors import VitrailError, require

__all__ = ["MAX_WEIGHTS", "Uploads"]

MAX_WEIGHTS = 2**30
"""Bytes of one file."""
MAX_FILES = 4
SECONDS = 300
START = 9
"""The bytes that tell a safetensors file: the length of its header, and the header's first character."""
INSTEAD = "start the studio with --weights FILE instead"


class Uploads:
    """A temporary folder. Its files are numbered, so that no name from a client becomes a path."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._kept = 0
        self._number = 0

    async def receive(self, chunks: AsyncIterator[bytes]) -> Path:
        """Write a body to a file; what is too long, too slow or not safetensors is refused while it arrives."""
        require(self._kept < MAX_FILES, f"at most {MAX_FILES} dropped models are kept; {INSTEAD}")
        self._kept, self._number = self._kept + 1, self._number + 1
        path = self._open() / f"{self._number}.safetensors"
        try:
            async with asyncio.timeout(SECONDS):
                await _write(path, chunks)
        except TimeoutError:
            self.discard(path)
            raise VitrailError(f"the file took more than {SECONDS} seconds to arrive; {INSTEAD}") from None
        except BaseException:
            self.discard(path)
            raise
        return path

    def discard(self, path: Path) -> None:
        """Remove a file that was refused."""
        path.unlink(missing_ok=True)
        self._kept -= 1

    def close(self) -> None:
        """Remove all files."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _open(self) -> Path:
        if self._folder is None:
            self._folder = Path(mkdtemp(prefix="vitrail-studio-"))
            atexit.register(self.close)
        return self._folder


async def _write(path: Path, chunks: AsyncIterator[bytes]) -> None:
    start, size = b"", 0
    with path.open("xb") as file:
        async for chunk in chunks:
            size += len(chunk)
            require(size <= MAX_WEIGHTS, f"the file is above {MAX_WEIGHTS // 2**20:,} MiB; {INSTEAD}")
            start = (start + chunk)[:START] if len(start) < START else start
            require(
                len(start) < START or is_safetensors(start), "the file is not safetensors; use vitrail convert first"
            )
            file.write(chunk)
    require(len(start) == START, f"the file has {size} bytes, too few for safetensors; choose another")
