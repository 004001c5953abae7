"""Other libraries' implementations of a ViT on a tape, operation by operation, with their module names.

The libraries are timm 1.0.30 and transformers 5.18. A config that a library cannot express raises an error.
"""

from __future__ import annotations

import re

from vitrail.config import Config, ViTConfig
from vitrail.errors import require
from vitrail.parts import ClsPool, FullAttention, Learned, MeanPool, Mlp, Patches, Prefix
from vitrail.plan import ops
from vitrail.plan.attention_ops import Problem, fused_mix, is_flash, product, softmax, unbind_heads
from vitrail.plan.graph import Tensor, module
from vitrail.plan.model.attention import self_attention
from vitrail.plan.model.build import Model
from vitrail.plan.model.layout import Sizes
from vitrail.plan.model.patches import patch_embed
from vitrail.plan.model.vit import sizes
from vitrail.plan.repetition import Run
from vitrail.plan.tape import Tape
from vitrail.plan.workload import Workload

__all__ = ["build_huggingface", "build_timm", "huggingface_path", "timm_path"]


def _require(library: str, condition: bool, what: str, instead: str) -> None:
    require(condition, f"{library}'s ViT cannot express {what}; use {instead}, or plan vitrail's own model")


def _check_common(library: str, c: Config) -> tuple[ViTConfig, Patches, Learned]:
    _require(library, isinstance(c, ViTConfig), type(c).__name__, "a ViTConfig")
    assert isinstance(c, ViTConfig)
    plain = isinstance(c.embedding, Patches) and c.embedding.stride in (None, c.patch) and c.remainder == "error"
    _require(library, plain, "this embedding", "non-overlapping Patches with remainder 'error'")
    _require(library, isinstance(c.attention, FullAttention), type(c.attention).__name__, "FullAttention")
    _require(library, isinstance(c.position, Learned) and c.position.inside is None, c.position.name, "Learned")
    simple = isinstance(c.mlp, Mlp) and c.mlp.activation in ("gelu", "gelu_tanh", "silu")
    _require(library, simple, f"the MLP {c.mlp}", "Mlp with gelu")
    _require(library, c.qkv_bias != "no_key", "qkv_bias 'no_key'", "'all' or 'none'")
    norms = c.norm == "layer" and not (c.patch_norm or c.attention_norm or c.mlp.norm)
    _require(library, norms, "these norms", "layer norms before attention and MLP")
    _require(library, c.out_bias and c.mlp.bias, "layers without a bias", "out_bias=True and Mlp(bias=True)")
    _require(library, c.merger is None, "a merger", "merger=None")
    _require(library, c.head_bias, "a head without bias", "head_bias=True")
    assert isinstance(c.embedding, Patches)
    assert isinstance(c.position, Learned)
    return c, c.embedding, c.position


def _blocks(depth: int) -> list[Run]:
    """The first block is separate, because the caller keeps its input alive to the end."""
    return [[(0,)], [(i,) for i in range(1, depth)]]


# ── timm ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _check_timm(config: Config) -> ViTConfig:
    c, embedding, position = _check_common("timm", config)
    _require("timm", not c.prefix.distillation, "a distillation token in its plain ViT", "Prefix(distillation=False)")
    _require("timm", position.prefix != "cls", "positions for CLS but not for registers", "Learned(prefix='all')")
    _require("timm", isinstance(c.pool, ClsPool | MeanPool), type(c.pool).__name__, "ClsPool or MeanPool")
    _require("timm", c.final_norm != "none", "no final norm", "final_norm 'tokens' or 'pooled'")
    unbiased = embedding.bias != c.embedding_norm
    _require("timm", unbiased, "this patch bias", "a bias exactly where there is no embedding_norm")
    return c


def timm_path(path: str, name: str) -> str:
    """Return vitrail's path of a module of timm's ViT that has a tensor called `name`."""
    if not path:
        return "position" if name == "pos_embed" else "prefix"
    head, *rest = path.split(".")
    head = {"patch_embed": "embedding", "norm_pre": "embedding_norm", "fc_norm": "norm"}.get(head, head)
    inside = ".".join(rest).replace("attn.qkv", "attention.qkv").replace("attn.proj", "attention.out")
    return f"{head}.{inside}" if rest else head


