"""Every module of `vitrail.nn` on a tape: one function per module, by its name, in its order of operations.

Letters: B images, T tokens, D width, h heads, d = D/h.
"""

from __future__ import annotations

from dataclasses import dataclass

from vitrail.config import ViTConfig
from vitrail.errors import VitrailError
from vitrail.parts import FullAttention, Learned, Mlp, Patches
from vitrail.plan import ops
from vitrail.plan.attend import sdpa, unbind_heads
from vitrail.plan.meter import Number
from vitrail.plan.workload import Workload
from vitrail.plan.tape import Tape, Tensor, module

__all__ = ["Numbers", "vit"]


@dataclass
class Numbers:
    """The sizes of a ViT: whole numbers, or arrays of them for a sweep."""

    batch: Number
    channels: Number
    patch: Number
    """Pixels of a patch."""
    pixels: Number
    """Pixels of the fitted image."""
    grid: Number
    """Patches per image."""
    tokens: Number
    width: Number
    depth: Number
    num_heads: Number
    mlp_width: Number
    classes: Number

    @property
    def head_width(self) -> Number:
        return self.width // self.num_heads


def numbers(c: ViTConfig, workload: Workload) -> Numbers:
    fit = c.fit(c.image)
    return Numbers(
        batch=workload.batch,
        channels=c.channels,
        patch=c.patch.area,
        pixels=c.image.area,
        grid=fit.grid.area,
        tokens=c.prefix.count + fit.grid.area,
        width=c.width,
        depth=c.depth,
        num_heads=c.num_heads,
        mlp_width=c.mlp.width,
        classes=c.classes,
    )


def vit(t: Tape, c: ViTConfig, n: Numbers, image: Tensor) -> Tensor:
    x = features(t, c, n, image)
    x = pool(t, c, n, x)
    return classify(t, c, n, x)


def features(t, c, n, image):
    def one(x, i):
        return block(t, c, n, x, f"blocks.{i}")

    x = t.repeat("blocks", one, embed(t, c, n, image), [(i,) for i in range(c.depth)])
    return ops.layer_norm(t, "norm", x, n.width)


def embed(t, c, n, image):
    tokens = patch_embed(t, c, n, image)
    tokens = prefix(t, c, n, tokens)
    return ops.add_rows(t, tokens, t.parameter("position", n.tokens * n.width, "table"))


@module
def patch_embed(t, c, n, image):
    return ops.conv(t, "embedding", image, n.width * n.channels * n.patch, n.width, n.batch * n.grid)


@module
def prefix(t, c, n, tokens):
    before = [ops.expand(t, t.parameter("prefix", n.width, "cls"), n.batch)]
    return ops.cat(t, *before, tokens)


@module
def block(t, c, n, x, path):
    x = ops.add(t, x, attention(t, c, n, norm(t, n, x, f"{path}.norm1"), f"{path}.attention"))
    return ops.add(t, x, mlp(t, c, n, norm(t, n, x, f"{path}.norm2"), f"{path}.mlp"))


@module
def norm(t, n, x, path):
    return ops.layer_norm(t, path, x, n.width)


@module
def attention(t, c, n, x, path):
    q, k, v = heads(t, c, n, x, path)
    mixed = sdpa(t, path, q, k, v, n.batch * n.num_heads, n.tokens, n.tokens, n.head_width)
    x = ops.linear(t, f"{path}.out", mixed, n.width, n.width)
    return ops.dropout(t, path, x, c.dropout)


def heads(t, c, n, x, path):
    qkv = ops.linear(t, f"{path}.qkv", x, n.width, 3 * n.width)
    return unbind_heads(t, qkv, 3)


@module
def mlp(t, c, n, x, path):
    x = ops.gelu(t, path, ops.linear(t, f"{path}.fc1", x, n.width, n.mlp_width))
    x = ops.dropout(t, path, x, c.dropout)
    return ops.dropout(t, path, ops.linear(t, f"{path}.fc2", x, n.mlp_width, n.width), c.dropout)


@module
def pool(t, c, n, x):
    return ops.select(t, x, n.batch * n.width)


def classify(t, c, n, x):
    return ops.linear(t, "head", x, n.width, n.classes)
