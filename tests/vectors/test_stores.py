"""Stores beside S3: Google's, and datasets of the Hugging Face Hub, by the real clients, on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from embedding import photos, save_weights, tar
from gcs_server import Bucket, gcs_server
from hub_server import Hub, Repo
from vitrail import VitrailError, embed, search
from vitrail.remote import Remote, RemoteError, requests, take_retries

COUNT = 30


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_weights(tmp_path_factory.mktemp("weights") / "w.safetensors")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return photos(tmp_path_factory.mktemp("in") / "photos", COUNT)


@pytest.fixture
def bucket(source: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # it would ask the machine for credentials
    import gcsfs

    with gcs_server("bucket") as held:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", held.url)
        monkeypatch.setattr(requests, "FIRST_PAUSE", 0.01)
        gcsfs.GCSFileSystem.clear_instance_cache()
        for path in sorted(source.iterdir()):
            (Remote("gs://bucket/photos") / path.name).write(path.read_bytes())
        take_retries()
        yield held
    gcsfs.GCSFileSystem.clear_instance_cache()


def test_google_s_store_is_read_and_written_as_a_folder_is(bucket: Bucket, weights: Path, source: Path):
    here = embed(source, weights, workers=0)
    there = embed("gs://bucket/photos", weights, out="gs://bucket/vectors", workers=0)
    assert there.column("status").to_pylist() == ["ok"] * COUNT
    np.testing.assert_allclose(there.column("vector").to_pylist(), here.column("vector").to_pylist(), atol=2e-6)
    names = {name.removeprefix("vectors/") for name in bucket.objects if name.startswith("vectors/")}
    assert {"_SUCCESS", "manifest.json", "plan.json", "part-00000.parquet"} <= names
    found = search("gs://bucket/vectors", id="00003.png", top=4)
    assert [match.id for match in found.matches] == [match.id for match in search(here, id="00003.png", top=4).matches]


def test_in_google_s_store_one_of_two_writers_wins(bucket: Bucket):
    place = Remote("gs://bucket/plan.json")
    assert place.write(b"first", replace=False)
    assert not place.write(b"second", replace=False)
    assert place.read_bytes() == b"first"
    assert place.read_bytes(1, 3) == b"irs"


def test_google_s_store_is_asked_again_while_it_is_busy_and_a_refusal_is_a_line(bucket: Bucket):
    bucket.busy = 1
    assert Remote("gs://bucket/photos/00000.png").exists()
    bucket.refused = True
    with pytest.raises(RemoteError, match=r"access was denied .* GOOGLE_APPLICATION_CREDENTIALS"):
        Remote("gs://bucket/photos/00001.png").read_bytes()


def test_a_dataset_of_the_hub_is_read_as_a_folder_is(hub: Hub, weights: Path, source: Path):
    paths = sorted(source.iterdir())
    files = {f"data/{path.name}": path.read_bytes() for path in paths}
    hub.repos["me/photos"] = Repo({**files, "tars/all.tar": tar(paths)})
    here = embed(source, weights, workers=0).column("vector").to_pylist()
    for name in ("data", "tars"):
        there = embed(f"hf://datasets/me/photos/{name}", weights, workers=0)
        assert there.column("status").to_pylist() == ["ok"] * COUNT
        np.testing.assert_allclose(there.column("vector").to_pylist(), here, atol=2e-6)
    with pytest.raises(VitrailError, match="hf://datasets/me/nothing"):
        embed("hf://datasets/me/nothing/data", weights, workers=0)
