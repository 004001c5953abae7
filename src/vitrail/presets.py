"""Configs of known models, by name: `preset("B/16")`, `preset("dinov2-S/14-reg4", image=Size(224, 448))`.

Values follow the papers and the released weights; tests compare every parameter count with timm or transformers.
"""

from __future__ import annotations

import difflib
from typing import Any, NamedTuple, overload

from vitrail.config import Config, MobileConfig, PyramidConfig, ViTConfig
from vitrail.errors import VitrailError, require, shown
from vitrail.geometry import Size
from vitrail.parts import (
    AttentionPool,
    DecomposedBias,
    Learned,
    MeanPool,
    Mlp,
    Neck,
    Patches,
    Prefix,
    RelativeBias,
    ResNetStem,
    Rotary,
    Rotary3d,
    SinCos1d,
    SinCos2d,
    Stem,
    SwiGLU,
    Tubelets,
    WindowedAttention,
)
from vitrail.preset_names import COMMON, MobileName, PyramidName, ViTName, preset_name
from vitrail.preset_stages import STAGED
from vitrail.preset_towers import TOWERS

__all__ = ["PRESETS", "preset", "preset_named"]


class Shape(NamedTuple):
    width: int
    depth: int
    num_heads: int
    mlp_width: int


SHAPES = {
    "Ti": Shape(192, 12, 3, 768),
    "S": Shape(384, 12, 6, 1536),
    "B": Shape(768, 12, 12, 3072),
    "L": Shape(1024, 24, 16, 4096),
    "H": Shape(1280, 32, 16, 5120),
    "g": Shape(1408, 40, 16, 6144),
    "G": Shape(1664, 48, 16, 8192),
    "So400m": Shape(1152, 27, 16, 4304),
    "giant-opt": Shape(1536, 40, 16, 6144),
}
"""Ti … L: arXiv 2010.11929 and 2106.10270; g, G: 2106.04560; So400m: 2305.13035; giant-opt: 2502.14786."""


def _shape(name: str) -> dict[str, Any]:
    width, depth, num_heads, mlp_width = SHAPES[name]
    return {"width": width, "depth": depth, "num_heads": num_heads, "mlp": Mlp(width=mlp_width)}


def _vit(shape: str, patch: int, **changes: Any) -> ViTConfig:
    return ViTConfig(**{"embedding": Patches(patch=Size.of(patch)), **_shape(shape), **changes})


def _distilled(shape: str) -> ViTConfig:
    return _vit(shape, 16, prefix=Prefix(distillation=True))


def _dinov2(shape: str, *, registers: int = 0) -> ViTConfig:
    giant: dict[str, Any] = {"width": 1536, "depth": 40, "num_heads": 24, "mlp": SwiGLU(width=4096)}
    return ViTConfig(
        **(giant if shape == "g" else _shape(shape)),
        image=Size(518, 518),
        embedding=Patches(patch=Size(14, 14)),
        prefix=Prefix(registers=registers),
        position=Learned(prefix="cls", convention="dinov2"),
        layer_scale=1e-5,
        classes=0,
    )


def _dinov3(width: int, depth: int, num_heads: int, mlp: Mlp | SwiGLU, **changes: Any) -> ViTConfig:
    return ViTConfig(
        **{
            "prefix": Prefix(registers=4),
            "position": Rotary(coordinates="normalised", temperature=100.0),
            "qkv_bias": "no_key",
            "layer_scale": 1.0,
            "norm_eps": 1e-5,
            "classes": 0,
            **changes,
        },
        width=width,
        depth=depth,
        num_heads=num_heads,
        mlp=mlp,
    )


def _clip(shape: str, patch: int, projection: int, *, image: int = 224) -> ViTConfig:
    """The vision tower with its projection as the head."""
    return _vit(
        shape,
        patch,
        image=Size.of(image),
        embedding=Patches(patch=Size.of(patch), bias=False),
        position=Learned(convention="huggingface"),
        embedding_norm=True,
        mlp=Mlp(width=SHAPES[shape].mlp_width, activation="quick_gelu"),
        norm_eps=1e-5,
        classes=projection,
        head_bias=False,
    )


def _siglip(shape: str, patch: int, image: int) -> ViTConfig:
    size = SHAPES[shape]
    return _vit(
        shape,
        patch,
        image=Size.of(image),
        prefix=Prefix(cls=False),
        position=Learned(convention="huggingface"),
        mlp=Mlp(width=size.mlp_width, activation="gelu_tanh"),
        pool=AttentionPool(num_heads=size.num_heads, mlp_width=size.mlp_width),
        classes=0,
    )


