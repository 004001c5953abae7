"""The forms in which clients send images to an embeddings endpoint, read as one question.

    {"input": "data:image/png;base64,…"}             OpenAI's field with an image: vLLM, Infinity ("modality": "image")
    {"input": ["…", "…"]}                            several; base64 without the data: prefix is read as well
    {"input": [{"image": "…"}]}                      Jina, Azure AI
    {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "…"}}]}]}    vLLM
    {"input": [{"content": [{"type": "image_base64", "image_base64": "…"}]}]}                          Voyage, Cohere

An http address is never fetched, text is refused, and so is every field that is not understood.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from vitrail.serving.errors import RequestError

__all__ = ["MAX_IMAGES", "Question", "read_question"]

MAX_IMAGES = 128
"""Images of one request."""
FIELDS = {
    "model": str,
    "input": (str, list, dict),
    "messages": list,
    "encoding_format": str,
    "embedding_type": str,  # Jina's name for it
    "dimensions": int,
    "normalized": bool,  # Jina's
    "modality": str,  # Infinity's
    "user": str,
}
PARTS = {"image": "image", "image_url": "image_url", "input_image": "image_url", "image_base64": "image_base64"}
"""Types of content, and the field that has the image."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What a request asks for."""

    images: list[bytes]
    """Files, not yet decoded."""
    model: str | None
    encoding: Literal["float", "base64"]
    normalized: bool
    """Whether vectors are scaled to length 1."""
    dimensions: int | None


def read_question(body: bytes) -> Question:
    """Read the JSON of a request; raise RequestError for what is not understood."""
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not JSON ({str(error)[:80]}); send an object", code="invalid_json") from None
    if not isinstance(asked, dict):
        raise RequestError('the body is not a JSON object; send {"input": "data:image/png;base64,…"}')
    _check_fields(asked)
    places = list(_places(asked))
    if not 1 <= len(places) <= MAX_IMAGES:
        raise RequestError(f"input has {len(places)} images; send 1 to {MAX_IMAGES}", param="input")
    encoding = asked.get("encoding_format") or asked.get("embedding_type") or "float"
    if encoding not in ("float", "base64"):
        raise RequestError(
            f"encoding_format {encoding!r} is not float or base64; use one of them", param="encoding_format"
        )
    if asked.get("modality") not in (None, "image"):
        raise RequestError(f"modality {asked['modality']!r} is not image; this model embeds images", param="modality")
    return Question(
        images=[_image(value, place) for place, value in places],
        model=asked.get("model"),
        encoding=encoding,
        normalized=asked.get("normalized", False),
        dimensions=asked.get("dimensions"),
    )


def _check_fields(asked: Mapping[str, Any]) -> None:
    for name in list(asked):
        if name not in FIELDS:
            raise RequestError(f"field {name!r} is not understood; leave it out", param=name)
        kind = FIELDS[name]
        if asked[name] is not None and (not isinstance(asked[name], kind) or (kind is int and asked[name] is True)):
            raise RequestError(f"field {name!r} has the wrong type; see the forms in the documentation", param=name)
    if (asked.get("input") is None) == (asked.get("messages") is None):
        raise RequestError("give either input or messages, with images", param="input")


def _places(asked: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield every image with the name of its place."""
    if asked.get("messages") is not None:
        images = []
        for number, message in enumerate(asked["messages"]):
            if not isinstance(message, dict) or "content" not in message:
                raise RequestError("a message has no content; send a list of image_url parts", param="messages")
            images += _content(message["content"], f"messages[{number}].content")
        if len(images) != 1:  # a conversation becomes one vector
            raise RequestError(f"messages have {len(images)} images; send 1, or several as input", param="messages")
        yield from images
    elif isinstance(asked["input"], list):
        for number, value in enumerate(asked["input"]):
            yield _item(value, f"input[{number}]")
    else:
        yield _item(asked["input"], "input")


def _item(value: Any, place: str) -> tuple[str, Any]:
    """Return the image of one input, which becomes one vector."""
    if isinstance(value, dict) and "content" in value:
        parts = list(_content(value["content"], f"{place}.content"))
        if len(parts) != 1:
            raise RequestError(f"{place} has {len(parts)} images; one vector is of one image", param=place)
        return parts[0]
    return place, _part(value, place) if isinstance(value, dict) else value


def _content(content: Any, place: str) -> Iterator[tuple[str, Any]]:
    if not isinstance(content, list):
        raise RequestError(f"{place} is not a list of image parts; this model embeds images, not text", param=place)
    for number, part in enumerate(content):
        here = f"{place}[{number}]"
        if not isinstance(part, dict):
            raise RequestError(f"{here} is not an object; send an image_url part", param=here)
        yield here, _part(part, here)


def _part(part: Mapping[str, Any], place: str) -> Any:
    """Return the image of {"image": …} or of {"type": "image_url", "image_url": …}."""
    kind = part.get("type", "image")
    if kind == "text" or part.get("text") is not None:
        raise RequestError(f"{place} has text; this model embeds images only: leave the text out", param=place)
    field = PARTS.get(kind) if isinstance(kind, str) else None
    if field is None or field not in part:
        raise RequestError(f"{place} is not an image; send one of {', '.join(PARTS)}", param=place)
    value = part[field]
    return value.get("url") if isinstance(value, dict) else value


def _image(value: Any, place: str) -> bytes:
    """Return the file behind a data: URL, or behind base64 alone."""
    if not isinstance(value, str):
        raise RequestError(f"{place} is not an image as a string; tokens and numbers are for texts", param=place)
    if value[:8].lower().startswith(("http://", "https:/")):
        raise RequestError(f"{place} is an address, which is never fetched; send the image as a data: URL", param=place)
    encoded = value
    if value[:5].lower() == "data:":
        head, comma, encoded = value.partition(",")
        if not comma or not head.lower().endswith(";base64"):
            raise RequestError(f"{place} is a data: URL without ;base64; encode the image in base64", param=place)
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise RequestError(
            f"{place} is not base64 of an image; send data:image/png;base64,… (this model embeds images, not text)",
            param=place,
        ) from None
