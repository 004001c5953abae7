"""Small files that claim to be large, or to be weights: refused in one line, before anything is made of the claim."""

from __future__ import annotations

import io
import json
import struct
import time
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from command import call
from faulty import CONFIG, entry, npy, npz, pickled, raw, small, zipped
from vitrail.checkpoint.assess.describe import describe
from vitrail.checkpoint.formats import torch_file
from vitrail.checkpoint.formats.file import Stored, open_stored
from vitrail.checkpoint.read import load, read_stored
from vitrail.checkpoint.write import encode, save
from vitrail.codec import LONGEST_JSON
from vitrail.errors import VitrailError

KNOWN = {"from_image": "32x48", "num_heads": 3}


def timm_state() -> dict[str, torch.Tensor]:
    return dict(encode(small(), "timm").tensors)


def refuse(path: Path, reason: str, capsys: Any, **known: Any) -> None:
    """By load and by the command: with the reason, in one line, soon and without memory."""
    started = time.process_time()
    tracemalloc.start()
    try:
        with pytest.raises(VitrailError, match=reason):
            load(path, **known)
        assert tracemalloc.get_traced_memory()[1] < 60_000_000
    finally:
        tracemalloc.stop()
    assert time.process_time() - started < 10
    assert call("inspect", str(path)) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert len(shown.err) < 1100


