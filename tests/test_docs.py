"""Docs execute: every python block and every doctest, top to bottom, and the commands' help. The site builds."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import vitrail
from vitrail import look, plan
from vitrail.cli import COMMANDS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)
"""Code, and what it prints if the page shows that."""
MODULES = [
    ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
    for path in sorted((ROOT / "src").rglob("*.py"))
    if ">>> " in path.read_text()
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    for code, shown in BLOCK.findall(page.read_text()):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, str(page), "exec"), names)
        assert printed.getvalue() == shown
    drawn = {path.name for path in tmp_path.glob("tutorial-*.png")}
    assert drawn == set(re.findall(r"figures/(tutorial-[^)]+)", page.read_text()))


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_are_true(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    assert doctest.testmod(module).failed == 0


def test_the_readme_names_every_command():
    readme = (ROOT / "README.md").read_text()
    for command in COMMANDS:
        assert f"vitrail {command}" in readme


def test_the_pages_know_this_version():
    version = vitrail.__version__
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()
    assert f"vitrail-{version}-py3-none-any.whl" in (ROOT / "README.md").read_text()
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()


@pytest.mark.parametrize("page", sorted({*PAGES, *ROOT.glob("[A-Z]*.md")}), ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path):
    for target in re.findall(r"\]\((?!https?://|#)([^)#\s]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_site_builds_and_needs_nothing_from_elsewhere(tmp_path: Path):
    """A broken link or anchor, or a page outside the navigation, fails the build; search works without a server."""
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)]
    ran = subprocess.run(build, cwd=ROOT, env=quiet, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert {path.stem for path in (tmp_path / "commands").iterdir()} == {"index", *COMMANDS}
    for page in tmp_path.rglob("*.html"):  # links may lead elsewhere, but nothing is loaded from there
        assert not re.findall(r'<(?!a )\w+[^>]*(?:src|href)="?(?:https?:)?//', page.read_text()), page

    chromium = shutil.which("chromium")
    assert chromium, "install chromium: the site is tested in a real browser"
    alone = ["--headless", "--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND"]
    search = [
        chromium,
        *alone,
        "--virtual-time-budget=60000",
        "--dump-dom",
        f"file://{tmp_path}/index.html?q=checkpointing",
    ]
    shown = subprocess.run(search, check=True, capture_output=True, text=True).stdout
    assert re.search(r'md-search-result__meta">\d+ matching documents', shown)


def test_the_reference_has_every_public_name():
    pages = "".join(page.read_text() for page in (ROOT / "docs" / "api").glob("*.md"))
    documented = set(re.findall(r"^::: (vitrail\S+)$", pages, re.MULTILINE))
    rooms = {name for name in vitrail.__all__ if (ROOT / "src" / "vitrail" / name).is_dir()} | {"__version__"}
    names = {f"vitrail.{name}" for name in vitrail.__all__ if name not in rooms}
    names |= {f"vitrail.{room.__name__.split('.')[-1]}.{name}" for room in (plan, look) for name in room.__all__}
    assert not names - documented


def test_the_gallery_shows_every_picture():
    shown = re.findall(r"figures/([^)]+)", (ROOT / "docs" / "gallery.md").read_text())
    dark = {name.replace("-light", "-dark") for name in shown}
    drawn = {path.name for path in (ROOT / "docs" / "figures").glob("*.png") if not path.name.startswith("tutorial-")}
    assert drawn == {*shown, *dark}
