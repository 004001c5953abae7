"""One sheet: its files are what they are called, whole and the same again; names on it stand beside what they name."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from vitrail.charts.lines import named_lines
from vitrail.charts.plots import keep_apart, legend, plots
from vitrail.charts.points import named_points
from vitrail.charts.sheet import Sheet
from vitrail.charts.stack import stacked_areas, stacked_bars
from vitrail.errors import VitrailError


def sheet() -> Sheet:
    drawn, (left, right) = plots("Title", "subtitle", [("a", "x", "y"), ("", "x", "")], names=["a series"])
    left.plot([1, 2, 3], [3, 1, 2])
    right.plot([1, 2], [5, 4], label="a series")
    legend(right)
    return drawn


def test_svg_colours_are_attributes_and_bytes_are_the_same_again() -> None:
    one, two = (sheet().render(".svg") for _ in range(2))
    assert one == two
    text = one.decode()
    ElementTree.fromstring(text)
    assert "style" not in text
    assert "class=" not in text
    assert 'fill="#' in text


def test_a_file_is_what_its_name_says(tmp_path: Path) -> None:
    drawn = sheet()
    for name, start in (("a.pdf", b"%PDF"), ("b.png", b"\x89PNG"), ("c.SVG", b"<?xml")):
        drawn.save(tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(start)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.pdf", "b.png", "c.SVG"]
    assert sheet().render(".pdf") == drawn.render(".pdf")


def test_a_bad_name_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    drawn = sheet()
    with pytest.raises(VitrailError, match=r"does not end in \.png, \.svg, \.pdf"):
        drawn.save(tmp_path / "picture.gif")
    with pytest.raises(VitrailError, match="does not exist"):
        drawn.save(tmp_path / "nowhere" / "picture.png")


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(VitrailError, match=r"not installed; run pip install 'vitrail\[plot\]'"):
        sheet()


def test_a_long_title_stays_on_the_sheet() -> None:
    drawn = Sheet(2.0, 4.0, "a title " * 12, "and a line below it " * 9)
    assert all(line.get_window_extent().x1 <= 4.0 * drawn.figure.dpi for line in drawn.figure.texts)


# ── kinds ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_names_keep_a_gap_and_their_order() -> None:
    assert keep_apart([0.0, 0.1, 0.2, 5.0], 1.0) == [0.5, 1.5, 2.5, 5.0]


def test_each_points_name_is_the_one_nearest_to_it() -> None:
    points = [(2.5, 5.7, "one"), (9.0, 22.0, "two"), (9.1, 29.0, "three"), (35.0, 86.0, "four"), (123.0, 304.0, "five")]
    drawn, (axes,) = plots("", "", [("", "", "")])
    named_points(axes, points)
    drawn.figure.draw_without_rendering()
    for x, y, name in points:
        here = axes.transData.transform((x, y))
        distance = {
            text.get_text(): float(((axes.transAxes.transform(text.get_position()) - here) ** 2).sum())
            for text in axes.texts
        }
        assert min(distance, key=lambda key: distance[key]) == name
        assert distance[name] ** 0.5 < 60  # pixels: a third of an inch


def test_a_stack_reaches_its_total_and_names_every_part() -> None:
    _, (areas, bars) = plots("", "", [("", "", ""), ("", "", "")])
    parts = {"low": [1.0, 2.0, 4.0], "high": [3.0, 3.0, 5.0]}
    stacked_areas(areas, [16, 32, 64], parts, {"low": "#000000", "high": "#ffffff"}, top=10.0)
    assert areas.lines[0].get_ydata()[-1] == 9.0  # type: ignore[index]
    assert {text.get_text() for text in areas.texts} == {"low", "high"}
    stacked_bars(bars, ["a", "b", "c"], parts, "ms")
    assert [text.get_text() for text in bars.texts] == ["4.0 ms", "5.0 ms", "9.0 ms"]


def test_lines_end_at_their_names_below_what_limits_them() -> None:
    _, (axes,) = plots("", "", [("", "", "")])
    named_lines(axes, {"a": [(224, 1.0), (512, 4.0)], "b": [(224, 2.0), (512, 4.01)]}, ("the card", 24.0))
    assert axes.get_ylim()[1] > 24
    places = {text.get_text(): text.xy for text in axes.texts}  # type: ignore[attr-defined]
    assert places["a"] == (512, pytest.approx(4.0))
    assert places["b"][1] > 4.2  # moved away from the other
