from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from embedding import frozen, photos, png, read_rows, save_weights
from vitrail import embed, search
from vitrail.charts.contact_sheet import Tile, contact_sheet, fitted
from vitrail.charts.raster import font
from vitrail.checkpoint.read import load
from vitrail.errors import VitrailError
from vitrail.vectors.engines.engine import build_engine
from vitrail.vectors.found import match_tile, query_tile
from vitrail.vectors.job.part_files import part_path
from vitrail.vectors.job.plan import Plan
from vitrail.vectors.job.shard import process_shard
from vitrail.vectors.search import embed_query, nearest, stored

COUNT = 40


@pytest.fixture(scope="module", params=["float32", "float16"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Plan]:
    root = tmp_path_factory.mktemp("search")
    weights = save_weights(root / "w.safetensors")
    source = photos(root / "photos", COUNT)
    (source / "00003.png").write_bytes(b"no image")
    plan, engine = frozen(root / "out", source, weights, 7, dtype=request.param), build_engine(load(weights))
    for shard in range(plan.shards):
        process_shard(root / "out", plan, shard, engine)
    return root / "out", plan


def test_what_is_found_is_what_sorting_every_cosine_in_float64_finds(run: tuple[Path, Plan]):
    folder, plan = run
    rows = [row for row in read_rows(folder) if row["status"] == "ok"]
    vectors = np.array([row["vector"] for row in rows], np.float64)
    query = np.random.default_rng(0).normal(size=24)
    cosines = vectors @ query / np.linalg.norm(vectors, axis=1) / np.linalg.norm(query)
    order = np.argsort(-cosines)[:9]
    found = nearest(folder, plan, query.astype(np.float32), 9)
    assert [match.id for match in found.matches] == [rows[place]["id"] for place in order]
    np.testing.assert_allclose([match.score for match in found.matches], cosines[order], atol=1e-5)
    assert (found.searched, found.missing) == (COUNT - 1, 0)
    assert all((match.height, match.width) == (10, 14) for match in found.matches)


def test_an_image_that_was_embedded_finds_itself(run: tuple[Path, Plan]):
    folder, plan = run
    for seed in (0, 12, 39):
        name = f"{seed:05d}.png"
        query = embed_query(folder, plan, Path(plan.input) / name)
        match = nearest(folder, plan, query, 1).matches[0]
        assert match.id == name
        assert match.score == pytest.approx(1.0, abs=1e-5)
        vector, itself = stored(folder, plan, name)
        np.testing.assert_allclose(vector, query, rtol=2e-3, atol=2e-3)  # float16 has 11 bits
        assert (itself.shard, itself.row) == (match.shard, match.row) == divmod(seed, 7)


def test_the_query_and_its_copies_are_left_out_and_named_and_the_rest_keeps_its_order(tmp_path: Path):
    weights, source = save_weights(tmp_path / "w.safetensors"), photos(tmp_path / "photos", 9)
    (source / "copy.png").write_bytes((source / "00004.png").read_bytes())
    plan, engine = frozen(tmp_path / "out", source, weights, 3), build_engine(load(weights))
    for shard in range(plan.shards):
        process_shard(tmp_path / "out", plan, shard, engine)
    query, itself = stored(tmp_path / "out", plan, "00004.png")
    outside = tmp_path / "elsewhere.png"
    outside.write_bytes((source / "00004.png").read_bytes())
    every = nearest(tmp_path / "out", plan, query, 10)
    assert every.left_out == []
    for leave_out in (itself, source / "00004.png", outside):
        found = nearest(tmp_path / "out", plan, query, 5, leave_out=leave_out)
        assert found.left_out == ["00004.png", "copy.png"]
        assert found.matches == [match for match in every.matches if match.id not in found.left_out][:5]
    new = nearest(tmp_path / "out", plan, query, 5, leave_out=weights)  # another file: nothing is left out
    assert (new.left_out, new.matches) == ([], every.matches[:5])


def test_an_id_without_a_vector_or_without_a_row_is_named(run: tuple[Path, Plan]):
    folder, plan = run
    with pytest.raises(VitrailError, match=r"00003.png has no vector: not a readable image"):
        stored(folder, plan, "00003.png")
    with pytest.raises(VitrailError, match=r"has no input 'x.png'; ids are paths relative to"):
        stored(folder, plan, "x.png")


def test_more_than_there_is_gives_all_there_is(run: tuple[Path, Plan]):
    folder, plan = run
    assert len(nearest(folder, plan, np.ones(24, np.float32), 1000).matches) == COUNT - 1
    with pytest.raises(VitrailError, match="top 0 is not positive"):
        nearest(folder, plan, np.ones(24, np.float32), 0)
    with pytest.raises(VitrailError, match="the query has 5 numbers and the vectors 24"):
        nearest(folder, plan, np.ones(5, np.float32))


def test_an_unfinished_run_is_searched_as_far_as_it_is(tmp_path: Path):
    weights, source = save_weights(tmp_path / "w.safetensors"), photos(tmp_path / "photos", 6)
    plan = frozen(tmp_path / "out", source, weights, 4)
    with pytest.raises(VitrailError, match="has no vectors yet"):
        nearest(tmp_path / "out", plan, np.ones(24, np.float32))
    process_shard(tmp_path / "out", plan, 1, build_engine(load(weights)))
    found = nearest(tmp_path / "out", plan, np.ones(24, np.float32))
    assert (len(found.matches), found.searched, found.missing) == (2, 2, 1)
    assert not part_path(tmp_path / "out", 0).exists()


def test_moved_weights_are_taken_and_other_weights_are_not(tmp_path: Path):
    weights, source = save_weights(tmp_path / "w.safetensors"), photos(tmp_path / "photos", 2)
    plan = frozen(tmp_path / "out", source, weights)
    process_shard(tmp_path / "out", plan, 0, build_engine(load(weights)))
    moved = weights.rename(tmp_path / "moved.safetensors")
    image = source / "00000.png"
    with pytest.raises(VitrailError, match="do not exist"):
        embed_query(tmp_path / "out", plan, image)
    assert embed_query(tmp_path / "out", plan, image, weights=moved).shape == (24,)
    with pytest.raises(VitrailError, match="are not the ones"):
        embed_query(tmp_path / "out", plan, image, weights=save_weights(tmp_path / "o.safetensors", seed=2))


def test_a_sheet_shows_the_pictures_and_says_what_cannot_be_shown(tmp_path: Path):
    weights, source = save_weights(tmp_path / "w.safetensors"), photos(tmp_path / "photos", 3)
    plan = frozen(tmp_path / "out", source, weights)
    process_shard(tmp_path / "out", plan, 0, build_engine(load(weights)))
    _, match = stored(tmp_path / "out", plan, "00001.png")
    shown = match_tile(tmp_path / "out", plan, match)
    assert shown.picture is not None
    assert shown.picture.size == (300, 214)  # 14 × 10, as wide as a tile
    (source / "00001.png").write_bytes(png(5, 30, 30))
    changed = match_tile(tmp_path / "out", plan, match)
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
    with pytest.raises(VitrailError, match="the table has no id 'gone'"):
        search(table, id="gone")
    with pytest.raises(VitrailError, match="give either an image or id="):
        search(table)
