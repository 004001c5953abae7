"""The answers of an exported page's image rooms, with holes for the numbers that depend on the image.

What depends on the model and its input size alone (grids, places, names, words) is asked here, from the rooms
themselves. A hole names an output of the model's graph (`graph.py`), which the page fills in (web/src/site/fill.ts):

    {"from": "entropy3"}                        the output's numbers, nested as its shape
    {"from": "vectors", "at": ["token"], ...}   those at indices of its first axes: a name of what is asked for, a
                                                number, or null for the whole axis; [] for an index below zero
    {"from": "classes-seen", "words": [...]}    words, chosen by the output's numbers
    {"each": [...]}                             the entry of the token that is asked for
"""

from __future__ import annotations

import json
from typing import Any

from vitrail.checkpoint.classify import class_name
from vitrail.config import ViTConfig
from vitrail.look.likeness import likeness
from vitrail.look.views.words import cells_on
from vitrail.look.walk import walk_through
from vitrail.parts import Adaptive
from vitrail.server.arrays import Frame
from vitrail.server.controls import Seen
from vitrail.server.default_size import automatic_side
from vitrail.server.guess import Guess
from vitrail.server.rooms import attention, projection, tokens
from vitrail.server.rooms.match import match_frames
from vitrail.server.rooms.tokens.sequence import Sequence, run_sequence
from vitrail.server.rooms.walk import middle_of, setting_of
from vitrail.server.rooms.walk.walk_tensors import PICKED
from vitrail.server.session import DEFAULT, Session
from vitrail.server.site.graph import Graph

__all__ = ["answers_of", "why_without"]

NUMBERS = ("distance", "mean_distance", "entropy", "mean_entropy", "effective_tokens")
"""The numbers of a layer's heads that depend on the image."""
RESPONSES = ("spread", "largest", "high", "high_values", "low", "low_values")
"""What depends on the image of a filter's responses."""
DIGITS = 5
"""As the tokens room rounds."""


def why_without(weights: str, session: Session) -> str:
    """Return why an exported page cannot run a model; empty if it can."""
    config = session.config(weights)
    if not isinstance(config, ViTConfig):
        return "its layers have different grids"
    if isinstance(config.embedding, Adaptive):
        return "its patches depend on the image"
    subject, _ = session.recording(DEFAULT, weights, automatic_side(weights, session))
    if subject.pixels.shape[:2] != subject.image.shape[2:]:
        return "patches do not divide its images"
    return ""


def answers_of(weights: str, session: Session, graph: Graph, side: int) -> dict[str, Any]:
    """Return the answers of the rooms by path, at an input size that `Session.subject` takes.

    The arrays of a frame are described, and the page has their bytes.
    """
    asked = Seen(weights=weights, seen=side)
    subject, recording = session.recording(DEFAULT, weights, side)
    summary = attention.attention(asked, session).model_dump(mode="json")
    for index, layer in enumerate(summary["layers"]):
        layer |= {name: _hole(f"{name}{index}") for name in NUMBERS}
    names = list(graph.inputs)[::-1]  # the training size is the first guess
    labels = session.checkpoint(weights).labels
    summary["guesses"] = [_guess(*each, labels) for each in zip(summary["guesses"], names, strict=False)]
    maps = _facts(attention.maps(asked, session)) | {"whole": True}
    sequence = run_sequence(subject)
    left, right, bottom, top = cells_on(subject, recording.attention[0].layout).extent
    height, width = subject.photo.seen
    box = [top / height, left / width, (bottom - top) / height, (right - left) / width]
    layout = recording.features[1]
    found = {
        "attention": summary,
        "attention/maps": {
            "facts": maps,
            "photo": {"box": box, "side": attention.SHOWN_SIDE},
            "arrays": [
                {"name": name, "from": name}
                for name in graph.outputs
                if name.startswith(("heads", "exact", "rolled", "contrast"))
            ],
        },
        "match/maps": {
            "numbers": {
                "grid": layout.grid,
                "seen": subject.photo.seen,
                "tokens_before": layout.prefix,
                "approximation": likeness(recording, recording).approximation,
            },
            "photo": {"box": box, "side": match_frames.SHOWN_SIDE},
        },
        "attention/tokens": [_tokens(asked, session, str(layer)) for layer in [*range(len(recording.blocks)), -1]],
        "tokens/sequence": {
            "facts": _facts(tokens.sequence(tokens.Question(weights=weights, seen=side), session)),
            "pixels": "seen",
            "arrays": [],
        },
        "tokens/one": _one(sequence),
        "projection/filters": _filters(asked, session),
        "site/vector": {"vector": _hole("vector")},
    }
    if "walk-stages" in graph.outputs:
        found["walk"] = _walk(asked, session, graph, summary["guesses"])
    return found


