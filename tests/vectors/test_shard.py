from __future__ import annotations

import io
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from embedding import CONFIG, drawn, frozen, photos, png, read_rows, save_weights
from vitrail.checkpoint.formats.safetensors import read_safetensors
from vitrail.checkpoint.read import load
from vitrail.errors import VitrailError
from vitrail.vectors.collection import of_folder
from vitrail.vectors.engines.engine import build_engine
from vitrail.vectors.job.engine_factory import engine_of
from vitrail.vectors.job.part_files import is_done, part_path, read_tally
from vitrail.vectors.job.plan import Plan
from vitrail.vectors.job.shard import process_shard
from vitrail.vectors.search import embed_query


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_weights(tmp_path_factory.mktemp("weights") / "w.safetensors")


def do_all(folder: Path, plan: Plan, **options: Any) -> None:
    engine = build_engine(load(plan.weights))
    for shard in range(plan.shards):
        process_shard(folder, plan, shard, engine, **options)


def test_a_vector_is_the_models_own_for_the_pixels_that_pillow_gives(tmp_path: Path, weights: Path):
    source = photos(tmp_path / "photos", 5)
    do_all(tmp_path / "out", frozen(tmp_path / "out", source, weights, 3, exact=True), batch=2)
    model = load(weights).model()
    rows = read_rows(tmp_path / "out")
    assert [row["id"] for row in rows] == [f"{seed:05d}.png" for seed in range(5)]
    for seed, row in enumerate(rows):
        # 10×14 → the shorter side's scale, 8×11.2 wants 12 wide: 9×12 … the middle; CONFIG's image is 8×12
        seen = Image.fromarray(drawn(seed)).resize((12, 9), Image.Resampling.BICUBIC).crop((0, 0, 12, 8))
        pixels = torch.from_numpy(np.asarray(seen).copy()).permute(2, 0, 1)[None] / 255
        with torch.inference_mode():
            wanted = model.vector((pixels - 0.5) / 0.5)[0]
        assert (row["status"], row["error"], row["height"], row["width"]) == ("ok", None, 10, 14)
        # float32 through one block; the engine folds the normalisation into the projection
        np.testing.assert_allclose(row["vector"], wanted, atol=2e-5)


def test_a_row_for_every_input_the_failed_ones_with_a_reason_and_no_vector(tmp_path: Path, weights: Path):
    source = photos(tmp_path / "photos", 4)
    (source / "00001.png").write_bytes(b"no image")
    (source / "00003.png").write_bytes(b"")
    plan = frozen(tmp_path / "out", source, weights)
    do_all(tmp_path / "out", plan)
    rows = read_rows(tmp_path / "out")
    assert [row["status"] for row in rows] == ["ok", "failed", "ok", "failed"]
    assert rows[1]["error"].startswith("not a readable image; ")
    assert rows[3]["error"].startswith("empty, 0 bytes; ")
    for row in (rows[1], rows[3]):
        assert row["vector"] is row["height"] is row["width"] is None
    tally = read_tally(tmp_path / "out", plan, 0)
    assert tally is not None
    assert (tally.ok, dict(tally.reasons)) == (2, {"not a readable image": 1, "empty, 0 bytes": 1})


def test_a_shard_in_which_all_failed_is_a_shard(tmp_path: Path, weights: Path):
    (tmp_path / "a.jpg").touch()
    plan = frozen(tmp_path / "out", tmp_path, weights)
    do_all(tmp_path / "out", plan)
    assert is_done(tmp_path / "out", plan, 0)
    assert read_rows(tmp_path / "out")[0]["status"] == "failed"


def test_neighbours_in_a_batch_do_not_change_a_vector(tmp_path: Path, weights: Path):
    source = photos(tmp_path / "photos", 7)
    found = []
    for batch in (1, 3, 7):
        folder = tmp_path / str(batch)
        do_all(folder, frozen(folder, source, weights), batch=batch)
        found.append(np.array([row["vector"] for row in read_rows(folder)]))
    for other in found[1:]:
        # the same sums, in the order that a matrix product of another height takes
        np.testing.assert_allclose(other, found[0], atol=2e-6)


