"""Room 1: its numbers are the library's."""

from __future__ import annotations

import json

import pytest
from client import client

from command import call
from vitrail.config import ViTConfig
from vitrail.geometry import Size, fit
from vitrail.parts import Mlp
from vitrail.plan.laws import block_flops
from vitrail.plan.ledger import ledger
from vitrail.plan.vision_language import VISION_LANGUAGE
from vitrail.presets import preset


def ask(path: str = "patch", **parameters):
    answer = client().get(f"/api/{path}", params=parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_figures_are_those_of_vitrail_plan(capsys):
    said = ask(model="L/16", height=192, width=320, patch_height=8, patch_width=16, batch=3)
    command = "plan L/16 --image 192x320 --patch 8x16 --batch 3 --train --precision amp-bf16 --json"
    assert call(*command.split()) == 0
    plan = json.loads(capsys.readouterr().out)
    for name in ("tokens", "params", "flops_forward", "peak_bytes"):
        assert said[name] == plan[name]
    assert said["divides"]
    assert said["ways"] == []


def test_the_laws_are_those_of_vitrail_laws(capsys):
    said = ask(height=192, width=320, patch_height=8, patch_width=16)
    assert call("laws", "--image", "192x320", "--patch", "8x16", "--json") == 0
    laws = json.loads(capsys.readouterr().out)
    assert said["density"] == pytest.approx(laws["density"])
    assert said["pixels"] == pytest.approx(laws["pixels"])
    assert said["attention_elements"] == laws["attention_elements_with_prefix"]
    assert said["crossover_mlp"] == laws["crossover"]["mlp_tokens"]
    assert call("laws", "--folklore", "--json") == 0
    claims = {entry["key"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert said["folklore"]
    assert all(entry == claims[entry["key"]] for entry in said["folklore"])


@pytest.mark.parametrize("remainder", ["pad", "crop", "resize"])
def test_what_does_not_divide_is_said_with_every_way_out(remainder):
    image, patch = Size(225, 310), Size(16, 16)
    said = ask(height=225, width=310, remainder=remainder)
    assert not said["divides"]
    assert [way["remainder"] for way in said["ways"]] == ["pad", "crop", "resize"]
    for way in said["ways"]:
        cut = fit(image, patch, remainder=way["remainder"])
        assert way["fitted"] == [cut.fitted.height, cut.fitted.width]
        assert way["flops"] == ledger(preset("B/16", image=cut.fitted)).flops_forward
        assert way["chosen"] == (way["remainder"] == remainder)
        if way["chosen"]:
            assert said["tokens"] == way["tokens"]
            assert said["fitted"] == way["fitted"]
    changed = {way["remainder"]: way["changed_pixels"] for way in said["ways"]}
    assert changed["pad"] == 240 * 320 - 225 * 310
    assert changed["crop"] == 225 * 310 - 224 * 304


def test_a_blocks_flops_are_those_of_the_planner():
    config = ViTConfig(image=Size(64, 96), width=384, num_heads=6, mlp=Mlp(width=1536))
    rows = {row.path: row.flops for row in ledger(config).rows}
    spent = block_flops(config.tokens, config.width, config.mlp.width)
    assert spent.attention == rows["blocks.0.attention"]
    assert spent.projections == rows["blocks.0.attention.qkv"] + rows["blocks.0.attention.out"]
    assert spent.mlp == rows["blocks.0.mlp.fc1"] + rows["blocks.0.mlp.fc2"]


def test_the_curves_cross_where_it_is_said():
    said = ask(model="S/16")
    curves = said["block_flops"]
    for tokens, attention, mlp, linear in zip(
        curves["tokens"], curves["attention"], curves["mlp"], curves["linear"], strict=True
    ):
        assert (attention > mlp) == (tokens > said["crossover_mlp"])
        assert (attention > linear) == (tokens > said["crossover_linear"])
    assert curves["tokens"][0] <= said["tokens"] <= curves["tokens"][-1]


def test_neighbours_are_halves_and_doubles_of_the_patch():
    found = ask("patch/neighbours", height=96, width=160)
    assert [entry["patch"] for entry in found] == [[4, 4], [8, 8], [16, 16], [32, 32]]
    assert [entry["chosen"] for entry in found] == [False, False, True, False]
    assert found[2]["peak_bytes"] == ask(height=96, width=160)["peak_bytes"]


def test_formulas_end_in_the_figures():
    said = ask(height=192, width=320)
    formulas = {entry["name"]: entry["numbers"] for entry in said["formulas"]}
    assert formulas["tokens"].endswith(f"= {said['tokens']:,}")
    assert formulas["forward"].endswith(f"= {said['flops_forward']:,} FLOP")


def test_a_crop_begins_where_the_model_begins_to_look():
    """The model keeps the centre of an image that patches don't divide, and the page draws it there."""
    said = ask(height=230, width=250, patch_height=16, patch_width=16, remainder="crop")
    assert said["offset"] == list(fit(Size(230, 250), Size(16, 16), remainder="crop").offset) == [3, 5]
    assert ask(height=230, width=250, patch_height=16, patch_width=16, remainder="pad")["offset"] == [0, 0]


def test_visual_tokens_are_those_of_vitrail_plan(capsys):
    for reader in VISION_LANGUAGE:
        said = ask("patch/tokens", reader=reader, photo_side=700, image="cat")
        assert call("plan", reader, "--image", "x".join(map(str, said["image"])), "--json") == 0
        plan = json.loads(capsys.readouterr().out)
        assert {name: said[name] for name in ("tokens", "patches", "crops")} == {
            name: plan["reading"][name] for name in ("tokens", "patches", "crops")
        }
        crops = 1 if "parts" in plan else said["crops"]  # two towers are planned together
        assert said["flops"] == crops * plan["flops_forward"]
        assert said["formulas"][1]["numbers"].endswith(f"= {said['tokens']:,}")
        chosen = [entry for entry in said["everyone"] if entry["reader"] == reader]
        assert [entry["tokens"] for entry in chosen] == [said["tokens"]]


def test_a_photograph_keeps_its_shape_at_another_size():
    own, cat = ask("patch/tokens")["image"], client().get("/api/images/cat").json()
    assert own == [cat["height"], cat["width"]]
    assert ask("patch/tokens", photo_side=1170)["image"] == [3 * side for side in own]


def test_padding_and_dropped_rows_are_sent_as_boxes():
    tiles = ask("patch/tokens", reader="llava-next", photo_side=900)["views"][1]
    assert (tiles["size"], tiles["crop"], tiles["crops"]) == ([672, 672], [336, 336], [2, 2])
    assert tiles["content"] == [112, 0, 448, 672]
    assert tiles["kept"] == [112, 0, 448, 672]
    assert (tiles["rows"], tiles["columns"], tiles["tokens"]) == (32, 48, 32 * 49)


def test_a_reader_that_is_not_known_is_refused_with_those_that_are():
    refused = client().get("/api/patch/tokens", params={"reader": "gpt"})
    assert refused.status_code == 400
    assert "choose qwen2-vl, " in refused.json()["error"]