# ── tensors ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Made:
    """What the weights-only reader calls by itself: a tensor that the file holds no values of."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (torch.FloatTensor, (12, 30_000, 1_000))


def sparse() -> torch.Tensor:
    return torch.sparse_coo_tensor(torch.zeros(1, 1, dtype=torch.long), torch.ones(1), (12,), check_invariants=True)


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize(
    ("name", "tensor", "reason"),
    [
        (
            "pos_embed",
            torch.zeros(1).expand(1, 10**9, 12),
            r"pos_embed of shape \(1, 1000000000, 12\) claims 12,000,000,000 values and its storage holds 1; save it "
            r"with \.contiguous\(\)",
        ),
        ("pos_embed", torch.zeros(40).as_strided((1, 7, 12), (84, 3, 1)), "claims 84 values and its storage holds 40"),
        ("norm.weight", torch.empty(12, device="meta"), r"norm\.weight is not a plain tensor \(torch.strided, meta"),
        ("norm.weight", sparse(), r"norm\.weight is not a plain tensor \(torch\.sparse_coo"),
        (
            "norm.weight",
            Made(),
            r"claims 1,440,0\d\d,\d{3} bytes of tensors in a file of .* more than 64 times as many",
        ),
    ],
)
def test_a_tensor_without_values_of_its_own_in_the_file_is_refused(
    name: str, tensor: Any, reason: str, legacy: bool, tmp_path: Path, capsys: Any
):
    path = tmp_path / "w.pt"
    torch.save({**timm_state(), name: tensor}, path, _use_new_zipfile_serialization=not legacy)
    assert path.stat().st_size < 100_000
    refuse(path, reason, capsys, **KNOWN)


def test_a_model_whose_every_tensor_is_one_number_is_refused(tmp_path: Path, capsys: Any):
    wide = {name: torch.zeros(1).expand([30_000 if side == 12 else side for side in tensor.shape])
            for name, tensor in timm_state().items()}  # fmt: skip
    torch.save(wide, tmp_path / "w.pt")
    refuse(tmp_path / "w.pt", "claims .* values and its storage holds 1", capsys, **KNOWN)


def test_shared_storages_are_read_as_long_as_they_are_not_shared_without_end(tmp_path: Path, capsys: Any):
    state = timm_state()
    shared = {**state, **{f"head_dist.{number}": state["head.weight"] for number in range(3)}}
    torch.save(shared, tmp_path / "w.pt")
    assert torch.equal(open_stored(tmp_path / "w.pt").tensors["head_dist.2"], state["head.weight"])
    many = torch.zeros(300, 300)
    torch.save({f"blocks.{number}.weight": many for number in range(100)}, tmp_path / "m.pt")
    refuse(tmp_path / "m.pt", "more than 64 times as many; save it with every tensor cloned", capsys)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int64, torch.bool])
def test_weights_of_a_type_that_the_model_has_not_are_refused(dtype: torch.dtype, tmp_path: Path, capsys: Any):
    torch.save({**timm_state(), "norm.weight": torch.ones(12).to(dtype)}, tmp_path / "w.pt")
    refuse(tmp_path / "w.pt", rf"norm\.weight is {dtype} where the model has torch\.float32", capsys, **KNOWN)


def test_weights_in_float8_are_inspected(tmp_path: Path):
    torch.save({**timm_state(), "norm.weight": torch.ones(12).to(torch.float8_e4m3fn)}, tmp_path / "w.pt")
    assert describe(load(tmp_path / "w.pt", **KNOWN)).dtypes["float8_e4m3fn"] == 12


# ── archives ────────────────────────────────────────────────────────────────────────────────────────────────────


def torch_members(state: Any) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(pickled(state))) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def lying_size() -> bytes:
    """An .npz whose directory says 128 bytes of what unpacks to 100 MB."""
    data = bytearray(zipped({"a.npy": b"\0" * 100_000_000}, zipfile.ZIP_DEFLATED))
    directory = data.rfind(b"PK\1\2")
    for place in (22, directory + 24):
        data[place : place + 4] = struct.pack("<I", 128)
    return bytes(data)


def overlapping() -> bytes:
    """A directory with forty names for the same 100,000 bytes."""
    member = zipfile.ZipInfo("archive/data.pkl")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(member, b"\0" * 100_000)
        for number in range(40):
            other = zipfile.ZipInfo(f"archive/data/{number}")
            for name in ("header_offset", "file_size", "compress_size", "CRC"):
                setattr(other, name, getattr(member, name))
            archive.filelist.append(other)
            archive.NameToInfo[other.filename] = other
    return buffer.getvalue()


def two_directories() -> bytes:
    """A second directory in the comment of the first: which one counts depends on the reader."""
    return zipped(torch_members(timm_state())) + zipped({"a.npy": b"\0"})


STATE = torch_members(timm_state())
ARRAY = "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }"
BOMBS: dict[str, tuple[Callable[[], bytes], str]] = {
    "a pickle that unpacks to 50 MB": (
        lambda: zipped({"archive/data.pkl": b"\0" * 50_000_000, "archive/version": b"3\n"}, zipfile.ZIP_DEFLATED),
        r"has compressed members \(archive/data\.pkl, archive/version\)",
    ),
    "an honest model, compressed": (lambda: zipped(STATE, zipfile.ZIP_DEFLATED), "save it again with torch.save"),
    "members that overlap": (overlapping, r"claims members of 4,100,000 bytes in a file of \d{3},\d{3}"),
    "a second directory": (two_directories, "does not open"),
    "TorchScript": (
        lambda: zipped({**STATE, "archive/constants.pkl": b""}),
        "is TorchScript, a program with its weights",
    ),
    "an array that unpacks to 50 MB": (
        lambda: zipped({"embedding/kernel.npy": b"\0" * 50_000_000}, zipfile.ZIP_DEFLATED),
        "would unpack to 50,000,000 bytes from .*, more than 30 times as many, and no weights compress so well",
    ),
    "an array of 4 TiB": (
        lambda: zipped(
            {"a.npy": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776,), }", b"\0" * 64)}
        ),
        r"of shape \(1099511627776,\) in float32 has 64 bytes and needs 4,398,046,511,104",
    ),
    "a size that is a lie": (lying_size, "is not an array|not a readable .npz"),
    "too many members": (
        lambda: zipped({f"{number}.npy": b"" for number in range(100_001)}),
        "a zip of 100,001 members",
    ),
    "lzma": (lambda: zipped({"a.npy": npy(ARRAY, b"\0" * 4)}, zipfile.ZIP_LZMA), "compresses a.npy as NumPy does not"),
    "bzip2": (
        lambda: zipped({"a.npy": npy(ARRAY, b"\0" * 4)}, zipfile.ZIP_BZIP2),
        "compresses a.npy as NumPy does not",
    ),
    "a name twice but for its ending": (lambda: zipped({"a.npy": npy(ARRAY), "a": npy(ARRAY)}), "names an array twice"),
    "no weights at all": (
        lambda: zipped({"a.txt": b"", "b.txt": b""}),
        r"a zip without weights \(it holds a\.txt, b\.txt\)",
    ),
    "nothing at all": (lambda: zipped({}), r"a zip without weights \(it holds nothing\)"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_an_archive_that_is_not_what_its_size_says_is_refused(name: str, tmp_path: Path, capsys: Any):
    made, reason = BOMBS[name]
    path = tmp_path / "w.bin"
    path.write_bytes(made())
    refuse(path, reason, capsys)


def test_archives_as_numpy_and_zip_write_them_are_read(tmp_path: Path):
    """Compressed by NumPy, or unpacked and zipped again without compression, weights are what they were."""
    arrays = {name: tensor.numpy() for name, tensor in encode(small(), "google").tensors.items()}
    np.savez_compressed(tmp_path / "w.npz", **arrays)  # type: ignore[arg-type]
    (tmp_path / "w.pt").write_bytes(zipped(STATE))
    for name, state in (("w.npz", arrays), ("w.pt", timm_state())):
        found = open_stored(tmp_path / name).tensors
        assert found.keys() == state.keys()
        assert all(torch.equal(found[key], torch.as_tensor(value)) for key, value in state.items())


@pytest.mark.parametrize("legacy", [False, True])
def test_a_pickle_without_end_is_refused(legacy: bool, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch):
    """Of the bytes that are not a tensor's: each costs the unpickler many."""
    monkeypatch.setattr(torch_file, "LONGEST_PICKLE", 20_000)
    path = tmp_path / "w.pt"
    torch.save(timm_state(), path, _use_new_zipfile_serialization=not legacy)
    assert load(path, **KNOWN).config == CONFIG
    torch.save({**timm_state(), "log": [[]] * 30_000}, path, _use_new_zipfile_serialization=not legacy)
    refuse(path, r"a pickle of .* bytes besides its tensors|more than 20,000 bytes of pickles", capsys, **KNOWN)


