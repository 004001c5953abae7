"""Models of clips in transformers: VideoMAE, ViViT and V-JEPA 2.

Their configs name the clip's sizes each in their own way; what is left of a config is read as that of any ViT.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.dialects.conditions import pooled_norm, token_norm
from vitrail.checkpoint.dialects.dialect import Family, Written
from vitrail.checkpoint.dialects.evidence import Known
from vitrail.checkpoint.dialects.huggingface_config import describe, vit_fields
from vitrail.checkpoint.dialects.huggingface_family import family, of_type, square
from vitrail.checkpoint.dialects.huggingface_known import LEARNED, known
from vitrail.checkpoint.dialects.huggingface_names import LAYER, VIT_BLOCK, qkv_rows
from vitrail.checkpoint.dialects.json_config import JsonConfig
from vitrail.checkpoint.dialects.table import TABLE, TUBELETS, Row, both
from vitrail.checkpoint.formats.file import Stored
from vitrail.checkpoint.preprocessing import IMAGENET, Statistics
from vitrail.config import ViTConfig
from vitrail.errors import require
from vitrail.parts import MeanPool, Mlp, Rotary3d, SinCos1d, Tubelets

__all__ = ["CLIPS"]

OFFSET: Statistics = ((0.75, 0.75, 0.75), (0.25, 0.25, 0.25))
"""ViViT's processor scales bytes to −1 … 1, and then subtracts 0.5 and divides by 0.5."""
PROJECTION = "embeddings.patch_embeddings.projection.weight"
ATTENTION = f"{LAYER}.attention.attention"


def _projection(theirs: str) -> tuple[Row, Row]:
    weight, bias = both("embedding", theirs)
    return replace(weight, transform=TUBELETS), bias


VIDEOMAE_ROWS = (
    *_projection("{p}embeddings.patch_embeddings.projection"),
    *VIT_BLOCK,
    qkv_rows(ATTENTION)[0],
    Row(("blocks.{i}.attention.q_bias",), (f"{ATTENTION}.q_bias",)),
    Row(("blocks.{i}.attention.v_bias",), (f"{ATTENTION}.v_bias",)),
    *both("norm", "{p}layernorm", when=token_norm),
    *both("norm", "fc_norm", when=pooled_norm),
    *both("head", "classifier"),
)
VIVIT_ROWS = (
    *_projection("{p}embeddings.patch_embeddings.projection"),
    Row(("prefix.cls",), ("{p}embeddings.cls_token",)),
    Row(("position.table",), ("{p}embeddings.position_embeddings",), TABLE),
    *VIT_BLOCK,
    *qkv_rows(ATTENTION),
    *both("norm", "{p}layernorm"),
    *both("head", "classifier"),
)
VJEPA_LAYER = "{p}layer.{i}"
VJEPA_ROWS = (
    *_projection("{p}embeddings.patch_embeddings.proj"),
    *both("blocks.{i}.norm1", f"{VJEPA_LAYER}.norm1"),
    *qkv_rows(f"{VJEPA_LAYER}.attention"),
    *both("blocks.{i}.attention.out", f"{VJEPA_LAYER}.attention.proj"),
    *both("blocks.{i}.norm2", f"{VJEPA_LAYER}.norm2"),
    *both("blocks.{i}.mlp.fc1", f"{VJEPA_LAYER}.mlp.fc1"),
    *both("blocks.{i}.mlp.fc2", f"{VJEPA_LAYER}.mlp.fc2"),
    *both("norm", "{p}layernorm"),
)

# ── what a config says ──────────────────────────────────────────────────────────────────────────────────────────


def _known(
    read: Callable[[Stored, str], Known], anchor: str, frames: str, usual: int, **others: str
) -> Callable[[Stored, str], Known]:
    """Read what a config says of clips; the rest is read as a ViT's, `others` under the names that they have there."""

    def clip(stored: Stored, prefix: str) -> Known:
        said = JsonConfig(stored.config)
        rest = {
            others.get(key, key): value
            for key, value in stored.config.items()
            if key not in (frames, "tubelet_size", "qv_bias") and not key.startswith("pred_")
        }
        weight = stored.tensors[f"{prefix}{anchor}"]
        require(weight.ndim == 5, f"{prefix}{anchor} has shape {tuple(weight.shape)}, and a tubelet's has 5 sides")
        tubelet, stated = weight.shape[2], stored.config.get("tubelet_size")
        if isinstance(stated, list):  # ViViT's is of frames, rows and columns
            sides = said.numbers("tubelet_size", ())
            require(len(sides) == 3, f"config.json has tubelet_size {stated}, which is not frames, height and width")
            stated, rest["patch_size"] = int(sides[0]), [int(side) for side in sides[1:]]
        require(
            stated in (None, tubelet),
            f"config.json says tubelet_size {stated}, and the weights have {tubelet}; one of them is another model's",
        )
        found = read(replace(stored, config=rest), prefix)
        assumed = found.assumed if frames in said else (*found.assumed, "frames")
        return replace(found, frames=said.whole(frames, usual), tubelet=tubelet, assumed=assumed)

    return clip


def _known_videomae(stored: Stored, prefix: str) -> Known:
    found = known(SinCos1d(), pool=MeanPool())(stored, prefix)
    if "fc_norm.weight" in stored.tensors:
        return replace(found, fields={**found.fields, "final_norm": "pooled", "final_norm_eps": 1e-5})
    require(
        "classifier.weight" not in stored.tensors,
        "this VideoMAE classifies by its first patch, and vitrail's models pool by their mean; it cannot be read",
    )
    return found


