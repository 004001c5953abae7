"""Presets of encoders that other models read: EVA-02, AIMv2, PE, I-JEPA, InternViT, OWL-ViT."""

from __future__ import annotations

from typing import Any

from vitrail.config import ViTConfig
from vitrail.geometry import Size
from vitrail.parts import AttentionPool, Learned, MeanPool, Mlp, Patches, Prefix, Rotary, SwiGLU

__all__ = ["TOWERS"]


def _tower(width: int, depth: int, num_heads: int, patch: int, image: int, **changes: Any) -> ViTConfig:
    sizes = {"width": width, "depth": depth, "num_heads": num_heads, "image": Size.of(image), "classes": 0}
    return ViTConfig(**{**sizes, "embedding": Patches(patch=Size.of(patch)), "mlp": Mlp(width=4 * width), **changes})


def _eva02(width: int, depth: int, num_heads: int, *, norm: bool) -> ViTConfig:
    """Learned positions and rotations, a gated MLP, in the larger two with a norm inside (arXiv 2303.11331)."""
    return _tower(
        *(width, depth, num_heads, 14, 224),
        position=Learned(rotary=Rotary(temperature=10_000.0, reference=Size(16, 16))),
        qkv_bias="no_key",
        mlp=SwiGLU(width=8 * width // 3, norm=norm),
        final_norm="pooled",
        pool=MeanPool(),
    )


def _aimv2(width: int, num_heads: int, mlp_width: int) -> ViTConfig:
    """RMS norms, no biases but the patches' (arXiv 2411.14402)."""
    return _tower(
        *(width, 24, num_heads, 14, 224),
        prefix=Prefix(cls=False),
        patch_norm=True,
        qkv_bias="none",
        out_bias=False,
        mlp=SwiGLU(width=mlp_width, bias=False),
        norm="rms",
        norm_eps=1e-5,
        pool=MeanPool(),
    )


def _pe(width: int, depth: int, num_heads: int, patch: int, image: int, **changes: Any) -> ViTConfig:
    """Perception Encoder's core, with its projection as the head (arXiv 2504.13181)."""
    rotary = Rotary(temperature=10_000.0, first="columns", offset=1.0, reference=Size.of(image // patch))
    whole = {
        "embedding": Patches(patch=Size.of(patch), bias=False),
        "position": Learned(rotary=rotary),
        "embedding_norm": True,
        "norm_eps": 1e-5,
        "pool": AttentionPool(num_heads=8, mlp_width=4 * width, activation="gelu", prefix=True),
        "classes": 1024,
    }
    return _tower(width, depth, num_heads, patch, image, **{**whole, **changes})


def _ijepa(width: int, depth: int, num_heads: int, mlp_width: int, patch: int) -> ViTConfig:
    """No CLS token; tokens are averaged (arXiv 2301.08243)."""
    return _tower(
        *(width, depth, num_heads, patch, 224),
        prefix=Prefix(cls=False),
        position=Learned(convention="huggingface"),
        mlp=Mlp(width=mlp_width),
        pool=MeanPool(),
    )


def _owlvit(width: int, depth: int, num_heads: int, patch: int, image: int) -> ViTConfig:
    """CLIP's tower at a size for detection (arXiv 2205.06230)."""
    return _tower(
        *(width, depth, num_heads, patch, image),
        embedding=Patches(patch=Size.of(patch), bias=False),
        position=Learned(convention="huggingface"),
        embedding_norm=True,
        mlp=Mlp(width=4 * width, activation="quick_gelu"),
        norm_eps=1e-5,
    )


TOWERS: dict[str, ViTConfig] = {
    "eva02-Ti/14": _eva02(192, 12, 3, norm=False),
    "eva02-S/14": _eva02(384, 12, 6, norm=False),
    "eva02-B/14": _eva02(768, 12, 12, norm=True),
    "eva02-L/14": _eva02(1024, 24, 16, norm=True),
    "aimv2-L/14": _aimv2(1024, 8, 2816),
    "aimv2-H/14": _aimv2(1536, 12, 4096),
    "aimv2-1B/14": _aimv2(2048, 16, 5632),
    "aimv2-3B/14": _aimv2(3072, 24, 8192),
    "pe-core-B/16": _pe(768, 12, 12, 16, 224),
    "pe-core-L/14": _pe(1024, 24, 16, 14, 336),
    "pe-core-G/14": _pe(
        *(1536, 50, 16, 14, 448),
        prefix=Prefix(cls=False),
        position=Learned(rotary=Rotary(temperature=10_000.0, first="columns", reference=Size(32, 32))),
        mlp=Mlp(width=8960),
        classes=1280,
    ),
    "ijepa-H/14": _ijepa(1280, 32, 16, 5120, 14),
    "ijepa-g/16": _ijepa(1408, 40, 16, 6144, 16),
    "internvit-300M/14": _tower(  # InternVL's language model reads the tokens without a last norm (arXiv 2404.16821)
        *(1024, 24, 16, 14, 448),
        position=Learned(convention="huggingface"),
        layer_scale=0.1,
        final_norm="none",
        pool=MeanPool(),
    ),
    "owlvit-B/32": _owlvit(768, 12, 12, 32, 768),
    "owlvit-B/16": _owlvit(768, 12, 12, 16, 768),
    "owlvit-L/14": _owlvit(1024, 24, 16, 14, 840),
}
