"""Files as scripts. From a file:// address a browser refuses to read files, but it does run scripts beside the page.

A script hands over one part of a file, compressed and in base64; the page joins the parts (web/src/site/assets.ts).
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator

__all__ = ["scripts_of"]

PART = 12 * 2**20
"""Compressed bytes of one script: browsers limit the length of a string."""


def scripts_of(name: str, data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the scripts of a file, as file names and contents."""
    # without a time, so that equal files are equal scripts
    packed = gzip.compress(data, compresslevel=9 if len(data) < PART else 6, mtime=0)
    parts = [packed[start : start + PART] for start in range(0, len(packed), PART)]
    for index, part in enumerate(parts):
        call = f"vitrailAsset({json.dumps(name)}, {index}, {len(parts)}, "
        yield f"{name}.{index}.js", b"".join([call.encode(), b'"', base64.b64encode(part), b'");\n'])
