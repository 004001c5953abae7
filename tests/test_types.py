"""The package's types, as its users' type checkers see them: pyright and mypy, without settings, on the README."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from vitrail import PRESETS, MobileConfig, PyramidConfig, ViTConfig
from vitrail.preset_names import MobileName, PyramidName, ViTName

ROOT = Path(__file__).parent.parent
EXACT = """
from typing import assert_type

import vitrail
from vitrail.nn.pyramid import PyramidViT
from vitrail.nn.vit import ViT

assert_type(vitrail.preset("B/16"), vitrail.ViTConfig)
assert_type(vitrail.build(vitrail.preset("B/16")), ViT)
assert_type(vitrail.build(vitrail.preset("swin-T")), PyramidViT)
assert_type(vitrail.load("default"), vitrail.Checkpoint)
assert_type(vitrail.train("shapes", out="run"), vitrail.Run)
assert_type(vitrail.plan.ledger(vitrail.preset("S/16")).params, int)
"""


@pytest.mark.parametrize("checker", ["pyright", "mypy"])
def test_the_readme_s_snippets_and_the_main_results_have_the_types_that_they_say(checker: str, tmp_path: Path):
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    (tmp_path / "readme.py").write_text("\n".join(blocks))
    (tmp_path / "exact.py").write_text(EXACT)
    options = {
        "pyright": ["--pythonpath", sys.executable],
        # mypy reads all of torch, which its cache makes fast the second time
        "mypy": ["--python-executable", sys.executable, "--cache-dir", str(ROOT / ".mypy_cache")],
    }
    command = [Path(sys.executable).with_name(checker), *options[checker], "readme.py", "exact.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_a_type_checker_knows_every_preset_by_its_kind():
    for kind, names in ((ViTConfig, ViTName), (PyramidConfig, PyramidName), (MobileConfig, MobileName)):
        assert {name for name, config in PRESETS.items() if isinstance(config, kind)} == set(get_args(names))