def build_timm(config: Config, workload: Workload) -> Model:
    c = _check_timm(config)
    n = sizes(c, workload)
    return lambda t, image: _timm_vit(t, c, n, image)


def _timm_vit(t: Tape, c: ViTConfig, n: Sizes, image: Tensor) -> Tensor:
    x = _timm_features(t, c, n, image)
    return _timm_head(t, c, n, x)


def _timm_features(t: Tape, c: ViTConfig, n: Sizes, image: Tensor) -> Tensor:
    def block(x: Tensor, i: int) -> Tensor:
        return _timm_block(t, c, n, x, f"blocks.{i}", c.drop_path * i)

    values, bias = c.channels * c.patch.area, not c.embedding_norm
    x = patch_embed(t, "patch_embed.proj", image, values, n.width, n.batch * n.patches, bias)
    x = _timm_positions(t, c, n, x)
    if c.embedding_norm:
        x = ops.LayerNorm(t, "norm_pre", x, n.width)
    x = t.repeat("blocks", block, x, _blocks(c.depth))
    return ops.LayerNorm(t, "norm", x, n.width) if c.final_norm == "tokens" else x


def _timm_positions(t: Tape, c: ViTConfig, n: Sizes, x: Tensor) -> Tensor:
    assert isinstance(c.position, Learned)
    kept = [("cls_token", c.prefix.cls), ("reg_token", c.prefix.registers)]
    before = [
        ops.expand(t, t.parameter("", count * n.width, name, rows=1), n.batch * count * n.width)
        for name, count in kept
        if count
    ]
    separate = c.position.prefix == "none"
    table = t.parameter("", (n.patches if separate else n.tokens) * n.width, "pos_embed", rows=1)
    if separate:
        x = ops.add(t, x, table)
        return ops.cat(t, *before, x) if before else x
    if before:
        x = ops.cat(t, *before, x)
    return ops.add(t, x, table)


@module
def _timm_block(t: Tape, c: ViTConfig, n: Sizes, x: Tensor, path: str, rate: float) -> Tensor:
    def scaled(branch: Tensor, name: str) -> Tensor:
        if c.layer_scale is not None:
            branch = ops.multiply(t, path, branch, t.parameter(f"{path}.{name}", n.width, "gamma"), spread=True)
        if not t.train or rate == 0:
            return branch
        return ops.multiply(t, path, branch, t.new(n.batch, branch.size), spread=True)

    def norm(x: Tensor, name: str) -> Tensor:
        return ops.LayerNorm(t, f"{path}.{name}", x, n.width)

    x = ops.add(t, x, scaled(_timm_attention(t, c, n, norm(x, "norm1"), f"{path}.attn"), "ls1"))
    return ops.add(t, x, scaled(_timm_mlp(t, c, n, norm(x, "norm2"), f"{path}.mlp"), "ls2"))


@module
def _timm_attention(t: Tape, c: ViTConfig, n: Sizes, x: Tensor, path: str) -> Tensor:
    p = self_attention(t, n)
    q, k, v = unbind_heads(t, ops.linear(t, f"{path}.qkv", x, n.width, 3 * n.width, c.qkv_bias == "all"), 3, n.width)
    if c.qk_norm:
        q = ops.LayerNorm(t, f"{path}.q_norm", q, n.head_width)
        k = ops.LayerNorm(t, f"{path}.k_norm", k, n.head_width)
    if t.explicit:
        q = ops.fresh(t, q)
        copies = not c.qk_norm and not p.single
        attn = product(
            t,
            path,
            q,
            k,
            p.matrices,
            p.queries,
            p.head_width,
            p.keys,
            "attention_maps",
            copies=(copies and p.queries > 1, copies),
        )
        attn = softmax(t, path, attn)
        attn = ops.dropout(t, path, attn, c.attention_dropout)
        x = product(t, path, attn, v, p.matrices, p.queries, p.keys, p.head_width, copies=(False, not p.single))
        x = x if p.single or p.queries == 1 else ops.copied_back(t, x)
        copies = not p.merges
    else:
        x, copies = fused_mix(t, path, q, k, v, p, None, c.qk_norm)
    if copies:
        x = ops.copy(t, x)
    x = ops.Linear(t, f"{path}.proj", x, n.width, n.width)
    return ops.dropout(t, path, x, c.dropout)


