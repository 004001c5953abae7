"""The package as a newcomer meets it: names on demand, no torch until it is needed."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import vitrail

SOURCE = Path(vitrail.__file__).parent


def test_every_public_name_loads():
    for name in vitrail.__all__:
        assert getattr(vitrail, name) is not None
    assert set(dir(vitrail)) == set(vitrail.__all__)


def test_type_checkers_see_the_names_that_load_on_demand():
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    rooms = {name for name in vitrail.__all__ if (SOURCE / name / "__init__.py").is_file()} - {"parts"}
    assert seen == rooms | vitrail._ON_DEMAND.keys()
    assert seen < set(vitrail.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        vitrail.nothing  # noqa: B018


def test_every_public_name_has_an_example():
    rooms = (vitrail, vitrail.plan, vitrail.look)
    named = [getattr(room, name) for room in rooms for name in room.__all__]
    public = [each for each in named if inspect.isclass(each) or inspect.isfunction(each)]
    assert len(public) > 60
    assert [each.__name__ for each in public if ">>> " not in (each.__doc__ or "")] == []


def test_every_module_names_what_it_offers():
    for path in SOURCE.rglob("*.py"):
        if path.name in ("__init__.py", "_version.py") and path.parent != SOURCE / "cli":
            continue
        tree = ast.parse(path.read_text())
        (names,) = [
            ast.literal_eval(node.value)
            for node in tree.body
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == "__all__"
        ]
        defined = {name for node in tree.body for name in _defined(node)}
        assert set(names) <= defined, path


def _defined(node: ast.stmt) -> list[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Assign(targets=targets):
            return [each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case ast.ImportFrom(names=names):
            return [alias.asname or alias.name for alias in names]
    return []


def test_the_extra_all_has_every_extra_that_a_command_may_ask_for():
    import tomllib

    text = (SOURCE.parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    (everything,) = extras.pop("all")
    assert set(everything.removeprefix("vitrail[").removesuffix("]").split(",")) == extras.keys() - {"dev", "docs"}


@pytest.mark.parametrize(
    "code",
    [
        "import vitrail",
        "import vitrail; vitrail.plan.ledger(vitrail.preset('B/16'))",
        "import vitrail; vitrail.preset('B/16').to_json(); vitrail.synthesize_image(0)",
        "from vitrail.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass",
        "from vitrail.cli import main\ntry: main(['inspect', 'default'])\nexcept SystemExit: pass",
        "import vitrail.cli.search_view",  # a search by id: torch would take longer than searching a million vectors
        # what the studio opens with: loading torch would hold up its first picture by seconds
        "import vitrail.server.app\nfrom vitrail.server.rooms.shared import Drawn, middle\n"
        "from vitrail.server.session import Session\nmiddle('cat', Drawn(height=48, width=64), Session())",
    ],
)
def test_what_needs_no_torch_imports_none(code: str):
    check = "\nimport sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code + check], check=True, capture_output=True)