def _videomae(shape: str) -> ViTConfig:
    return _vit(
        shape,
        16,
        embedding=Tubelets(frames=16),
        prefix=Prefix(cls=False),
        position=SinCos1d(),
        qkv_bias="no_key",
        norm_eps=1e-12,
        final_norm="none",
        pool=MeanPool(),
        classes=0,
    )


def _vjepa2(shape: dict[str, Any]) -> ViTConfig:
    return ViTConfig(
        **shape,
        image=Size(256, 256),
        embedding=Tubelets(frames=64),
        prefix=Prefix(cls=False),
        position=Rotary3d(),
        pool=MeanPool(),
        classes=0,
    )


def _beit(shape: str, scale: float) -> ViTConfig:
    return _vit(
        shape,
        16,
        position=RelativeBias(convention="timm"),
        qkv_bias="no_key",
        layer_scale=scale,
        final_norm="pooled",
        pool=MeanPool(),
    )


def _sam(shape: str, *full: int) -> ViTConfig:
    """The image encoder of SAM (arXiv 2304.02643): windows, and blocks that see the whole grid of 64×64."""
    return ViTConfig(
        **_shape(shape),
        image=Size(1024, 1024),
        prefix=Prefix(cls=False),
        position=Learned(relative=DecomposedBias()),
        attention=WindowedAttention(window=Size(14, 14), shift=False, window_padding="zeros", full=full),
        final_norm="none",
        neck=Neck(width=256),
        pool=MeanPool(),
        classes=0,
    )


def _hybrid(shape: str, depths: tuple[int, ...], cells: int = 1) -> ViTConfig:
    """A ResNet before the patches (arXiv 2010.11929 and 2106.10270)."""
    return ViTConfig(**_shape(shape), embedding=ResNetStem(depths=depths, cells=Size.of(cells)))


def _tiny(side: int, *, width: int, depth: int, channels: int = 3) -> ViTConfig:
    """A model for small images of ten classes, small enough to train on a laptop; not a published model."""
    return ViTConfig(
        image=Size(side, side),
        channels=channels,
        embedding=Patches(patch=Size(4, 4)),
        width=width,
        depth=depth,
        num_heads=4,
        mlp=Mlp(width=4 * width),
        classes=10,
    )


