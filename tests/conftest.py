"""What every test runs under: one thread each, since the runner starts a process per core, and repeatable draws."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from hub_server import Hub, serving

os.environ["VITRAIL_CACHE"] = os.devnull  # what this machine has fetched is no part of a test
os.environ.pop("COLUMNS", None)  # a runner may set it, and pages of the docs show wide tables
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported; commands under test inherit it

settings.register_profile("vitrail", deadline=None, derandomize=True)
settings.load_profile("vitrail")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with tests that wait for other processes most of the time, so that the run does not end with them."""
    items.sort(key=lambda item: "vectors" not in item.path.parts)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The Hugging Face Hub on loopback, as the real client sees it."""
    from huggingface_hub import HfFileSystem, constants

    with serving() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)  # the library reads its settings when it is imported
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.chdir(tmp_path)
        HfFileSystem.clear_instance_cache()  # one of an earlier hub would still ask that hub
        yield hub
