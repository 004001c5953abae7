"""Room 8, attention: the attention of every head, rollout, token colours, and the prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel

from vitrail.geometry import position_id
from vitrail.server.arrays import Frame, Header, frame
from vitrail.server.controls import Asking, Seen, number
from vitrail.server.default_size import default_size
from vitrail.server.guess import Guess, predict
from vitrail.server.jobs import each
from vitrail.server.plans import Pair
from vitrail.server.rooms.attention.attention_facts import LayerHeads, MapFacts, RowFacts, TokenFacts, places_of
from vitrail.server.session import Session, SessionDep

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from vitrail.look.record import Recording
    from vitrail.look.subject import Subject
    from vitrail.server.rooms.attention.attention_frames import Heads, Rows

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
    heads = _heads(asked, session)
    guesses = [predict(asked, session, size) for size in ((0,) if seen == trained else (0, side))]
    return Answer(
        seen=seen,
        trained=trained,
        layers=heads.layers,
        why_not_rolled=heads.why_not_rolled,
        guesses=[guess for guess in guesses if guess],
    )


@router.get("/attention/maps", response_class=Frame, response_model=Header[MapFacts])
def maps(asked: Annotated[Seen, Query()], session: SessionDep) -> Frame:
    """Return the image and, for a small model, every row of every head: `heads0` … by layer, and `rolled`.

    `exact0` … are float32, four bytes each: a row's largest weight on a patch, then its weights on the prefix.
    """
    subject, recording = _recording(asked, session)

    from vitrail.look.views.words import prefix_names
    from vitrail.server.rooms.attention.attention_frames import all_rows, fits_in_one_frame

    arrays, whole = {"photo": _photo(asked, session)}, fits_in_one_frame(recording.attention)
    if whole:
        key = ("attention rows", *_key(asked, session))
        arrays |= _arrays(session.once(key, lambda: all_rows(recording.attention)))
        arrays |= _rolled_arrays(_heads(asked, session))
    grids = [inputs.layout.grid for inputs in recording.attention]
    prefix = prefix_names(subject)
    facts = MapFacts(
        grids=[*grids],
        places={str(grid): places_of(grids[0], grid) for grid in grids},
        prefix=prefix,
        tokens=len(prefix) + grids[0].area,
        default_token=_default_token(recording),
        whole=whole,
    )
    return frame(facts, arrays)


def _default_token(recording: Recording) -> int:
    layout = recording.attention[0].layout
    grid = layout.grid
    return 0 if layout.prefix else position_id(grid.height // 2, grid.width // 2, grid, 0)


@router.get("/attention/row", response_class=Frame, response_model=Header[RowFacts])
def row(asked: Annotated[Asking, Query()], session: SessionDep) -> Frame:
    """Return the rows of one token, for a model whose maps are too large to send at once."""
    _, recording = _recording(asked, session)

    from vitrail.server.rooms.attention.attention_frames import rows_of

    facts = _row_facts(asked, recording, session)
    return frame(facts, _arrays(rows_of(recording.attention, facts.token)))


@router.get("/attention/rolled", response_class=Frame, response_model=Header[RowFacts])
def rolled(asked: Annotated[Asking, Query()], session: SessionDep) -> Frame:
    """Return the rollout into one token; no array if the model's layers have different grids."""
    _, recording = _recording(asked, session)
    facts = _row_facts(asked, recording, session)
    return frame(facts, _rolled_arrays(_heads(asked, session), facts.token))


def _row_facts(asked: Asking, recording: Recording, session: Session) -> RowFacts:
    token = _default_token(recording) if asked.token < 0 else asked.token
    return RowFacts(subject=" ".join(map(str, _key(asked, session))), token=token)


@router.get("/attention/tokens", response_class=Frame, response_model=Header[TokenFacts])
def tokens(asked: Annotated[Layered, Query()], session: SessionDep) -> Frame:
    """Return the tokens after a layer as colours (`colours`), and their norms (`norms`)."""
    _, recording = _recording(asked, session)
    key = ("attention tokens", asked.layer, *_key(asked, session))
    return frame(*session.once(key, lambda: _tokens(recording, asked.layer)))


def warm(session: Session) -> None:
    """Compute what the room shows first, before the page asks for it."""
    first = session.weights[0]
    attention(Seen(weights=first), session)
    tokens(Layered(weights=first), session)


def _side(asked: Seen, session: Session) -> int:
    return default_size(asked, session)


def _key(asked: Seen, session: Session) -> tuple[Any, ...]:
    return asked.image, asked.weights, session.seen_size(asked.weights, _side(asked, session))


def _recording(asked: Seen, session: Session) -> tuple[Subject, Recording]:
    """Return the pass. Imports of `vitrail.look` come after it: two threads that load it at once would deadlock."""
    return session.recording(asked.image, asked.weights, _side(asked, session))


def _heads(asked: Seen, session: Session) -> Heads:
    subject, recording = _recording(asked, session)

    from vitrail.server.rooms.attention.attention_frames import heads_of

    key = ("attention heads", *_key(asked, session))
    return session.once(key, lambda: heads_of(subject, each(recording.attention)))


def _photo(asked: Seen, session: Session) -> np.ndarray:
    """Return the part of the image that the first layer's grid covers, at up to SHOWN_SIDE pixels.

    It is cut on the request's own thread: the worker's next job is the statistics of all heads, and pictures of heads
    would wait for them.
    """
    subject, recording = _recording(asked, session)

    from vitrail.server.cells import covered_photo

    return covered_photo(subject, recording.attention[0].layout, SHOWN_SIDE)


def _arrays(layers: list[Rows]) -> dict[str, np.ndarray]:
    arrays = {f"heads{index}": rows.bytes.numpy() for index, rows in enumerate(layers)}
    return arrays | {f"exact{index}": _bits(rows.exact) for index, rows in enumerate(layers)}


def _rolled_arrays(heads: Heads, token: int | None = None) -> dict[str, np.ndarray]:
    if heads.why_not_rolled:
        return {}
    rolled = heads.rolled(token)
    return {"rolled": rolled.bytes.numpy(), "exact-rolled": _bits(rolled.exact), "contrast": _bits(rolled.contrast)}


def _bits(exact: Tensor) -> np.ndarray:
    """Return the little-endian bytes (…, n, 4) of float32 (…, n), since a frame sends uint8 arrays unchanged."""
    import numpy as np

    return np.ascontiguousarray(exact.numpy(), "<f4").view(np.uint8).reshape(*exact.shape, 4)


def _tokens(recording: Recording, layer: int) -> tuple[TokenFacts, dict[str, np.ndarray]]:
    from vitrail.look import norm_outliers, pca_colours, token_norms
    from vitrail.nn.adaptive import to_dense

    vectors, layout = recording.after(None if layer < 0 else layer)
    colours, norms = pca_colours(vectors, layout), token_norms(vectors, layout)
    facts = TokenFacts(
        places=places_of(recording.attention[0].layout.grid, layout.grid),
        shares=colours.shares,
        outliers=int(norm_outliers(norms, layout).sum()),
    )
    rgb = to_dense(colours.rgb, layout)[0].permute(1, 2, 0).mul(255).round().byte().numpy()
    return facts, {"colours": rgb, "norms": to_dense(norms[..., None], layout)[0, 0].numpy()}
