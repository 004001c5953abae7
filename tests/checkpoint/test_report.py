import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vitrail.charts.bars import bars
from vitrail.charts.raster import heat
from vitrail.checkpoint.assess.drift import measure_drift
from vitrail.checkpoint.assess.report import Report, assess, to_json
from vitrail.checkpoint.assess.report_html import paired_filters, to_html
from vitrail.checkpoint.assess.similarity import agreement, similarity_maps
from vitrail.checkpoint.assess.simulate import known_table
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.checkpoint.surgery.adapt import adapt
from vitrail.checkpoint.surgery.resample import resample_table
from vitrail.config import ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.images.synthesize import synthesize_image
from vitrail.nn.build import build
from vitrail.parts import MeanPool, Mlp, Patches, Prefix, RelativeBias

SMALL = ViTConfig(
    image=Size(20, 28),
    embedding=Patches(patch=Size(4, 4)),
    width=24,
    depth=2,
    num_heads=3,
    mlp=Mlp(width=40),
    classes=6,
)


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    generator = torch.Generator().manual_seed(3)
    tensors = {name: torch.randn(value.shape, generator=generator) for name, value in build(SMALL).state_dict().items()}
    return Checkpoint(config=SMALL, tensors=tensors, preprocessing=Preprocessing(image=SMALL.image))


@pytest.fixture(scope="module")
def report(checkpoint) -> Report:
    changes = {"image": "16x22", "patch": 2, "prefix": Prefix(registers=2), "channels": 4, "classes": 3}
    return judged(checkpoint, changes)


def judged(checkpoint: Checkpoint, target: dict[str, Any], **options: Any) -> Report:
    adapted, changes = adapt(checkpoint, target, **options)
    return assess(checkpoint, adapted, changes)


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> list[Path]:
    folder = tmp_path_factory.mktemp("images")
    for seed, size in enumerate((Size(40, 60), Size(33, 21), Size(24, 24))):
        Image.fromarray(synthesize_image(seed, size)).save(folder / f"{seed}.png")
    return sorted(folder.iterdir())


def test_every_tensor_of_both_models_is_in_exactly_one_line(checkpoint, report):
    names = [change.name for change in report.changes.tensors]
    assert len(names) == len(set(names))
    expected = build(report.changes.target).state_dict()
    assert set(names) == set(checkpoint.tensors) | set(expected)
    for change in report.changes.tensors:
        before = checkpoint.tensors.get(change.name)
        assert change.before == (None if before is None else tuple(before.shape))
        assert change.after == (tuple(expected[change.name].shape) if change.status != "unused" else None)


def test_json_says_everything_but_the_pictures(report):
    data = json.loads(json.dumps(to_json(report)))
    assert data["counts"] == {"kept": 28, "resampled": 2, "missing": 3, "unused": 0}
    assert data["target"]["image"] == "16x22"
    assert data["tables"][0]["name"] == "position.table"
    assert set(data["tables"][0]) == {"name", "old", "new", "method", "round_trip", "agreement", "bands"}
    assert 0 < data["projection"]["natural"] < data["projection"]["white"]
    subjects = ("positions", "channels 3 → 4", "the patch projection", "2 registers are new", "the head is new")
    subjects += ("position.table comes back from 8x11 with an error", "tokens of the new patch 2x2 are off by")
    assert all(note.startswith(subject) for note, subject in zip(data["notes"], subjects, strict=True))
    assert data["drift"] is None


def test_the_figures_are_those_of_the_tensors_before_and_after(checkpoint):
    """Against the definition: there and back in float64, rows of the prefix aside."""
    adapted, changes = adapt(checkpoint, {"image": "32x20", "prefix": "cls,registers=2"}, method="huggingface")
    (table,) = assess(checkpoint, adapted, changes).tables
    old, new = (each.tensors["position.table"].double() for each in (checkpoint, adapted))
    back = resample_table(new[3:], old=Size(8, 5), new=Size(5, 7), method="huggingface")
    assert (table.old, table.new, table.method) == (Size(5, 7), Size(8, 5), "huggingface")
    assert table.round_trip == pytest.approx(float((back - old[1:]).norm() / old[1:].norm()))
    assert sum(band.energy for band in table.bands) == pytest.approx(1)


def test_relative_biases_are_judged_without_their_prefix_entries(checkpoint):
    config = SMALL.but(position=RelativeBias(), pool=MeanPool())
    tensors = {name: torch.randn_like(value) for name, value in build(config).state_dict().items()}
    biased = checkpoint.but(config=config, tensors=tensors)
    with_prefix, without = (judged(biased, {"image": "32x40", "prefix": prefix}).tables for prefix in ("cls", "none"))
    assert [each.name for each in with_prefix] == [f"blocks.{block}.attention.position.table" for block in (0, 1)]
    assert [each.round_trip for each in without] == [each.round_trip for each in with_prefix]


def test_a_larger_patch_loses_nothing_and_a_smaller_one_is_predicted(checkpoint):
    larger, smaller = judged(checkpoint, {"image": "40x56", "patch": 8}), judged(checkpoint, {"patch": 2})
    assert larger.projection is not None
    assert smaller.projection is not None
    assert larger.projection.natural < 1e-6
    assert larger.notes == ()
    assert smaller.projection.natural > 0.05
    assert smaller.notes[-1].startswith("tokens of the new patch 2x2 are off by")


