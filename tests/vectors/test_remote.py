"""Images and vectors by URL: a real S3 server on loopback, behind a proxy that fails in every way."""

from __future__ import annotations

import http.server
import io
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command import PATIENCE, call, children, command_of, until
from embedding import frozen, photos, png, save_weights, tar
from faulty_proxy import Fault, FaultyProxy, s3_server
from vitrail import VitrailError, embed, search
from vitrail.remote import Remote, RemoteError, location_of, requests, take_retries
from vitrail.vectors.job.find import find_inputs
from vitrail.vectors.job.opener import Opener
from vitrail.vectors.job.plan import read_plan

COUNT = 40
RUNNER = Path(__file__).parent.parent / "embed_runner.py"
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_weights(tmp_path_factory.mktemp("weights") / "w.safetensors")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return photos(tmp_path_factory.mktemp("in") / "photos", COUNT)


@pytest.fixture(scope="module")
def wanted(source: Path, weights: Path) -> np.ndarray:
    return vectors(embed(source, weights, workers=0))


@pytest.fixture(scope="module")
def proxy(source: Path) -> Iterator[FaultyProxy]:
    """A bucket with the photos in all forms."""
    with s3_server() as port, pytest.MonkeyPatch.context() as patch:
        between = FaultyProxy(port)
        for name, value in {**KEYS, "AWS_ENDPOINT_URL": between.url}.items():
            patch.setenv(name, value)
        import s3fs

        # fsspec keeps a file system for its arguments: one of an earlier server would still ask that server
        s3fs.S3FileSystem.clear_instance_cache()
        s3fs.S3FileSystem().mkdir("bucket")
        for path in sorted(source.iterdir()):
            (Remote("s3://bucket/photos") / path.name).write(path.read_bytes())
        Remote("s3://bucket/tars/a.tar").write(tar(sorted(source.iterdir())[:25]))
        Remote("s3://bucket/tars/b.tar").write(tar(sorted(source.iterdir())[25:]))
        Remote("s3://bucket/table.parquet").write(table(sorted(source.iterdir())))
        urls = "".join(f"s3://bucket/photos/{path.name}\n" for path in sorted(source.iterdir()))
        Remote("s3://bucket/list.txt").write(urls.encode())
        yield between
        between.stop()


