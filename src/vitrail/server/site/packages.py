"""What an exported site runs on, fetched once by npm and pip into the cache: Pyodide, its wheels, ONNX Runtime.

Versions are pinned and every file is verified by its SHA-256. Nothing is installed, and none of it is part of vitrail.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vitrail.atomic import write_file
from vitrail.checkpoint.sources.catalogue import cache_folder
from vitrail.data.packages import check_sum, npm, pip
from vitrail.errors import require

__all__ = ["ONNX_RUNTIME", "PACKAGES", "PYODIDE", "WHEELS", "Package", "fetched_files"]

INSTEAD = "export on a machine that reaches npm and PyPI, and copy the site"
EMSCRIPTEN = ("--platform", "pyemscripten_2026_0_wasm32", "--python-version", "3.14", "--implementation", "cp")
"""pip's words for a wheel that runs inside Pyodide 314."""


@dataclass(frozen=True, kw_only=True)
class Package:
    """A package of a registry and the files of it that a site has, with their SHA-256 sums."""

    name: str
    """As its client takes it."""
    files: dict[str, str]
    licence: str

    @property
    def download(self) -> Callable[[str, Path], None]:
        return _pip if "==" in self.name else _npm


def _npm(name: str, folder: Path) -> None:
    npm(name, folder, instead=INSTEAD)


def _pip(name: str, folder: Path) -> None:
    pip(name, folder, *(EMSCRIPTEN if name.startswith("pydantic-core==") else ()), instead=INSTEAD)


PYODIDE = Package(
    name="pyodide@314.0.7",
    files={
        "pyodide.mjs": "6f1d60f7bf529beb300f0f47983c921d3982363640ba20af0e38efdddbc66109",
        "pyodide-lock.json": "5dc2fc119108bc148c7457dc86e7675b5c87e1cafd420b9c34c1eaef7b36c010",
        "pyodide.asm.mjs": "f7cdc8ece80678ceb712f8e65ebe6d3a83203a180c399865f49612a051693635",
        "pyodide.asm.wasm": "cc36e3cab04fdfc9a63ff13eb52eae2b911bf46c025cc7b281f394bd3de1d5e6",
        "python_stdlib.zip": "fa1957e5777068fc4f7437f96d860ae2fbe9c19732ba06c84e004ec16dd7dd7a",
    },
    licence="MPL-2.0",
)
ONNX_RUNTIME = Package(
    name="onnxruntime-web@1.30.0",
    files={
        "ort.wasm.bundle.min.mjs": "11e64bd8ffe11bd1a2a2f0d6275fdfbbba7262f0b76b99b53d228a8a22ef3d90",
        "ort-wasm-simd-threaded.wasm": "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2",
    },
    licence="MIT",
)


def _wheel(file: str, licence: str, sha256: str) -> Package:
    name, version, *_ = file.split("-")
    return Package(name=f"{name.replace('_', '-')}=={version}", files={file: sha256}, licence=licence)


WHEELS = (
    _wheel(
        "annotated_doc-0.0.6-py3-none-any.whl",
        "MIT",
        "361ca0950cc7082f53fa69e9328409f40a62c61e57e0a47e1825a08078a58a53",
    ),
    _wheel(
        "annotated_types-0.8.0-py3-none-any.whl",
        "MIT",
        "f072f4d804ea359e4eaf198b1af7a8b0943881a87f31bb764f8bf219bb9419e0",
    ),
    _wheel("anyio-4.16.0-py3-none-any.whl", "MIT", "c66ae634e0b8228396b801741beb3294326d4b6102f7bba4041c0dfb58c29026"),
    _wheel(
        "fastapi-0.162.4-py3-none-any.whl", "MIT", "f093bc306d3958278d30ffd14f3834ca3d9b144fbb898ab5c9b652cf6e75f869"
    ),
    _wheel(
        "idna-3.20-py3-none-any.whl", "BSD-3-Clause", "ab7ae7122974553370f0bdb919e1a960b2cd1bc1ef0276416d896db81c14582c"
    ),
    _wheel(
        "opentelemetry_api-1.45.2-py3-none-any.whl",
        "Apache-2.0",
        "2cbd737377e710ee740d261c94e93fa0f08e6d037c18f17513cc0a2d94479a34",
    ),
    _wheel(
        "pydantic-2.14.3-py3-none-any.whl", "MIT", "3f7b347782ab7e4cf4c798496ae3a82787d9f21ec12676a9c564355eeef8daa8"
    ),
    _wheel(
        "pydantic_core-2.50.4-cp314-cp314-pyemscripten_2026_0_wasm32.whl",
        "MIT",
        "e6da138a1ecc1341c8b788a5ee822670b03788e1f5decf7af9d461de6e508b8e",
    ),
    _wheel(
        "starlette-1.10.0-py3-none-any.whl",
        "BSD-3-Clause",
        "478c0ab3b4ced6e82719849c118fa406f0278a3499c1a898cd15cd31bdc38ce4",
    ),
    _wheel(
        "typing_extensions-4.16.0-py3-none-any.whl",
        "PSF-2.0",
        "481caa481374e813c1b176ada14e97f1f67a4539ce9cfeb3f350d78d6370c2e8",
    ),
    _wheel(
        "typing_inspection-0.4.5-py3-none-any.whl",
        "MIT",
        "bc210535442b39e1bf2805e0c7a17dfd6a4ace760c84c7f7d16245d23a6b1c39",
    ),
)
"""FastAPI and what it needs, in versions that go together: pydantic-core is the compiled part of one pydantic."""
PACKAGES = (PYODIDE, ONNX_RUNTIME, *WHEELS)


def fetched_files(tell: Callable[[str], None]) -> dict[str, Path]:
    """Return all files of all packages by name; those that the cache lacks are downloaded and verified first."""
    found: dict[str, Path] = {}
    for package in PACKAGES:
        folder = cache_folder("browser") / package.name.replace("==", "-").replace("@", "-")
        paths = {name: folder / name for name in package.files}
        if not all(path.is_file() for path in paths.values()):
            tell(f"fetching {package.name}")
            _fetch(package, folder)
        for name, path in paths.items():
            check_sum(path, package.files[name], f"{package.name}'s {name}")
        found |= paths
    return found


def _fetch(package: Package, folder: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="vitrail-") as scratch:
        package.download(package.name, Path(scratch))
        for name, total in package.files.items():
            path = next(Path(scratch).rglob(name), None)
            require(path is not None, f"{package.name} came without {name}; clear npm's and pip's caches and try again")
            assert path is not None
            check_sum(path, total, f"{package.name}'s {name}")
            with path.open("rb") as file:
                write_file(folder / name, lambda out, file=file: shutil.copyfileobj(file, out))
