"""Hugging Face's config.json and preprocessor_config.json ↔ vitrail's values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.dialects.conditions import gated
from vitrail.checkpoint.dialects.dialect import Family, Written
from vitrail.checkpoint.dialects.json_config import JsonConfig
from vitrail.checkpoint.formats.file import Stored
from vitrail.checkpoint.preprocessing import Interpolation, Preprocessing
from vitrail.config import ViTConfig
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size
from vitrail.parts import Activation, Learned, Mlp, Rotary

__all__ = [
    "GENERATION",
    "LIBRARY",
    "OTHER_HEADS",
    "UNRELATED",
    "activation_of",
    "aimv2_fields",
    "beit_fields",
    "clip_fields",
    "describe",
    "dinov2_fields",
    "dinov3_fields",
    "headless_fields",
    "internvl_fields",
    "labels",
    "mlp_fields",
    "processor_config",
    "read_processor",
    "siglip2_fields",
    "tower_type",
    "vision_part",
    "vit_fields",
]

ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",  # the same formula with rounded constants
    "quick_gelu": "quick_gelu",
    "silu": "silu",
    "relu": "relu",
    "tanh": "tanh",
}
RESAMPLE: dict[int, Interpolation] = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
"""Pillow's numbers."""
PADDED = "; it pads the shorter side, and here the image is squashed"