def _known_vjepa(stored: Stored, prefix: str) -> Known:
    rest = {key: value for key, value in stored.config.items() if key != "num_pooler_layers"}
    return known(Rotary3d(), eps=1e-6, pool=MeanPool())(replace(stored, config=rest), prefix)


# ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _tubelet(config: ViTConfig) -> int:
    return config.embedding.tubelet if isinstance(config.embedding, Tubelets) else 1


def _videomae_fields(config: ViTConfig) -> dict[str, Any]:
    return {
        "intermediate_size": config.mlp.width,
        "qv_bias": config.qkv_bias == "no_key",
        "num_frames": config.frames,
        "tubelet_size": _tubelet(config),
        "use_mean_pooling": config.final_norm != "tokens",
    }


def _vivit_fields(config: ViTConfig) -> dict[str, Any]:
    fast = isinstance(config.mlp, Mlp) and config.mlp.activation == "gelu_tanh"
    return {
        **vit_fields(config),
        **({"hidden_act": "gelu_fast"} if fast else {}),
        "num_frames": config.frames,
        "tubelet_size": [_tubelet(config), *config.patch],
    }


def _vjepa_fields(config: ViTConfig) -> dict[str, Any]:
    return {
        "mlp_ratio": config.mlp.width / config.width,
        "qkv_bias": config.qkv_bias == "all",
        "frames_per_clip": config.frames,
        "tubelet_size": _tubelet(config),
    }


def _describe(
    model_type: str,
    fields: Callable[[ViTConfig], Mapping[str, Any]],
    processor: str,
    *,
    renamed: Mapping[str, str] | None = None,
    notes: tuple[str, ...] = (),
    plain: tuple[str, str],
    headed: tuple[str, str] | None = None,
) -> Callable[[Checkpoint, Mapping[str, Tensor]], Written]:
    """Write a config with some of a ViT's fields under other names, and a processor for frames."""
    usual = describe(model_type, fields, plain=plain, headed=headed)

    def written(checkpoint: Checkpoint, tensors: Mapping[str, Tensor]) -> Written:
        found = usual(checkpoint, tensors)
        config = {(renamed or {}).get(key, key): value for key, value in found.config.items()}
        pixels = {key: value for key, value in found.processor.items() if key != "image_processor_type"}
        pixels |= {"video_processor_type": f"{processor}VideoProcessor"}
        if model_type == "vivit":  # it scales to −1 … 1 first
            config.pop("patch_size", None)
            steps = checkpoint.preprocessing
            pixels |= {"rescale_factor": 1 / 127.5, "offset": True, "image_mean": [2 * m - 1 for m in steps.mean]}
            pixels["image_std"] = [2 * deviation for deviation in steps.std]
        alone = () if any("predictor." in name for name in checkpoint.extra) else notes
        return replace(found, config=config, processor=pixels, notes=(*found.notes, *alone))

    return written


def _deep(signs: Callable[[Stored, str], bool], anchor: str) -> Callable[[Stored, str], bool]:
    """Match a file whose patches are several frames deep; a still model's may have the same names."""
    return lambda stored, prefix: signs(stored, prefix) and stored.tensors[f"{prefix}{anchor}"].ndim == 5


CLIPS: tuple[Family, ...] = (
    family(
        "videomae",
        VIDEOMAE_ROWS,
        _known(_known_videomae, PROJECTION, "num_frames", 16),
        of_type(
            "videomae",
            names=lambda names: (
                "encoder.layer.0.attention.attention.q_bias" in names and "embeddings.cls_token" not in names
            ),
        ),
        _describe(
            "videomae",
            _videomae_fields,
            "VideoMAE",
            plain=("VideoMAEModel", ""),
            headed=("VideoMAEForVideoClassification", "videomae."),
        ),
        statistics=IMAGENET,
        clips=True,
        needs=("embedding.bias",),
    ),
    family(
        "vivit",
        VIVIT_ROWS,
        _known(known(LEARNED, eps=1e-6, activation="gelu_fast"), PROJECTION, "num_frames", 32),
        _deep(of_type("vivit", names=lambda names: "embeddings.cls_token" in names), PROJECTION),
        _describe(
            "vivit",
            _vivit_fields,
            "Vivit",
            plain=("VivitModel", ""),
            headed=("VivitForVideoClassification", "vivit."),
        ),
        statistics=OFFSET,
        clips=True,
        needs=("prefix.cls", "position.table", "norm.weight", "embedding.bias"),
    ),
    family(
        "vjepa2",
        VJEPA_ROWS,
        _known(
            _known_vjepa,
            "embeddings.patch_embeddings.proj.weight",
            "frames_per_clip",
            64,
            crop_size="image_size",
            in_chans="num_channels",
        ),
        of_type("vjepa2", names=lambda names: "layer.0.attention.proj.weight" in names),
        _describe(
            "vjepa2",
            _vjepa_fields,
            "VJEPA2",
            renamed={"image_size": "crop_size", "num_channels": "in_chans"},
            notes=(
                "transformers' VJEPA2Model has a predictor too, which is not in this file: use skip_predictor=True",
            ),
            plain=("VJEPA2Model", "encoder."),
        ),
        anchor="embeddings.patch_embeddings.proj.weight",
        statistics=IMAGENET,
        clips=True,
        refuse=square,
        needs=("norm.weight", "embedding.bias"),
    ),
)
"""V-JEPA 2's predictor and attentive pooler are kept aside: its vector is the mean of the encoder's tokens."""
