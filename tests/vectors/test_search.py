from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from PIL import Image

from embedding import frozen, photos, png, read_rows, save_weights
from vitrail import embed, near_duplicates, outliers, search
from vitrail.charts.contact_sheet import Tile, contact_sheet, fitted
from vitrail.charts.raster import font
from vitrail.checkpoint.read import load
from vitrail.errors import VitrailError
from vitrail.vectors import collection as collections
from vitrail.vectors.collection import Collection, of_folder
from vitrail.vectors.cosine import nearest_in, unit
from vitrail.vectors.engines.engine import build_engine
from vitrail.vectors.found import match_tile, query_tile
from vitrail.vectors.index import open_index
from vitrail.vectors.job.part_files import part_path
from vitrail.vectors.job.shard import process_shard
from vitrail.vectors.search import embed_query, nearest, stored

COUNT = 40


@pytest.fixture(scope="module", params=["float32", "float16"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Collection:
    root = tmp_path_factory.mktemp("search")
    weights = save_weights(root / "w.safetensors")
    source = photos(root / "photos", COUNT)
    (source / "00003.png").write_bytes(b"no image")
    plan, engine = frozen(root / "out", source, weights, 7, dtype=request.param), build_engine(load(weights))
    for shard in range(plan.shards):
        process_shard(root / "out", plan, shard, engine)
    return of_folder(root / "out")


def test_what_is_found_is_what_sorting_every_cosine_in_float64_finds(run: Collection):
    assert run.folder is not None
    rows = [row for row in read_rows(Path(str(run.folder))) if row["status"] == "ok"]
    vectors = np.array([row["vector"] for row in rows], np.float64)
    query = np.random.default_rng(0).normal(size=24)
    cosines = vectors @ query / np.linalg.norm(vectors, axis=1) / np.linalg.norm(query)
    order = np.argsort(-cosines)[:9]
    found = nearest(run, query.astype(np.float32), 9)
    assert [match.id for match in found.matches] == [rows[place]["id"] for place in order]
    np.testing.assert_allclose([match.score for match in found.matches], cosines[order], atol=1e-5)
    assert (found.searched, found.missing) == (COUNT - 1, 0)
    assert all((match.height, match.width) == (10, 14) for match in found.matches)


def test_an_image_that_was_embedded_finds_itself(run: Collection):
    assert run.plan is not None
    for seed in (0, 12, 39):
        name = f"{seed:05d}.png"
        query = embed_query(run, Path(run.plan.input) / name)
        match = nearest(run, query, 1).matches[0]
        assert match.id == name
        assert match.score == pytest.approx(1.0, abs=1e-5)
        vector, itself = stored(run, name)
        np.testing.assert_allclose(vector, unit(query), rtol=2e-3, atol=2e-3)  # float16 has 11 bits
        assert (itself.shard, itself.row) == (match.shard, match.row) == divmod(seed, 7)


def test_the_query_and_its_copies_are_left_out_and_named_and_the_rest_keeps_its_order(tmp_path: Path):
    weights, source = save_weights(tmp_path / "w.safetensors"), photos(tmp_path / "photos", 9)
    (source / "copy.png").write_bytes((source / "00004.png").read_bytes())
    plan, engine = frozen(tmp_path / "out", source, weights, 3), build_engine(load(weights))
    for shard in range(plan.shards):
        process_shard(tmp_path / "out", plan, shard, engine)
    query, itself = stored(of_folder(tmp_path / "out"), "00004.png")
    outside = tmp_path / "elsewhere.png"
    outside.write_bytes((source / "00004.png").read_bytes())
    every = nearest(of_folder(tmp_path / "out"), query, 10)
    assert every.left_out == []
    for leave_out in (itself, source / "00004.png", outside):
        found = nearest(of_folder(tmp_path / "out"), query, 5, leave_out=leave_out)
        assert found.left_out == ["00004.png", "copy.png"]
        assert found.matches == [match for match in every.matches if match.id not in found.left_out][:5]
    new = nearest(of_folder(tmp_path / "out"), query, 5, leave_out=weights)  # another file: nothing is left out
    assert (new.left_out, new.matches) == ([], every.matches[:5])


def test_an_id_without_a_vector_or_without_a_row_is_named(run: Collection):
    with pytest.raises(VitrailError, match=r"00003.png has no vector: not a readable image"):
        stored(run, "00003.png")
    with pytest.raises(VitrailError, match=r"has no input 'x.png'; ids are paths relative to"):
        stored(run, "x.png")


def test_more_than_there_is_gives_all_there_is(run: Collection):
    assert len(nearest(run, np.ones(24, np.float32), 1000).matches) == COUNT - 1
    with pytest.raises(VitrailError, match="top 0 is not positive"):
        nearest(run, np.ones(24, np.float32), 0)
    with pytest.raises(VitrailError, match="the query has 5 numbers and the vectors 24"):
        nearest(run, np.ones(5, np.float32))


def test_an_unfinished_run_is_searched_as_far_as_it_is(tmp_path: Path):
    weights, source = save_weights(tmp_path / "w.safetensors"), photos(tmp_path / "photos", 6)
    plan = frozen(tmp_path / "out", source, weights, 4)
    with pytest.raises(VitrailError, match="has no vectors yet"):
        nearest(of_folder(tmp_path / "out"), np.ones(24, np.float32))
    process_shard(tmp_path / "out", plan, 1, build_engine(load(weights)))
    found = nearest(of_folder(tmp_path / "out"), np.ones(24, np.float32))
    assert (len(found.matches), found.searched, found.missing) == (2, 2, 1)
    assert not part_path(tmp_path / "out", 0).exists()


def test_moved_weights_are_taken_and_other_weights_are_not(tmp_path: Path):
    weights, source = save_weights(tmp_path / "w.safetensors"), photos(tmp_path / "photos", 2)
    plan = frozen(tmp_path / "out", source, weights)
    process_shard(tmp_path / "out", plan, 0, build_engine(load(weights)))
    moved = weights.rename(tmp_path / "moved.safetensors")
    image = source / "00000.png"
    with pytest.raises(VitrailError, match="do not exist"):
        embed_query(of_folder(tmp_path / "out"), image)
    assert embed_query(of_folder(tmp_path / "out"), image, weights=moved).shape == (24,)
    with pytest.raises(VitrailError, match="are not the ones"):
        embed_query(of_folder(tmp_path / "out"), image, weights=save_weights(tmp_path / "o.safetensors", seed=2))


def test_a_sheet_shows_the_pictures_and_says_what_cannot_be_shown(tmp_path: Path):
    weights, source = save_weights(tmp_path / "w.safetensors"), photos(tmp_path / "photos", 3)
    plan = frozen(tmp_path / "out", source, weights)
    process_shard(tmp_path / "out", plan, 0, build_engine(load(weights)))
    every = of_folder(tmp_path / "out")
    match = nearest(every, stored(every, "00001.png")[0], 1).matches[0]
    assert match.id == "00001.png"
    shown = match_tile(every, match)
    assert shown.picture is not None
    assert shown.picture.size == (300, 214)  # 14 × 10, as wide as a tile
    (source / "00001.png").write_bytes(png(5, 30, 30))
    changed = match_tile(every, match)
    assert changed.picture is None
    assert changed.fault.startswith("changed since the plan was made")
    red = tmp_path / "red.png"
    Image.new("RGB", (40, 40), (250, 0, 0)).save(red)
    sheet = contact_sheet("Nearest", "to red", query_tile("red.png", lambda: red), [shown, changed])
    assert sheet.getpixel((64 + 310, 150 + 310)) == (250, 0, 0)
    assert sheet.width > sheet.height


def test_a_long_name_keeps_both_its_ends_and_no_command_of_a_terminal(tmp_path: Path):
    name = "2019/holidays/\x1b[31m" + "very-" * 40 + "long.jpg"
    shown = fitted(name, 17, 300)
    assert shown.startswith("2019/")
    assert shown.endswith("long.jpg")
    assert "\x1b" not in shown
    assert font(17).getlength(shown) <= 300
    assert Tile(name="a").score is None


def test_a_table_and_its_folder_give_the_same_answers(tmp_path: Path):
    weights, source = save_weights(tmp_path / "w.safetensors"), photos(tmp_path / "photos", 9)
    table = embed(source, weights, out=tmp_path / "out", workers=0)
    for itself in (False, True):
        found = search(table, id="00004.png", top=3, with_itself=itself)
        assert found.matches == search(tmp_path / "out", id="00004.png", top=3, with_itself=itself).matches
    new = png(77)
    by_table = search(table, new, weights=weights).matches
    assert [match.id for match in by_table] == [match.id for match in search(tmp_path / "out", new).matches]
    assert search(tmp_path / "out", id="00004.png").left_out == ["00004.png"]
    with pytest.raises(VitrailError, match="give weights="):
        search(table, new)
    with pytest.raises(VitrailError, match="the query has no vector: not a readable image"):
        search(table, b"text", weights=weights)
    with pytest.raises(VitrailError, match=r"the table has no vector of 'gone'; its first id is 00000.png"):
        search(table, id="gone")
    with pytest.raises(VitrailError, match="give either an image or id="):
        search(table)


# ── many vectors ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("count", "queries", "k"), [(7, 3, 11), (200, 5, 13), (200, 1, 1)])
def test_running_best_over_blocks_are_the_first_of_all_sorted_and_ties_keep_their_order(count, queries, k):
    dice = np.random.default_rng(count + k)
    vectors = dice.integers(-2, 3, (count, 4)).astype(np.float32)  # small integers: products are exact, and tie
    asked = dice.integers(-2, 3, (queries, 4)).astype(np.float32)
    blocks = np.split(vectors, [2, 3, count // 2])
    found = nearest_in(blocks, asked, k)
    products = asked.astype(np.int64) @ vectors.astype(np.int64).T
    order = np.argsort(-products, axis=1, kind="stable")[:, :k]
    there = min(k, count)
    np.testing.assert_array_equal(found.places[:, :there], order)
    np.testing.assert_array_equal(found.scores[:, :there], np.take_along_axis(products, order, 1))
    assert (found.places[:, there:] == -1).all()
    assert np.isneginf(found.scores[:, there:]).all()


@pytest.fixture
def many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that counts as large: its vectors are kept in a file that is mapped."""
    monkeypatch.setattr(collections, "SMALL", 10)
    monkeypatch.setattr(collections, "BLOCK", 9)
    monkeypatch.setattr(collections, "LARGEST", 12)
    weights, source = save_weights(tmp_path / "w.safetensors"), photos(tmp_path / "photos", 40)
    (source / "00003.png").write_bytes(b"no image")
    (source / "copy.png").write_bytes((source / "00030.png").read_bytes())
    plan, engine = frozen(tmp_path / "out", source, weights, 5), build_engine(load(weights))
    for shard in range(plan.shards):
        process_shard(tmp_path / "out", plan, shard, engine)
    return tmp_path / "out"


def test_a_large_run_is_mapped_from_a_file_that_is_written_once_and_again_when_parts_change(many: Path):
    parts = [pyarrow.parquet.read_table(path) for path in sorted(many.glob("part-*.parquet"))]
    table = pyarrow.concat_tables(part.replace_schema_metadata(None) for part in parts)
    expected = search(table, id="00007.png", with_itself=True)
    kept = many / "search.arrow"
    for _ in range(2):
        found = search(many, id="00007.png", with_itself=True)
        # the copy's cosine is its original's up to rounding, which differs between blocks
        names, wanted = ([match.id.replace("copy", "00030") for match in each.matches] for each in (found, expected))
        assert names == wanted
        np.testing.assert_allclose(
            [match.score for match in found.matches], [match.score for match in expected.matches], atol=1e-6
        )
        assert found.searched == 40
    first = kept.stat()
    assert len(of_folder(many).blocks) > 3
    assert kept.stat().st_ino == first.st_ino
    part = part_path(many, 2)
    part.write_bytes(part.read_bytes())  # the same vectors, at another time
    search(many, id="00007.png")
    assert kept.stat().st_ino != first.st_ino
    kept.write_bytes(kept.read_bytes()[:1000])
    assert search(many, id="00007.png", with_itself=True).searched == 40


def test_a_large_run_without_room_for_the_file_or_not_finished_is_searched_all_the_same(many: Path):
    expected = search(many, id="00007.png")
    (many / "search.arrow").unlink()
    (many / "search.arrow").mkdir()
    assert search(many, id="00007.png") == expected
    (many / "search.arrow").rmdir()
    part_path(many, 0).unlink()
    unfinished = search(many, id="00007.png")
    assert (unfinished.missing, unfinished.searched) == (1, 36)
    assert not (many / "search.arrow").exists()


def test_an_index_finds_what_it_says_and_its_scores_are_exact(many: Path):
    collection = of_folder(many)
    index = open_index(collection)
    every = np.concatenate(collection.blocks)
    found = index.nearest(every, 11)
    truth = np.argsort(-(every.astype(np.float64) @ every.T), axis=1)[:, :11]
    shares = [
        len(({*row} - {own}) & ({*true} - {own})) / 10
        for own, (row, true) in enumerate(zip(found.places, truth, strict=True))
    ]
    assert index.recall.queries == 40  # fewer than are sampled: all of them
    assert index.recall.at_10 == pytest.approx(np.mean(shares), abs=0.01)  # the copy ties with its original
    assert index.recall.at_10 >= 0.95
    known = found.places >= 0
    cosines = np.take_along_axis(every @ every.T, found.places, 1)
    np.testing.assert_allclose(found.scores[known], cosines[known], atol=1e-5)
    files = {path.name: path.stat().st_ino for path in many.glob("search-*")}
    assert sorted(Path(name).suffix for name in files) == [".faiss", ".json"]
    again = search(many, id="00007.png", exact=False)
    assert again.recall == index.recall
    assert {path.name: path.stat().st_ino for path in many.glob("search-*")} == files
    assert search(many, id="00007.png", exact=True).recall is None


@pytest.mark.parametrize("exact", [True, False])
def test_near_duplicates_are_the_chains_of_all_pairs_above_the_threshold(many: Path, exact: bool):
    collection = of_folder(many)
    every = np.concatenate(collection.blocks).astype(np.float64)
    cosines = every @ every.T
    threshold = float(np.quantile(cosines[np.triu_indices(40, 1)], 0.97))
    groups = [{place} for place in range(40)]
    for a, b in zip(*np.nonzero(np.triu(cosines >= threshold, 1)), strict=True):
        joined = [group for group in groups if a in group or b in group]
        groups = [group for group in groups if group not in joined] + [set().union(*joined)]
    names = collection.table.column("id").to_pylist()
    expected = {tuple(names[place] for place in sorted(group)) for group in groups if len(group) > 1}
    found = near_duplicates(many, threshold, exact=exact)
    assert {tuple(match.id for match in group) for group in found.groups} == expected
    assert any({"00030.png", "copy.png"} <= set(group) for group in expected)
    sizes = [len(group) for group in found.groups]
    assert sizes == sorted(sizes, reverse=True)
    assert (found.recall is None) == exact
    (pair,) = near_duplicates(many, 1.0).groups
    assert [(match.id, round(match.score, 5)) for match in pair] == [("00030.png", 1.0), ("copy.png", 1.0)]
    with pytest.raises(VitrailError, match=r"threshold 1.5 is not a cosine in \(0, 1\]"):
        near_duplicates(many, 1.5)


@pytest.mark.parametrize("exact", [True, False])
def test_outliers_have_the_lowest_mean_cosine_to_their_ten_nearest(many: Path, exact: bool):
    every = np.concatenate(of_folder(many).blocks).astype(np.float64)
    cosines = every @ every.T
    np.fill_diagonal(cosines, -np.inf)
    means = np.sort(cosines, axis=1)[:, -10:].mean(axis=1)
    found = outliers(many, top=5, exact=exact)
    names = of_folder(many).table.column("id").to_pylist()
    assert [match.id for match in found.matches] == [names[place] for place in np.argsort(means)[:5]]
    np.testing.assert_allclose([match.score for match in found.matches], np.sort(means)[:5], atol=1e-5)
