"""The names of presets: vitrail's own, and what timm, transformers, torchvision and papers call them."""

from __future__ import annotations

import re
from typing import Literal

__all__ = ["COMMON", "OTHER_NAMES", "MobileName", "PyramidName", "ViTName", "preset_name"]

ViTName = Literal[
    "Ti/16", "S/8", "S/16", "S/32", "B/8", "B/16", "B/32", "L/14", "L/16", "L/32", "H/14", "g/14", "G/14",
    "deit-Ti/16", "deit-S/16", "deit-B/16", "deit-Ti/16-distilled", "deit-S/16-distilled",
    "deit-B/16-distilled", "dino-S/16", "dino-S/8", "dino-B/16", "dino-B/8", "dinov2-S/14", "dinov2-B/14",
    "dinov2-L/14", "dinov2-g/14", "dinov2-S/14-reg4", "dinov2-B/14-reg4", "dinov2-L/14-reg4",
    "dinov2-g/14-reg4", "dinov3-S/16", "dinov3-S+/16", "dinov3-B/16", "dinov3-L/16", "dinov3-H+/16",
    "dinov3-7B/16", "clip-B/32", "clip-B/16", "clip-L/14", "clip-L/14-336", "siglip-B/16", "siglip-L/16",
    "siglip-So400m/14", "siglip2-B/16", "siglip2-L/16", "siglip2-So400m/16", "siglip2-giant-opt/16", "mae-B/16",
    "mae-L/16", "mae-H/14", "videomae-S", "videomae-B", "videomae-L", "videomae-H", "vivit-B", "vjepa2-L",
    "vjepa2-H", "vjepa2-g", "beit-B/16", "beit-L/16", "sam-B/16", "sam-L/16", "sam-H/16",
    "flexivit-S/16", "flexivit-B/16", "flexivit-L/16", "R+Ti/32", "R26+S/32", "R26+B/32",
    "R50+B/16", "R50+L/32", "mobileclip-B/16", "eva02-Ti/14", "eva02-S/14", "eva02-B/14", "eva02-L/14",
    "aimv2-L/14", "aimv2-H/14", "aimv2-1B/14", "aimv2-3B/14", "pe-core-B/16", "pe-core-L/14", "pe-core-G/14",
    "ijepa-H/14", "ijepa-g/16", "internvit-300M/14", "owlvit-B/32", "owlvit-B/16", "owlvit-L/14",
    "cifar", "cifar-small", "fashion-mnist",
]  # fmt: skip
PyramidName = Literal[
    "swin-T", "swin-S", "swin-B", "swin-L", "swin-B-384", "swin-L-384", "swinv2-T", "swinv2-S", "swinv2-B",
    "swinv2-L", "pit-Ti", "pit-XS", "pit-S", "pit-B", "pit-Ti-distilled", "pit-XS-distilled", "pit-S-distilled",
    "pit-B-distilled", "hiera-T", "hiera-S", "hiera-B", "hiera-B+", "hiera-L", "hiera-H", "sam2-hiera-T",
    "sam2-hiera-S", "sam2-hiera-B+", "sam2-hiera-L",
]  # fmt: skip
MobileName = Literal[
    "mobilevit-XXS", "mobilevit-XS", "mobilevit-S", "mobilevitv2-0.5", "mobilevitv2-0.75", "mobilevitv2-1.0",
    "mobilevitv2-1.25", "mobilevitv2-1.5", "mobilevitv2-1.75", "mobilevitv2-2.0", "cifar-resnet",
]  # fmt: skip
"""The presets' own names by the kind of their config, for type checkers and editors."""

SIZES = {"tiny": "Ti", "small": "S", "base": "B", "large": "L", "huge": "H", "giant": "g", "gigantic": "G"}
SIZES |= {"ti": "Ti", "s": "S", "b": "B", "l": "L", "h": "H", "g": "g", "t": "T"}
SIZES |= {"giantopt": "giant-opt", "so400m": "So400m"}
SIZES |= {"base_plus": "B+", "base-plus": "B+"}
SIZES |= {"small_plus": "S+", "huge_plus": "H+", "splus": "S+", "hplus": "H+", "7b": "7B"}
SIZES |= {"1b": "1B", "3b": "3B"}
SIZES |= {f"{round(100 * times):03}": f"{times}" for times in (0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0)} | {"1.0": "1.0"}
SIZES |= {"xx-small": "XXS", "x-small": "XS", "xxs": "XXS", "xs": "XS"}