@module
def _timm_mlp(t: Tape, c: ViTConfig, n: Sizes, x: Tensor, path: str) -> Tensor:
    x = ops.Linear(t, f"{path}.fc1", x, n.width, c.mlp.width)
    x = ops.activate(t, path, x)
    x = ops.dropout(t, path, x, c.dropout)
    x = ops.Linear(t, f"{path}.fc2", x, c.mlp.width, n.width)
    return ops.dropout(t, path, x, c.dropout)


def _timm_head(t: Tape, c: ViTConfig, n: Sizes, x: Tensor) -> Tensor:
    x = _timm_pool(t, c, n, x)
    if c.final_norm == "pooled":
        x = ops.LayerNorm(t, "fc_norm", x, n.width)
    return ops.Linear(t, "head", x, n.width, c.classes) if c.classes else x


def _timm_pool(t: Tape, c: ViTConfig, n: Sizes, x: Tensor) -> Tensor:
    if isinstance(c.pool, ClsPool):
        return ops.narrow(t, x, n.batch * n.width)
    if c.prefix.count:
        x = ops.narrow(t, x, n.batch * n.patches * n.width)
    return ops.mean(t, x, n.batch * n.width)


# ── transformers ────────────────────────────────────────────────────────────────────────────────────────────────


def _check_huggingface(config: Config) -> ViTConfig:
    name = "transformers"
    c, embedding, position = _check_common(name, config)
    _require(name, embedding.bias and not c.embedding_norm, "this embedding", "a bias and no embedding_norm")
    _require(name, c.prefix == Prefix() and position.prefix != "none", f"the prefix {c.prefix}", "CLS alone")
    _require(name, isinstance(c.pool, ClsPool), type(c.pool).__name__, "ClsPool")
    _require(name, c.final_norm == "tokens", f"final_norm {c.final_norm!r}", "'tokens'")
    _require(name, not c.qk_norm and c.layer_scale is None, "qk_norm or LayerScale", "neither")
    _require(name, c.dropout == 0 and c.drop_path == 0, "dropout where vitrail has it, or drop_path", "0")
    return c


def huggingface_path(path: str, name: str) -> str:
    """Return vitrail's path of a module of transformers' ViT that has a tensor called `name`."""
    if path == "vit.embeddings":
        return "prefix" if name == "cls_token" else "position"
    path = path.removeprefix("vit.").replace("layers.", "blocks.")
    path = re.sub(r"attention\.[qkv]_proj", "attention.qkv", path).replace("attention.o_proj", "attention.out")
    heads = {"embeddings.patch_embeddings.projection": "embedding", "layernorm": "norm", "classifier": "head"}
    return heads.get(path, path)


def build_huggingface(config: Config, workload: Workload) -> Model:
    c = _check_huggingface(config)
    n = sizes(c, workload)
    return lambda t, image: _huggingface_vit(t, c, n, image)


def _huggingface_vit(t: Tape, c: ViTConfig, n: Sizes, image: Tensor) -> Tensor:
    outputs = _hf_model(t, c, n, image)
    pooled = ops.narrow(t, outputs, n.batch * n.width)
    return ops.Linear(t, "classifier", pooled, n.width, c.classes) if c.classes else pooled


