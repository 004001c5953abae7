"""Every command's tables fit a terminal of 80 columns: no number is cut, and prose stays readable."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

import small_runs
from command import call
from embedding import frozen, photos, save_weights
from vitrail.checkpoint.read import load
from vitrail.cli import COMMANDS
from vitrail.cli.tables import READABLE, table
from vitrail.training.job import write_job
from vitrail.training.recipe import Recipe
from vitrail.vectors.engines.engine import build_engine
from vitrail.vectors.job.shard import process_shard

LINES = {
    "plan": [
        "plan L/16 --image 384x640 --batch 512 --train --gpu jetson-agx-orin-64 --shard fsdp:64",
        "plan --sweep model=dinov2-g/14-reg4 image=518,1036x2072 precision=amp-bf16 optimizer=adamw-fused batch=1,1024 "
        "--train --gpu rtx-4090",
        "plan --why clip-B/16 dinov2-B/14-reg4,image=1036x2072,attention=eager --image 512 --batch 8 --train",
        "plan B/16 --gpu jetson-agx-orin-64 --largest image --train",
        "plan --module module.py:make --input 4096x3x224x224 --train --gpu rtx-4090",
    ],
    "compare": ["compare siglip2-giant-opt/16 deit-Ti/16-distilled default --gpu rtx-4090 --batch 4096"],
    "presets": ["presets"],
    "dense": ["dense photos/00000.png photos/00001.png --stride 2"],
    "match": ["match photos/00000.png photos/00001.png --whole"],
    "cards": ["cards"],
    "advise": ["advise --images photos --application detection --gpu rtx-4090 --data-size 12000000"],
    "inspect": ["inspect default", "inspect w.safetensors"],
    "weights": ["weights"],
    "adapt": ["adapt default adapted.safetensors --image 48x64 --patch 8 --prefix cls,registers=4 --images photos"],
    "simulate": ["simulate --to-grid 20x28 --from-grid 5x7", "simulate --weights default --bands 9"],
    "evaluate": ["evaluate default --data shapes --image 8,32"],
    "probe": ["probe default --data shapes --limit 20"],
    "classify": ["classify photos --top 2"],
    "compare-runs": ["compare-runs run-of-a-long-name-a run-of-a-long-name-b another"],
    "experiment": ["experiment"],
    "laws": ["laws --image 2048x4096 --patch 4"],
    "search": [
        "search vectors --id 00001.png",
        "search vectors --outliers",
        "search vectors --near-duplicates --threshold 0.01",
    ],
    "atlas": ["atlas vectors"],
    "bench": ["bench default --batch 1 --seconds 0.01"],
    "demo": ["demo"],
}
NO_TABLES = {"convert", "push", "train", "data", "look", "studio", "serve", "embed", "export"}
"""Commands that write lines, which a terminal wraps."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("eighty")
    weights, source = save_weights(root / "w.safetensors"), photos(root / "photos", 6)
    (root / "module.py").write_text(
        "from torch import nn\nmake = lambda: nn.Sequential(nn.Conv2d(3, 8, 9), nn.ReLU())\n"
    )
    plan = frozen(root / "vectors", source, weights)
    process_shard(root / "vectors", plan, 0, build_engine(load(weights)))
    for name, seed in (("run-of-a-long-name-a", 0), ("run-of-a-long-name-b", 1), ("another", 2)):
        recipe = Recipe(steps=2, batch=8, seed=seed, lr=1e-3 if seed < 2 else 2e-3)
        small_runs.begin(root / name, recipe, test=small_runs.shapes(40))
        write_job(root / name, small_runs.job_of(recipe))
    return root


def test_every_command_with_tables_is_here():
    assert LINES.keys() | NO_TABLES == set(COMMANDS)


@pytest.mark.parametrize("line", [line for lines in LINES.values() for line in lines])
def test_no_number_is_cut_at_80_columns(line: str, place: Path, monkeypatch, capsys):
    monkeypatch.chdir(place)
    monkeypatch.setenv("COLUMNS", "80")
    assert call(*line.split()) == 0, capsys.readouterr().err
    shown = capsys.readouterr().out
    wide = [each for each in shown.splitlines() if len(each) > 80]
    assert not wide
    assert not re.search(r"[\d.,]…|…\d", shown), shown


def drawn(width: int, *arguments: object, **options: object) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(table(*arguments, **options))  # type: ignore[arg-type]
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def test_columns_without_room_follow_below_beside_the_columns_that_name_the_rows():
    numbers = [f"{10**digits:,}" for digits in range(6, 14)]
    rows = [("first", "a", *numbers, "some words about it"), ("second", "b", *numbers, "and more of them")]
    heads = ("name", "kind", *(f"n{place}" for place in range(8)), "why")
    for width in (48, 80, 200):
        lines = drawn(width, "Title", heads, rows, "ll" + "r" * 8 + "w", keys=2)
        assert max(map(len, lines)) <= width
        words = " ".join(lines).split()
        assert all(words.count(number) == 2 for number in numbers)
        assert words.count("first") == words.count("a") >= 1 + (width < 200)
        assert words.count("Title") == 1


def test_prose_is_wrapped_and_never_narrower_than_is_readable():
    prose = "a sentence of many words that goes on and on, as they do when they explain something"
    lines = drawn(80, "", ("name", "number", "why"), [("x" * 30, "1" * 25, prose)], "lrw")
    (found,) = [line for line in lines if "a sentence of many words"[:READABLE] in line]
    assert found.startswith(f"  {'x' * 30}  a")  # 17 letters were left beside the number
    assert "something" in lines[-3]