HEADERS = {
    "nested": ("{'descr': [('a',('b',)),()], 'fortran_order': False, 'shape': (1,), }", "is not an array"),
    "nested without end": ("{'descr': " + "(" * 3000 + ")" * 3000 + ", }", "is not an array"),
    "not closed": ("{'descr': '<f4', 'shape': (1L, 1L, ", "is not an array"),
    "two unknown sides": ("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, -1), }", r"shape \(-1, -1\)"),
    "true sides": ("{'descr': '<f4', 'fortran_order': False, 'shape': (True,), }", r"shape \(True,\)"),
    "5,000 digits": ("{'descr': '<f4', 'fortran_order': False, 'shape': (" + "9" * 5000 + ",), }", "is not an array"),
    "nothing but zeros": ("\0" * 60, "is not an array"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_an_odd_header_of_an_array_is_refused(name: str, tmp_path: Path, capsys: Any):
    header, reason = HEADERS[name]
    (tmp_path / "w.npz").write_bytes(zipped({"embedding/kernel.npy": npy(header, b"\0" * 4)}))
    refuse(tmp_path / "w.npz", reason, capsys)


def test_a_header_of_python_2_is_read_without_a_word(tmp_path: Path):
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2L, 1L), }"
    (tmp_path / "w.npz").write_bytes(zipped({"a.npy": npy(header, struct.pack("<2f", 3, 5))}))
    assert open_stored(tmp_path / "w.npz").tensors["a"].tolist() == [[3], [5]]


# ── what lies beside ────────────────────────────────────────────────────────────────────────────────────────────

BESIDE = {
    "a number of 5,000 digits": ('{"a": %s}' % ("9" * 5000), "has a whole number of 5,000 digits, and at most 19"),
    "a number beyond any float": ('{"layer_norm_eps": 1%s}' % ("0" * 400), "has a whole number of 401 digits"),
    "a key twice": ('{"hidden_size": 12, "hidden_size": 24}', "has the key 'hidden_size' twice"),
    "no end": ('{"a": "' + "x" * LONGEST_JSON + '"}', r"has 8,388,\d{3} bytes, and at most 8,388,608 of JSON are read"),
    "no bottom": ('{"a": ' + "[" * 100_000, "is not JSON"),
}


