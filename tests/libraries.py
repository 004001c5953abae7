"""The same config, built by the library that a workload names."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor, nn

from vitrail.config import Config, ViTConfig
from vitrail.nn.build import build
from vitrail.nn.pretraining import build_pretraining
from vitrail.parts import ClsPool, FullAttention, Learned
from vitrail.plan import Workload
from vitrail.plan.peers import huggingface_path, timm_path
from vitrail.training.tuning import tune as tune_model

__all__ = ["make", "tune"]


def make(config: Config, workload: Workload) -> nn.Module:
    if workload.library == "timm":
        assert isinstance(config, ViTConfig)
        return _timm(config, workload)
    if workload.library == "huggingface":
        assert isinstance(config, ViTConfig)
        return _huggingface(config, workload)
    if workload.attention == "eager" and isinstance(config, ViTConfig) and isinstance(config.attention, FullAttention):
        config = config.but(attention=FullAttention(fused=False))
    if workload.pretraining is not None:
        return build_pretraining(workload.pretraining.check(config), workload.pretraining)
    return build(config)


def tune(model: nn.Module, config: Config, workload: Workload) -> None:
    """Freeze and adapt the model as the workload says: another library's with peft."""
    if not workload.train or workload.tuning.is_everything:
        return
    if workload.library == "vitrail":
        tune_model(model.train(), workload.tuning)  # type: ignore[arg-type]
        return
    tuned = workload.tuning.on(config)
    naming = {"timm": timm_path, "huggingface": huggingface_path}[workload.library]
    if tuned.lora is not None:
        from peers import peft

        adapted = [
            path
            for path, layer in model.named_modules()
            if isinstance(layer, nn.Linear) and tuned.adapts(naming(path.removeprefix("model."), "weight"))
        ]
        spec = peft.LoraConfig(r=tuned.lora.rank, lora_alpha=tuned.lora.rank, target_modules=adapted)
        peft.inject_adapter_in_model(spec, model, low_cpu_mem_usage=True)
    for name, parameter in model.named_parameters():
        path, _, own = name.removeprefix("model.").replace(".base_layer", "").rpartition(".")
        parameter.requires_grad_(".lora_" in name or tuned.trains(naming(path, own), own))


def _explicit(config: ViTConfig, workload: Workload) -> bool:
    return workload.attention == "eager" or config.attention == FullAttention(fused=False)


def _timm(config: ViTConfig, workload: Workload) -> nn.Module:
    from peers import timm

    assert isinstance(config.position, Learned)
    model = timm.models.VisionTransformer(
        img_size=tuple(config.image),
        patch_size=tuple(config.patch),
        in_chans=config.channels,
        num_classes=config.classes,
        global_pool="token" if isinstance(config.pool, ClsPool) else "avg",
        embed_dim=config.width,
        depth=config.depth,
        num_heads=config.num_heads,
        mlp_ratio=config.mlp.width / config.width,
        qkv_bias=config.qkv_bias == "all",
        qk_norm=config.qk_norm,
        init_values=config.layer_scale,
        class_token=config.prefix.cls,
        reg_tokens=config.prefix.registers,
        no_embed_class=config.position.prefix == "none",
        pre_norm=config.embedding_norm,
        final_norm=True,
        fc_norm=config.final_norm == "pooled",
        proj_drop_rate=config.dropout,
        attn_drop_rate=config.attention_dropout,
        drop_path_rate=config.drop_path,
        norm_layer=partial(nn.LayerNorm, eps=config.norm_eps),
        weight_init="skip",
    )
    for block in model.blocks:
        block.attn.fused_attn = not _explicit(config, workload)
    return model


class _Logits(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: Tensor) -> Tensor:
        return self.model(image).logits


def _huggingface(config: ViTConfig, workload: Workload) -> nn.Module:
    from peers import transformers

    spec = transformers.ViTConfig(
        hidden_size=config.width,
        num_hidden_layers=config.depth,
        num_attention_heads=config.num_heads,
        intermediate_size=config.mlp.width,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=config.attention_dropout,
        layer_norm_eps=config.norm_eps,
        image_size=tuple(config.image),
        patch_size=tuple(config.patch),
        num_channels=config.channels,
        qkv_bias=config.qkv_bias == "all",
        num_labels=config.classes,
        attn_implementation="eager" if _explicit(config, workload) else "sdpa",
    )
    return _Logits(transformers.ViTForImageClassification(spec))
