from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from embedding import png
from vitrail.errors import VitrailError
from vitrail.images.decode import ImageError
from vitrail.vectors.job.find import find_inputs
from vitrail.vectors.job.opener import Opener


def ids(path: Path) -> list[str]:
    return [each.id for each in find_inputs(path)]


def write(path: Path, data: bytes = b"x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def write_tar(path: Path, members: list[tuple[str, bytes]]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def write_table(path: Path, images: list, *, column: str = "image", rows_per_group: int = 2) -> Path:
    import pyarrow as arrow
    from pyarrow import parquet

    parquet.write_table(arrow.table({column: images}), path, row_group_size=rows_per_group)
    return path


def test_a_folder_is_its_images_in_the_order_of_their_paths(tmp_path: Path):
    for name in ("b.jpg", "a/z.PNG", "a.jpg", "a/b/c.webp", "note.txt", ".hidden.jpg", ".cache/x.jpg", "a/._x.jpg"):
        write(tmp_path / name)
    assert ids(tmp_path) == ["a/b/c.webp", "a/z.PNG", "a.jpg", "b.jpg"]


def test_links_to_files_count_links_to_folders_are_not_followed_and_links_to_nothing_are_inputs(tmp_path: Path):
    write(tmp_path / "real" / "a.jpg")
    (tmp_path / "in" / "sub").mkdir(parents=True)
    (tmp_path / "in" / "linked.jpg").symlink_to(tmp_path / "real" / "a.jpg")
    (tmp_path / "in" / "loop").symlink_to(tmp_path / "in")
    (tmp_path / "in" / "folder.jpg").symlink_to(tmp_path / "real")
    (tmp_path / "in" / "nothing.jpg").symlink_to(tmp_path / "gone.jpg")
    found = {each.id: each for each in find_inputs(tmp_path / "in")}
    assert list(found) == ["linked.jpg", "nothing.jpg"]
    assert found["linked.jpg"].size == 1
    assert found["nothing.jpg"].size == -1


def test_names_that_are_no_utf8_or_hold_line_ends_become_ids_of_their_own(tmp_path: Path):
    for raw in (b"\xff.jpg", rb"\xff.jpg", b"a\nb.jpg", "ü.jpg".encode()):
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + raw)).write_bytes(raw)
    found = list(find_inputs(tmp_path))
    assert sorted(each.id for each in found) == sorted(["\\xff.jpg", "\\xff.jpg#2", "a\nb.jpg", "ü.jpg"])
    for each in found:
        assert os.path.basename(each.file) == Path(os.fsdecode(each.file)).read_bytes()


def test_a_list_gives_paths_from_its_own_folder_each_once(tmp_path: Path):
    write(tmp_path / "photos" / "a b.jpg")
    listed = write(tmp_path / "list.txt", b"photos/a b.jpg\r\n\nphotos/gone.jpg\nphotos/a b.jpg\n/tmp/\xfe.jpg")
    inputs = find_inputs(listed)
    found = list(inputs)
    assert [each.id for each in found] == ["photos/a b.jpg", "photos/gone.jpg", "/tmp/\\xfe.jpg"]
    assert [each.size for each in found] == [1, -1, -1]
    assert inputs.repeated == 1
    assert found[2].file == b"/tmp/\xfe.jpg"


def test_a_tars_members_are_read_by_their_offset_and_equal_names_are_numbered(tmp_path: Path):
    members = [("x/a.jpg", b"one"), ("a.cls", b"0"), ("x/._a.jpg", b"mac"), ("x/a.jpg", b"two"), ("b.png", b"three")]
    found = list(find_inputs(write_tar(tmp_path / "s.tar", members)))
    assert [each.id for each in found] == ["s.tar/x/a.jpg", "s.tar/x/a.jpg#2", "s.tar/b.png"]
    assert [Opener()(each) for each in found] == [b"one", b"two", b"three"]


@pytest.mark.parametrize("wrap", [lambda data: data, lambda data: {"bytes": data, "path": "p.jpg"}])
def test_a_tables_rows_are_read_at_random(tmp_path: Path, wrap):
    images = [wrap(f"image {row}".encode()) for row in range(5)] + [None]
    found = list(find_inputs(write_table(tmp_path / "t.parquet", images)))
    assert [each.id for each in found] == [f"t.parquet#{row}" for row in range(6)]
    opener = Opener()
    for row in (4, 0, 3, 1, 2):
        assert opener(found[row]) == f"image {row}".encode()
    assert opener(found[5]) == b""


def test_a_folder_without_images_is_its_tables_or_its_tars(tmp_path: Path):
    write_tar(tmp_path / "b.tar", [("1.jpg", b"1")])
    write_tar(tmp_path / "a.tar", [("1.jpg", b"2")])
    assert ids(tmp_path) == ["a.tar/1.jpg", "b.tar/1.jpg"]
    write(tmp_path / "loose.jpg")
    inputs = find_inputs(tmp_path)
    assert [each.id for each in inputs] == ["loose.jpg"]
    assert inputs.unread == 2


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("gone", None, "does not exist"),
        ("a.zip", b"PK", "not a folder, a list"),
        ("empty.txt", b"\n\n", "is empty"),
        ("a.tar", b"\x1f\x8b not plain", "not a readable tar"),
        ("a.parquet", b"PAR1 no", "not a readable Parquet file"),
    ],
)
def test_what_gives_no_inputs_is_named_with_the_remedy(tmp_path: Path, name: str, data: bytes | None, words: str):
    if data is not None:
        write(tmp_path / name, data)
    with pytest.raises(VitrailError, match=words):
        ids(tmp_path / name)


def test_an_empty_folder_a_mixed_one_and_a_table_without_images_are_refused(tmp_path: Path):
    with pytest.raises(VitrailError, match="holds no images"):
        ids(tmp_path)
    write_tar(tmp_path / "a.tar", [("1.jpg", b"1")])
    table = write_table(tmp_path / "t.parquet", ["x"], column="text")
    with pytest.raises(VitrailError, match="both tables and tars"):
        ids(tmp_path)
    with pytest.raises(VitrailError, match="has columns text"):
        ids(table)


def test_a_cut_tar_is_refused_and_not_embedded_in_part(tmp_path: Path):
    path = write_tar(tmp_path / "s.tar", [(f"{name}.png", png(0) * 40) for name in "abc"])
    path.write_bytes(path.read_bytes()[:9000])
    with pytest.raises(VitrailError, match="not a readable tar"):
        ids(path)


def test_a_file_that_changed_or_went_after_it_was_found_is_not_opened(tmp_path: Path):
    write(tmp_path / "a.jpg", b"1")
    write(tmp_path / "b.jpg", b"1")
    write(tmp_path / "c.jpg", b"1")
    a, b, c = find_inputs(tmp_path)
    assert Opener()(a) == tmp_path / "a.jpg"
    (tmp_path / "a.jpg").write_bytes(b"12")
    os.utime(tmp_path / "b.jpg", ns=(1, 1))
    (tmp_path / "c.jpg").unlink()
    for each, words in ((a, r"changed .*its size"), (b, r"changed .*its time"), (c, "gone since the plan")):
        with pytest.raises(ImageError, match=words):
            Opener()(each)
