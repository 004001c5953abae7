import re
import shlex
from pathlib import Path

import pytest

from command import call
from vitrail.plan.cards import CARDS, GIB

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "planner.md").read_text(encoding="utf-8")
COMMANDS = [
    (command, output)
    for block in re.findall(r"```console\n(.*?)```", TEXT, flags=re.S)
    for command, output in re.findall(r"^\$ vitrail (.*)\n((?:(?!\$ ).*\n)*)", block, flags=re.M)
]


@pytest.mark.parametrize(("command", "output"), COMMANDS, ids=[command for command, _ in COMMANDS])
def test_a_command_of_the_page_prints_what_the_page_shows(capsys, monkeypatch, command, output):
    monkeypatch.chdir(ROOT)
    assert call(*shlex.split(command)) == 0
    shown = [line.rstrip() for line in capsys.readouterr().out.rstrip().splitlines()]
    assert shown == [line.rstrip() for line in output.rstrip().splitlines()]


def test_the_page_lists_every_card():
    listed = dict(re.findall(r"^\| `([\w-]+)` \| [^|]+ \| ([\d.]+) \|", TEXT, flags=re.M))
    assert listed == {card.key: f"{card.visible_bytes / GIB:.2f}" for card in CARDS}