@pytest.mark.parametrize("name", BESIDE)
@pytest.mark.parametrize("file", ["config.json", "preprocessor_config.json", "model.safetensors.index.json"])
def test_json_beside_the_weights_is_bounded(file: str, name: str, tmp_path: Path, capsys: Any):
    text, reason = BESIDE[name]
    save(small(), tmp_path / "hf", dialect="huggingface")
    save_file(load_file(tmp_path / "hf" / "model.safetensors"), tmp_path / "hf" / "model.safetensors")
    (tmp_path / "hf" / file).write_text(text)
    refuse(tmp_path / "hf", f"{file} {reason}", capsys)


def with_config(path: Path, **changes: Any) -> Path:
    """Vitrail's own file whose config says something else than its tensors."""
    save(small(), path, dialect="vitrail")
    tensors, written = load_file(path), json.loads(CONFIG.to_json())
    save_file(tensors, path, {"vitrail": json.dumps({**written, **changes})})
    return path


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"depth": 10**9}, "has 20 tensors and a config of 1,000,000,000 blocks"),
        ({"width": 3 * 2**50, "position": {"kind": "no_position"}}, "has a config that nothing can be built from"),
        ({"width": 10**30}, "config has a whole number of 31 digits"),
        (
            {"image": "90000000x90000000", "position": {"kind": "no_position"}},
            "268,435,456 pixels and 1,048,576 patches",
        ),
    ],
)
def test_a_config_that_claims_more_than_the_file_holds_is_refused(
    changes: dict[str, Any], reason: str, tmp_path: Path, capsys: Any
):
    refuse(with_config(tmp_path / "w.safetensors", **changes), reason, capsys)


def test_a_crop_out_of_an_image_without_end_is_refused(tmp_path: Path, capsys: Any):
    save(small(), tmp_path / "hf", dialect="huggingface")
    save_file(load_file(tmp_path / "hf" / "model.safetensors"), tmp_path / "hf" / "model.safetensors")
    processor = {"do_center_crop": True, "size": {"shortest_edge": 2**62}}
    (tmp_path / "hf" / "preprocessor_config.json").write_text(json.dumps(processor))
    refuse(tmp_path / "hf", "crop_share .* is not a number of 0.0625 or more and at most 1", capsys)


@pytest.mark.parametrize("rows", [999_999_937, 10**15])
def test_positions_without_values_or_without_end_do_not_keep_anyone_waiting(rows: int, tmp_path: Path, capsys: Any):
    """A side of zero makes any other side free; a prime has no grid to suggest, and all divisors were tried."""
    state = {name: tensor for name, tensor in timm_state().items() if name != "pos_embed"}
    buffer = io.BytesIO()
    header, offset = {}, 0
    for name, tensor in state.items():
        size = tensor.numel() * 4
        header[name] = entry(offset, offset + size, list(tensor.shape))
        buffer.write(tensor.numpy().tobytes())
        offset += size
    header["pos_embed"] = entry(offset, offset, [1, rows, 0])
    (tmp_path / "w.safetensors").write_bytes(raw(header, buffer.getvalue()))
    started = time.process_time()
    with pytest.raises(VitrailError, match=rf"position.table has shape \({rows}, 0\)"):
        load(tmp_path / "w.safetensors", num_heads=3)
    assert time.process_time() - started < 10


def test_millions_of_positions_are_suggested_a_grid_at_once():
    """A prime number of them, which has no divisor to stop at."""
    tensors = {**timm_state(), "pos_embed": torch.zeros(1).expand(1, 62_499_971 + 1, 12)}
    with pytest.raises(VitrailError, match="as 1x62499971"):
        read_stored(Stored(path=Path("w"), format="memory", tensors=tensors), num_heads=3)


# ── files that are something else ───────────────────────────────────────────────────────────────────────────────

