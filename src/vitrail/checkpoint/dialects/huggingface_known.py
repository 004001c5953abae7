"""What config.json says of each model type of transformers, with the type's own defaults where it says nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from vitrail.checkpoint.dialects.evidence import Known, settle
from vitrail.checkpoint.dialects.huggingface_config import activation_of, tower_type, vision_part
from vitrail.checkpoint.dialects.table import Sizes
from vitrail.checkpoint.formats.file import Stored
from vitrail.checkpoint.header import Evidence
from vitrail.config import ViTConfig
from vitrail.errors import require
from vitrail.geometry import Size
from vitrail.parts import ClsPool, Learned, MeanPool, NoPosition, Position, RelativeBias, Rotary

__all__ = [
    "LEARNED",
    "known",
    "known_beit",
    "known_dinov3",
    "known_siglip2",
    "known_siglip2_classifier",
    "known_vit",
    "settle_dinov3",
]

LEARNED = Learned(convention="huggingface")


def known(
    position: Position | None, *, eps: float = 1e-12, activation: str = "gelu", **fields: Any
) -> Callable[[Stored, str], Known]:
    """Return the fields of config.json, completed by the model type's defaults."""

    def read(stored: Stored, prefix: str) -> Known:
        said = vision_part(stored)
        found: dict[str, Any] = {
            "norm_eps": said.number("rms_norm_eps" if "rms_norm_eps" in said else "layer_norm_eps", eps),
            "activation": activation_of(said, activation),
            "position": position,
            **fields,
        }
        if "num_attention_heads" in said:
            found["num_heads"] = said.whole("num_attention_heads", 0)
        if isinstance(position, Rotary):
            found["position"] = Rotary(coordinates="normalised", temperature=said.number("rope_theta", 100.0))
        for key in ("layerscale_value", "layer_scale_init_value"):
            if key in said:
                found["layer_scale"] = said.number(key, 0.0) or None
        if not said:
            source = "names and shapes, as transformers has them"
            return Known(source=source, fields=found, assumed=("activation", "norm_eps"))
        return Known(
            source=f"config.json ({_named(stored)})",
            fields=found,
            image=said.size("image_size"),
            stated=said.stated(
                width="hidden_size",
                depth="num_hidden_layers",
                channels="num_channels",
                patch="patch_size",
                # DINOv2's models have a ratio, and ignore the size
                **({} if "mlp_ratio" in said else {"mlp_width": "intermediate_size"}),
            ),
        )

    return read


def _named(stored: Stored) -> str:
    """Return the tower's model_type, and that of the model around it."""
    whole, tower = stored.config.get("model_type"), tower_type(stored.config)
    return f"{whole}" if whole == tower else f"{tower} inside {whole}"


def known_vit(stored: Stored, prefix: str) -> Known:
    eps = 1e-6 if stored.config.get("model_type") == "vit_msn" else 1e-12
    return known(LEARNED, eps=eps)(stored, prefix)


def known_dinov3(stored: Stored, prefix: str) -> Known:
    said = vision_part(stored)
    activation = said.text("hidden_act", "gelu")
    require(
        not said.flag("use_gated_mlp", False) or activation == "silu",
        f"config.json has hidden_act {activation!r} in a gated MLP, and vitrail's gated MLP has 'silu'; "
        "it cannot be read",
    )
    return known(Rotary(coordinates="normalised"), eps=1e-5, pool=ClsPool())(stored, prefix)


def settle_dinov3(
    tensors: dict[str, Tensor], known: Known, *, from_image: Size | None, num_heads: int | None
) -> tuple[ViTConfig, Evidence]:
    """Settle as usual, after a bias of zeros was given to queries or values where only the other has one."""
    for name in list(tensors):
        for mine, other in (("q_bias", "v_bias"), ("v_bias", "q_bias")):
            if name.endswith(f".attention.{mine}"):
                tensors.setdefault(name.removesuffix(mine) + other, tensors[name].new_zeros(tensors[name].shape))
    return settle(tensors, known, from_image=from_image, num_heads=num_heads)


def known_beit(stored: Stored, prefix: str) -> Known:
    found = known(None)(stored, prefix)
    fields = dict(found.fields)
    if f"{prefix}pooler.layernorm.weight" in stored.tensors:
        fields |= {"final_norm": "pooled", "pool": MeanPool()}
    if f"{prefix}embeddings.position_embeddings" in stored.tensors:
        fields["position"] = LEARNED
    elif any(name.endswith("relative_position_bias_table") for name in stored.tensors):
        shared = f"{prefix}encoder.relative_position_bias.relative_position_bias_table" in stored.tensors
        fields["position"] = RelativeBias(shared=shared, convention="huggingface")
    else:
        fields["position"] = NoPosition()
    return replace(found, fields=fields)


def known_siglip2(stored: Stored, prefix: str) -> Known:
    position = Learned(convention="siglip2")
    found = known(position, eps=1e-6, activation="gelu_pytorch_tanh")(stored, prefix)
    said = vision_part(stored)
    patch, count = said.whole("patch_size", 16), said.whole("num_patches", 256)
    require(
        count > 0 and math.isqrt(count) ** 2 == count,
        f"config.json has num_patches {count}, and a SigLIP2 table is square by definition; mend it",
    )
    sizes = Sizes(patch=Size.of(patch), channels=said.whole("num_channels", 3))
    return replace(found, image=Size.of(patch * math.isqrt(count)), sizes=sizes)


def known_siglip2_classifier(stored: Stored, prefix: str) -> Known:
    found = known_siglip2(stored, prefix)
    return replace(found, fields={**found.fields, "pool": MeanPool()})