OTHER_NAMES: tuple[tuple[str, str], ...] = (
    # timm, without its organisation and the tag of the weights
    (r"vit_(?P<size>tiny|small|base|large|huge)_patch(?P<patch>\d+)_(?P<image>\d+)", "{size}/{patch}"),
    (r"vit_(?P<size>giant|gigantic)_patch14_(?P<image>\d+)", "{size}/14"),
    (r"vit_(?P<size>small|base|large|giant)_patch14_dinov2", "dinov2-{size}/14"),
    (r"vit_(?P<size>small|base|large|giant)_patch14_reg4_dinov2", "dinov2-{size}/14-reg4"),
    (r"vit_(?P<size>small|small_plus|base|large|huge_plus|7b)_patch16_dinov3", "dinov3-{size}/16"),
    (r"vit_(?P<size>base|large)_patch(?P<patch>\d+)_clip_quickgelu_(?P<image>\d+)", "clip-{size}/{patch}"),
    (r"vit_(?P<size>base|large)_patch16_siglip_(?P<image>\d+)", "siglip-{size}/16"),
    (r"deit_(?P<size>tiny|small|base)_patch16_(?P<image>\d+)", "deit-{size}/16"),
    (r"deit_(?P<size>tiny|small|base)_distilled_patch16_(?P<image>\d+)", "deit-{size}/16-distilled"),
    (r"beit_(?P<size>base|large)_patch16_(?P<image>\d+)", "beit-{size}/16"),
    (r"samvit_(?P<size>base|large|huge)_patch16", "sam-{size}/16"),
    (r"flexivit_(?P<size>small|base|large)", "flexivit-{size}/16"),
    (r"vit_(?P<size>tiny)_r_s16_p8_(?P<image>\d+)", "R+{size}/32"),
    (r"vit_(?P<size>small|base)_r26_s32_(?P<image>\d+)", "R26+{size}/32"),
    (r"vit_(?P<size>base|large)_r50_s(?P<patch>16|32)_(?P<image>\d+)", "R50+{size}/{patch}"),
    (r"vit_(?P<size>base)_mci_(?P<image>224)", "mobileclip-{size}/16"),
    (r"eva02_(?P<size>tiny|small|base|large)_patch14_(?P<image>\d+)", "eva02-{size}/14"),
    (r"aimv2_(?P<size>large|huge|1b|3b)_patch14_(?P<image>\d+)", "aimv2-{size}/14"),
    (r"vit_pe_core_(?P<size>base)_patch16_(?P<image>224)", "pe-core-{size}/16"),
    (r"vit_pe_core_(?P<size>large|gigantic)_patch14_(?P<image>336|448)", "pe-core-{size}/14"),
    (r"swin_(?P<size>tiny|small|base|large)_patch4_window7_(?P<image>224)", "swin-{size}"),
    (r"swin_(?P<size>base|large)_patch4_window12_(?P<image>384)", "swin-{size}-384"),
    (r"swinv2_(?P<size>tiny|small|base)_window8_(?P<image>256)", "swinv2-{size}"),
    (r"swinv2_(?P<size>large)_window12to16_192to(?P<image>256)", "swinv2-{size}"),
    (r"pit_(?P<size>ti|xs|s|b)_(?P<image>224)", "pit-{size}"),
    (r"pit_(?P<size>ti|xs|s|b)_distilled_(?P<image>224)", "pit-{size}-distilled"),
    (r"hiera_(?P<size>tiny|small|base|base_plus|large|huge)_(?P<image>224)", "hiera-{size}"),
    (r"sam2_hiera_(?P<size>tiny|small|base_plus|large)", "sam2-hiera-{size}"),
    (r"mobilevit_(?P<size>xxs|xs|s)", "mobilevit-{size}"),
    (r"mobilevitv2_(?P<size>050|075|100|125|150|175|200)", "mobilevitv2-{size}"),
    # the Hugging Face Hub
    (r"google/vit-(?P<size>base|large|huge)-patch(?P<patch>\d+)-(?P<image>\d+)(-in21k)?", "{size}/{patch}"),
    (r"google/vit-hybrid-(?P<size>base)-bit-(?P<image>384)", "R50+{size}/16"),
    (r"facebook/deit-(?P<size>tiny|small|base)-patch16-(?P<image>\d+)", "deit-{size}/16"),
    (r"facebook/deit-(?P<size>tiny|small|base)-distilled-patch16-(?P<image>\d+)", "deit-{size}/16-distilled"),
    (r"facebook/dino-vit(?P<size>[sb])(?P<patch>8|16)", "dino-{size}/{patch}"),
    (r"facebook/dinov2-(?P<size>small|base|large|giant)", "dinov2-{size}/14"),
    (r"facebook/dinov2-with-registers-(?P<size>small|base|large|giant)", "dinov2-{size}/14-reg4"),
    (r"facebook/dinov3-vit(?P<size>s|splus|b|l|hplus|7b)16-pretrain-lvd1689m", "dinov3-{size}/16"),
    (r"facebook/vit-mae-(?P<size>base|large)", "mae-{size}/16"),
    (r"facebook/vit-mae-(?P<size>huge)", "mae-{size}/14"),
    (r"mcg-nju/videomae-(?P<size>small|base|large|huge)(-finetuned-kinetics)?", "videomae-{size}"),
    (r"google/vivit-(?P<size>b)-16x2(-kinetics400)?", "vivit-{size}"),
    (r"facebook/vjepa2-vit(?P<size>[lhg])-fpc64-(?P<image>\d+)", "vjepa2-{size}"),
    (r"openai/clip-vit-(?P<size>base|large)-patch(?P<patch>14|16|32)", "clip-{size}/{patch}"),
    (r"openai/clip-vit-(?P<size>large)-patch14-336", "clip-{size}/14-336"),
    (r"google/siglip-(?P<size>base|large)-patch16-(?P<image>\d+)", "siglip-{size}/16"),
    (r"google/siglip-(?P<size>so400m)-patch14-(?P<image>\d+)", "siglip-{size}/14"),
    (r"google/siglip2-(?P<size>base|large|so400m)-patch16-(?P<image>\d+)", "siglip2-{size}/16"),
    (r"facebook/hiera-(?P<size>tiny|small|base|base-plus|large|huge)-(?P<image>224)(-hf|-in1k-hf)?", "hiera-{size}"),
    (r"facebook/sam2(\.1)?-hiera-(?P<size>tiny|small|base-plus|large)", "sam2-hiera-{size}"),
    (r"facebook/sam-vit-(?P<size>base|large|huge)", "sam-{size}/16"),
    (r"microsoft/beit-(?P<size>base|large)-patch16-(?P<image>\d+)", "beit-{size}/16"),
    (r"microsoft/swin-(?P<size>tiny|small|base|large)-patch4-window7-(?P<image>224)(-in22k)?", "swin-{size}"),
    (r"microsoft/swin-(?P<size>base|large)-patch4-window12-(?P<image>384)(-in22k)?", "swin-{size}-384"),
    (r"microsoft/swinv2-(?P<size>tiny|small|base)-patch4-window8-(?P<image>256)", "swinv2-{size}"),
    (r"microsoft/swinv2-(?P<size>large)-patch4-window12to16-192to(?P<image>256)-22kto1k-ft", "swinv2-{size}"),
    (r"apple/aimv2-(?P<size>large|huge|1b|3b)-patch14-(?P<image>\d+)", "aimv2-{size}/14"),
    (r"google/owlvit-(?P<size>base|large)-patch(?P<patch>14|16|32)", "owlvit-{size}/{patch}"),
    (r"facebook/ijepa_vit(?P<size>h)14_(1k|22k)", "ijepa-{size}/14"),
    (r"facebook/ijepa_vit(?P<size>g)16_22k", "ijepa-{size}/16"),
    (r"apple/mobilevit-(?P<size>xx-small|x-small|small)", "mobilevit-{size}"),
    (r"apple/mobilevitv2-(?P<size>1\.0)-imagenet1k-(?P<image>256)", "mobilevitv2-{size}"),
    # torchvision
    (r"vit_(?P<size>[blh])_(?P<patch>\d+)", "{size}/{patch}"),
    (r"swin_(?P<size>[tsb])", "swin-{size}"),
    # papers, OpenCLIP, and people
    (r"vit[-_ ](?P<size>ti|s|b|l|h)[-/_](?P<patch>\d+)", "{size}/{patch}"),
    (r"(?P<size>ti|s|b|l|h)-?(?P<patch>\d+)", "{size}/{patch}"),
    (r"r50[-+]vit[-_](?P<size>b|l)[-/_](?P<patch>16|32)", "R50+{size}/{patch}"),
)
"""Patterns over lower-case names, with the preset that each stands for."""