FOREIGN = {
    "photo.bin": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "is a PNG image, not a weights file that vitrail reads; give safe"),
    "photo.jpg": (b"\xff\xd8\xff\xe0\0\x10JFIF", "is a JPEG image"),
    "photo.webp": (b"RIFF\x24\0\0\0WEBPVP8 ", "is a WebP image"),
    "model.gguf": (b"GGUF\3\0\0\0", "is a GGUF model.*; give the weights that it was made from"),
    "model.h5": (b"\x89HDF\r\n\x1a\n\0\0", "is an HDF5 file.*numpy.savez"),
    "model.tflite": (b"\x1c\0\0\0TFL3\x14\0", "is a TensorFlow Lite model"),
    "model.onnx": (b"\x08\x08\x12\x07pytorch", "is an ONNX model.*give the weights that it was exported from"),
    "model.msgpack": (b"\x81\xa6params", "is Flax's msgpack"),
    "model.npy": (b"\x93NUMPY\x01\0v\0", "is a single NumPy array"),
    "model.tar": (b"model.bin" + b"\0" * 248 + b"ustar\0", "is a tar archive.*; unpack it"),
    "model.safetensors.gz": (b"\x1f\x8b\x08\0", "is compressed by gzip"),
    "model.safetensors": (b"version https://git-lfs.example/spec/v1\noid sha256:00", "Git LFS pointer.*git lfs pull"),
    "model.pth": (b"\n<!DOCTYPE html><html>", "is a web page.*fetch it again"),
    "config.json": (b'{"model_type": "vit"}', "is JSON.*or the directory that holds both"),
    "other.onnx": (b"\xfe\xed", "neither safetensors, .npz nor a PyTorch file"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_file_of_another_kind_is_called_what_it_is(name: str, tmp_path: Path, capsys: Any):
    data, reason = FOREIGN[name]
    (tmp_path / name).write_bytes(data)
    refuse(tmp_path / name, reason, capsys)


# ── names ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "a\nb", "a\x1b[2Jb", "y/" * 3000, "z" * 100_000])
def test_a_name_that_no_file_can_have_is_one_line(name: str, tmp_path: Path, capsys: Any):
    path = tmp_path / name
    for arguments in (
        ("inspect", str(path)),
        ("convert", str(path), str(tmp_path / "out.safetensors"), "--to", "timm"),
        ("evaluate", str(path), "--data", "shapes"),
        ("train", "--data", "shapes", "--model", str(path), "--out", str(tmp_path / "run")),
        ("train", "--data", str(path), "--out", str(tmp_path / "run")),
        ("embed", str(path), "--weights", "default", "--out", str(tmp_path / "vectors")),
    ):
        assert call(*arguments) == 2, arguments[0]
        shown = capsys.readouterr().err
        assert shown.count("\n") == 1, arguments[0]
        assert shown[:-1].isprintable()
        assert len(shown) < 1100
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("shard", ["x" * 300, "a\0b", "a\nb"])
def test_a_shard_whose_name_no_file_can_have_is_refused(shard: str, tmp_path: Path, capsys: Any):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": shard}}))
    refuse(tmp_path, "lacks|cannot be read", capsys)


@pytest.mark.parametrize("name", ["x" * 300, "a\0b"])
@pytest.mark.parametrize("dialect", ["timm", "huggingface"])
def test_weights_are_not_written_to_a_name_that_no_file_can_have(name: str, dialect: str, tmp_path: Path):
    target = tmp_path / (f"{name}.safetensors" if dialect == "timm" else name)
    with pytest.raises(VitrailError, match=r"was not written \(File name too long\)|is not a file name"):
        save(small(), target, dialect=dialect)
    assert not list(tmp_path.iterdir())


def test_arrays_are_still_plain(tmp_path: Path):
    """What the checks above are for still opens: the control of all of them."""
    path = tmp_path / "w.npz"
    path.write_bytes(npz(a=np.arange(6, dtype=np.float16).reshape(2, 3), b=np.zeros((0, 4), np.float32)))
    found = open_stored(path).tensors
    assert found["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert found["b"].shape == (0, 4)
