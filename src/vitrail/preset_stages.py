"""Presets of models in stages: Swin, PiT, Hiera, MobileViT."""

from __future__ import annotations

from typing import Any

from vitrail.config import Config, MobileConfig, MobileStage, PyramidConfig, PyramidStage
from vitrail.geometry import Size
from vitrail.parts import (
    ClsPool,
    FullAttention,
    GridPooling,
    Learned,
    Patches,
    PatchMerging,
    Prefix,
    QueryPooling,
    RelativeMlp,
    SeparableAttention,
    TiledTable,
    WindowedAttention,
)

__all__ = ["STAGED"]


def _swin(width: int, depths: tuple[int, ...], num_heads: int, *, image: int = 224, window: int = 7) -> PyramidConfig:
    stages = (
        PyramidStage(width=width * 2**level, depth=depth, num_heads=num_heads * 2**level)
        for level, depth in enumerate(depths)
    )
    attention = WindowedAttention(window=Size.of(window), window_padding="zeros")
    return PyramidConfig(image=Size.of(image), stages=tuple(stages), attention=attention)


def _swin2(*size: Any, image: int = 256, window: int = 8, reference: tuple[int, ...] = ()) -> PyramidConfig:
    """Swin v2: cosine attention, biases by an MLP, norms after the branches (arXiv 2111.09883)."""
    return _swin(*size, image=image, window=window).but(
        position=RelativeMlp(reference=tuple(map(Size.of, reference))),
        qkv_bias="no_key",
        cosine_attention=True,
        merging=PatchMerging(norm="after"),
        block_norm="after",
    )