def test_float16_is_the_float32_vector_rounded(tmp_path: Path, weights: Path):
    from pyarrow import parquet

    source = photos(tmp_path / "photos", 3)
    stored = {}
    for dtype in ("float32", "float16"):
        folder = tmp_path / dtype
        do_all(folder, frozen(folder, source, weights, dtype=dtype))
        kind = parquet.read_schema(part_path(folder, 0)).field("vector").type
        assert (kind.list_size, str(kind.value_type)) == (24, {"float32": "float", "float16": "halffloat"}[dtype])
        stored[dtype] = np.array([row["vector"] for row in read_rows(folder)])
    np.testing.assert_array_equal(stored["float16"], stored["float32"].astype(np.float16))


@pytest.mark.parametrize("kind", ["npy", "safetensors"])
def test_the_tokens_beside_a_part_are_the_models(tmp_path: Path, weights: Path, kind: Any):
    source = photos(tmp_path / "photos", 3)
    (source / "00001.png").write_bytes(b"no image")
    folder = tmp_path / "out"
    do_all(folder, frozen(folder, source, weights, tokens=kind))
    path = folder / f"part-00000.tokens.{kind}"
    vector = read_rows(folder)[2]["vector"]
    if kind == "npy":
        held = np.load(path)
        assert held.shape == (3, CONFIG.tokens, 24)
        assert np.isnan(held[1]).all()
        tokens = held[2]
    else:
        held, _ = read_safetensors(path)
        assert list(held) == ["0", "2"]
        tokens = held["2"].numpy()
    np.testing.assert_allclose(tokens[0], vector, atol=2e-5)  # this model's vector is its CLS token


def test_a_vector_that_its_dtype_cannot_hold_is_a_failure(tmp_path: Path, weights: Path):
    class Loud:
        name, width = "loud", 3

        def vectors(self, images: torch.Tensor) -> torch.Tensor:
            return torch.tensor([[1.0, 2.0, 3.0], [1e5, 0.0, 0.0], [float("nan"), 0.0, 0.0]])

        def features(self, images: torch.Tensor) -> Any: ...

    plan = frozen(tmp_path / "out", photos(tmp_path / "photos", 3), weights, dtype="float16")
    tally = process_shard(tmp_path / "out", plan, 0, Loud(), batch=3)
    assert (tally.ok, tally.failed) == (1, 2)
    assert "float16 cannot hold" in read_rows(tmp_path / "out")[1]["error"]


def test_a_row_that_was_given_up_is_not_tried(tmp_path: Path, weights: Path):
    plan = frozen(tmp_path / "out", photos(tmp_path / "photos", 3), weights)
    tried = []
    engine = build_engine(load(weights))
    process_shard(tmp_path / "out", plan, 0, engine, lost={1: "it hung"}, watch=lambda row, done: tried.append(row))
    assert 1 not in tried
    assert read_rows(tmp_path / "out")[1]["error"] == "it hung"


def test_an_input_that_changed_after_the_plan_is_a_failed_row(tmp_path: Path, weights: Path):
    source = photos(tmp_path / "photos", 4)
    plan = frozen(tmp_path / "out", source, weights)
    (source / "00001.png").write_bytes(png(77, 20, 20))
    (source / "00002.png").unlink()
    do_all(tmp_path / "out", plan)
    errors = [row["error"] for row in read_rows(tmp_path / "out")]
    assert errors[0] is errors[3] is None
    assert errors[1].startswith("changed since the plan was made (its size)")
    assert errors[2].startswith("cannot be read (No such file or directory), gone")


def test_doing_a_shard_again_gives_the_same_bytes(tmp_path: Path, weights: Path):
    plan = frozen(tmp_path / "out", photos(tmp_path / "photos", 5), weights)
    do_all(tmp_path / "out", plan)
    before = part_path(tmp_path / "out", 0).read_bytes()
    do_all(tmp_path / "out", plan)
    assert part_path(tmp_path / "out", 0).read_bytes() == before


