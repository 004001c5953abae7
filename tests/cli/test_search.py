from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from command import call
from embedding import frozen, photos, save_weights
from vitrail.checkpoint.read import load
from vitrail.vectors.engines.engine import build_engine
from vitrail.vectors.job.shard import process_shard


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("search")
    weights, source = save_weights(root / "w.safetensors"), photos(root / "photos", 20)
    plan, engine = frozen(root / "out", source, weights), build_engine(load(weights))
    for shard in range(plan.shards):
        process_shard(root / "out", plan, shard, engine)
    return root / "out"


def test_an_image_is_found_first_in_the_table_and_drawn_on_the_sheet(
    tmp_path: Path, vectors: Path, capsys: pytest.CaptureFixture[str]
):
    query, sheet = vectors.parent / "photos" / "00007.png", tmp_path / "sheet.png"
    assert call("search", str(vectors), str(query), "--top", "5", "--with-itself", "--out", str(sheet)) == 0
    shown = capsys.readouterr().out
    lines = [line.split() for line in shown.splitlines()]
    (first,) = [line for line in lines if line[:1] == ["1"]]
    assert first == ["1", "1.0000", "10", "×", "14", "00007.png"]
    assert sum(line[:1] == [str(rank)] for line in lines for rank in range(1, 7)) == 5
    assert "exact cosine over 20 vectors of w.safetensors" in shown
    with Image.open(sheet) as drawn:
        assert drawn.format == "PNG"
        assert min(drawn.size) > 800


def test_json_has_exact_values_and_an_id_finds_itself(vectors: Path, capsys: pytest.CaptureFixture[str]):
    assert call("search", str(vectors), "--id", "00011.png", "--top", "2", "--with-itself", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["searched"] == 20
    assert found["matches"][0]["id"] == "00011.png"
    assert found["matches"][0]["score"] == pytest.approx(1.0, abs=1e-6)
    assert found["matches"][1]["score"] < 1


def test_the_query_itself_is_left_out_and_named(vectors: Path, capsys: pytest.CaptureFixture[str]):
    query = vectors.parent / "photos" / "00011.png"
    assert call("search", str(vectors), "--id", query.name, "--top", "2", "--json") == 0
    by_id = json.loads(capsys.readouterr().out)
    assert by_id["left_out"] == [query.name]
    assert len(by_id["matches"]) == 2
    assert call("search", str(vectors), str(query), "--top", "2") == 0
    shown = capsys.readouterr().out
    assert f"left out as the query itself: {query.name}" in shown
    assert by_id["matches"][0]["id"] in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give one of an image file, --id ID, --near-duplicates and --outliers"),
        (["a.jpg", "--id", "b"], "give one of an image file, --id ID"),
        (["--outliers", "--near-duplicates"], "give one of an image file, --id ID"),
        (["--outliers", "--threshold", "0.9"], "--threshold is for --near-duplicates; give both"),
        (["--near-duplicates", "--threshold", "2"], "threshold 2 is not a cosine"),
        (["--near-duplicates", "--threshold", "1", "--out", "sheet.png"], "no two images have a cosine of 1"),
        (["gone.jpg"], "gone.jpg: cannot be read"),
        (["--id", "gone.jpg"], "has no input 'gone.jpg'"),
        (["--id", "00001.png", "--out", "sheet.tiff"], "does not end in .png; name a file like picture.png"),
        (["--id", "00001.png", "--out", "no/where/sheet.png"], "folder 'no/where' does not exist"),
        (["--id", "00001.png", "--top", "0"], "top 0 is not positive"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(vectors: Path, arguments: list[str], words: str, capsys):
    assert call("search", str(vectors), *arguments) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


def test_a_folder_that_embed_did_not_write_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert call("search", str(tmp_path), "--id", "a") == 2
    assert "holds no plan.json; give a folder that vitrail embed wrote" in capsys.readouterr().err


def test_near_duplicates_and_outliers_are_tables_json_and_sheets(tmp_path: Path, vectors: Path, capsys):
    threshold = "0.6"
    for option, words in (("--near-duplicates", "groups with"), ("--outliers", "exact cosine over 20 vectors")):
        sheet = tmp_path / f"{option}.png"
        more = ["--threshold", threshold] if option == "--near-duplicates" else []
        assert call("search", str(vectors), option, *more, "--top", "3", "--out", str(sheet)) == 0
        assert words in capsys.readouterr().out
        with Image.open(sheet) as drawn:
            assert drawn.format == "PNG"
            assert min(drawn.size) > 400
        assert call("search", str(vectors), option, *more, "--top", "3", "--json") == 0
        found = json.loads(capsys.readouterr().out)
        assert found["searched"] == 20
        ids = [each["id"] for each in found.get("matches") or found["groups"][0]]
        assert len(ids) == len(set(ids)) > 1


def test_explain_splits_each_hits_cosine_over_its_patches_and_draws_them(tmp_path: Path, vectors: Path, capsys):
    assert call("search", str(vectors), "--id", "00011.png", "--top", "3", "--explain", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["id"] for each in found["explained"]] == [match["id"] for match in found["matches"]]
    for each, match in zip(found["explained"], found["matches"], strict=True):
        assert sum(each["parts"]) + each["prefix"] == pytest.approx(each["score"], abs=1e-6)
        assert len(each["parts"]) == each["grid"]["height"] * each["grid"]["width"]
        # the fast decoder's pixels differ from the exact ones by a level of 255
        assert each["vectors"] == pytest.approx(match["score"], abs=0.01)
        assert (each["approximation"] == "") == (abs(each["score"] - each["vectors"]) < 1e-6)
    sheet = tmp_path / "sheet.png"
    assert call("search", str(vectors), "--id", "00011.png", "--top", "3", "--explain", "--out", str(sheet)) == 0
    plain = tmp_path / "plain.png"
    assert call("search", str(vectors), "--id", "00011.png", "--top", "3", "--out", str(plain)) == 0
    assert sheet.read_bytes() != plain.read_bytes()


def test_a_box_over_the_whole_image_finds_the_image_itself_and_says_what_was_pooled(vectors: Path, capsys):
    query = vectors.parent / "photos" / "00007.png"
    with Image.open(query) as picture:
        width, height = picture.size
    box = f"0,0,{height},{width}"
    assert call("search", str(vectors), str(query), "--box", box, "--top", "2") == 0
    shown = capsys.readouterr().out
    assert f"00007.png at {box}" in shown
    assert any(line.split()[:2] == ["1", "1.0000"] and "00007.png" in line for line in shown.splitlines())
    assert "the query is the" in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--id", "00007.png", "--box", "1,2,3"], "box '1,2,3' is not TOP,LEFT,HEIGHT,WIDTH in pixels"),
        (["--id", "00007.png", "--box", "0,0,0,5"], "box '0,0,0,5' is empty"),
        (["--id", "00007.png", "--box", "0,0,5000,5"], "box 0,0,5000,5 is not inside the image"),
        (["--outliers", "--explain"], "--explain and --box are for the images nearest to one"),
        (["--id", "00007.png", "--explain"], "--explain draws into a contact sheet; give --out or --json"),
    ],
)
def test_what_cannot_be_explained_is_one_line(vectors: Path, arguments: list[str], words: str, capsys):
    assert call("search", str(vectors), *arguments) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
