"""Zip archives, as PyTorch and NumPy write them: the directory is checked before anything is unpacked.

Both write the directory at the very end of the file, without a comment after it. An archive that has it elsewhere is
refused, because zip readers disagree on the contents of such archives.
"""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path
from typing import BinaryIO

from vitrail.checkpoint.formats.safetensors_header import DAMAGED
from vitrail.errors import VitrailError, require

__all__ = ["open_archive"]

MOST_MEMBERS = 100_000
"""PyTorch writes one member per tensor, including the optimizer's."""
LONGEST_DIRECTORY = 400 * MOST_MEMBERS
"""Bytes."""
END, LOCATOR_64, END_64 = struct.Struct("<4s4H2LH"), struct.Struct("<4sLQL"), struct.Struct("<4sQ2H2L4Q")


def open_archive(path: Path) -> zipfile.ZipFile:
    """Open a zip; refuse a misplaced or too large directory and repeated member names."""
    with path.open("rb") as file:
        count, length = _directory(path, file)
    require(
        count <= MOST_MEMBERS and length <= LONGEST_DIRECTORY,
        f"{path} is a zip of {count:,} members, named in {length:,} bytes, and at most {MOST_MEMBERS:,} in "
        f"{LONGEST_DIRECTORY:,} are read; save the model's weights alone",
    )
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise VitrailError(f"{path} is a zip that does not open ({error}); {DAMAGED}") from None
    names = archive.namelist()
    if len(set(names)) < len(names):
        archive.close()
        raise VitrailError(f"{path} is a zip that names a member twice; {DAMAGED}")
    return archive


def _directory(path: Path, file: BinaryIO) -> tuple[int, int]:
    """Return the directory's number of members and of bytes, from the records at the end of the file."""
    behind = file.seek(0, 2) - END.size
    sign, _, _, _, count, length, begin, comment = _unpack(path, file, END, behind)
    found = sign == b"PK\5\6" and comment == 0
    if found and behind >= LOCATOR_64.size:
        sign, _, place, _ = _unpack(path, file, LOCATOR_64, behind - LOCATOR_64.size)
        if sign == b"PK\6\7":
            behind -= LOCATOR_64.size + END_64.size
            sign, _, _, _, _, _, _, count, length, begin = _unpack(path, file, END_64, behind)
            found = sign == b"PK\6\6" and place == behind
    require(
        found and begin + length == behind, f"{path} is a zip that does not open (its directory is lost); {DAMAGED}"
    )
    return count, length


def _unpack(path: Path, file: BinaryIO, record: struct.Struct, place: int) -> tuple:
    require(place >= 0, f"{path} is a zip that does not open (it ends too soon); {DAMAGED}")
    file.seek(place)
    return record.unpack(file.read(record.size))
