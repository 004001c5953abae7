"""Room 8, attention: where every token looks, in every head at once, and what becomes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from fastapi import APIRouter, Query
from pydantic import BaseModel

from vitrail.geometry import position_id
from vitrail.studio.arrays import Frame, Header, frame
from vitrail.studio.controls import Asking, Seen, number
from vitrail.studio.default_size import default_size
from vitrail.studio.guess import Guess, guess_of
from vitrail.studio.plans import Pair
from vitrail.studio.rooms.attention.attention_facts import LayerHeads, MapFacts, RowFacts, TokenFacts
from vitrail.studio.session import DEFAULT, Here, Session

if TYPE_CHECKING:
    from vitrail.look.subject import Subject
    from vitrail.studio.rooms.attention.attention_frames import Attended, Rows

__all__ = ["Question", "router", "warm"]

router = APIRouter()

FINE = 16
"""Patches a side that the room opens with for a model of coarse grids: all its rows still travel at once."""
SHOWN_SIDE = 384


class Layered(Seen):
    """Whose tokens, after which layer."""

    layer: int = number(-1, -1, 63, label="Layer", about="0 is the first, −1 the last")


class Question(Layered, Asking):
    """A model and an image; who asks, in which layer and head."""

    head: int = number(0, 0, 63, label="Head", about="0 is the first")


class Answer(BaseModel):
    seen: Pair
    trained: Pair
    """The image size that it was trained at."""
    layers: list[LayerHeads]
    why_not_rolled: str
    guesses: list[Guess]
    """At the size it was trained at, and as it is seen here; none of a model without a head."""
    embedded: bool


@router.get("/attention")
def attention(asked: Annotated[Seen, Query()], here: Here) -> Answer:
    """Every layer and head of the model on the image, in numbers."""
    side = _side(asked, here)
    found, sizes = _attended(asked, here), (0, side) if side else (0,)
    trained, seen = here.config(asked.weights).image, here.seen_size(asked.weights, side)
    return Answer(
        seen=tuple(seen),
        trained=tuple(trained),
        layers=found.layers,
        why_not_rolled=found.why_not_rolled,
        guesses=[one for size in sizes if (one := _guess(asked.image, asked.weights, size, here))],
        embedded=asked.weights == DEFAULT,
    )


@router.get("/attention/maps", response_class=Frame, response_model=Header[MapFacts])
def maps(asked: Annotated[Seen, Query()], here: Here) -> Frame:
    """The image, and every row of every head of a small model: `heads0` … by layer, `rolled`; see attention_frames.py.

    `exact0` … are float32, four bytes each: a row's largest weight on a patch, then what goes to the prefix.
    """
    found = _attended(asked, here)
    rows = {str(index): layer for index, layer in enumerate(found.rows or ())}
    arrays = {"photo": _photo(asked, here), **_arrays(rows)}
    if found.rolled is not None and rows:
        arrays |= {"rolled": found.rolled.bytes, "exact-rolled": _bits(found.rolled.exact)}
    facts = MapFacts(
        grids=[layer.grid for layer in found.layers],
        prefix=found.prefix,
        tokens=len(found.prefix) + found.grid.area,
        opening=_opening(found),
        whole=bool(rows),
    )
    return frame(facts, arrays)


def _opening(found: Attended) -> int:
    grid = found.grid
    return 0 if found.prefix else position_id(grid.height // 2, grid.width // 2, grid, 0)


@router.get("/attention/row", response_class=Frame, response_model=Header[RowFacts])
def row(asked: Annotated[Asking, Query()], here: Here) -> Frame:
    """One token's rows, for a model whose maps are too large to travel at once."""
    from vitrail.studio.rooms.attention.attention_frames import attend_row

    found = _attended(asked, here)
    token = _opening(found) if asked.token < 0 else asked.token
    rows = here.once(("attention row", token, *_key(asked, here)), lambda: attend_row(_subject(asked, here), token))
    arrays = _arrays({str(index): layer for index, layer in enumerate(rows)})
    if found.rolled is not None:
        exact = found.rolled.exact[token : token + 1]
        arrays |= {"rolled": found.rolled.bytes[token : token + 1], "exact-rolled": _bits(exact)}
    return frame(RowFacts(token=token), arrays)


