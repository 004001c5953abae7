"""timm's Swin and Swin v2: read by what the architecture's name and its arguments say.

Without a config, a Swin is known by the exact shape of a preset, and a Swin v2 only if one architecture has its shapes.
"""

from __future__ import annotations

from typing import Any

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.dialects.evidence import Known
from vitrail.checkpoint.dialects.json_config import JsonConfig
from vitrail.checkpoint.dialects.swin_config import is_second, swin_config, swin_fields
from vitrail.checkpoint.dialects.table import Row, both
from vitrail.checkpoint.dialects.timm_architectures import Architecture, architecture_named, architectures_of
from vitrail.checkpoint.dialects.timm_arguments import NO_EFFECT, settings
from vitrail.checkpoint.dialects.timm_stages import OUR_BLOCK, block_rows
from vitrail.checkpoint.formats.file import Stored
from vitrail.config import Config, PyramidConfig, padded_grids
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size

__all__ = ["SWIN2_ROWS", "SWIN_ROWS", "known_swin", "known_swin2", "refuse_swin", "refuse_swin2", "swin_arguments"]

BLOCK = "{p}layers.{s}.blocks.{i}"
AROUND = (
    *both("embedding", "{p}patch_embed.proj"),
    *both("embedding_norm", "{p}patch_embed.norm"),
    *both("stages.{s}.merge.norm", "{p}layers.{s}.downsample.norm"),
    Row(("stages.{s}.merge.reduce.weight",), ("{p}layers.{s}.downsample.reduction.weight",)),
    *block_rows(OUR_BLOCK, BLOCK),
    *both("norm", "{p}norm"),
    *both("head", "{p}head.fc"),
)
SWIN_ROWS = (
    *AROUND,
    Row((f"{OUR_BLOCK}.attention.position.table",), (f"{BLOCK}.attn.relative_position_bias_table",)),
)
SWIN2_ROWS = (
    *(row for row in AROUND if row.ours[0] != f"{OUR_BLOCK}.attention.qkv.bias"),
    Row((f"{OUR_BLOCK}.attention.q_bias",), (f"{BLOCK}.attn.q_bias",)),
    Row((f"{OUR_BLOCK}.attention.v_bias",), (f"{BLOCK}.attn.v_bias",)),
    Row((f"{OUR_BLOCK}.attention.scale",), (f"{BLOCK}.attn.logit_scale",)),
    *both(f"{OUR_BLOCK}.attention.position.fc1", f"{BLOCK}.attn.cpb_mlp.0"),
    *both(f"{OUR_BLOCK}.attention.position.fc2", f"{BLOCK}.attn.cpb_mlp.2"),
)
READ = frozenset(
    {
        *("img_size", "num_classes", "in_chans", "patch_size", "embed_dim", "depths", "num_heads", "window_size"),
        *("mlp_ratio", "qkv_bias", "pretrained_window_sizes"),
    }
)


def known_swin(stored: Stored, prefix: str) -> Known:
    said = JsonConfig(stored.config)
    if not said.text("architecture"):
        return Known(source="names and shapes", image=_image(said))
    return _known(stored, prefix, architecture_named(said.text("architecture")))


def known_swin2(stored: Stored, prefix: str) -> Known:
    said = JsonConfig(stored.config)
    if said.text("architecture"):
        return _known(stored, prefix, architecture_named(said.text("architecture")))
    own = {name: tensor for name, tensor in stored.tensors.items() if name.startswith(prefix)}
    alike = architectures_of({name.removeprefix(prefix): tuple(tensor.shape) for name, tensor in own.items()})
    if len(alike) != 1:
        some = " or its ".join(each.name for each in alike[:2]) or "swinv2_tiny_window8_256"
        raise VitrailError(
            f"{stored.path} may be timm's {some}: weights of a Swin v2 do not show its windows; put its config.json "
            "beside it, or say which by --architecture"
        )
    return _known(stored, prefix, alike[0])


def _known(stored: Stored, prefix: str, architecture: Architecture) -> Known:
    said = JsonConfig(stored.config)
    arguments, second = settings(architecture, said.part("model_args").values), architecture.kind.endswith("V2")
    arguments.understand(NO_EFFECT | READ, {"global_pool": ("avg",)})
    require(
        architecture.kind in ("SwinTransformer", "SwinTransformerV2"),
        f"{stored.path} has the names of a Swin, and {architecture.name} is another kind of model; mend its config",
    )
    image = _image(said) or architecture.image
    config = swin_config(arguments, image, second=second)
    return Known(source=f"config.json (timm's {architecture.name})", fields={"config": config}, image=image)


def _image(said: JsonConfig) -> Size | None:
    return said.part("model_args").size("img_size") or said.part("pretrained_cfg").size("input_size")


def refuse_swin(config: Config) -> str | None:
    return "it is a Swin, and this model is not" if is_second(config) else None


def refuse_swin2(config: Config) -> str | None:
    return None if is_second(config) else "it is a Swin v2, and this model is not"


def swin_arguments(checkpoint: Checkpoint) -> tuple[str, dict[str, Any]]:
    """Return an architecture and all arguments that make it this model."""
    config = checkpoint.config
    assert isinstance(config, PyramidConfig)
    name = "swinv2_tiny_window8_256" if is_second(config) else "swin_tiny_patch4_window7_224"
    # without it, timm builds no Swin v2 whose windows are padded
    padded = {"strict_img_size": False} if is_second(config) and padded_grids(config) else {}
    return name, {"img_size": list(config.image), "in_chans": config.channels, **swin_fields(config), **padded}