def test_changes_of_other_checkpoints_are_refused(checkpoint):
    adapted, changes = adapt(checkpoint, {"image": "32x20"})
    with pytest.raises(VitrailError, match="not those between these two checkpoints; give what adapt returned"):
        assess(adapted, checkpoint, changes)


class Page(HTMLParser):
    """Which tags a page has, whether they close, and what it would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sources: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "img", "line", "rect", "text") or tag in ("rect", "text"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_the_page_is_whole_and_fetches_nothing(checkpoint, report, images):
    other, changes = adapt(checkpoint, {"image": "32x20"})
    drift = assess(checkpoint, other, changes, images=images).drift
    page = Page()
    page.feed(to_html(replace(report, drift=drift), title="a <b> & c"))
    assert page.open == []
    assert all(source.startswith("data:image/png;base64,") for source in page.sources)
    assert len(page.sources) == 9 + 9 + 2 * 12
    text = " ".join(page.text)
    for word in (
        "a <b> & c",
        "Before you rely on it",
        "Positions",
        "Patch projection",
        "Measured on 3 images",
        "0.png",
    ):
        assert word in text


def test_pages_of_other_adaptations_are_whole_too(checkpoint):
    relative = SMALL.but(position=RelativeBias())
    biased = Checkpoint(
        config=relative, tensors=build(relative).state_dict(), preprocessing=Preprocessing(image=relative.image)
    )
    for source, changes in ((checkpoint, {}), (biased, {"image": "32x20"}), (checkpoint, {"classes": 0})):
        page = Page()
        page.feed(to_html(judged(source, changes)))
        assert page.open == []


def test_similarity_is_one_with_itself_and_maps_of_the_same_table_agree():
    old, new = Size(5, 7), Size(9, 11)
    table = known_table(old, 64)
    maps = similarity_maps(table, table, old=old, new=old)
    assert agreement(maps) == pytest.approx(1, abs=1e-6)
    assert all(each.before.max() > 0.6 for each in maps)
    fine = resample_table(table, old=old, new=new, method="exact")
    wrong = fine[torch.randperm(new.area, generator=torch.Generator().manual_seed(0))]
    assert agreement(similarity_maps(table, fine, old=old, new=new)) > 0.95
    assert agreement(similarity_maps(table, wrong, old=old, new=new)) < 0.5


# ── drift ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_nothing_drifts_at_the_native_size(checkpoint, images):
    drift = measure_drift(checkpoint, adapt(checkpoint, {})[0], images)
    assert [each.image for each in drift.images] == ["0.png", "1.png", "2.png"]
    assert drift.lowest == pytest.approx(1, abs=1e-6)


def test_drift_is_the_cosine_of_pooled_vectors(checkpoint, images):
    adapted, _ = adapt(checkpoint, {"image": "32x20", "channels": 1})
    drift = measure_drift(checkpoint, adapted, images)
    assert drift.mean == pytest.approx(sum(each.cosine for each in drift.images) / 3)
    assert drift.lowest == min(each.cosine for each in drift.images) < 0.999


def test_a_file_that_gives_no_picture_is_left_out_and_named(checkpoint, images, tmp_path):
    broken = tmp_path / "broken.jpg"
    broken.write_text("no picture")
    whole, partly = (
        measure_drift(checkpoint, checkpoint, files) for files in (images, [images[0], broken, *images[1:]])
    )
    assert partly.images == whole.images
    assert partly.failed == (f"{broken}: not a readable image; use one of JPEG, PNG, WEBP, AVIF, GIF, BMP, TIFF, PPM",)
    with pytest.raises(VitrailError, match="none of 1 images could be read"):
        measure_drift(checkpoint, checkpoint, [broken])


def test_drift_says_what_it_cannot_measure(checkpoint, images):
    with pytest.raises(VitrailError, match="4 channels cannot be decoded from pictures"):
        measure_drift(checkpoint, adapt(checkpoint, {"channels": 4})[0], images)
    with pytest.raises(VitrailError, match="no images to measure on"):
        measure_drift(checkpoint, checkpoint, [])


# ── pictures ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_heat_goes_from_dark_to_bright_without_turning_back():
    colours = heat(np.linspace(-1, 2, 300)[None], 0, 1)[0].astype(float)
    light = colours @ np.array([0.2126, 0.7152, 0.0722])
    assert (np.diff(light) >= -0.5).all()
    assert (colours[0] == colours[99]).all()  # below the lowest is the lowest


def test_filters_are_paired_by_direction():
    weight = torch.randn(10, 3, 4, 6, generator=torch.Generator().manual_seed(1))
    pairs = paired_filters(weight, weight, count=5)
    assert len(pairs) == 5
    assert all((before == after).all() for before, after in pairs)
    assert pairs[0][0].shape == (4, 6, 3)


def test_bars_are_as_tall_as_their_values():
    chart = bars("a & b", ["x", "y"], [("one", [0.1, 0.2]), ("two", [0.0, 0.4])])
    assert "a &amp; b" in chart
    heights = [float(part.split('"')[0]) for part in chart.split('height="')[1:] if 'rx="2" fill' in part]
    assert [round(h / heights[3], 3) for h in heights[:4]] == [0.25, 0.0, 0.5, 1.0]
