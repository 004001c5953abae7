"""The lean encoder as an ONNX graph, which onnxruntime and OpenVINO run: uint8 images in, vectors out.

The graph is written operator by operator from a `LeanEngine`, in under a second. It has what makes that engine fast
(bytes in, scales folded, a last block for the pooled tokens only), in the few operators that the runtimes fuse. In
int8, QuantizeLinear and DequantizeLinear stand before every product of the blocks, with the ranges and the smoothing of
`vitrail.vectors.engines.int8`, so that every runtime rounds the same numbers.

Shapes: B images, H×W pixels, C channels, T tokens, D width, h heads, d = D/h, K inputs and N outputs of a layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vitrail import parts
from vitrail.config import Config, ViTConfig
from vitrail.nn.patches import BytePatchEmbed
from vitrail.nn.pool import AttentionPooling
from vitrail.vectors.engines.engine import LeanEngine
from vitrail.vectors.engines.int8 import InputRange, byte_weights, input_ranges
from vitrail.vectors.engines.lean import Dense, LeanBlock, Norm, dense_of, norm_of
from vitrail.vectors.engines.onnx_writer import GRAPH, WEIGHTS, OnnxWriter

__all__ = ["why_no_graph", "write_graph"]


def why_no_graph(config: Config) -> str | None:
    """Return why a model has no graph, so that only torch runs it; None if it has one."""
    if not isinstance(config, ViTConfig):
        return f"{type(config).__name__} is not one sequence of tokens"
    if config.frames > 1:
        return f"it takes clips of {config.frames} frames"
    patches = config.embedding
    if not isinstance(patches, parts.Patches) or patches.stride not in (None, patches.patch):
        return "its patches overlap or are not a plain projection"
    if config.remainder != "error":
        return f"its remainder is {config.remainder!r}"
    if not isinstance(config.attention, parts.FullAttention):
        return f"it has {type(config.attention).__name__}"
    elsewhere = config.patch_norm or config.attention_norm or config.mlp.norm or config.block_norm == "after"
    if config.norm != "layer" or elsewhere or config.cosine_attention:
        return "its norms are of another kind, or at other places, than the graph has them"
    if config.position.inside is not None:
        return f"its positions act on {config.position.inside.acts_on}"
    return None


@torch.inference_mode()
def write_graph(engine: LeanEngine, folder: Path, ranges: Mapping[str, Tensor] | None = None) -> None:
    """Write graph.onnx and weights.bin of a float32 engine into a folder; with `ranges` its products are in int8."""
    with (folder / WEIGHTS).open("wb") as weights:
        writer = _Encoder(weights)
        vector = writer.vector(engine, None if ranges is None else input_ranges(engine.lean, ranges))
    image = (*engine.preprocessing.image, engine.model.config.channels)
    writer.save(folder / GRAPH, image=image, vector=vector, width=engine.width)


class _Encoder(OnnxWriter):
    """The steps of a model, each of which adds nodes and returns the name of its result."""

    def vector(self, engine: LeanEngine, ranges: Sequence[Mapping[str, InputRange]] | None) -> str:
        model, config = engine.model, engine.model.config
        x = self.embedded(engine)
        if model.embedding_norm is not None:
            x = self.norm(x, norm_of(model.embedding_norm))
        for index, block in enumerate(engine.lean):
            x = self.block(x, block, config.mlp, {} if ranges is None else ranges[index])
        last = None if model.norm is None else norm_of(model.norm)
        x = self.norm(x, last) if last and config.final_norm == "tokens" else x
        x = self.pooled(x, engine)
        x = self.norm(x, last) if last and config.final_norm == "pooled" else x
        two = config.prefix.distillation and isinstance(config.pool, parts.ClsPool)
        return self.mean(x) if two else x

    def embedded(self, engine: LeanEngine) -> str:
        """uint8 (B, H, W, C) → (B, T, D). All but the product with pixels is the same for every image: a constant."""
        assert engine.front is not None
        assert isinstance(engine.front.embedding, BytePatchEmbed)
        embedding, config, size = engine.front.embedding, engine.model.config, engine.preprocessing.image
        grid, patch, prefix = config.fit(size).grid, embedding.patch, config.prefix.count
        blank = torch.zeros(1, *size, config.channels, dtype=torch.uint8)
        before, same = engine.front.embed(blank)[0].split([prefix, grid.area], dim=1)
        row = patch.width * config.channels
        x = self.op("Reshape", "image", self.sizes(0, grid.height, patch.height, grid.width, row))
        x = self.op("Transpose", x, perm=[0, 1, 3, 2, 4])  # (B, h, w, P, Q·C)
        x = self.op("Reshape", x, self.sizes(0, grid.area, patch.height * row))
        # in int8 too: weights of 8 bits cost a tenth of all layers' error here, for a hundredth of the work
        x = self.op("MatMul", self.to_float(x), self.tensor(embedding.weight.T))
        x = self.op("Add", x, self.tensor(same))
        if not prefix:
            return x
        batch = self.op("Slice", self.op("Shape", x), self.sizes(0), self.sizes(1))
        shape = self.op("Concat", batch, self.sizes(prefix, config.width), axis=0)
        return self.op("Concat", self.op("Expand", self.tensor(before), shape), x, axis=1)

    def block(self, x: str, block: LeanBlock, mlp: parts.MlpKind, ranges: Mapping[str, InputRange]) -> str:
        into, out, fc1, fc2 = (ranges.get(name) for name in ("qkv", "out", "fc1", "fc2"))
        attention, *qkv = block.attention, *block.qkv
        assert isinstance(block.norm1, Norm)
        assert isinstance(block.norm2, Norm)
        layers = [layer for layer in (*qkv, block.out, block.fc1, block.fc2) if isinstance(layer, Dense)]
        *queries, last, out_layer, fc1_layer, fc2_layer = layers
        last = last if out is None else out.smoothed_values(last)
        h = self.steps(self.norm(x, block.norm1 if into is None else into.smoothed_norm(block.norm1)), into)
        if queries:  # only some tokens are kept, and only these ask
            assert block.keep is not None
            x, kept = self.first(x, block.keep), self.first(h, block.keep)
            q, (k, v) = self.dense(kept, queries[0], into), self.apart(h, last, 2, into)
        else:
            q, k, v = self.apart(h, last, 3, into)
        norms = [None if norm is None else norm_of(norm) for norm in (attention.q_norm, attention.k_norm)]
        mixed = self.attention(q, k, v, heads=attention.num_heads, width=block.head_width, norms=norms)
        x = self.op("Add", x, self.dense(self.steps(mixed, out), out_layer, out))
        h = self.steps(self.norm(x, block.norm2 if fc1 is None else fc1.smoothed_norm(block.norm2)), fc1)
        h = self.activated(self.dense(h, fc1_layer, fc1), mlp)
        h = h if fc2 is None else self.steps(self.op("Mul", h, self.tensor(1 / fc2.smooth)), fc2)
        return self.op("Add", x, self.dense(h, fc2_layer, fc2))

    def attention(
        self, q: str, k: str, v: str, *, heads: int, width: int, norms: Sequence[Norm | None] = (None, None)
    ) -> str:
        """(B, T, D) each → (B, T, D), written out: the runtimes fuse these operators, or run them as fast."""
        q, k, v = (self.op("Reshape", each, self.sizes(0, -1, heads, width)) for each in (q, k, v))
        q, k = (each if norm is None else self.norm(each, norm) for each, norm in zip((q, k), norms, strict=True))
        q, k, v = (self.op("Transpose", each, perm=[0, 2, 1, 3]) for each in (q, k, v))  # (B, h, T, d)
        k = self.op("Mul", k, self.constant(np.float32(width**-0.5)))
        scores = self.op("MatMul", q, self.op("Transpose", k, perm=[0, 1, 3, 2]))  # (B, h, T, T)
        mixed = self.op("MatMul", self.op("Softmax", scores, axis=-1), v)
        return self.op("Reshape", self.op("Transpose", mixed, perm=[0, 2, 1, 3]), self.sizes(0, -1, heads * width))

    def activated(self, x: str, mlp: parts.MlpKind) -> str:
        if isinstance(mlp, parts.SwiGLU):
            gate, value = self.split("Split", x, axis=-1, num_outputs=2, outputs=2)
            return self.op("Mul", self.op("Mul", gate, self.op("Sigmoid", gate)), value)
        match mlp.activation:
            case "gelu":
                return self.op("Gelu", x)
            case "gelu_tanh":
                return self.op("Gelu", x, approximate="tanh")
            case "quick_gelu":
                return self.op("Mul", x, self.op("Sigmoid", self.op("Mul", x, self.constant(np.float32(1.702)))))
            case "silu":
                return self.op("Mul", x, self.op("Sigmoid", x))
            case "relu":
                return self.op("Relu", x)
            case "tanh":
                return self.op("Tanh", x)

    def pooled(self, x: str, engine: LeanEngine) -> str:
        """(B, T, D) → (B, D), or (B, 2, D) with a distillation token."""
        config, pool = engine.model.config, engine.model.pool
        match config.pool:
            case parts.ClsPool() if config.prefix.distillation:
                return self.first(x, 2)
            case parts.ClsPool():
                return self.cls(x, config.width)
            case parts.MeanPool():
                return self.mean(self.patches(x, config))
            case parts.MaxPool():
                return self.op("ReduceMax", self.patches(x, config), self.sizes(1), keepdims=0)
            case parts.ClsMeanPool():
                return self.op("Concat", self.cls(x, config.width), self.mean(self.patches(x, config)), axis=1)
            case parts.AttentionPool():
                assert isinstance(pool, AttentionPooling)
                return self.asked(x if pool.prefix else self.patches(x, config), pool, config)

    def asked(self, x: str, pool: AttentionPooling, config: ViTConfig) -> str:
        """(B, N, D) → (B, D): a learned query, which is the same for every image, attends to the tokens."""
        assert isinstance(config.pool, parts.AttentionPool)
        batch = self.op("Slice", self.op("Shape", x), self.sizes(0), self.sizes(1))
        shape = self.op("Concat", batch, self.sizes(1, config.width), axis=0)
        q = self.op("Expand", self.tensor(pool.q(pool.query)), shape)
        k, v = self.apart(x, dense_of(pool.kv), 2)
        mixed = self.attention(q, k, v, heads=pool.num_heads, width=config.width // pool.num_heads)
        x = self.dense(mixed, dense_of(pool.out))
        h = self.dense(self.norm(x, norm_of(pool.norm)), dense_of(pool.mlp.fc1))
        h = self.activated(h, parts.Mlp(width=config.pool.mlp_width, activation=config.pool.activation))
        return self.cls(self.op("Add", x, self.dense(h, dense_of(pool.mlp.fc2))), config.width)

    # ── operators ───────────────────────────────────────────────────────────────────────────────────────────────

    def tensor(self, value: Tensor) -> str:
        return self.constant(value.detach().numpy())

    def norm(self, x: str, norm: Norm) -> str:
        assert norm.bias is not None
        weight, bias = self.tensor(norm.weight), self.tensor(norm.bias)
        return self.op("LayerNormalization", x, weight, bias, axis=-1, epsilon=norm.eps)

    def dense(self, x: str, layer: Dense, to: InputRange | None = None) -> str:
        weight = self.tensor(layer.weight.T) if to is None else self.byte_weights(layer.weight * to.smooth)
        x = self.op("MatMul", x, weight)
        return x if layer.bias is None else self.op("Add", x, self.tensor(layer.bias))

    def apart(self, x: str, layer: Dense, parts: int, to: InputRange | None = None) -> list[str]:
        """A layer whose outputs are equal parts, each by a product of its own: to split one's result is to copy it."""
        biases = [None] * parts if layer.bias is None else layer.bias.chunk(parts)
        pairs = zip(layer.weight.chunk(parts), biases, strict=True)
        return [self.dense(x, Dense(weight, bias), to) for weight, bias in pairs]

    def steps(self, x: str, to: InputRange | None) -> str:
        """Round a layer's input, which is smoothed, to the steps of its range."""
        if to is None:
            return x
        step, zero = self.constant(np.float32(to.step)), self.constant(np.uint8(to.zero))
        return self.op("DequantizeLinear", self.op("QuantizeLinear", x, step, zero), step, zero)

    def byte_weights(self, weight: Tensor) -> str:
        """(N, K) → the name of (K, N) in 8 bits, with a scale for every output."""
        rounded, scales = byte_weights(weight)
        return self.op("DequantizeLinear", self.tensor(rounded.T), self.tensor(scales), axis=1)

    def first(self, x: str, tokens: int) -> str:
        return self.op("Slice", x, self.sizes(0), self.sizes(tokens), self.sizes(1))

    def patches(self, x: str, config: ViTConfig) -> str:
        start = config.prefix.count
        return self.op("Slice", x, self.sizes(start), self.sizes(2**31 - 1), self.sizes(1)) if start else x

    def cls(self, x: str, width: int) -> str:
        return self.op("Reshape", self.first(x, 1), self.sizes(0, width))

    def mean(self, x: str) -> str:
        return self.op("ReduceMean", x, self.sizes(1), keepdims=0)
