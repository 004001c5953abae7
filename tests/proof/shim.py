"""Compile and load the CUDA shim. Import this before torch: hooks are read once."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import subprocess
import tempfile
from pathlib import Path

__all__ = ["load_shim"]

SOURCE = Path(__file__).with_name("cuda_shim.cpp")


def load_shim() -> None:
    """Make fake `cuda` tensors work on a CPU build; raises CalledProcessError where it cannot be compiled."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    torch_folder = Path(spec.origin).parent
    version = (torch_folder / "version.py").read_bytes()
    # The library names torch's folder, so that one built for another environment, perhaps deleted since, is no use.
    name = hashlib.sha256(SOURCE.read_bytes() + version + bytes(torch_folder)).hexdigest()[:16]
    library = Path(tempfile.gettempdir()) / f"vitrail-cuda-shim-{name}.so"
    if not library.exists():
        lib = torch_folder / "lib"
        fresh = library.with_suffix(f".{id(library)}")
        command = ["g++", "-std=c++20", "-shared", "-fPIC", f"-I{torch_folder / 'include'}", str(SOURCE)]
        command += ["-o", str(fresh), f"-L{lib}", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{lib}"]
        subprocess.run(command, check=True)
        fresh.rename(library)
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
