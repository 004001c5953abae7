"""The runtimes and devices by name, and whether they are there; without importing any of them."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal

from vitrail.errors import require

__all__ = ["RUNTIMES", "Device", "Runtime", "RuntimeName", "installed", "require_runtime"]

Device = Literal["cpu", "cuda", "mps", "xpu"]
Runtime = Literal["openvino", "onnxruntime"]
"""What runs a graph."""
RuntimeName = Literal["torch", "openvino", "onnxruntime"]
RUNTIMES: dict[Runtime, str] = {"openvino": "openvino", "onnxruntime": "onnx"}
"""Each runtime, with the extra that installs it and onnx, which writes its graph."""


def installed(runtime: Runtime) -> bool:
    return find_spec(runtime) is not None and find_spec("onnx") is not None


def require_runtime(runtime: Runtime, what: str = "") -> None:
    """Raise VitrailError if a runtime is missing; `what` needs it."""
    require(
        installed(runtime),
        f"{what or f'engine {runtime}'} needs {runtime} and onnx, which are not both installed here; "
        f"pip install 'vitrail[{RUNTIMES[runtime]}]'",
    )
