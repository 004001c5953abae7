"""Matches in an exported page: the graph and Python in the page give what the studio's room gives."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
import torch
from client import client
from frames import read_frame

from vitrail.nn.pool import one_vector
from vitrail.server.rooms.match.match_facts import MatchNumbers, facts_of_numbers
from vitrail.server.session import DEFAULT, Session
from vitrail.server.site.matching import MATCH_OUTPUTS, match_graph, matched_tokens


@pytest.mark.parametrize("layer", [-1, 2])
def test_a_graph_for_any_model_matches_as_the_room_does(layer):
    session = Session()
    recordings = [session.recording(image, DEFAULT, 64)[1] for image in ("cat", "turned")]
    tokens = [matched_tokens(each) for each in recordings]
    vectors = [one_vector(each.model.pooled(*each.features))[0] for each in recordings]
    inputs = {
        "first": tokens[0][f"unit{layer}"],
        "second": tokens[1][f"unit{layer}"],
        "shares0": tokens[0]["shares-of-tokens"],
        "shares1": tokens[1]["shares-of-tokens"],
        "vector0": vectors[0],
        "vector1": vectors[1],
    }
    runtime = onnxruntime.InferenceSession(match_graph(), providers=["CPUExecutionProvider"])
    with torch.inference_mode():
        given = {name: np.ascontiguousarray(value.numpy()) for name, value in inputs.items()}
    found = {name: np.asarray(each) for name, each in zip(MATCH_OUTPUTS, runtime.run(None, given), strict=True)}
    facts, arrays = read_frame(client().get(f"/api/match/maps?layer={layer}&seen=64").content)
    for plane in ("cross", "own0", "own1"):
        assert np.abs(arrays[plane].astype(int) - found[plane]).max() <= 1, plane
    layout = recordings[0].features[1]
    numbers = MatchNumbers(
        grid=layout.grid,
        seen=(64, 64),
        tokens_before=layout.prefix,
        approximation=facts["approximation"],
        nearest=(found["nearest0"].tolist(), found["nearest1"].tolist()),
        cosines=(found["cosines0"].tolist(), found["cosines1"].tolist()),
        parts=(found["parts0"].tolist(), found["parts1"].tolist()),
        score=found["score"].item(),
        vectors=found["vectors"].item(),
    )
    ours = facts_of_numbers(numbers).model_dump(mode="json")
    for name in ("first", "second"):
        assert ours[name]["nearest"] == facts[name]["nearest"]
        assert ours[name]["parts"] == pytest.approx(facts[name]["parts"], abs=1e-6)
        assert ours[name]["cosines"] == pytest.approx(facts[name]["cosines"], abs=1e-5)
    assert sorted(ours["buddies"]) == sorted(facts["buddies"])
    for name in ("score", "vectors", "prefix"):
        assert ours[name] == pytest.approx(facts[name], abs=1e-5)
    assert ours["formulas"] == facts["formulas"]
    session.close()
