"""What comes nearest to a vocabulary of patches: clusters of their tokens, after the projection and at the end."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pydantic import BaseModel

from vitrail.errors import VitrailError
from vitrail.parts import Patches
from vitrail.server.arrays import Frame, frame
from vitrail.server.formulas import Formula, short

if TYPE_CHECKING:
    from vitrail.server.session import Session
    from vitrail.studies.vocabulary import Words

__all__ = ["Vocabulary", "vocabulary_frame"]

OF_ONE_IMAGE = 1024
"""Patches that are taken of the image at most, if there is no folder."""


class Likeness(BaseModel):
    """Whether patches that are alike have tokens that are alike, after one layer."""

    name: str
    correlation: float
    shared: float


class Vocabulary(BaseModel):
    images: int
    patches: int
    layers: list[Likeness]
    """After the projection alone, and after the last block; empty if the patches are too few to compare."""
    formulas: list[Formula]


def vocabulary_frame(image: str, folder: str, weights: str, side: int, session: Session) -> Frame:
    """Return pictures of clusters, `words0` and `words1`: a row per cluster, of the patches nearest to its centre."""
    model = session.subject(image, weights, side).model

    from vitrail.nn.vit import ViT
    from vitrail.studies.vocabulary import NEIGHBOURS, PER_IMAGE, collect, compare, draw_words, readable

    if not isinstance(model, ViT) or not isinstance(model.config.embedding, Patches):
        raise VitrailError("this model has no plain patches, whose tokens could be compared; choose a ViT")
    steps = replace(session.checkpoint(weights).preprocessing, image=model.config.image)
    images = readable(session.folders.images(folder)) if folder else [session.image(image)]
    words = collect(model, steps, images, per_image=PER_IMAGE if folder else OF_ONE_IMAGE)
    if len(words.pixels) <= NEIGHBOURS:
        return frame(Vocabulary(images=words.images, patches=len(words.pixels), layers=[], formulas=[]), {})
    found, last = compare(words), len(words.layers) - 1
    facts = Vocabulary(
        images=words.images,
        patches=len(words.pixels),
        layers=[
            Likeness(name=name, correlation=found[layer][0], shared=found[layer][1])
            for name, layer in (("after the projection", 0), (f"after block {last - 1}", last))
        ],
        formulas=_formulas(words),
    )
    return frame(facts, {"words0": draw_words(words, 0), "words1": draw_words(words, last)})


def _formulas(words: Words) -> list[Formula]:
    from vitrail.studies.vocabulary import NEIGHBOURS, PAIRS

    where = {"x": "pixels of a patch", "y": "pixels of another", "t": "token of the first", "u": "token of the other"}
    return [
        Formula(
            name="rank correlation",
            symbols="Spearman(−‖x − y‖, t · u / (‖t‖ · ‖u‖))",
            where=where,
            numbers=f"over {PAIRS:,} drawn pairs of {short(len(words.pixels))} patches =",
        ),
        Formula(
            name="shared neighbours",
            symbols="nearest by pixels and by tokens / nearest by pixels",
            numbers=f"the {NEIGHBOURS} nearest of each of {short(len(words.pixels))} patches, on average =",
        ),
    ]
