"""Room 6: its numbers are the library's."""

from __future__ import annotations

import json
from typing import Any

import pytest
from client import client

from command import call


def ask(path: str = "memory", **parameters):
    answer = client().get(f"/api/{path}", params=parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()


WORK = [
    ({}, "--train --precision amp-bf16 --batch 32 --gpu rtx-4090"),
    (
        {"model": "L/16", "batch": 300, "optimizer": "adamw-fused", "checkpointing": True, "card": "a100-40"},
        "L/16 --train --precision amp-bf16 --batch 300 --optimizer adamw-fused --checkpointing --gpu a100-40",
    ),
    (
        {"train": False, "precision": "fp32", "attention": "eager", "batch": 7, "card": "t4"},
        "--infer --precision fp32 --attention eager --batch 7 --gpu t4",
    ),
    (
        {"shard": "fsdp", "devices": 4, "accumulate": 2, "precision": "bf16", "card": "24GiB"},
        "--train --shard fsdp:4 --accumulate 2 --precision bf16 --batch 32 --gpu 24GiB",
    ),
    (
        {"shard": "fsdp", "devices": 2, "reshard_after_forward": False, "param_dtype": "bf16", "precision": "fp32"},
        "--train --shard fsdp:2,reshard_after_forward=no,param_dtype=bf16 --batch 32 --gpu rtx-4090",
    ),
    (
        {"shard": "ddp", "devices": 2, "gradient_as_bucket_view": True, "offload": True},
        "--train --shard ddp:2,gradient_as_bucket_view --offload --precision amp-bf16 --batch 32 --gpu rtx-4090",
    ),
]


@pytest.mark.parametrize(("asked", "options"), WORK)
def test_the_bytes_are_those_of_vitrail_plan(asked, options, capsys):
    assert call("plan", "--json", *options.split()) == 0
    plan = json.loads(capsys.readouterr().out)
    said = ask(**asked)
    assert {part["name"]: part["bytes"] for part in said["components"]} == plan["bytes"]
    assert sum(part["bytes"] for part in said["components"]) == said["peak_bytes"] == plan["peak_bytes"]
    assert said["exact"] == plan["exact"]
    assert {v["name"]: v["needed_bytes"] for v in said["verdicts"]} == {
        name: verdict["needed_bytes"] for name, verdict in plan["verdicts"].items()
    }
    fit = ask("memory/fit", **asked)
    batch, bound = fit.pop("formulas")
    assert batch["numbers"].endswith(f"so B = {plan['max_batch']['likely']:,}")
    assert bound["name"] == "lower bound of a step"
    assert fit == {name: plan[name] for name in ("max_batch", "changes", "step_bound", "notes")}


def test_the_curve_passes_through_the_figure():
    said, curve = ask(height=96, width=160, batch=5), ask("memory/curve", height=96, width=160, batch=5)
    place = curve["images"].index([96, 160])
    assert sum(values[place] for values in curve["components"].values()) == said["peak_bytes"]
    likely = next(verdict for verdict in said["verdicts"] if verdict["name"] == "likely")
    assert curve["needed"][place] == likely["needed_bytes"]
    assert curve["needed"] == sorted(curve["needed"])


def test_the_timeline_rises_to_the_figure():
    asked: dict[str, Any] = {"height": 96, "width": 160, "batch": 5}
    said, found = ask(**asked), ask("memory/timeline", **asked)
    levels = [sum(values) for values in zip(*found["components"].values(), strict=True)]
    place = levels.index(max(levels))
    assert levels[place] == said["peak_bytes"]
    assert {part["name"]: part["bytes"] for part in said["components"]} == {
        name: values[place] for name, values in found["components"].items()
    }
    assert [*dict.fromkeys(found["phases"])] == ["forward", "backward", "optimizer"]
    assert len(found["operations"]) == len(found["modules"]) == len(found["places"]) == len(levels)
    sharded, peak = (ask(view, **asked, shard="fsdp", devices=4) for view in ("memory/timeline", "memory"))
    assert max(sum(live) for live in zip(*sharded["components"].values(), strict=True)) == peak["peak_bytes"]
    assert max(sharded["components"]["gathered_weights"]) > 0
    estimated = ask("memory/timeline", **asked, shard="zero2", devices=4)
    assert estimated == found | {"note": "Without sharding: PyTorch has no such stage to follow."}


def test_options_of_another_sharding_or_precision_are_left_out():
    options = {"gradient_as_bucket_view": True, "reshard_after_forward": False, "param_dtype": "bf16"}
    for asked in ({"shard": "zero1"}, {"shard": "tensor", "devices": 4}):
        assert ask(**asked, **options) == ask(**asked)
    assert ask(shard="fsdp", param_dtype="bf16") == ask(shard="fsdp")  # under autocast
    planned = [ask(shard="fsdp", precision="fp32", param_dtype=kind)["peak_bytes"] for kind in ("bf16", "same")]
    assert planned == sorted(planned)


def test_an_unknown_card_is_an_error_with_its_remedy():
    answer = client().get("/api/memory", params={"card": "abacus"})
    assert (answer.status_code, answer.json()["status"]) == (400, 400)
    assert "give its memory, like 24GiB" in answer.json()["error"]
