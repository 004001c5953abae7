"""What vitrail search asks of tokens: why each hit is alike (--explain), and a region as the query (--box)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image
from torch import Tensor

from vitrail.charts.contact_sheet import PICTURE, contact_sheet
from vitrail.errors import require
from vitrail.images.boxes import Box
from vitrail.images.decode import ImageError
from vitrail.look.draw.match import over_photo
from vitrail.look.likeness import Likeness, likeness
from vitrail.look.match import Seen, Viewer
from vitrail.look.region import see_region
from vitrail.look.views.words import cells_on
from vitrail.nn.adaptive import to_dense
from vitrail.nn.pool import one_vector
from vitrail.vectors.collection import Collection, Watch
from vitrail.vectors.cosine import Floats
from vitrail.vectors.found import match_tile, query_tile, sized
from vitrail.vectors.job.engine_factory import open_weights
from vitrail.vectors.search import Found, Match

__all__ = ["Explained", "Query"]

CHANGED = ("--native", "--adaptive", "--scales", "--merge", "--keep-cosine")
"""Options of vitrail embed after which a vector is not pooled from one plain pass."""


@dataclass(frozen=True)
class Explained:
    """A hit as the model has seen it, and its parts; or why it cannot be seen."""

    match: Match
    seen: Seen | None
    likeness: Likeness | None
    fault: str = ""

    def plain(self) -> dict[str, Any]:
        """Return what JSON has of it: the parts of the hit's patches, row by row."""
        if self.seen is None or self.likeness is None:
            return {"id": self.match.id, "error": self.fault}
        alike = self.likeness
        return {
            "id": self.match.id,
            "score": alike.score,
            "vectors": alike.vectors,
            "prefix": alike.prefix,
            "grid": self.seen.recording.features[1].grid,
            "parts": alike.second.tolist(),
            "approximation": alike.approximation,
        }


class Query:
    """The query of a search, or a region of it, as the collection's model sees it."""

    def __init__(self, collection: Collection, image: Path | bytes, box: Box | None, weights: str | None) -> None:
        self.collection, self.viewer = collection, _viewer_of(collection, weights)
        self.region = ""
        """What a region's vector is made of."""
        if box is None:
            self.recording = self.viewer.see(image).recording
        else:
            self.recording, self.region = see_region(self.viewer, image, box)

    @property
    def vector(self) -> Floats:
        return one_vector(self.recording.model.pooled(*self.recording.features))[0].numpy()

    def explain(self, found: Found, watch: Watch) -> list[Explained]:
        """See every hit once, and split its cosine with the query over its patches."""
        explained = []
        for number, match in enumerate(found.matches):
            watch(f"explaining {match.id}", number, len(found.matches))
            try:
                seen = self.viewer.see(self.collection.original(match))
            except ImageError as error:
                explained.append(Explained(match, None, None, str(error)))
                continue
            explained.append(Explained(match, seen, likeness(self.recording, seen.recording)))
        return explained

    def draw(self, explained: list[Explained], title: str, name: str, query: Callable[[], Path | bytes]) -> Image.Image:
        """Draw a contact sheet whose hits are red where they have more than an even share of the score, blue below."""
        maps = [_map(each) for each in explained]
        span = max((float(values.abs().max()) for values in maps if values is not None), default=0.0) or 1.0
        tiles = []
        for each, values in zip(explained, maps, strict=True):
            tile = match_tile(self.collection, each.match)
            if each.seen is not None and values is not None:
                cells = cells_on(each.seen.subject, each.seen.recording.features[1])
                laid = Image.fromarray(over_photo(each.seen.subject.photo, values / span, cells))
                tile = sized(tile, laid, PICTURE)
            tiles.append(tile)
        mean = any(each.likeness is not None and each.likeness.approximation for each in explained)
        whose = "the mean patch tokens' cosine, which approximates the score" if mean else "the score"
        subtitle = f"Red patches add more than an even share to {whose}, blue ones less"
        return contact_sheet(title, subtitle, query_tile(name, query), tiles)


def _viewer_of(collection: Collection, weights: str | None) -> Viewer:
    """Return what sees images as the collection's were embedded."""
    assert collection.folder is not None
    assert collection.plan is not None
    plan = collection.plan
    changed = [option for option in plan.options.torch_only if option in CHANGED]
    require(
        not changed,
        f"--explain and --box need vectors of one plain pass, and these were embedded with {' '.join(changed)}; "
        "embed the images without it",
    )
    return Viewer(open_weights(collection.folder, plan, weights, None), plan.weights_name)


def _map(explained: Explained) -> Tensor | None:
    """Return (r, c): parts times the number of patches, less their mean."""
    if explained.seen is None or explained.likeness is None:
        return None
    parts = explained.likeness.second.float()
    dense = to_dense((len(parts) * (parts - parts.mean()))[None, :, None], explained.seen.recording.features[1])
    return dense[0, 0]
