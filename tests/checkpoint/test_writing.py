"""Weights are written whole or not at all, whatever stops it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from faulty import small
from vitrail.atomic import write_file
from vitrail.checkpoint.read import load
from vitrail.checkpoint.write import save
from vitrail.errors import VitrailError
from vitrail.geometry import Size

WRITER = """
import resource, signal, sys
from pathlib import Path
import torch
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.checkpoint.write import save
from vitrail.config import ViTConfig
from vitrail.errors import VitrailError
from vitrail.nn.build import build
from vitrail.parts import Mlp

config = ViTConfig(image="32x48", width=48, depth=2, num_heads=3, mlp=Mlp(width=96))
checkpoint = Checkpoint(
    config=config, tensors=build(config).state_dict(), preprocessing=Preprocessing(image=config.image)
)
folder, mode = Path(sys.argv[1]), sys.argv[2]
if mode == "full":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    for pair in sys.argv[3:]:
        name, dialect = pair.split(":")
        try:
            save(checkpoint, folder / name, dialect)
        except VitrailError as error:
            print(error)
else:
    while True:
        save(checkpoint, folder / "out.safetensors", "timm")
"""


def test_a_full_disk_leaves_what_was_there_and_nothing_else(tmp_path: Path):
    targets = {"out.safetensors": "timm", "out.npz": "google", "out.pth": "timm", "out": "huggingface"}
    for name in list(targets)[:3]:
        (tmp_path / name).write_bytes(b"an earlier output")
    pairs = [f"{name}:{dialect}" for name, dialect in targets.items()]
    result = subprocess.run(
        [sys.executable, "-c", WRITER, str(tmp_path), "full", *pairs], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert len(lines) == len(targets)
    assert all("was not written (File too large)" in line for line in lines)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == dict.fromkeys(
        list(targets)[:3], b"an earlier output"
    )


def test_kill_9_while_writing_leaves_a_whole_file(tmp_path: Path):
    target = tmp_path / "out.safetensors"
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), "kill"])
    while not target.exists():
        assert process.poll() is None
        time.sleep(0.01)
    for _ in range(30):  # whatever moment is seen, the name holds a whole file
        load(target)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert load(target).config.image == Size(32, 48)
    save(small(), target, "timm")
    assert list(tmp_path.iterdir()) == [target]


def test_writing_over_the_input_keeps_its_values(tmp_path: Path):
    path = tmp_path / "w.safetensors"
    save(small(), path, dialect="timm")
    checkpoint = load(path)
    save(checkpoint, path, dialect="vitrail")
    again = load(path)
    assert again.dialect == "vitrail"
    assert all(torch.equal(again.tensors[name], tensor) for name, tensor in small().tensors.items())


def test_an_error_while_writing_leaves_no_temporary_file(tmp_path: Path):
    def fail(file: Any) -> None:
        file.write(b"half")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_file(tmp_path / "out", fail)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("target", "dialect", "reason"),
    [
        ("out.xyz", "timm", "ends in '.xyz', which names no format"),
        ("out", "google", "has no suffix"),
        ("out.safetensors", "huggingface", "give a name without a suffix"),
        ("out.pth", "vitrail", "cannot store the config"),
    ],
)
def test_a_target_that_says_no_format_is_refused(target: str, dialect: str, reason: str, tmp_path: Path):
    with pytest.raises(VitrailError, match=reason):
        save(small(), tmp_path / target, dialect=dialect)
    assert not list(tmp_path.iterdir())
