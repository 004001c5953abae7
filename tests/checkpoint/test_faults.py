"""Files that are damaged or mean harm: one line, exit code 2, and nothing that was there before is touched."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import load as load_by_library
from safetensors.torch import load_file, save_file
from safetensors.torch import save as save_by_library

from command import call
from faulty import entry, npz, pickled, raw, small
from vitrail.checkpoint.formats.file import Stored, open_stored
from vitrail.checkpoint.formats.safetensors import read_safetensors, write_safetensors
from vitrail.checkpoint.formats.safetensors_header import MOST_TENSORS
from vitrail.checkpoint.read import load, read_stored
from vitrail.checkpoint.write import encode, save
from vitrail.errors import VitrailError


def whole() -> bytes:
    buffer = io.BytesIO()
    write_safetensors(buffer, encode(small(), "timm").tensors, {})
    return buffer.getvalue()


class Payload:
    """What an attacker pickles: a call that leaves a trace."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.trace),))


NAMED = {"a": entry(0, 8), "b": entry(8, 16)}
FAULTS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty; the file is damaged"),
    "text": (b"hello, I am a README\n", "neither safetensors, .npz nor a PyTorch file"),
    "eight bytes": (b"\0" * 8, "neither safetensors"),
    "truncated": (whole()[:-100], "bytes of tensors and its header tells of"),
    "truncated in the header": (whole()[:200], "claims a header"),
    "trailing bytes": (whole() + b"\0" * 7, "bytes of tensors and its header tells of"),
    "a header longer than the file": (raw(NAMED, b"\0" * 16, length=2**39), "claims a header of 549,755,813,888 bytes"),
    "a huge header": (
        raw(b"{" + b" " * 2**23, b""),
        "has a header of 8,388,609 bytes, and at most 8,388,608 are read; save the model's weights alone",
    ),
    "a header that is not JSON": (raw(b"{nonsense", b"\0" * 16), "the header of .* is not JSON"),
    "a header nested without end": (raw(b'{"a":' + b"[" * 100_000), "the header of .* is not JSON"),
    "a header with a number of 5,000 digits": (raw(b'{"a":' + b"9" * 5000 + b"}"), "a whole number of 5,000 digits"),
    "duplicate keys": (
        raw(b'{"a":%s,"a":%s}' % ((json.dumps(entry(0, 8)).encode(),) * 2), b"\0" * 8),
        "has the key 'a' twice",
    ),
    "a key that comes again after many others": (
        raw(b"{" + b",".join(b'"%d":0' % number for number in [*range(100_000), 99_999]) + b"}"),
        "has the key '99999' twice",
    ),
    "overlapping offsets": (raw({"a": entry(0, 8), "b": entry(4, 12)}, b"\0" * 12), "starts at byte 4 where 8 is due"),
    "a hole": (raw({"a": entry(0, 8), "b": entry(12, 16)}, b"\0" * 16), "starts at byte 12 where 8 is due"),
    "offsets that overflow": (raw({"a": entry(0, 2**63)}, b"\0" * 16), "which are not counts"),
    "a shape that overflows": (raw({"a": entry(0, 8, [2**62, 4, 2**62])}, b"\0" * 8), "does not fill bytes 0 to 8"),
    "negative offsets": (raw({"a": entry(-8, 8)}, b"\0" * 16), "which are not counts"),
    "a shape that lies": (raw({"a": entry(0, 8, [3])}, b"\0" * 8), "does not fill bytes 0 to 8"),
    "an unknown type": (raw({"a": entry(0, 8, [2], "F31")}, b"\0" * 8), "has type 'F31'"),
    "an entry that is a number": (raw({"a": 3}), "not described by an object"),
    "metadata that is not text": (raw({"__metadata__": {"a": 3}, **NAMED}, b"\0" * 16), "metadata that is not text"),
    "a name that is a path": (raw({"../../a": entry(0, 8)}, b"\0" * 8), "is a path and not a name"),
    "no model's names": (raw(NAMED, b"\0" * 16), "not a Vision Transformer that vitrail knows"),
    "too many tensors": (
        raw({f"t{i}": entry(0, 0) for i in range(MOST_TENSORS + 1)}),
        f"names {MOST_TENSORS + 1:,} tensors, and vitrail reads at most {MOST_TENSORS:,}",
    ),
    "a torn zip": (pickled({"a": torch.zeros(9)})[:-60], "zip that does not open"),
    "a pickle of a list": (pickled([1, 2, 3]), "no tensors by name"),
    "a legacy pickle of nothing": (pickle.dumps({"a": 1}), "PyTorch file|no tensors by name|more than weights"),
    "an npz of objects": (npz(a=np.array([{"x": 1}], dtype=object)), "holds Python objects"),
    "an npz of text": (npz(a=np.array(["x"])), "not a type of weights"),
    "a name without end": (raw({"a" * 501: entry(0, 8)}, b"\0" * 8), "a tensor whose name is 501 letters long"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_damaged_file_is_one_line_and_exit_2(name: str, tmp_path: Path, capsys):
    data, reason = FAULTS[name]
    path = tmp_path / "weights.bin"
    path.write_bytes(data)
    with pytest.raises(VitrailError, match=reason):
        load(path)
    assert call("inspect", str(path)) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    assert len(shown.err) < 600
    out = tmp_path / "out.safetensors"
    out.write_bytes(b"an earlier output")
    assert call("convert", str(path), str(out), "--to", "timm") == 2
    assert (path.read_bytes(), out.read_bytes()) == (data, b"an earlier output")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["out.safetensors", "weights.bin"]


@pytest.mark.parametrize("legacy", [False, True])
def test_a_pickle_with_a_payload_is_refused_and_does_not_run(legacy: bool, tmp_path: Path):
    trace, path = tmp_path / "ran", tmp_path / "weights.pth"
    state = {**encode(small(), "timm").tensors, "payload": Payload(trace)}
    torch.save(state, path, _use_new_zipfile_serialization=not legacy)
    with pytest.raises(VitrailError, match=r"holds more than weights .*runs no code from files"):
        load(path)
    assert not trace.exists()


def test_unknown_tensors_inside_the_model_are_refused(tmp_path: Path):
    tensors = {**encode(small(), "timm").tensors, "blocks.0.attn.secret.weight": torch.zeros(3)}
    save_file(tensors, tmp_path / "w.safetensors")
    with pytest.raises(VitrailError, match=r"blocks\.0\.attn\.secret\.weight.*it is another architecture"):
        load(tmp_path / "w.safetensors", from_image="32x48", num_heads=3)


@pytest.mark.parametrize(
    ("name", "tensor", "reason"),
    [
        ("blocks.0.norm1.weight", torch.zeros(13), r"norm1.weight has shape \(13,\) where .* \(12,\)"),
        ("blocks.0.attn.qkv.weight", torch.zeros(35, 12), r"qkv.weight has shape \(35, 12\)"),
        ("patch_embed.proj.weight", torch.zeros(12, 3), r"embedding.weight has shape \(12, 3\)"),
        ("pos_embed", torch.zeros(1, 8, 12), "8 rows, and image 32x48 is a grid of 2x3"),
        ("pos_embed", torch.zeros(()), r"has shape \(\)"),
        ("blocks.0.mlp.fc1.weight", None, "no blocks.0.mlp.fc1.weight"),
        ("norm.bias", None, "lacks norm.bias"),
    ],
)
def test_wrong_and_missing_shapes_are_named(name: str, tensor: torch.Tensor | None, reason: str, tmp_path: Path):
    tensors = dict(encode(small(), "timm").tensors)
    if tensor is None:
        del tensors[name]
    else:
        tensors[name] = tensor
    save_file(tensors, tmp_path / "w.safetensors")
    with pytest.raises(VitrailError, match=reason):
        load(tmp_path / "w.safetensors", from_image="32x48", num_heads=3)


def test_a_directory_without_config_is_refused(tmp_path: Path):
    save(small(), tmp_path / "model.safetensors", dialect="timm")
    with pytest.raises(VitrailError, match=r"has no config\.json to say what its weights are"):
        load(tmp_path)
    with pytest.raises(VitrailError, match="does not exist"):
        load(tmp_path / "nothing")


@pytest.mark.parametrize("shard", ["../secret.safetensors", "/etc/passwd", "a/b.safetensors", "..", ""])
def test_a_shard_outside_its_directory_is_refused(shard: str, tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": shard}}))
    with pytest.raises(VitrailError, match="outside its own directory"):
        open_stored(tmp_path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "is not JSON"),
        ("[1]", "not a JSON object"),
        ('{"model_type": "vit", "hidden_act": "relu6"}', "hidden_act 'relu6'"),
    ],
)
def test_a_broken_config_is_named(content: str, reason: str, tmp_path: Path):
    save(small(), tmp_path / "hf", dialect="huggingface")
    metadata_free = load_file(tmp_path / "hf" / "model.safetensors")
    save_file(metadata_free, tmp_path / "hf" / "model.safetensors")
    (tmp_path / "hf" / "config.json").write_text(content)
    with pytest.raises(VitrailError, match=reason):
        load(tmp_path / "hf")


