"""Room 8, attention: the attention of every head, rollout, token colours, and the prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from fastapi import APIRouter, Query
from pydantic import BaseModel

from vitrail.geometry import Size, position_id
from vitrail.server.arrays import Frame, Header, frame
from vitrail.server.controls import Asking, Seen, number
from vitrail.server.default_size import default_size
from vitrail.server.guess import Guess, predict
from vitrail.server.plans import Pair
from vitrail.server.rooms.attention.attention_facts import LayerHeads, MapFacts, RowFacts, TokenFacts, places_of
from vitrail.server.session import Session, SessionDep

if TYPE_CHECKING:
    from vitrail.look.subject import Subject
    from vitrail.server.rooms.attention.attention_frames import Captured, RolledRows, Rows

__all__ = ["Question", "router", "warm"]

router = APIRouter()

SHOWN_SIDE = 384


class Layered(Seen):
    """A model, an image and a layer."""

    layer: int = number(-1, -1, 63, label="Layer", about="Index from 0; −1 is the last")


class Question(Layered, Asking):
    """A model, an image, a query token, a layer and a head."""

    head: int = number(0, 0, 63, label="Head", about="Index from 0")


class Answer(BaseModel):
    seen: Pair
    trained: Pair
    """The image size of the training."""
    layers: list[LayerHeads]
    why_not_rolled: str
    guesses: list[Guess]
    """Predictions at the training size and at the current size; empty for a model without a head."""


@router.get("/attention")
def attention(asked: Annotated[Seen, Query()], session: SessionDep) -> Answer:
    """Return distances and entropies of every head, and the predictions."""
    side = _side(asked, session)
    seen, trained = session.seen_size(asked.weights, side), session.config(asked.weights).image
    captured = _captured(asked, session)
    guesses = [predict(asked, session, size) for size in ((0,) if seen == trained else (0, side))]
    return Answer(
        seen=seen,
        trained=trained,
        layers=captured.layers,
        why_not_rolled=captured.why_not_rolled,
        guesses=[guess for guess in guesses if guess],
    )


@router.get("/attention/maps", response_class=Frame, response_model=Header[MapFacts])
def maps(asked: Annotated[Seen, Query()], session: SessionDep) -> Frame:
    """Return the image and, for a small model, every row of every head: `heads0` … by layer, and `rolled`.

    `exact0` … are float32, four bytes each: a row's largest weight on a patch, then its weights on the prefix.
    """
    captured = _captured(asked, session)
    layers = captured.rows or []
    arrays = {"photo": _photo(asked, session), **_arrays(layers, captured.rolled if layers else None)}
    grids = [layer.grid for layer in captured.layers]
    facts = MapFacts(
        grids=grids,
        places={str(grid): places_of(captured.grid, grid) for grid in (Size(*pair) for pair in grids)},
        prefix=captured.prefix,
        tokens=len(captured.prefix) + captured.grid.area,
        default_token=_default_token(captured),
        whole=bool(layers),
    )
    return frame(facts, arrays)


def _default_token(captured: Captured) -> int:
    grid = captured.grid
    return 0 if captured.prefix else position_id(grid.height // 2, grid.width // 2, grid, 0)


@router.get("/attention/row", response_class=Frame, response_model=Header[RowFacts])
def row(asked: Annotated[Asking, Query()], session: SessionDep) -> Frame:
    """Return the rows of one token, for a model whose maps are too large to send at once."""
    from vitrail.server.rooms.attention.attention_frames import capture_row

    captured = _captured(asked, session)
    token = _default_token(captured) if asked.token < 0 else asked.token
    key = ("attention row", token, *_key(asked, session))
    rows = session.once(key, lambda: capture_row(_subject(asked, session), token))
    return frame(RowFacts(token=token), _arrays(rows, captured.rolled and captured.rolled.row(token)))


@router.get("/attention/tokens", response_class=Frame, response_model=Header[TokenFacts])
def tokens(asked: Annotated[Layered, Query()], session: SessionDep) -> Frame:
    """Return the tokens after a layer as colours (`colours`), and their norms (`norms`)."""
    first, key = _captured(asked, session).grid, ("attention tokens", asked.layer, *_key(asked, session))
    return frame(*session.once(key, lambda: _tokens(_subject(asked, session), asked.layer, first)))


def warm(session: Session) -> None:
    """Compute what the room shows first, before the page asks for it."""
    first = session.weights[0]
    attention(Seen(weights=first), session)
    tokens(Layered(weights=first), session)


def _side(asked: Seen, session: Session) -> int:
    return default_size(asked, session)


def _key(asked: Seen, session: Session) -> tuple[Any, ...]:
    return asked.image, asked.weights, session.seen_size(asked.weights, _side(asked, session))


def _subject(asked: Seen, session: Session) -> Subject:
    return session.subject(asked.image, asked.weights, _side(asked, session))


def _captured(asked: Seen, session: Session) -> Captured:
    from vitrail.server.rooms.attention.attention_frames import capture_all

    return session.once(("attention", *_key(asked, session)), lambda: capture_all(_subject(asked, session)))


def _photo(asked: Seen, session: Session) -> np.ndarray:
    """Return the part of the image that the first layer's grid covers, at up to SHOWN_SIDE pixels."""
    left, right, bottom, top = _captured(asked, session).cells.extent

    def compute() -> np.ndarray:
        from PIL import Image

        photo = _subject(asked, session).photo
        picture = Image.fromarray(photo.pixels)
        across, down = picture.width / photo.seen.width, picture.height / photo.seen.height
        box = (left * across, top * down, right * across, bottom * down)
        scale = min(1.0, SHOWN_SIDE / max(picture.size))
        size = (round((box[2] - box[0]) * scale), round((box[3] - box[1]) * scale))
        return np.asarray(picture.resize(size, Image.Resampling.LANCZOS, box))

    return session.once(("attention photo", *_key(asked, session)), compute)


def _arrays(layers: list[Rows], rolled: RolledRows | None) -> dict[str, np.ndarray]:
    arrays = {f"heads{index}": rows.bytes for index, rows in enumerate(layers)}
    arrays |= {f"exact{index}": _bits(rows.exact) for index, rows in enumerate(layers)}
    if rolled is not None:
        arrays |= {"rolled": rolled.bytes, "exact-rolled": _bits(rolled.exact), "contrast": _bits(rolled.contrast)}
    return arrays


def _bits(exact: np.ndarray) -> np.ndarray:
    """Return the little-endian bytes (…, n, 4) of float32 (…, n), since a frame sends uint8 arrays unchanged."""
    return np.ascontiguousarray(exact.astype("<f4")).view(np.uint8).reshape(*exact.shape, 4)


def _tokens(subject: Subject, layer: int, first: Size) -> tuple[TokenFacts, dict[str, np.ndarray]]:
    from vitrail.look import norm_outliers, pca_colours, token_norms, tokens_after
    from vitrail.nn.adaptive import to_dense

    vectors, layout = tokens_after(subject.model, subject.image, None if layer < 0 else layer)
    colours, norms = pca_colours(vectors, layout), token_norms(vectors, layout)
    facts = TokenFacts(
        places=places_of(first, layout.grid),
        shares=colours.shares,
        outliers=int(norm_outliers(norms, layout).sum()),
    )
    rgb = to_dense(colours.rgb, layout)[0].permute(1, 2, 0).mul(255).round().byte().numpy()
    return facts, {"colours": rgb, "norms": to_dense(norms[..., None], layout)[0, 0].numpy()}
