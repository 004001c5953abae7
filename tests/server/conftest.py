"""Every test of the studio may ask for a running one (`address`) and a `page`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from browser import address, opener, page

__all__ = ["address", "opener", "page"]


@pytest.fixture(scope="session", autouse=True)
def patient() -> Iterator[None]:
    """A loaded machine is slow, not wrong: the studio's own limit on a computation is for people."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vitrail.server.session.SECONDS", 600.0)
        yield