# ── fuzzing ─────────────────────────────────────────────────────────────────────────────────────────────────────


def seeds() -> list[bytes]:
    tensors = encode(small(), "timm").tensors
    arrays = {name: tensor.numpy() for name, tensor in encode(small(), "google").tensors.items()}
    legacy = io.BytesIO()
    torch.save(tensors, legacy, _use_new_zipfile_serialization=False)
    return [whole(), pickled(tensors), npz(**arrays), legacy.getvalue()]


SEEDS = seeds()


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_bytes_changed_anywhere_load_or_are_refused(data: st.DataObject, tmp_path: Path):
    """Any file, however damaged, gives a checkpoint or a VitrailError: nothing else escapes, and nothing hangs."""
    seed = bytearray(SEEDS[data.draw(st.sampled_from(range(len(SEEDS))))])
    for _ in range(data.draw(st.integers(1, 6))):
        near_start = st.integers(0, min(len(seed), 2_000) - 1)
        near_end = st.integers(max(0, len(seed) - 2_000), len(seed) - 1)
        place = data.draw(st.one_of(near_start, near_end, st.integers(0, len(seed) - 1)))
        match data.draw(st.sampled_from(["set", "cut", "insert"])):
            case "set":
                seed[place] = data.draw(st.integers(0, 255))
            case "cut":
                del seed[place : place + data.draw(st.integers(1, 400))]
            case "insert":
                seed[place:place] = data.draw(st.binary(min_size=1, max_size=40))
        if not seed:
            seed = bytearray(b"\0")
    path = tmp_path / "fuzzed"
    path.write_bytes(seed)
    with contextlib.suppress(VitrailError):
        load(path, from_image="32x48", num_heads=3)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_what_the_library_of_the_format_refuses_is_refused_and_the_rest_is_read_alike(
    data: st.DataObject, tmp_path: Path
):
    """The reference is safetensors itself: with one number or word of a whole header changed, or none."""
    shapes = data.draw(st.lists(st.lists(st.integers(0, 4), max_size=3), min_size=1, max_size=4))
    dtypes = data.draw(st.lists(st.sampled_from(["float32", "bfloat16", "int8", "bool"]), min_size=4, max_size=4))
    tensors = {
        f"t{number}": (torch.arange(math.prod(shape)) % 2).reshape(shape).to(getattr(torch, dtype))
        for number, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=False))
    }
    written = save_by_library(tensors)
    length = int.from_bytes(written[:8], "little")
    header, body = json.loads(written[8 : 8 + length]), written[8 + length :]
    if data.draw(st.booleans()):
        fields = header[data.draw(st.sampled_from(sorted(header)))]
        field = data.draw(st.sampled_from(["dtype", "shape", "data_offsets"]))
        if field == "dtype":
            fields[field] = data.draw(st.sampled_from(["F32", "F16", "BF16", "I8", "U8", "BOOL"]))
        elif fields[field]:
            place = data.draw(st.integers(0, len(fields[field]) - 1))
            fields[field][place] = data.draw(st.integers(-1, 40))
    changed = raw(header, body)
    path = tmp_path / "changed.safetensors"
    path.write_bytes(changed)
    try:
        wanted = load_by_library(changed)
    except SafetensorError:
        with pytest.raises(VitrailError):
            read_safetensors(path)
        return
    found, _ = read_safetensors(path)
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**70) | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
entries = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["F32", "BOOL", "X"]) | json_values,
        "shape": json_values,
        "data_offsets": json_values,
    },
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(header=st.dictionaries(st.text(max_size=8), entries | json_values, max_size=5), body=st.binary(max_size=64))
def test_any_header_is_read_or_refused(header: dict, body: bytes, tmp_path: Path):
    path = tmp_path / "fuzzed.safetensors"
    path.write_bytes(raw(header, body))
    with pytest.raises(VitrailError):
        load(path)