def _walk(asked: Seen, session: Session, graph: Graph, guesses: list[dict[str, Any]]) -> dict[str, Any]:
    """The numbers of a walk, from which Python in the page writes the answer."""
    subject, recording = session.recording(DEFAULT, asked.weights, asked.seen)
    walked = walk_through(subject.model, subject.image, recording=recording)
    checkpoint = session.checkpoint(asked.weights)
    picked = {
        field: _hole(f"walk-{name}", at=places)
        for field, (name, *places) in PICKED.items()
        if f"walk-{name}" in graph.outputs
    }
    picked.pop("lens_classes", None)
    if guesses:
        words = [class_name(index, checkpoint.labels) for index in range(guesses[0]["classes"])]
        picked |= {"guess": guesses[-1], "verdict": guesses[0]}
        picked["lens_names"] = _hole("walk-lens_classes", words=words)
    setting = setting_of(subject, walked, checkpoint)
    return {
        "numbers": {**setting, "shapes": setting["shapes"].model_dump(), "colours": _hole("walk-colours", at=["cell"])}
        | picked,
        "middle": middle_of(walked.layout.grid),
        "arrays": [{"name": name, "from": f"walk-shown-{name}"} for name in ("projected", "entering", "leaving")],
    }


def _filters(asked: Seen, session: Session) -> dict[str, Any]:
    """The filters of the projection, and their responses."""
    facts = _facts(projection.filters(projection.Question(weights=asked.weights, seen=asked.seen), session))
    for field, name in (("filters", "filter"), ("principal", "principal")):
        holes = {key: _hole(f"{name}-{key}") for key in RESPONSES}
        orders = {**facts[field]["orders"], "variance": _hole(f"{name}-by_spread")}
        facts[field] |= {**holes, "orders": orders}
    arrays = {"filters": "filter-pictures", "principal": "principal-pictures"}
    arrays |= {f"{name}_responses": f"{name}-responses" for name in ("filter", "principal")}
    return {
        "facts": facts,
        "pixels": "seen",
        "arrays": [{"name": name, "from": output} for name, output in arrays.items()],
    }


def _tokens(asked: Seen, session: Session, layer: str) -> dict[str, Any]:
    """The tokens after a layer as colours; −1 is the last, after the final norm."""
    facts = _facts(
        attention.tokens(attention.Layered(weights=asked.weights, seen=asked.seen, layer=int(layer)), session)
    )
    return {
        "facts": facts | {"shares": _hole(f"shares{layer}"), "outliers": _hole(f"outliers{layer}")},
        "arrays": [
            {"name": "colours", "from": f"colours{layer}"},
            {"name": "norms", "from": f"norms{layer}", "range": f"range{layer}"},
        ],
    }


def _hole(output: str, **more: Any) -> dict[str, Any]:
    return {"from": output, **more}


def _guess(guess: dict[str, Any], name: str, labels: tuple[str, ...]) -> dict[str, Any]:
    words = [class_name(index, labels) for index in range(guess["classes"])]
    filled = {"names": _hole(f"classes-{name}", words=words), "probabilities": _hole(f"probabilities-{name}")}
    assert filled.keys() <= Guess.model_fields.keys()
    return guess | filled


def _facts(frame: Frame) -> dict[str, Any]:
    """Return the facts in a frame's header."""
    length = int.from_bytes(frame.body[:4], "little")
    return json.loads(bytes(frame.body[4 : 4 + length]))["facts"]


def _one(sequence: Sequence) -> dict[str, Any]:
    """The answer about one token: the numbers of the token that is asked for."""
    before, count = len(sequence.prefix), len(sequence.vectors)
    places = [sequence.place(token - before) for token in range(count)]
    row = {"at": ["token"], "digits": DIGITS}
    return {
        "token": {"each": list(range(count))},
        "row": {"each": [place[0] for place in places]},
        "column": {"each": [place[1] for place in places]},
        "place": {"each": [sequence.index_formula(token) for token in range(count)]},
        "values": _hole("patches", at=["cell"], digits=DIGITS),
        "projected": _hole("projected", **row),
        "position": None if sequence.no_position else _hole("position", **row),
        "vector": _hole("vectors", **row),
        "length": _hole("length", at=["token"]),
        "default": sequence.middle,
        "before": before,
    }
