"""Docs execute: every python block and every doctest, top to bottom, and the commands' help."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

import vitrail

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MODULES = [
    ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
    for path in sorted((ROOT / "src").rglob("*.py"))
    if ">>> " in path.read_text()
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    names: dict[str, object] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, str(page), "exec"), names)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_are_true(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    assert doctest.testmod(module).failed == 0


def test_the_readme_names_every_command():
    from vitrail.cli import COMMANDS

    readme = (ROOT / "README.md").read_text()
    for command in COMMANDS:
        assert f"vitrail {command}" in readme


def test_the_changelog_knows_this_version():
    assert f"## {vitrail.__version__}" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("page", sorted({*PAGES, *ROOT.glob("[A-Z]*.md")}), ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path):
    for target in re.findall(r"\]\((?!https?://|#)([^)#\s]+)", page.read_text()):
        assert (page.parent / target).exists(), target
