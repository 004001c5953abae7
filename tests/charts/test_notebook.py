"""What a notebook shows: short lines in a terminal, well-formed HTML without scripts in a page."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest
import torch
from hypothesis import given

import vitrail
from configs import any_configs
from vitrail import Preprocessing, Size, adapt, assess, embed, load, preset, search, synthesize_image, train
from vitrail.charts.notebook import facts, html_table
from vitrail.config import Config
from vitrail.look import capture
from vitrail.plan import Workload, ledger, memory
from vitrail.plan.cards import card
from vitrail.plan.report import report
from vitrail.presets import PRESETS

VOID = {"img", "line", "polyline"}


class WellFormed(HTMLParser):
    """Fails on a tag that is not closed, and on anything that runs or is fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "style", "iframe")
        for name, value in attrs:
            assert not name.startswith("on")
            assert name not in ("src", "href") or (value or "").startswith("data:image/png")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in VOID

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def words(value: Any) -> str:
    parser = WellFormed()
    parser.feed(value._repr_html_())
    assert parser.open == []
    return " ".join(parser.text)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    checkpoint = load("default")
    other, changes = adapt(checkpoint, {"image": "48x64"})
    model = checkpoint.model()
    with capture(model) as maps, torch.inference_mode():
        model(checkpoint.transform(synthesize_image(0)))
    small = preset("cifar-small", depth=1, classes=4)
    run = train("shapes", small, out=tmp_path_factory.mktemp("run") / "a", changes={"steps": 3, "batch": 4})
    table = embed([synthesize_image(seed) for seed in range(4)], workers=0)
    workload = Workload(batch=64, train=True)
    return {
        "checkpoint": checkpoint,
        "changes": changes,
        "assessment": assess(checkpoint, other, changes),
        "maps": maps,
        "map": maps[2],
        "run": run,
        "found": search(table, id="2"),
        "ledger": ledger(preset("B/16")),
        "memory": memory(preset("B/16"), workload),
        "plan": report(preset("L/16"), workload, card("rtx-4090")),
        "preprocessing": Preprocessing(image=Size(24, 32)),
    }


@pytest.mark.parametrize(
    ("name", "line", "told"),
    [
        ("checkpoint", "683 k parameters", "airplane, automobile"),
        ("changes", "grid 8x8 → 12x16: 79 kept, 1 resampled", "position.table"),
        ("assessment", "grid 8x8 → 12x16", "agreement"),
        ("maps", "6 of 6 layers", "layer 5"),
        ("map", "4 heads × 65 queries", "head 3"),
        ("run", "step 3 of 3", "8,192 images"),
        ("found", "3 nearest of 4 vectors", "224 × 224"),
        ("ledger", "86,567,656 parameters", "blocks[…].mlp.fc1"),
        ("memory", "GiB at the peak (exact)", "activations"),
        ("plan", "197 tokens", "does not fit"),
        ("preprocessing", "Size(height=24, width=32)", "bicubic"),
    ],
)
def test_a_value_is_a_short_line_in_a_terminal_and_a_panel_in_a_notebook(shown, name: str, line: str, told: str):
    value = shown[name]
    assert len(repr(value)) < 200
    assert "\n" not in repr(value)
    assert line in repr(value)
    assert told in words(value)


@given(any_configs)
def test_the_repr_of_a_config_makes_an_equal_one(config: Config):
    assert eval(repr(config), {**vars(vitrail), "inf": float("inf")}) == config
    words(config)


def test_the_repr_of_a_preset_is_short():
    assert max(len(repr(config)) for config in PRESETS.values()) < 900


def test_names_from_files_are_text_and_never_markup(shown):
    assert "<script>" not in facts([("<script>", "<b>")])
    hostile = shown["checkpoint"].but(labels=("<script>alert(1)</script>", *("x",) * 9))
    assert "<script>" in words(hostile)  # as text: `WellFormed` would have refused the tag
    assert html_table(("a",), [], "l").startswith("<table")