PRESETS: dict[str, Config] = {
    **{
        f"{shape}/{patch}": _vit(shape, patch)
        for shape, patches in {
            "Ti": (16,),
            "S": (8, 16, 32),
            "B": (8, 16, 32),
            "L": (14, 16, 32),
            "H": (14,),
            "g": (14,),
            "G": (14,),
        }.items()
        for patch in patches
    },
    **{f"deit-{shape}/16": _vit(shape, 16) for shape in ("Ti", "S", "B")},
    **{f"deit-{shape}/16-distilled": _distilled(shape) for shape in ("Ti", "S", "B")},
    **{f"dino-{shape}/{patch}": _vit(shape, patch, classes=0) for shape in ("S", "B") for patch in (16, 8)},
    **{f"dinov2-{shape}/14": _dinov2(shape) for shape in ("S", "B", "L", "g")},
    **{f"dinov2-{shape}/14-reg4": _dinov2(shape, registers=4) for shape in ("S", "B", "L", "g")},
    "dinov3-S/16": _dinov3(384, 12, 6, Mlp(width=1536)),
    "dinov3-S+/16": _dinov3(384, 12, 6, SwiGLU(width=1536)),
    "dinov3-B/16": _dinov3(768, 12, 12, Mlp(width=3072)),
    "dinov3-L/16": _dinov3(1024, 24, 16, Mlp(width=4096)),
    "dinov3-H+/16": _dinov3(1280, 32, 20, SwiGLU(width=5120)),
    "dinov3-7B/16": _dinov3(4096, 40, 32, SwiGLU(width=8192), qkv_bias="none"),
    "clip-B/32": _clip("B", 32, 512),
    "clip-B/16": _clip("B", 16, 512),
    "clip-L/14": _clip("L", 14, 768),
    "clip-L/14-336": _clip("L", 14, 768, image=336),
    "siglip-B/16": _siglip("B", 16, 224),
    "siglip-L/16": _siglip("L", 16, 256),
    "siglip-So400m/14": _siglip("So400m", 14, 378),
    "siglip2-B/16": _siglip("B", 16, 224),
    "siglip2-L/16": _siglip("L", 16, 256),
    "siglip2-So400m/16": _siglip("So400m", 16, 256),
    "siglip2-giant-opt/16": _siglip("giant-opt", 16, 256),
    **{f"videomae-{shape}": _videomae(shape) for shape in ("S", "B", "L", "H")},
    "vivit-B": _vit(
        "B",
        16,
        embedding=Tubelets(frames=32),
        position=Learned(convention="huggingface"),
        mlp=Mlp(width=3072, activation="gelu_tanh"),
        classes=400,
    ),
    "vjepa2-L": _vjepa2(_shape("L")),
    "vjepa2-H": _vjepa2(_shape("H")),
    "vjepa2-g": _vjepa2({**_shape("g"), "num_heads": 22}),
    **{
        f"mae-{name}": _vit(shape, patch, position=SinCos2d(layout="mae"), classes=0)
        for name, shape, patch in (("B/16", "B", 16), ("L/16", "L", 16), ("H/14", "H", 14))
    },
    "beit-B/16": _beit("B", 0.1),
    "beit-L/16": _beit("L", 1e-5),
    "sam-B/16": _sam("B", 2, 5, 8, 11),
    "sam-L/16": _sam("L", 5, 11, 17, 23),
    "sam-H/16": _sam("H", 7, 15, 23, 31),
    **{
        f"flexivit-{shape}/16": _vit(shape, 16, image=Size(240, 240), position=Learned(prefix="none"))
        for shape in ("S", "B", "L")
    },
    "R+Ti/32": _hybrid("Ti", (), cells=8),
    "R26+S/32": _hybrid("S", (2, 2, 2, 2)),
    "R26+B/32": _hybrid("B", (2, 2, 2, 2)),
    "R50+B/16": _hybrid("B", (3, 4, 9)),
    "R50+L/32": _hybrid("L", (3, 4, 6, 3)),
    "mobileclip-B/16": _vit(  # the image tower with its projection as the head
        "B",
        16,
        embedding=Stem(patch=Size(16, 16), widths=(192, 192), overlap=False, activation="gelu"),
        position=Learned(prefix="none"),
        classes=512,
    ),
    **TOWERS,
    "cifar": _tiny(32, width=128, depth=6),
    "cifar-small": _tiny(32, width=96, depth=6),
    "fashion-mnist": _tiny(28, width=96, depth=4, channels=1).but(
        embedding=Stem(patch=Size(4, 4), widths=(32, 96)), prefix=Prefix(cls=False), pool=MeanPool()
    ),
    **STAGED,
}


@overload
def preset(name: ViTName, **changes: Any) -> ViTConfig: ...
@overload
def preset(name: PyramidName, **changes: Any) -> PyramidConfig: ...
@overload
def preset(name: MobileName, **changes: Any) -> MobileConfig: ...
@overload
def preset(name: str, **changes: Any) -> Config: ...
def preset(name: str, **changes: Any) -> Config:
    """Return a preset by name (case-insensitive), with some fields changed: `preset("b/16", classes=10)`.

    timm's, transformers' and torchvision's names are known too, with the image size that they say.

    >>> preset("b/16").grid, preset("vit_base_patch16_384").image
    (Size(height=14, width=14), Size(height=384, width=384))
    """
    own, side = _find(name)
    if side is not None and "image" not in changes:
        model = PRESETS[own]
        divided = not isinstance(model, ViTConfig) or not (side % model.patch.height or side % model.patch.width)
        # what the patch convolutions of other libraries leave over, they drop
        changes = {"image": Size(side, side), **({} if divided else {"remainder": "floor"}), **changes}
    return PRESETS[own].but(**changes) if changes else PRESETS[own]


def preset_named(name: str) -> str:
    """Return vitrail's own name of a preset, given in any case or by another library's name.

    >>> preset_named("vit_base_patch16_384")
    'B/16'
    """
    return _find(name)[0]


def _find(name: str) -> tuple[str, int | None]:
    """Return a preset's own name, and the image side that another library's name says."""
    require(isinstance(name, str), f"model {shown(name)} is not a preset name; give a string, like 'B/16'")
    if name in PRESETS:
        return name, None
    same = [other for other in PRESETS if other.lower() == name.strip().lower()]
    if not same and (known := preset_name(name)) and known[0] in PRESETS:
        return known
    if len(same) != 1:  # g/14 and G/14 differ only by case
        near = (
            same
            or difflib.get_close_matches(name, [*PRESETS, *COMMON], n=4, cutoff=0.4)
            or ["B/16", "S/16", "dinov2-S/14"]
        )
        raise VitrailError(f"model {name!r} is not a preset; try {', '.join(near)}")
    return same[0], None