def test_a_part_is_done_only_whole_and_of_this_plan(tmp_path: Path, weights: Path):
    source = photos(tmp_path / "photos", 5)
    plan = frozen(tmp_path / "a", source, weights, 3)
    other = frozen(tmp_path / "b", source, weights, 3, dtype="float16")
    do_all(tmp_path / "a", plan)
    part = part_path(tmp_path / "a", 0)
    assert is_done(tmp_path / "a", plan, 0)
    assert not is_done(tmp_path / "b", other, 0)
    part_path(tmp_path / "b", 0).write_bytes(part.read_bytes())
    assert not is_done(tmp_path / "b", other, 0)
    part_path(tmp_path / "a", 1).write_bytes(part.read_bytes())
    assert not is_done(tmp_path / "a", plan, 1)
    part.write_bytes(part.read_bytes()[:-20])
    assert not is_done(tmp_path / "a", plan, 0)


def test_a_full_disk_is_one_line_and_leaves_nothing_behind(tmp_path: Path, weights: Path):
    plan = frozen(tmp_path / "out", photos(tmp_path / "photos", 64), weights)
    before = sorted(path.name for path in (tmp_path / "out").iterdir())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(VitrailError, match=r"part-00000.parquet was not written \(File too large\)"):
            do_all(tmp_path / "out", plan)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == before
    do_all(tmp_path / "out", plan)
    assert len(read_rows(tmp_path / "out")) == 64


def test_grey_models_get_grey_images(tmp_path: Path):
    weights = save_weights(tmp_path / "grey.safetensors", CONFIG.but(channels=1))
    buffer = io.BytesIO()
    Image.new("L", (14, 10), 77).save(buffer, "PNG")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "grey.png").write_bytes(buffer.getvalue())
    do_all(tmp_path / "out", frozen(tmp_path / "out", tmp_path / "in", weights))
    assert read_rows(tmp_path / "out")[0]["status"] == "ok"


def test_native_images_keep_their_shape_and_get_the_vector_they_get_alone(tmp_path: Path, weights: Path):
    sizes = [(10, 14), (40, 9), (5, 30), (10, 14), (3, 3)]
    (tmp_path / "in").mkdir()
    for number, size in enumerate(sizes):
        (tmp_path / "in" / f"{number}.png").write_bytes(png(number, *size))
    plan = frozen(tmp_path / "out", tmp_path / "in", weights, native=True, token_budget=20)
    process_shard(tmp_path / "out", plan, 0, engine_of(tmp_path / "out", plan), batch=4)
    rows = read_rows(tmp_path / "out")
    assert [(row["height"], row["width"]) for row in rows] == sizes
    for number, row in enumerate(rows):
        alone = embed_query(of_folder(tmp_path / "out"), tmp_path / "in" / f"{number}.png")
        np.testing.assert_allclose(row["vector"], alone, atol=2e-5)


def test_vectors_of_several_scales_are_the_mean_of_their_unit_vectors(tmp_path: Path, weights: Path):
    source = photos(tmp_path / "photos", 3)
    plan = frozen(tmp_path / "out", source, weights, scales=(1.0, 2.0), exact=True)
    process_shard(tmp_path / "out", plan, 0, engine_of(tmp_path / "out", plan))
    for row in read_rows(tmp_path / "out"):
        length = float(np.linalg.norm(row["vector"]))
        assert 0.3 < length <= 1 + 1e-6  # of two unit vectors, at an angle


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"keep_cosine": 0.99, "merge": 0.2}, "--keep-cosine and --merge cannot be combined"),
        ({"keep_cosine": 1.0}, "keep_cosine 1.0 is not a number above 0 and below 1"),
        ({"native": True, "tokens": "npy"}, "--native and --tokens cannot be combined"),
        ({"merge": 0.1, "tokens": "npy"}, "--merge and --tokens cannot be combined"),
        ({"merge": 16.0}, "merge 16.0 is not a number of 0 or more and below 1"),
    ],
)
def test_what_does_not_go_together_is_refused_before_a_plan_is_made(tmp_path, weights, options, words):
    with pytest.raises(VitrailError, match=words):
        frozen(tmp_path / "out", photos(tmp_path / "photos", 1), weights, **options)
    assert not (tmp_path / "out").exists()
