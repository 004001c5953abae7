"""How files of timm's families are told apart: by tensors that no other has, by an architecture's name or shapes."""

from __future__ import annotations

from collections.abc import Callable

from vitrail.checkpoint.dialects.json_config import JsonConfig
from vitrail.checkpoint.dialects.timm_architectures import architecture_named, architectures_of
from vitrail.checkpoint.formats.file import Stored

__all__ = ["Signs", "all_of", "any_of", "has", "is_dinov3", "is_eva", "is_packed", "is_pit"]

Signs = Callable[[Stored, str], bool]


def is_pit(tokens: int) -> Signs:
    """Match PiT's names and this many tokens before the patches: CLS, or CLS and distillation."""

    def signs(stored: Stored, prefix: str) -> bool:
        cls = stored.tensors.get(f"{prefix}cls_token")
        there = any_of(stored, prefix, ("transformers.0.blocks.0.norm1.weight",))
        return there and cls is not None and tuple(cls.shape[1:2]) == (tokens,)

    return signs


def any_of(stored: Stored, prefix: str, names: tuple[str, ...]) -> bool:
    return any(prefix + name in stored.tensors for name in names)


def all_of(stored: Stored, prefix: str, names: tuple[str, ...]) -> bool:
    return all(prefix + name in stored.tensors for name in names)


def is_dinov3(stored: Stored, prefix: str) -> bool:
    """Match CLS, four registers and no table: among models without a config, only DINOv3 has these."""
    registers = stored.tensors.get(f"{prefix}reg_token")
    return any_of(stored, prefix, ("cls_token",)) and registers is not None and registers.shape[1:2] == (4,)


def is_packed(stored: Stored, prefix: str) -> bool:
    """Match a gated MLP whose gate and value are one layer."""
    fc1, fc2 = (stored.tensors.get(f"{prefix}blocks.0.mlp.{layer}.weight") for layer in ("fc1", "fc2"))
    return fc1 is not None and fc2 is not None and fc1.shape[0] == 2 * fc2.shape[-1]


def is_eva(stored: Stored, prefix: str) -> bool:
    """Match timm's Eva class by tensors that no other has, by its architecture's name, or by its exact shapes."""
    own = ("blocks.0.gamma_1", "blocks.0.attn.q_bias", "rope.freqs")
    shapes = {
        name.removeprefix(prefix): tuple(each.shape) for name, each in stored.tensors.items() if name.startswith(prefix)
    }
    if "blocks.0.norm1.weight" not in shapes:
        return False
    if any_of(stored, prefix, own):
        return True
    name = JsonConfig(stored.config).text("architecture")
    alike = [architecture_named(name)] if name else architectures_of(shapes)
    return bool(alike) and all(each.kind == "Eva" for each in alike)


def has(*names: str) -> Signs:
    return lambda stored, prefix: any_of(stored, prefix, names)
