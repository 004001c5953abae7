"""Identify files that are not weights by their first bytes, for a helpful error."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from vitrail.checkpoint.formats.safetensors_header import DAMAGED

__all__ = ["LONGEST_SIGN", "UNPACK", "foreign"]

LONGEST_SIGN = 512
"""Bytes read from the start of a file."""
GIVE = "give safetensors, .npz or a PyTorch file"
EXPORTED = "give the weights that it was exported from"
UNPACK = "unpack it and give the weights inside"


class _Kind(NamedTuple):
    place: int
    sign: bytes
    name: str
    remedy: str


KINDS = (
    _Kind(0, b"\x89PNG\r\n\x1a\n", "a PNG image", GIVE),
    _Kind(0, b"\xff\xd8\xff", "a JPEG image", GIVE),
    _Kind(0, b"GIF8", "a GIF image", GIVE),
    _Kind(8, b"WEBP", "a WebP image", GIVE),
    _Kind(0, b"II*\0", "a TIFF image", GIVE),
    _Kind(0, b"MM\0*", "a TIFF image", GIVE),
    _Kind(0, b"%PDF", "a PDF document", GIVE),
    _Kind(0, b"PAR1", "a Parquet table", GIVE),
    _Kind(0, b"GGUF", "a GGUF model", "give the weights that it was made from"),
    _Kind(4, b"TFL3", "a TensorFlow Lite model", EXPORTED),
    _Kind(0, b"\x89HDF\r\n\x1a\n", "an HDF5 file", "save its arrays by name with numpy.savez"),
    _Kind(0, b"\x93NUMPY", "a single NumPy array", "save all of the model's arrays by name with numpy.savez"),
    _Kind(0, b"\x1f\x8b", "compressed by gzip", UNPACK),
    _Kind(0, b"BZh", "compressed by bzip2", UNPACK),
    _Kind(0, b"\xfd7zXZ\0", "compressed by xz", UNPACK),
    _Kind(0, b"\x28\xb5\x2f\xfd", "compressed by zstd", UNPACK),
    _Kind(0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", UNPACK),
    _Kind(257, b"ustar", "a tar archive", UNPACK),
    _Kind(0, b"version https://git-lfs", "a Git LFS pointer", "fetch what it points to with git lfs pull"),
)
TEXTS = (
    ((b"<!doctype html", b"<html"), "a web page", "the download gave a page instead of the file: fetch it again"),
    ((b"<?xml",), "XML, as OpenVINO's models are", EXPORTED),
    ((b"{",), "JSON", "give the weights themselves, or the directory that holds both"),
)
ENDINGS = {
    ".onnx": (b"\x08", "an ONNX model", EXPORTED),
    ".pb": (b"\x08\x0a", "a TensorFlow graph", EXPORTED),
    ".mlmodel": (b"\x08", "a Core ML model", EXPORTED),
    ".msgpack": (b"", "Flax's msgpack", "save its arrays by name with numpy.savez"),
}
"""Formats without a signature: the suffix, and the bytes that the file may start with."""


def foreign(path: Path, start: bytes) -> str:
    """Return the error message for a file that is not a weights file: what it is, and the remedy."""
    if not start:
        return f"{path} is empty; {DAMAGED}"
    for place, sign, name, remedy in KINDS:
        if start[place : place + len(sign)] == sign:
            return f"{path} is {name}, not a weights file that vitrail reads; {remedy}"
    firsts, name, remedy = ENDINGS.get(path.suffix.lower(), (b"", "", ""))
    if name and (not firsts or start[0] in firsts):
        return f"{path} is {name}, not a weights file that vitrail reads; {remedy}"
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    for beginnings, name, remedy in TEXTS:
        if text.startswith(beginnings):
            return f"{path} is {name}, not a weights file that vitrail reads; {remedy}"
    return f"{path} is neither safetensors, .npz nor a PyTorch file; {DAMAGED}"
