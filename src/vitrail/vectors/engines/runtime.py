"""Run the graph of a model by OpenVINO or onnxruntime, behind the interface of the other engines.

The graph is compiled for one batch size, so that the runtime knows every shape; a last, smaller batch is padded with
blank images. Threads are those of the run, and OpenVINO is held to float32, where it would take bfloat16.

Shapes: B images, H×W pixels, C channels, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.vectors.engines.engine import Features
from vitrail.vectors.engines.names import Runtime, require_runtime
from vitrail.vectors.engines.onnx_writer import GRAPH

__all__ = ["GraphEngine", "openvino_core"]

Run = Callable[[NDArray[np.uint8]], NDArray[np.float32]]


class GraphEngine:
    """A graph of `vitrail.vectors.engines.graph`, compiled by a runtime for a batch size and a number of threads."""

    def __init__(self, folder: Path, runtime: Runtime, *, batch: int, threads: int, int8: bool = False) -> None:
        require_runtime(runtime)
        self.name, self.batch = runtime, batch
        if runtime == "openvino":
            self.run, self.width = _openvino(folder / GRAPH, batch, threads)
        else:
            self.run, self.width = _onnxruntime(folder / GRAPH, batch, threads, int8=int8)

    def vectors(self, images: Tensor) -> Tensor:
        pixels = images.numpy()
        parts = [self._padded(pixels[start : start + self.batch]) for start in range(0, len(pixels), self.batch)]
        return torch.from_numpy(np.concatenate(parts))

    def features(self, images: Tensor) -> Features:
        raise VitrailError(f"{self.name} gives vectors and no tokens; use the torch engine")

    def _padded(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        missing = self.batch - len(pixels)
        if not missing:
            return self.run(np.ascontiguousarray(pixels))
        return self.run(np.pad(pixels, [(0, missing), (0, 0), (0, 0), (0, 0)]))[: len(pixels)]


@cache
def openvino_core() -> Any:
    """OpenVINO's entry point, one for the whole process.

    On processors with AVX-512, every core replaces the stack that signal handlers run on, and restores the one before
    when it is dropped: after several cores that one may be unmapped, and Ctrl-C would crash the process.
    """
    import openvino

    return openvino.Core()


def _onnxruntime(path: Path, batch: int, threads: int, *, int8: bool) -> tuple[Run, int]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.add_free_dimension_override_by_name("batch", batch)
    options.log_severity_level = 3  # its warnings are about its own optimisations
    # joined with its bias, a product of bytes would be computed in float32
    left_out = ["MatMulAddFusion"] if int8 else []
    session = onnxruntime.InferenceSession(
        str(path), options, providers=["CPUExecutionProvider"], disabled_optimizers=left_out
    )

    def run(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        return np.asarray(session.run(None, {"image": pixels})[0])

    return run, session.get_outputs()[0].shape[1]


def _openvino(path: Path, batch: int, threads: int) -> tuple[Run, int]:
    core = openvino_core()
    model: Any = core.read_model(path)
    model.reshape([batch, *model.input(0).partial_shape[1:]])
    properties = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",  # one request at a time, with all threads
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,  # workers would all be pinned to the same cores
    }
    request = core.compile_model(model, "CPU", properties).create_infer_request()

    def run(pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        return request.infer({0: pixels}, share_inputs=True, share_outputs=False)[0]

    return run, model.output(0).partial_shape[1].get_length()
