"""The JSON of the match room: what is known of both images, their score, and how it is computed."""

from __future__ import annotations

from pydantic import BaseModel

from vitrail.server.formulas import Formula, short
from vitrail.server.plans import Pair

__all__ = ["MatchFacts", "MatchNumbers", "MatchSide", "facts_of_numbers", "match_formulas"]


class MatchSide(BaseModel):
    """One image."""

    grid: Pair
    """Of the tokens that are compared."""
    seen: Pair
    nearest: list[int]
    """For every cell, the cell of the other image whose token is most alike."""
    cosines: list[float]
    """The cosine of every cell with its nearest."""
    parts_grid: Pair
    """Of the model's features, whose parts are shown."""
    parts: list[float]
    """The part of every cell in the score, row by row; with `prefix`, they add up to it."""


class MatchFacts(BaseModel):
    first: MatchSide
    second: MatchSide
    buddies: list[Pair]
    """Cells of the first and of the second image that are each other's nearest, the most alike first."""
    score: float
    """What the parts add up to."""
    vectors: float
    """The cosine of the model's own vectors."""
    prefix: float
    approximation: str
    """Why the score is not the cosine of the vectors; empty if it is."""
    formulas: list[Formula]


class MatchNumbers(BaseModel):
    """What an exported page has from its graphs, of two images of one size; lists are of the first and the second."""

    grid: Pair
    seen: Pair
    tokens_before: int
    """Tokens of the prefix, whose parts come first."""
    approximation: str
    nearest: tuple[list[int], list[int]]
    cosines: tuple[list[float], list[float]]
    parts: tuple[list[float], list[float]]
    score: float
    vectors: float


def facts_of_numbers(numbers: MatchNumbers) -> MatchFacts:
    """Return the facts of a match in an exported page, which has no tensors."""
    before = numbers.tokens_before
    sides = [
        MatchSide(
            grid=numbers.grid,
            seen=numbers.seen,
            nearest=nearest,
            cosines=cosines,
            parts_grid=numbers.grid,
            parts=parts[before:],
        )
        for nearest, cosines, parts in zip(numbers.nearest, numbers.cosines, numbers.parts, strict=True)
    ]
    there, back = numbers.nearest
    mutual = [(cell, kin) for cell, kin in enumerate(there) if back[kin] == cell]
    pairs = sorted(mutual, key=lambda pair: -numbers.cosines[0][pair[0]])
    count, exact = len(sides[0].parts), not numbers.approximation
    return MatchFacts(
        first=sides[0],
        second=sides[1],
        buddies=[*pairs],
        score=numbers.score,
        vectors=numbers.vectors,
        prefix=sum(numbers.parts[0][:before]),
        approximation=numbers.approximation,
        formulas=match_formulas((count, count), numbers.score, numbers.vectors, len(pairs), exact),
    )


def match_formulas(counts: tuple[int, int], score: float, vectors: float, buddies: int, exact: bool) -> list[Formula]:
    """Return how the figures of the room are computed."""
    letters = {
        "N": "patches of the first image",
        "M": "patches of the second image",
        "a": "the mean token of the first image" if not exact else "the vector of the first image",
        "b": "that of the second",
        "x": "a token of the first image",
        "y": "a token of the second image",
    }
    many = f"{short(counts[0])} × {short(counts[1])}"
    return [
        Formula(
            name="score",
            symbols="Σ x·y / (N M |a| |b|)",
            where=letters,
            numbers=f"the sum over {many} pairs of tokens = {score:.4f}",
        ),
        Formula(
            name="cosine of the vectors",
            symbols="a·b / (|a| |b|)",
            where={"a": "the vector of the first image", "b": "that of the second"},
            numbers=f"of the vectors that the model pools = {vectors:.4f}",
        ),
        Formula(
            name="cosine of the kin",
            symbols="max x·y / (|x| |y|)",
            where=letters,
            numbers="the largest over all tokens of the other image =",
        ),
        Formula(
            name="best buddies",
            symbols="nearest(nearest(x)) = x",
            where=letters,
            numbers=f"pairs of {many} that are each other's nearest = {buddies}",
        ),
    ]
