"""What people run a ViT with, on one set of weights: timm, transformers, and timm's graph in onnxruntime and OpenVINO.

All give the pooled vector of normalised pixels. A graph is timm's own, exported by torch.onnx, compiled for the batch
that is measured. Int8 is what each runtime comes with: onnxruntime's dynamic quantisation; OpenVINO's by nncf, in its
mode for transformers, where nncf is installed (pip install nncf: a peer here, and no dependency of vitrail).
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
import peers
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.write import save

__all__ = ["Peers", "Run"]

Run = Callable[[torch.Tensor], np.ndarray]
"""Normalised pixels (batch, channels, height, width) → vectors."""


class Peers:
    """The peers of one model: eager ones at once, graphs once they are compiled for a batch and a thread count."""

    def __init__(
        self, checkpoint: Checkpoint, theirs: torch.nn.Module, folder: Path, calibration: torch.Tensor
    ) -> None:
        save(checkpoint, folder / "huggingface", dialect="huggingface")
        hub = _transformers(folder / "huggingface")
        self.eager: dict[str, Run] = {
            "timm": lambda image: theirs(image).numpy(),
            "transformers": lambda image: hub(image).last_hidden_state[:, 0].numpy(),
        }
        normalised = checkpoint.preprocessing.normalise(calibration.permute(0, 3, 1, 2))
        self.graphs: dict[str, Path] = {"onnxruntime": folder / "timm.onnx", "openvino": folder / "timm.onnx"}
        _export(theirs, normalised[:2], folder / "timm.onnx")
        self.graphs |= _quantised(folder / "timm.onnx", normalised)

    def float32(self, batch: int, threads: int) -> dict[str, Run]:
        return {**self.eager, **self._compiled(("onnxruntime", "openvino"), batch, threads)}

    def int8(self, batch: int, threads: int) -> dict[str, Run]:
        return self._compiled([name for name in self.graphs if name.endswith("int8")], batch, threads)

    def _compiled(self, names: Any, batch: int, threads: int) -> dict[str, Run]:
        make = {"onnxruntime": _onnxruntime, "openvino": _openvino}
        return {name: make[name.split()[0]](self.graphs[name], batch, threads) for name in names}


def _transformers(folder: Path) -> Any:
    from_pretrained = peers.transformers.AutoModel.from_pretrained
    try:
        return from_pretrained(folder, add_pooling_layer=False).eval()  # its pooler would be untrained
    except TypeError:
        return from_pretrained(folder).eval()


def _export(model: torch.nn.Module, image: torch.Tensor, path: Path) -> None:
    logging.getLogger("onnxscript").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter warns about its own code
        program = torch.onnx.export(
            model,
            (image,),
            dynamo=True,
            dynamic_shapes=({0: torch.export.Dim("batch", max=4096)},),
            input_names=["image"],
            output_names=["vector"],
            opset_version=18,
            verbose=False,
        )
    assert program is not None
    program.save(str(path))


def _quantised(graph: Path, calibration: torch.Tensor) -> Mapping[str, Path]:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    found = {"onnxruntime int8": graph.with_name("onnxruntime-int8.onnx")}
    logging.getLogger().setLevel(logging.ERROR)  # it recommends a step that the graph has been through
    quantize_dynamic(graph, found["onnxruntime int8"], weight_type=QuantType.QInt8, op_types_to_quantize=["MatMul"])
    if find_spec("nncf"):
        import nncf  # type: ignore[import-not-found]
        import openvino

        nncf.set_log_level(logging.ERROR)
        found["openvino int8"] = graph.with_name("openvino-int8.xml")
        images = nncf.Dataset([image[None].numpy() for image in calibration])
        kind = nncf.ModelType.TRANSFORMER
        openvino.save_model(
            nncf.quantize(openvino.Core().read_model(graph), images, model_type=kind, subset_size=len(calibration)),
            found["openvino int8"],
            compress_to_fp16=False,
        )
    return found


def _onnxruntime(graph: Path, batch: int, threads: int) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_free_dimension_override_by_name("batch", batch)
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
    return lambda image: np.asarray(session.run(None, {"image": image.numpy()})[0])


def _openvino(graph: Path, batch: int, threads: int) -> Run:
    import openvino

    core = openvino.Core()
    model: Any = core.read_model(graph)
    model.reshape([batch, *model.input(0).partial_shape[1:]])
    settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    compiled = core.compile_model(model, "CPU", settings)
    return lambda image: compiled(image.numpy())[0]
