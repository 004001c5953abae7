"""The answers that every visitor of an exported page asks for first, recorded, so that no room opens by waiting.

They are the answers of the same code that runs in the page, for the default values of the controls.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, get_args
from urllib.parse import urlencode

from vitrail.server.controls import Geometry
from vitrail.server.rooms.tokens import CutKind
from vitrail.server.session import DEFAULT
from vitrail.server.site.browser import CROP, CUT, Backend

__all__ = ["record_answers"]

FIRST = (
    "patch",
    "patch/neighbours",
    "patch/tokens",
    "projection",
    "tokens",
    "memory",
    "memory/fit",
    "memory/curve",
    "models",
    "models/batch",
    "decide",
    "decide/ranking",
)
"""Paths of questions whose values are all the defaults, which the page leaves out."""


def record_answers(site: dict[str, Any]) -> dict[str, Any]:
    """Return JSON answers by address."""
    with ThreadPoolExecutor(1) as elsewhere:  # a notebook's thread has an event loop already
        return elsewhere.submit(lambda: asyncio.run(_answers(site))).result()


async def _answers(site: dict[str, Any]) -> dict[str, Any]:
    backend, found = Backend(site), {}
    for address in _addresses(site):
        status, _, body = await backend.answer(address)
        assert status == 200, f"{address}: {body.decode()}"
        found[address] = json.loads(body)
    return found


def _addresses(site: dict[str, Any]) -> Iterator[str]:
    yield from (f"/api/{path}" for path in FIRST)
    for name in site["models"]:
        yield "/api/limits" if name == DEFAULT else f"/api/limits?{urlencode({'weights': name})}"
    whole = Geometry()
    size = {"height": whole.height, "width": whole.width}
    for image in site["images"]:
        for query in (size, {**size, "patch_height": whole.patch_height, "patch_width": whole.patch_width}):
            yield f"/api/images/{image}/middle?{urlencode(query)}"
        for kind in get_args(CutKind):
            yield f"{CUT}/{kind}?{urlencode({'image': image})}"
        for name, model in site["models"].items():
            for height, width in {size for each in model["passes"].values() for size in each["inputs"].values()}:
                crop = {"image": image, "weights": name, "height": height, "width": width}
                yield f"{CROP}?{urlencode(crop)}"
