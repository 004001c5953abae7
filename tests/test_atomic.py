"""What is written appears whole or not at all; what a killed writer left goes, what a live one holds stays."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from vitrail.atomic import sweep, temporary_folder, write_file
from vitrail.errors import VitrailError

WRITER = """
import sys
from pathlib import Path
from vitrail.atomic import temporary_folder, write_file

def stay(place):
    print(place, flush=True)
    sys.stdin.readline()

def write(file):
    file.write(b"theirs")
    file.flush()
    stay(file.name)

path = Path(sys.argv[1])
if sys.argv[2] == "file":
    write_file(path, write)
else:
    with temporary_folder(path) as folder:
        (folder / "weights").write_bytes(b"theirs")
        stay(folder)
        folder.rename(path)
"""
Kind = str
Start = Callable[[Path, Kind], tuple[subprocess.Popen[str], Path]]


@pytest.fixture
def start() -> Iterator[Start]:
    """A process that has begun to write a path and waits, with the temporary that it writes to."""
    begun: list[subprocess.Popen[str]] = []

    def start(path: Path, kind: Kind) -> tuple[subprocess.Popen[str], Path]:
        command = [sys.executable, "-c", WRITER, str(path), kind]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        begun.append(process)
        assert process.stdout is not None
        return process, Path(process.stdout.readline().strip())

    yield start
    for process in begun:
        process.kill()
        process.communicate()


def write_here(path: Path, kind: Kind) -> None:
    if kind == "file":
        write_file(path, lambda file: file.write(b"mine"))
    else:
        with temporary_folder(path) as folder:
            (folder / "weights").write_bytes(b"mine")
            folder.rename(path)


def content(path: Path, kind: Kind) -> bytes:
    return (path if kind == "file" else path / "weights").read_bytes()


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_the_next_write_removes_what_a_killed_writer_of_the_same_name_left(tmp_path: Path, kind: Kind, start: Start):
    killed, left = start(tmp_path / "out", kind)
    other, others = start(tmp_path / "out.2", kind)
    for process in (killed, other):
        process.kill()
        process.wait()
    assert left.exists()
    write_here(tmp_path / "out", kind)
    assert content(tmp_path / "out", kind) == b"mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["out", others.name])


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_live_writer_keeps_its_temporary_and_finishes(tmp_path: Path, kind: Kind, start: Start):
    live, temporary = start(tmp_path / "out", kind)
    if kind == "file":  # a folder is never written over, so only one of the two writers would succeed
        write_here(tmp_path / "out", kind)
        assert content(tmp_path / "out", kind) == b"mine"
    sweep(tmp_path)
    assert temporary.exists()
    live.communicate("go on\n")
    assert live.returncode == 0
    assert content(tmp_path / "out", kind) == b"theirs"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_many_writers_of_one_name_at_once_all_succeed(tmp_path: Path):
    """Each sweeps while the others are between making a temporary and locking it."""
    faults: list[BaseException] = []

    def write(number: int) -> None:
        try:
            for _ in range(25):
                write_file(tmp_path / "out", lambda file: file.write(b"%d" % number * 1000))
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    data = (tmp_path / "out").read_bytes()
    assert data == data[:1] * 1000


def test_without_replacing_the_first_of_many_writers_wins(tmp_path: Path):
    wrote = []

    def write(number: int) -> None:
        if write_file(tmp_path / "out", lambda file: file.write(b"%d" % number), replace=False):
            wrote.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wrote) == 1
    assert (tmp_path / "out").read_bytes() == b"%d" % wrote[0]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_sweep_takes_temporaries_only(tmp_path: Path):
    names = [".out.part", ".out.abc.part", "out.0123abcd.part", ".out.0123abcd.part.txt", ".out.0123ABCD.part"]
    for name in names:
        (tmp_path / name).touch()
    (tmp_path / ".a\nb.0123abcd.part").touch()
    (tmp_path / ".out.0123abcd.part").touch()
    (tmp_path / ".link.0123abcd.part").symlink_to(tmp_path / ".out.part")
    sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*names, ".link.0123abcd.part"])


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 250, "file/below"])
def test_a_name_that_cannot_be_written_is_one_line(tmp_path: Path, name: str):
    (tmp_path / "file").touch()
    with pytest.raises(VitrailError, match=r"was not written|is not a file name") as caught:
        write_file(Path(name) if not name else tmp_path / name, lambda file: file.write(b""))
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