COMMON = (
    "vit_tiny_patch16_224",
    *(f"vit_{size}_patch{patch}_224" for size in ("small", "base", "large") for patch in (16, 32)),
    *(f"google/vit-{size}-patch{patch}-224" for size in ("base", "large") for patch in (16, 32)),
    *(f"facebook/dinov2-{size}" for size in ("small", "base", "large", "giant")),
    *(f"vit_{size}_patch14_dinov2" for size in ("small", "base", "large", "giant")),
    *(f"openai/clip-vit-{name}" for name in ("base-patch16", "base-patch32", "large-patch14")),
    *("deit_tiny_patch16_224", "deit_small_patch16_224", "deit_base_patch16_224"),
    *("beit_base_patch16_224", "beit_large_patch16_224"),
    *(f"swin_{size}_patch4_window7_224" for size in ("tiny", "small", "base")),
    *(f"pit_{size}_224" for size in ("ti", "xs", "s", "b")),
    *("vit_b_16", "vit_b_32", "vit_l_16", "vit_l_32", "vit_h_14", "ViT-B/16", "ViT-L/14"),
)
"""Names to suggest for one with a typing error."""


def preset_name(name: str) -> tuple[str, int | None] | None:
    """Return the preset that another library's name stands for, and its image side if the name says one.

    >>> preset_name("vit_base_patch16_384"), preset_name("google/vit-large-patch32-384"), preset_name("ViT-B/16")
    (('B/16', 384), ('L/32', 384), ('B/16', None))
    """
    plain = re.sub(r"^(hf-hub:)?(timm/)?", "", name.strip().lower())
    plain = plain if "/" in plain else plain.partition(".")[0]
    for pattern, template in OTHER_NAMES:
        if found := re.fullmatch(pattern, plain):
            groups = found.groupdict()
            size = SIZES[groups["size"]]
            if template.startswith(("swin-", "swinv2-", "hiera-", "sam2-")):
                size = {"Ti": "T"}.get(size, size)  # Swin's tiny is T
            image = groups.get("image")
            return template.format(size=size, patch=groups.get("patch")), int(image) if image else None
    return None