@router.get("/attention/tokens", response_class=Frame, response_model=Header[TokenFacts])
def tokens(asked: Annotated[Layered, Query()], here: Here) -> Frame:
    """The tokens after a layer as colours (`colours`), and their lengths (`norms`)."""
    facts, arrays = here.once(
        ("attention tokens", asked.layer, *_key(asked, here)), lambda: _tokens(_subject(asked, here), asked.layer)
    )
    return frame(facts, arrays)


def warm(here: Session) -> None:
    """What the room opens with, before anyone waits for it."""
    opening = Question()
    attention(Seen(), here)
    tokens(Layered(layer=opening.layer), here)


def _guess(image: str, weights: str, seen: int, here: Session) -> Guess | None:
    """The most likely classes at one size; None of a model without a head."""
    config = here.config(weights)
    if not config.classes:
        return None

    def compute() -> Guess:
        import torch

        subject = here.subject(image, weights, seen)
        with torch.inference_mode():
            logits = subject.model(subject.image)[0]
        return guess_of(logits, here.checkpoint(weights).labels, tuple(subject.image.shape[2:]))

    return here.once(("guess", image, weights, here.seen_size(weights, seen)), compute)


def _side(asked: Seen, here: Session) -> int:
    return default_size(asked, here, fine=FINE)


def _key(asked: Seen, here: Session) -> tuple[Any, ...]:
    return asked.image, asked.weights, here.seen_size(asked.weights, _side(asked, here))


def _subject(asked: Seen, here: Session) -> Subject:
    return here.subject(asked.image, asked.weights, _side(asked, here))


def _attended(asked: Seen, here: Session) -> Attended:
    from vitrail.studio.rooms.attention.attention_frames import attend

    return here.once(("attention", *_key(asked, here)), lambda: attend(_subject(asked, here)))


def _photo(asked: Seen, here: Session) -> np.ndarray:
    """The image as the model sees it, where the first layer's cells lie; sharper than its pixels where it can be."""
    left, right, bottom, top = _attended(asked, here).cells.extent

    def compute() -> np.ndarray:
        from PIL import Image

        photo = _subject(asked, here).photo
        picture = Image.fromarray(photo.pixels)
        across, down = picture.width / photo.seen.width, picture.height / photo.seen.height
        box = (left * across, top * down, right * across, bottom * down)
        scale = min(1.0, SHOWN_SIDE / max(picture.size))
        size = (round((box[2] - box[0]) * scale), round((box[3] - box[1]) * scale))
        return np.asarray(picture.resize(size, Image.Resampling.LANCZOS, box))

    return here.once(("attention photo", *_key(asked, here)), compute)


def _arrays(rows: dict[str, Rows]) -> dict[str, np.ndarray]:
    named = {f"heads{name}": each.bytes for name, each in rows.items()}
    return named | {f"exact{name}": _bits(each.exact) for name, each in rows.items()}


def _bits(exact: np.ndarray) -> np.ndarray:
    """float32 (…, n) → its bytes (…, n, 4), low ones first: a frame carries bytes as they are."""
    return np.ascontiguousarray(exact.astype("<f4")).view(np.uint8).reshape(*exact.shape, 4)


def _tokens(subject: Subject, layer: int) -> tuple[TokenFacts, dict[str, np.ndarray]]:
    from vitrail.look import norm_outliers, pca_colours, token_norms, tokens_after
    from vitrail.nn.adaptive import to_dense

    found, layout = tokens_after(subject.model, subject.image, None if layer < 0 else layer)
    colours, norms = pca_colours(found, layout), token_norms(found, layout)
    facts = TokenFacts(
        grid=tuple(layout.grid),
        shares=colours.shares,
        outliers=int(norm_outliers(norms, layout).sum()),
        layer=layer,
    )
    rgb = to_dense(colours.rgb, layout)[0].permute(1, 2, 0).mul(255).round().byte().numpy()
    return facts, {"colours": rgb, "norms": to_dense(norms[..., None], layout)[0, 0].numpy()}