@pytest.fixture
def store(proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    proxy.reset()
    take_retries()
    monkeypatch.setattr(requests, "FIRST_PAUSE", 0.01)
    yield proxy
    proxy.reset()


def table(paths: list[Path], padding: int = 0) -> bytes:
    import pyarrow as arrow
    from pyarrow import parquet

    buffer = io.BytesIO()
    images = [path.read_bytes() + os.urandom(padding) for path in paths]
    parquet.write_table(arrow.table({"image": images}), buffer, row_group_size=8, compression="none")
    return buffer.getvalue()


def vectors(found: Any) -> np.ndarray:
    return np.array(found.column("vector").to_pylist(), np.float32)


def parts(place: str) -> dict[str, int]:
    try:
        return {each.name: each.version for each in Remote(place).entries() if each.name.startswith("part-")}
    except FileNotFoundError:
        return {}


@pytest.mark.parametrize("name", ["photos", "tars", "table.parquet", "list.txt"])
def test_images_of_a_store_have_the_vectors_that_they_have_on_disk(name, store, weights, wanted, tmp_path):
    found = embed(f"s3://bucket/{name}", weights, workers=0)
    assert found.column("status").to_pylist() == ["ok"] * COUNT
    np.testing.assert_allclose(vectors(found), wanted, atol=2e-6)


def test_an_output_in_a_store_is_read_back_and_searched_by_its_url(store, weights, source, wanted):
    found = embed(source, weights, out="s3://bucket/out/disk", workers=0)
    np.testing.assert_allclose(vectors(found), wanted, atol=2e-6)
    names = [each.name for each in Remote("s3://bucket/out/disk").entries()]
    assert {"_SUCCESS", "manifest.json", "plan.json", "part-00000.parquet"} <= set(names)
    assert not [name for name in names if name.startswith(".")]
    here = embed(source, weights, workers=0)
    there, here = search("s3://bucket/out/disk", id="00003.png", top=4), search(here, id="00003.png", top=4)
    assert [match.id for match in there.matches] == [match.id for match in here.matches]


def test_int8_keeps_its_ranges_in_the_store(store, weights, source):
    for _ in range(2):
        found = embed(source, weights, out="s3://bucket/out/int8", engine="int8", workers=0, force=True)
        assert found.column("status").to_pylist() == ["ok"] * COUNT
    assert Remote("s3://bucket/out/int8/calibration.safetensors").exists()


def test_a_member_and_a_row_are_read_by_their_ranges(store):
    paths = [Path(RUNNER)] * 40
    Remote("s3://bucket/wide.parquet").write(table(paths, padding=100_000))
    rows = list(find_inputs(Remote("s3://bucket/wide.parquet")))
    store.reset()
    data = Opener()(rows[17])
    assert isinstance(data, bytes)
    assert len(data) > 100_000
    assert store.bytes < 0.3 * Remote("s3://bucket/wide.parquet").entry().size
    members = list(find_inputs(Remote("s3://bucket/tars/b.tar")))
    store.reset()
    assert Opener()(members[3]) == png(28)
    assert store.bytes == members[3].length


def test_lost_connections_503s_cut_and_slow_answers_cost_repetitions_which_are_said(
    store, weights, wanted, capsys, monkeypatch
):
    kinds: dict[int, Fault] = {5: "drop", 9: "503", 13: "cut", 17: "slow"}

    def fault(number: int, method: str, path: str) -> Fault | None:
        kind: Fault | None = next((kinds[each] for each in kinds if number % each == 0), None)
        if kind == "cut" and method != "GET":
            return "drop"
        return kind

    store.reset(fault)
    out = "s3://bucket/out/faulty"
    assert call("embed", "s3://bucket/photos", "--weights", str(weights), "--out", out, "--workers", "1") == 0
    assert set(store.faults) == {"drop", "503", "cut", "slow"}
    said = " ".join(capsys.readouterr().out.split())
    assert "requests were repeated: " in said
    assert "connection lost" in said
    assert "HTTP 503" in said
    store.reset()
    np.testing.assert_allclose(vectors(embed("s3://bucket/photos", weights, out=out, workers=0)), wanted, atol=2e-6)


def test_a_read_that_is_too_slow_is_given_up_and_repeated(store, monkeypatch):
    monkeypatch.setattr(requests, "PATIENCE", 1.0)
    monkeypatch.setattr(store, "slow_seconds", 4.0)
    store.reset(lambda number, method, path: "slow" if number == 1 else None)
    assert Remote("s3://bucket/photos/00004.png").read_bytes(0, len(png(4))) == png(4)
    assert take_retries()["no answer in time"] >= 1


def test_a_store_that_stays_away_ends_the_run_in_a_line_and_the_same_call_goes_on(store, weights, wanted):
    place = "s3://bucket/out/away"

    def away(number: int, method: str, path: str) -> Fault | None:
        return "503" if "/photos/0003" in path and method == "GET" else None

    store.reset(away)
    with pytest.raises(RemoteError, match=r"was asked 7 times in vain \(HTTP 503\); what is done stays") as caught:
        embed("s3://bucket/photos", weights, out=place, workers=0)
    assert "\n" not in str(caught.value)
    before = parts(place)
    assert not (Remote(place) / "_SUCCESS").exists()
    store.reset()
    np.testing.assert_allclose(vectors(embed("s3://bucket/photos", weights, out=place, workers=0)), wanted, atol=2e-6)
    assert before.items() <= parts(place).items()


def test_an_expired_token_is_a_line_with_the_remedy_and_nothing_is_lost(store, weights, wanted, capsys):
    place = "s3://bucket/out/expired"
    command = ["embed", "s3://bucket/photos", "--weights", str(weights), "--out", place, "--workers", "1"]
    store.reset(lambda number, method, path: "expired" if store.faults or parts_written(store, path, method) else None)
    assert call(*command) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "the store says that the token has expired; renew your credentials and run the same command again" in said
    assert "Traceback" not in said
    store.reset()
    before = parts(place)
    assert len(before) == 1
    assert call(*command) == 0
    assert before.items() <= parts(place).items()
    np.testing.assert_allclose(vectors(embed("s3://bucket/photos", weights, out=place, workers=0)), wanted, atol=2e-6)


def parts_written(store: FaultyProxy, path: str, method: str) -> bool:
    """Whether a part has been written, which the next request then finds."""
    written = getattr(store, "written", False)
    if "part-" in path and method == "PUT":
        store.written = True  # type: ignore[attr-defined]
    return written


def test_runs_that_begin_at_one_moment_follow_one_plan(store, weights, source):
    plans, barrier, out = [], threading.Barrier(4), Remote("s3://bucket/out/race")

    def run() -> None:
        barrier.wait()
        plans.append(frozen(out, source, weights, 8))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(plans) == 4
    assert len({plan.fingerprint for plan in plans}) == 1
    assert out.names("inputs-") == [f"{plans[0].inputs}-00000.parquet"]


def test_a_lost_answer_to_a_conditional_write_is_not_taken_for_another_writer(store):
    """The write arrives, its answer does not, and the repetition meets what it wrote itself."""
    place = Remote("s3://bucket/out/once.json")
    store.reset(lambda number, method, path: "cut" if number == 1 else None)
    import s3fs

    plain = s3fs.S3FileSystem._pipe_file

    async def loses_the_answer(self: Any, *arguments: Any, **options: Any) -> Any:
        s3fs.S3FileSystem._pipe_file = plain
        await plain(self, *arguments, **options)
        raise ConnectionResetError

    s3fs.S3FileSystem._pipe_file = loses_the_answer
    assert place.write(b"mine", replace=False)
    assert not place.write(b"other", replace=False)
    assert place.read_bytes() == b"mine"


def test_a_store_without_conditional_writes_is_refused(store, weights, source):
    store.reset(lambda number, method, path: "unconditional" if method == "PUT" else None)
    with pytest.raises(VitrailError, match="ignores If-None-Match, so that two runs at one moment could not be told"):
        embed(source, weights, out="s3://bucket/out/old-store", workers=0)
    assert Remote("s3://bucket/out/old-store").names() == []


def test_a_killed_run_is_finished_by_the_same_command(store, weights, source, wanted, tmp_path):
    out, gate = "s3://bucket/out/killed", tmp_path / "gate"
    command = [str(each) for each in (sys.executable, RUNNER, source, weights, out, 2)]
    environment = {**os.environ, "GATE": str(gate)}
    with subprocess.Popen(command, env=environment) as run:
        try:
            until(lambda: len(parts(out)) >= 2)
            workers = children(run.pid)
        finally:
            run.kill()
    until(lambda: not any(command_of(worker) for worker in workers))
    before = parts(out)
    assert 2 <= len(before) < 8
    gate.touch()
    done = subprocess.run(command, env=environment, timeout=PATIENCE, check=False)
    assert done.returncode == 0
    assert before.items() <= parts(out).items()
    found = embed(source, weights, out=out, workers=0)
    assert found.column("id").to_pylist() == [path.name for path in sorted(source.iterdir())]
    np.testing.assert_allclose(vectors(found), wanted, atol=2e-6)


def test_what_changed_in_a_store_is_embedded_again_and_the_rest_is_kept(store, weights):
    place, out = Remote("s3://bucket/changing"), "s3://bucket/out/changing"
    for seed in range(6):
        (place / f"{seed}.png").write(png(seed))
    embed(str(place), weights, out=out, workers=0)
    (place / "3.png").write(png(99))
    (place / "6.png").write(png(6))
    found = embed(str(place), weights, out=out, workers=0)
    assert found.column("id").to_pylist() == [f"{seed}.png" for seed in range(7)]
    alone = embed([png(seed) for seed in (0, 1, 2, 99, 4, 5, 6)], weights, workers=0)
    np.testing.assert_allclose(vectors(found), vectors(alone), atol=2e-6)
    plan = read_plan(Remote(out))
    assert plan.generation == 1


def test_an_image_that_changed_or_went_after_the_plan_is_its_rows_failure(store, weights):
    place = Remote("s3://bucket/moving")
    for seed in range(3):
        (place / f"{seed}.png").write(png(seed))
    first, second, third = find_inputs(place)
    (place / "1.png").write(png(7))
    (place / "2.png").unlink()
    assert Opener([first])(first) == png(0)
    with pytest.raises(VitrailError, match="changed since the plan was made"):
        Opener()(second)
    with pytest.raises(VitrailError, match="not found"):
        Opener()(third)


def test_a_list_of_web_addresses_has_a_row_for_each_whatever_its_server_says(weights, tmp_path, monkeypatch):
    monkeypatch.setattr(requests, "FIRST_PAUSE", 0.001)
    photos(tmp_path / "site", 2)
    (tmp_path / "site" / "page.png").write_text("<html>")
    quiet = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(quiet, directory=str(tmp_path / "site"))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{server.server_address[1]}"
        names = [f"{base}/00000.png", f"{base}/gone.png", f"{base}/page.png", "http://127.0.0.1:9/x.png"]
        (tmp_path / "site" / "list.txt").write_text("\n".join([*names, "00001.png"]))
        for where in (tmp_path / "site" / "list.txt", f"{base}/list.txt"):
            found = embed(where, weights, workers=0)
            assert found.column("id").to_pylist() == [*names, "00001.png"]
            errors = found.column("error").to_pylist()
            assert errors[0] is None and errors[4] is None  # noqa: PT018
            assert "not found" in errors[1]
            assert "not a readable image" in errors[2]
            assert "was asked 7 times in vain (connection lost)" in errors[3]
        server.shutdown()
    whole = embed(tmp_path / "site" / "00000.png", weights, workers=0)
    np.testing.assert_allclose(vectors(found.slice(0, 1)), vectors(whole), atol=2e-6)


def test_what_is_no_place_is_named_with_the_remedy(weights, source):
    for text in ("ftp://host/x", "s3://", "S3://bucket"):
        with pytest.raises(VitrailError, match="is not a URL that is read"):
            location_of(text)
    with pytest.raises(VitrailError, match=r"cannot be written: outputs go to a folder, s3:// or gs://"):
        frozen(Remote("hf://datasets/me/vectors"), source, weights)


def test_a_bucket_that_is_not_there_is_a_line(store, weights):
    with pytest.raises(RemoteError, match="bucket does not exist"):
        embed("s3://nobody/photos", weights, workers=0)
    with pytest.raises(VitrailError, match="does not exist; give a folder"):
        embed("s3://bucket/nothing", weights, workers=0)


def test_nothing_of_a_network_is_loaded_for_paths():
    script = (
        "import sys, vitrail.vectors.embed, vitrail.vectors.search\n"
        "sys.exit(any(name in sys.modules for name in ('fsspec', 'aiohttp', 'botocore', 's3fs')))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
