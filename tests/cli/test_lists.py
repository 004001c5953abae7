"""The lists of what is known by name: presets and cards."""

from __future__ import annotations

import json

from command import call
from vitrail.plan import ledger
from vitrail.plan.cards import CARDS
from vitrail.presets import PRESETS


def test_every_preset_is_listed_with_its_own_numbers(capsys):
    assert call("presets", "--json") == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert list(rows) == list(PRESETS)
    books, row = ledger(PRESETS["dinov2-S/14"]), rows["dinov2-S/14"]
    assert (row["params"], row["flops_forward"]) == (books.params, books.flops_forward)
    assert (row["image"], row["patch"]) == ({"height": 518, "width": 518}, {"height": 14, "width": 14})
    assert (row["width"], row["depth"], row["num_heads"]) == (384, 12, 6)
    assert rows["swin-T"]["width"] is None


def test_a_word_filters_names_in_any_case(capsys):
    assert call("presets", "SIGLIP2") == 0
    shown = capsys.readouterr().out
    named = [name for name in PRESETS if name in shown.split()]
    assert named == [name for name in PRESETS if "siglip2" in name]
    assert call("presets", "nothing") == 2
    assert "no preset's name contains 'nothing'; try" in capsys.readouterr().err


def test_every_card_is_listed_with_its_source(capsys):
    assert call("cards", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [(card["key"], card["visible_bytes"]) for card in found] == [(c.key, c.visible_bytes) for c in CARDS]
    assert all(card["source"] for card in found)
    assert call("cards") == 0
    shown = capsys.readouterr().out
    assert all(card.key in shown for card in CARDS)
    assert "memory is shared with the CPU" in shown
