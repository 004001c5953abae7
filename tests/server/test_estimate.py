"""The estimate of a pass is the last one's time, scaled by FLOPs, and says so."""

from __future__ import annotations

import pytest
from loaded import OWN, studio_with

from vitrail import parts
from vitrail.config import ViTConfig
from vitrail.geometry import Size
from vitrail.plan.ledger import ledger
from vitrail.server.session import Pass

SMALL = ViTConfig(
    image=Size(56, 64),
    embedding=parts.Patches(patch=Size(4, 4)),
    width=12,
    depth=2,
    num_heads=3,
    mlp=parts.Mlp(width=8),
)


def test_an_estimate_comes_from_the_models_last_pass_on_this_machine(tmp_path):
    session, asking = studio_with(SMALL, tmp_path)

    def estimate(seen: int) -> dict:
        return asking.get("/api/estimate", params={"weights": OWN, "seen": seen}).json()

    assert estimate(64)["seconds"] is None
    assert "no estimate yet" in estimate(64)["basis"]
    session.recording("cat", OWN, 64)
    measured = session.last_pass(OWN)
    assert measured is not None
    assert measured.size == Size(64, 64)
    assert measured.seconds > 0
    session._passes[OWN] = Pass(Size(64, 64), 3.0)
    assert estimate(64) == {"seconds": 3.0, "basis": "its last pass took 3.0 s at 64 × 64 px"}
    small, large = (ledger(SMALL.but(image=Size(side, side))).flops_forward for side in (64, 128))
    assert estimate(128)["seconds"] == pytest.approx(3 * large / small)
    assert estimate(128)["basis"].endswith("scaled by FLOPs")
    session.close()