@module
def _hf_model(t: Tape, c: ViTConfig, n: Sizes, image: Tensor) -> Tensor:
    def layer(x: Tensor, i: int) -> Tensor:
        return _hf_layer(t, c, n, x, f"vit.layers.{i}")

    embedded = _hf_embeddings(t, c, n, image)
    hidden = t.repeat("vit.layers", layer, embedded, _blocks(c.depth))
    return ops.LayerNorm(t, "vit.layernorm", hidden, n.width)


@module
def _hf_embeddings(t: Tape, c: ViTConfig, n: Sizes, image: Tensor) -> Tensor:
    projection, values = "vit.embeddings.patch_embeddings.projection", c.channels * c.patch.area
    x = patch_embed(t, projection, image, values, n.width, n.batch * n.patches)
    before = ops.expand(t, t.parameter("vit.embeddings", n.width, "cls_token", rows=1), n.batch * n.width)
    x = ops.cat(t, before, x)
    return ops.add(t, x, t.parameter("vit.embeddings", n.tokens * n.width, "position_embeddings", rows=1))


@module
def _hf_layer(t: Tape, c: ViTConfig, n: Sizes, x: Tensor, path: str) -> Tensor:
    residual = x
    x = ops.LayerNorm(t, f"{path}.layernorm_before", x, n.width)
    x, weights = _hf_attention(t, c, n, x, f"{path}.attention")
    x = ops.add(t, x, residual)
    residual = x
    x = ops.LayerNorm(t, f"{path}.layernorm_after", x, n.width)
    x = _hf_mlp(t, c, n, x, f"{path}.mlp")
    x = ops.add(t, x, residual)
    del weights  # the layer keeps its attention maps to the end
    return x


@module
def _hf_attention(t: Tape, c: ViTConfig, n: Sizes, x: Tensor, path: str) -> tuple[Tensor, Tensor | None]:
    p = self_attention(t, n)
    eager, padded = t.explicit, is_flash(t, p) and p.head_width % 8 > 0
    copies = (
        eager or padded
    ) and not p.merges  # their gradients are heads first; in eager, those of keys are transposed
    q = _hf_heads(t, c, n, x, f"{path}.q_proj", copies)
    k = _hf_heads(t, c, n, x, f"{path}.k_proj", p.batch > 1 and p.keys > 1 if eager else copies)
    v = _hf_heads(t, c, n, x, f"{path}.v_proj", copies)
    if t.explicit:
        mixed, weights = _hf_eager(t, c, path, q, k, v, p)
    else:
        (mixed, copies), weights = fused_mix(t, path, q, k, v, p), None
        if copies:
            mixed = ops.copy(t, mixed)
    mixed = ops.Linear(t, f"{path}.o_proj", mixed, n.width, n.width)
    return mixed, weights


def _hf_heads(t: Tape, c: ViTConfig, n: Sizes, x: Tensor, path: str, copies: bool) -> Tensor:
    x = ops.Linear(t, path, x, n.width, n.width, c.qkv_bias == "all")
    return ops.copied_back(t, x) if copies else x


def _hf_eager(t: Tape, c: ViTConfig, path: str, q: Tensor, k: Tensor, v: Tensor, p: Problem) -> tuple[Tensor, Tensor]:
    copies = (not p.single, not p.single)
    weights = ops.fresh(
        t, product(t, path, q, k, p.matrices, p.queries, p.head_width, p.keys, "attention_maps", copies=copies)
    )
    weights = t.cast(softmax(t, path, weights, precise=True), q.size, "attention_maps")
    weights = ops.dropout(t, path, weights, c.attention_dropout)
    mixed = product(t, path, weights, v, p.matrices, p.queries, p.keys, p.head_width, copies=(False, not p.single))
    mixed = mixed if p.single else ops.copied_back(t, mixed)
    return mixed if p.merges else ops.copy(t, mixed), weights


@module
def _hf_mlp(t: Tape, c: ViTConfig, n: Sizes, x: Tensor, path: str) -> Tensor:
    x = ops.Linear(t, f"{path}.fc1", x, n.width, c.mlp.width)
    x = ops.activate(t, path, x)
    return ops.Linear(t, f"{path}.fc2", x, c.mlp.width, n.width)
