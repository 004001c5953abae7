"""The parts that vitrail embed writes open as they are in the tools that people bring."""

from __future__ import annotations

from pathlib import Path

import duckdb
import lancedb
import numpy as np
import pandas
import pyarrow.dataset
import pytest
from lancedb.query import LanceVectorQueryBuilder

from embedding import frozen, photos, save_weights
from vitrail import search
from vitrail.checkpoint.read import load
from vitrail.vectors.engines.engine import build_engine
from vitrail.vectors.job.shard import process_shard

QUERY = "00002.png"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("readers")
    weights, source = save_weights(root / "w.safetensors"), photos(root / "photos", 11)
    (source / "00003.png").write_bytes(b"no image")
    plan, engine = frozen(root / "out", source, weights, 4), build_engine(load(weights))
    for shard in range(plan.shards):
        process_shard(root / "out", plan, shard, engine)
    return root / "out"


@pytest.fixture(scope="module")
def nearest(folder: Path) -> list[tuple[str, float]]:
    return [(match.id, match.score) for match in search(folder, id=QUERY, top=3, with_itself=True).matches]


def same(found: list[tuple[str, float]], nearest: list[tuple[str, float]]) -> None:
    assert [name for name, _ in found] == [name for name, _ in nearest]
    np.testing.assert_allclose([score for _, score in found], [score for _, score in nearest], atol=1e-5)


def test_pandas_reads_every_part_as_one_frame(folder: Path, nearest):
    frame = pandas.concat(map(pandas.read_parquet, sorted(folder.glob("part-*.parquet"))), ignore_index=True)
    assert list(frame.columns) == ["id", "status", "error", "height", "width", "vector"]
    assert (len(frame), frame.status.value_counts().to_dict()) == (11, {"ok": 10, "failed": 1})
    known = frame[frame.status == "ok"].set_index("id")
    vectors = np.stack(known.vector.tolist())
    assert (vectors.shape, vectors.dtype) == ((10, 24), np.float32)
    cosines = vectors @ known.vector[QUERY] / np.linalg.norm(vectors, axis=1) / np.linalg.norm(known.vector[QUERY])
    same([(known.index[place], cosines[place]) for place in np.argsort(-cosines)[:3]], nearest)


def test_duckdb_searches_the_parts_in_sql(folder: Path, nearest):
    found = duckdb.sql(f"""
        with known as (select id, vector::FLOAT[24] as vector from '{folder}/part-*.parquet' where status = 'ok')
        select b.id, array_cosine_similarity(a.vector, b.vector) as cosine
        from known a, known b where a.id = '{QUERY}' order by cosine desc limit 3
    """)
    assert found is not None
    same(found.fetchall(), nearest)


def test_lancedb_takes_the_parts_as_a_table_and_searches_it(folder: Path, tmp_path: Path, nearest):
    parts = pyarrow.dataset.dataset(sorted(folder.glob("part-*.parquet")))
    known = parts.to_table(filter=pyarrow.dataset.field("status") == "ok")
    table = lancedb.connect(tmp_path).create_table("photos", known)
    query = next(row["vector"] for row in known.to_pylist() if row["id"] == QUERY)
    builder = table.search(query)
    assert isinstance(builder, LanceVectorQueryBuilder)
    rows = builder.distance_type("cosine").limit(3).to_list()
    same([(row["id"], 1 - row["_distance"]) for row in rows], nearest)


def test_what_embedding_atlas_does_with_files_gives_a_frame_with_a_matrix(folder: Path):
    """`embedding-atlas part-*.parquet --vector vector --query "select * from data where status = 'ok'"`: it reads each
    file by pandas, joins them, asks DuckDB, and makes an array of the column. The package itself brings fifty others,
    two machine-learning libraries among them, so that its steps are taken here without it."""
    data = pandas.concat([pandas.read_parquet(part) for part in sorted(folder.glob("part-*.parquet"))])
    found = duckdb.sql("select * from data where status = 'ok'")
    assert found is not None
    assert len(data) == 11
    assert np.array(found.df()["vector"].to_list()).astype(np.float32).shape == (10, 24)