def _pit(head_width: int, num_heads: int, *, patch: int = 16, first: int = 2, distilled: bool = False) -> PyramidConfig:
    """Patches overlap by half; `first` is the depth of the first stage, and heads double from stage to stage."""
    stages = (
        PyramidStage(width=head_width * num_heads * 2**level, depth=depth, num_heads=num_heads * 2**level)
        for level, depth in enumerate((first, 6, 4))
    )
    return PyramidConfig(
        embedding=Patches(patch=Size.of(patch), stride=Size.of(patch // 2)),
        prefix=Prefix(distillation=distilled),
        position=Learned(prefix="none"),
        embedding_norm=False,
        stages=tuple(stages),
        attention=FullAttention(),
        merging=GridPooling(),
        norm_eps=1e-6,
        pool=ClsPool(),
    )


def _pits(**changes: Any) -> dict[str, PyramidConfig]:
    return {
        "pit-Ti": _pit(32, 2, **changes),
        "pit-XS": _pit(48, 2, **changes),
        "pit-S": _pit(48, 3, **changes),
        "pit-B": _pit(64, 4, patch=14, first=3, **changes),
    }


def _hiera(width: int, depths: tuple[int, ...], num_heads: int, **changes: Any) -> PyramidConfig:
    """Overlapping patches, windows of 8×8 and 4×4 patches in the first two stages and in the block that pools the
    latter, and full attention behind it."""
    third = depths[0] + depths[1] + 1
    settings: dict[str, Any] = {
        "position": Learned(),
        "windows": (8, 4, 4, 4),
        "full": tuple(range(third, sum(depths))),
        "final_norm": "pooled",
        **changes,
    }
    windows = settings.pop("windows")
    stages = tuple(
        PyramidStage(
            width=width * 2**level,
            depth=depth,
            num_heads=num_heads * 2**level,
            window=None if windows[level] == windows[0] else Size.of(windows[level]),
        )
        for level, depth in enumerate(depths)
    )
    return PyramidConfig(
        embedding=Patches(patch=Size(7, 7), stride=Size(4, 4), padded=True),
        embedding_norm=False,
        stages=stages,
        attention=WindowedAttention(
            window=Size.of(windows[0]), shift=False, window_padding="zeros", full=settings.pop("full")
        ),
        merging=QueryPooling(),
        norm_eps=1e-6,
        **settings,
    )


def _sam2(width: int, depths: tuple[int, ...], num_heads: int, *full: int, **changes: Any) -> PyramidConfig:
    """SAM 2's backbone (arXiv 2408.00714), before its neck; `full` are blocks without windows."""
    settings = {"image": Size(1024, 1024), "position": TiledTable(), "windows": (8, 4, 14, 7), "classes": 0, **changes}
    return _hiera(width, depths, num_heads, full=full, final_norm="none", **settings)


def _mobilevit(
    stem: int, widths: tuple[int, ...], transformer: tuple[int, ...], *, second: int = 3, **changes: Any
) -> MobileConfig:
    """`second` is the depth of the second stage."""
    convolutional = (MobileStage(width=widths[0]), MobileStage(width=widths[1], depth=second, stride=2))
    stages = (
        MobileStage(width=width, stride=2, transformer_width=inner, transformer_depth=depth)
        for width, inner, depth in zip(widths[2:], transformer, (2, 4, 3), strict=True)
    )
    return MobileConfig(stem_width=stem, stages=(*convolutional, *stages), **changes)


def _mobilevit2(times: float) -> MobileConfig:
    """All widths of MobileViT v2 are multiplied alike, and a transformer has half the width of its map."""
    widths = tuple(int(width * times) for width in (64, 128, 256, 384, 512))
    return _mobilevit(
        int(32 * times),
        widths,
        tuple(width // 2 for width in widths[2:]),
        second=2,
        expansion=2,
        attention=SeparableAttention(),
        last_width=0,
    )


STAGED: dict[str, Config] = {
    "swin-T": _swin(96, (2, 2, 6, 2), 3),
    "swin-S": _swin(96, (2, 2, 18, 2), 3),
    "swin-B": _swin(128, (2, 2, 18, 2), 4),
    "swin-L": _swin(192, (2, 2, 18, 2), 6),
    "swin-B-384": _swin(128, (2, 2, 18, 2), 4, image=384, window=12),
    "swin-L-384": _swin(192, (2, 2, 18, 2), 6, image=384, window=12),
    "swinv2-T": _swin2(96, (2, 2, 6, 2), 3),
    "swinv2-S": _swin2(96, (2, 2, 18, 2), 3),
    "swinv2-B": _swin2(128, (2, 2, 18, 2), 4),
    "swinv2-L": _swin2(192, (2, 2, 18, 2), 6, window=16, reference=(12, 12, 12, 6)),
    **_pits(),
    **{f"{name}-distilled": config for name, config in _pits(distilled=True).items()},
    "hiera-T": _hiera(96, (1, 2, 7, 2), 1),
    "hiera-S": _hiera(96, (1, 2, 11, 2), 1),
    "hiera-B": _hiera(96, (2, 3, 16, 3), 1),
    "hiera-B+": _hiera(112, (2, 3, 16, 3), 2),
    "hiera-L": _hiera(144, (2, 6, 36, 4), 2),
    "hiera-H": _hiera(256, (2, 6, 36, 4), 4),
    "sam2-hiera-T": _sam2(96, (1, 2, 7, 2), 1, 5, 7, 9),
    "sam2-hiera-S": _sam2(96, (1, 2, 11, 2), 1, 7, 10, 13),
    "sam2-hiera-B+": _sam2(112, (2, 3, 16, 3), 2, 12, 16, 20, position=TiledTable(background=Size(14, 14))),
    "sam2-hiera-L": _sam2(144, (2, 6, 36, 4), 2, 23, 33, 43, windows=(8, 4, 16, 8)),
    "mobilevit-XXS": _mobilevit(16, (16, 24, 48, 64, 80), (64, 80, 96), expansion=2, last_width=320),
    "mobilevit-XS": _mobilevit(16, (32, 48, 64, 80, 96), (96, 120, 144), last_width=384),
    "mobilevit-S": _mobilevit(16, (32, 64, 96, 128, 160), (144, 192, 240), last_width=640),
    **{f"mobilevitv2-{times}": _mobilevit2(times) for times in (0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0)},
    "cifar-resnet": MobileConfig(
        image=Size(32, 32),
        stem_width=32,
        stem_stride=1,
        stages=tuple(MobileStage(width=width, depth=1, stride=2) for width in (64, 128, 256)),
        residual="basic",
        expansion=1,
        last_width=0,
        classes=10,
    ),
}