LIBRARY = frozenset(
    {
        *("_name_or_path", "name_or_path", "_commit_hash", "architectures", "auto_map", "model_type", "dtype"),
        *("torch_dtype", "transformers_version", "_attn_implementation_autoset", "attn_implementation", "id2label"),
        *("label2id", "num_labels", "problem_type", "chunk_size_feed_forward", "output_attentions", "torchscript"),
        *("output_hidden_states", "return_dict", "use_return_dict", "use_bfloat16", "tf_legacy_loss", "use_cache"),
        *("tie_word_embeddings", "tie_encoder_decoder", "is_encoder_decoder", "cross_attention_hidden_size"),
        *("finetuning_task", "task_specific_params", "tokenizer_class", "gradient_checkpointing"),
    }
)
"""What every config of transformers may hold and no output of a vision tower depends on."""
GENERATION = frozenset(
    {
        *("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "prefix", "decoder_start_token_id"),
        *("max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups", "temperature"),
        *("diversity_penalty", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty", "output_scores"),
        *("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences"),
        *("forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty"),
        *("suppress_tokens", "begin_suppress_tokens", "return_dict_in_generate"),
    }
)
"""How a text model writes: early versions put it into vision towers too."""
TRAINING = frozenset(
    {
        *("hidden_dropout_prob", "attention_probs_dropout_prob", "attention_dropout", "dropout", "drop_path_rate"),
        *("initializer_range", "initializer_factor", "mask_ratio", "norm_pix_loss", "use_mask_token"),
        *(
            "projection_dropout",
            "pos_embed_shift",
            "pos_embed_jitter",
            "pos_embed_rescale",
            "semantic_loss_ignore_index",
        ),
    }
)
UNRELATED = LIBRARY | GENERATION | TRAINING
"""Keys that say nothing of what an encoder computes."""
OTHER_HEADS = frozenset(
    {
        *("encoder_stride", "pooler_output_size", "pooler_act", "out_features", "out_indices", "stage_names"),
        *("apply_layernorm", "reshape_hidden_states", "vocab_size", "pool_scales", "use_auxiliary_head", "add_fpn"),
        *("auxiliary_loss_weight", "auxiliary_channels", "auxiliary_num_convs", "auxiliary_concat_input"),
        *("decoder_num_attention_heads", "decoder_hidden_size", "decoder_num_hidden_layers"),
        *("decoder_intermediate_size", "projection_dim"),
        *("num_image_tokens", "num_positions", "projector_hidden_act", "vision_use_head"),
    }
)
"""What pretraining's decoders, backbones and segmentation heads read: not the tokens, nor a classifier on them."""
SHOWN = frozenset(
    {
        *("hidden_size", "num_hidden_layers", "intermediate_size", "mlp_ratio", "num_channels", "patch_size"),
        *("qkv_bias", "query_bias", "key_bias", "value_bias", "use_swiglu_ffn", "use_gated_mlp", "num_register_tokens"),
        *("use_absolute_position_embeddings", "use_relative_position_bias", "use_shared_relative_position_bias"),
        *("use_mean_pooling", "proj_bias", "mlp_bias", "attention_bias", "norm_type"),
    }
)
"""What tensors show by their names and shapes."""
READ = frozenset(
    {
        *(
            "layer_norm_eps",
            "rms_norm_eps",
            "hidden_act",
            "num_attention_heads",
            "image_size",
            "num_patches",
            "rope_theta",
        ),
        *("layerscale_value", "layer_scale_init_value"),
    }
)
ONLY: Mapping[str, tuple[Any, ...]] = {
    "use_qk_norm": (False,),
    "is_native": (False,),
    "use_head": (False,),
    "pruned_heads": ({},),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
}
BESIDE_VISION = frozenset({"text_config", "text_config_dict", "vision_config", "vision_config_dict"})
OF_BOTH = frozenset({"logit_scale_init_value", "projection_dim", "initializer_factor", "initializer_range"})
INSIDE = ("vision_config", "backbone_config")
"""Where the config of a larger model has its vision tower's."""
TWO_TOWERS = frozenset({"clip", "siglip", "siglip2", "altclip", "chinese_clip", "metaclip_2", "owlvit", "owlv2"})
"""Models of image and text that compare two towers; in all others a language model, or another, reads the tower."""


def tower_type(config: Mapping[str, Any]) -> Any:
    """Return the model_type of the vision tower: that of the config inside, or of the config itself."""
    for key in INSIDE:
        inside = config.get(key)
        if isinstance(inside, Mapping) and inside.get("model_type"):
            return inside["model_type"]
    return config.get("model_type")


def vision_part(stored: Stored) -> JsonConfig:
    """Return the vision tower's config after checking every key; models of image and text nest it."""
    said = JsonConfig(stored.config)
    if "backbone_config" in said:  # a head for segmentation or depth reads the tower
        said = said.part("backbone_config")
    elif "vision_config" in said:
        if said.text("model_type", "clip") in TWO_TOWERS:
            said.understand(LIBRARY | GENERATION | BESIDE_VISION | OF_BOTH, ONLY)
        # early versions wrote a second part, and transformers lets it win
        inside = {**said.part("vision_config").values, **said.part("vision_config_dict").values}
        said = JsonConfig(inside, "config.json, vision_config")
    said.understand(UNRELATED | OTHER_HEADS | SHOWN | READ, ONLY)
    return said


def activation_of(config: JsonConfig, default: str, key: str = "hidden_act") -> Activation:
    name = config.text(key, default)
    require(
        name in ACTIVATIONS,
        f"config.json has {key} {name!r}, which vitrail's models do not have; they have {', '.join(ACTIVATIONS)}",
    )
    return ACTIVATIONS[name]


def common_fields(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the fields that all model types write in the same way."""
    config = _vit(checkpoint)
    image, patch = config.image, config.patch
    require(
        patch.height == patch.width,
        f"patch {patch} is not square, and Hugging Face's models take square patches; use another dialect",
    )
    activation = config.mlp.activation if isinstance(config.mlp, Mlp) else "gelu"
    return {
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.num_heads,
        "image_size": image.height if image.height == image.width else list(image),
        "patch_size": patch.height,
        "num_channels": config.channels,
        "layer_norm_eps": config.norm_eps,
        "hidden_act": next(name for name, ours in ACTIVATIONS.items() if ours == activation),
    }


def _vit(checkpoint: Checkpoint) -> ViTConfig:
    if not isinstance(checkpoint.config, ViTConfig):
        raise VitrailError(f"{type(checkpoint.config).__name__} has no form in this dialect; write it as vitrail's own")
    return checkpoint.config


def labels(classes: int, origin: Mapping[str, Any], known: Sequence[str]) -> dict[str, Any]:
    """Return class names: those that came with the model if they still fit, otherwise the checkpoint's labels."""
    kept = origin.get("id2label")
    if not classes or (isinstance(kept, Mapping) and len(kept) == classes):
        return {}
    names = dict(enumerate(known or [f"LABEL_{index}" for index in range(classes)]))
    return {"id2label": names, "label2id": {name: index for index, name in names.items()}}


def describe(
    model_type: str,
    fields: Callable[[ViTConfig], Mapping[str, Any]],
    *,
    plain: tuple[str, str],
    headed: tuple[str, str] | None = None,
    nested: bool = False,
) -> Callable[[Checkpoint, Mapping[str, Tensor]], Written]:
    """`plain` and `headed` are the class, and what precedes its names, without and with a head.

    A `nested` config has the vision tower's part inside, as models of image and text do.
    """

    def written(checkpoint: Checkpoint, tensors: Mapping[str, Tensor]) -> Written:
        config = checkpoint.config
        found = common_fields(checkpoint)
        assert isinstance(config, ViTConfig)
        origin = checkpoint.origin if checkpoint.dialect == "huggingface" else {}
        architecture, prefix = headed if config.classes and headed else plain
        came_as = JsonConfig(origin).first("architectures")
        place = next((key for key in INSIDE if isinstance(origin.get(key), Mapping)), None)
        whole = nested or place is not None  # image and text, or a head of its own: it stays what it is
        if came_as and (whole or headed is None or (came_as == headed[0]) == bool(config.classes)):
            architecture, prefix = came_as, None
        masked = model_type == "beit" and "embeddings.mask_token" in tensors
        found = {**found, **fields(config), **({"use_mask_token": True} if masked else {})}
        if whole:
            place = place or "vision_config"
            found = {place: {**origin.get(place, {}), **found}}
        names = labels(config.classes, origin, checkpoint.labels) if headed else {}
        stated = {"model_type": model_type, **origin, "architectures": [architecture], **found, **names}
        processor = processor_config(checkpoint, flat_patches=model_type.startswith("siglip2"))
        return Written(prefix=prefix, config=stated, processor=processor)

    return written


def mlp_fields(config: ViTConfig) -> dict[str, Any]:
    return {"intermediate_size": config.mlp.width}


def vit_fields(config: ViTConfig) -> dict[str, Any]:
    return {**mlp_fields(config), "qkv_bias": config.qkv_bias == "all"}


def dinov2_fields(config: ViTConfig) -> dict[str, Any]:
    ratio = config.mlp.width / config.width
    return {
        "mlp_ratio": 4 if gated(config) else int(ratio) if ratio == int(ratio) else ratio,
        "use_swiglu_ffn": gated(config),
        "qkv_bias": config.qkv_bias == "all",
        "layerscale_value": config.layer_scale,
        **({"num_register_tokens": config.prefix.registers} if config.prefix.registers else {}),
    }


def dinov3_fields(config: ViTConfig) -> dict[str, Any]:
    biased = config.qkv_bias != "none"
    return {
        **mlp_fields(config),
        "use_gated_mlp": gated(config),
        "query_bias": biased,
        "key_bias": config.qkv_bias == "all",
        "value_bias": biased,
        "proj_bias": config.out_bias,
        "mlp_bias": config.mlp.bias,
        "layerscale_value": config.layer_scale,
        "num_register_tokens": config.prefix.registers,
        "rope_theta": config.position.temperature if isinstance(config.position, Rotary) else 100.0,
        **({"hidden_act": "silu"} if gated(config) else {}),
    }


def beit_fields(config: ViTConfig) -> dict[str, Any]:
    shared = getattr(config.position, "shared", None)
    return {
        **mlp_fields(config),
        "layer_scale_init_value": config.layer_scale or 0.0,
        "use_relative_position_bias": shared is False,
        "use_shared_relative_position_bias": shared is True,
        "use_absolute_position_embeddings": isinstance(config.position, Learned),
        "use_mean_pooling": config.final_norm == "pooled",
    }


def internvl_fields(config: ViTConfig) -> dict[str, Any]:
    return {
        **mlp_fields(config),
        "attention_bias": config.qkv_bias == "all",
        "layer_scale_init_value": config.layer_scale,
        "norm_type": "layer_norm" if config.norm == "layer" else "rms_norm",
        "use_mean_pooling": config.final_norm == "none",
    }


def aimv2_fields(config: ViTConfig) -> dict[str, Any]:
    return {
        **mlp_fields(config),
        "qkv_bias": config.qkv_bias == "all",
        "mlp_bias": config.mlp.bias,
        "rms_norm_eps": config.norm_eps,
        "hidden_act": "silu",
        "use_head": False,
    }


def clip_fields(config: ViTConfig) -> dict[str, Any]:
    return {**mlp_fields(config), **({"projection_dim": config.classes} if config.classes else {})}


def headless_fields(config: ViTConfig) -> dict[str, Any]:
    return {**mlp_fields(config), "vision_use_head": False}


def siglip2_fields(config: ViTConfig) -> dict[str, Any]:
    return {**mlp_fields(config), "num_patches": config.grid.area}


def read_processor(stored: Stored, family: Family, image: Size) -> Preprocessing:
    stated = JsonConfig(stored.processor, "preprocessor_config.json")
    mean, std = family.statistics
    if not stated:
        return Preprocessing(image=image, mean=mean, std=std, source="what most of the family was trained with")
    if isinstance(stored.processor.get("size"), int):  # as files of early versions have it
        shorter = stated.whole("size", 0)
    else:
        shorter = stated.part("size").whole("shortest_edge", 0)
    fills = stated.text("image_processor_type").startswith("Siglip2")
    crops = stored.processor.get("do_center_crop") is True and shorter >= min(image)
    # ViViT's processor scales bytes to −1 … 1 before it subtracts the mean
    scale, offset = 255 * stated.number("rescale_factor", 1 / 255), float(stated.flag("offset", False))
    return Preprocessing(
        image=image,
        mean=tuple((offset + value) / scale for value in stated.numbers("image_mean", mean)),
        std=tuple(value / scale for value in stated.numbers("image_std", std)),
        interpolation=RESAMPLE.get(stated.whole("resample", 3), "bicubic"),
        resize="crop" if crops else "squash",
        crop_share=min(image) / shorter if crops else 1.0,
        half_pixel="down",
        patch_budget=stated.whole("max_num_patches", 256) if fills else None,
        source="preprocessor_config.json" + (PADDED if stated.flag("do_pad", False) else ""),
    )


def processor_config(checkpoint: Checkpoint, *, flat_patches: bool = False) -> dict[str, Any]:
    """Return the processor config for a `Preprocessing`; a crop to a non-square size becomes a plain resize. With
    `flat_patches` it is SigLIP 2's, which fills a budget of patches."""
    steps = checkpoint.preprocessing
    image = checkpoint.config.image
    size: dict[str, Any] = {"height": image.height, "width": image.width}
    numbers = {name: number for number, name in RESAMPLE.items()}
    shared = {
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
        "rescale_factor": 1 / 255,
        "resample": numbers[steps.interpolation],
        "image_mean": list(steps.mean),
        "image_std": list(steps.std),
    }
    if flat_patches and isinstance(checkpoint.config, ViTConfig):
        budget = steps.patch_budget or checkpoint.config.grid.area
        sizes = {"patch_size": checkpoint.config.patch.height, "max_num_patches": budget}
        return {"image_processor_type": "Siglip2ImageProcessor", **shared, **sizes}
    if steps.resize == "crop" and image.height == image.width:
        return {
            "image_processor_type": "CLIPImageProcessor",
            **shared,
            "do_center_crop": True,
            "size": {"shortest_edge": steps.resize_to.height},
            "crop_size": size,
        }
    return {"image_processor_type": "ViTImageProcessor", **shared, "size": size}