BESIDE = {
    "huggingface": encode(small(), "huggingface").written.config,
    "timm": {
        "architecture": "vit_base_patch16_224",
        "global_pool": "token",
        "model_args": {"num_heads": 3, "img_size": [32, 48], "act_layer": "gelu", "init_values": 1e-5},
        "pretrained_cfg": {"input_size": [3, 32, 48], "mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": 0.9},
    },
}
ODD = st.sampled_from(
    [None, True, -1, 0, 3, 1e9, 2.5, "x", "", [], [1], [1, 2], ["a"], {}, {"a": 1}, 10**30, float("nan"), float("inf")]
)


@settings(max_examples=150, deadline=None)
@given(data=st.data(), dialect=st.sampled_from(sorted(BESIDE)))
def test_any_config_beside_the_weights_is_read_or_refused(data: st.DataObject, dialect: str):
    config = json.loads(json.dumps(BESIDE[dialect]))
    place = config
    while True:
        key = data.draw(st.sampled_from(sorted(place)))
        if not isinstance(place[key], dict) or not place[key] or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = data.draw(ODD)
    stored = Stored(path=Path("w"), format="memory", tensors=encode(small(), dialect).tensors, config=config)
    with contextlib.suppress(VitrailError):
        encode(read_stored(stored), dialect)
