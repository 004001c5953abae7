"""timm's hybrids: ViTs with a ResNet before their patches, or with MobileCLIP's convolutions in their place."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from vitrail.checkpoint.dialects.table import Row, both
from vitrail.checkpoint.dialects.timm_names import VIT_ROWS
from vitrail.checkpoint.dialects.timm_stages import conv_norm_rows
from vitrail.config import Config, ViTConfig
from vitrail.errors import require
from vitrail.geometry import Size
from vitrail.parts import Embedding, ResNetStem, Stem

__all__ = [
    "CONVOLUTIONS",
    "CONVOLUTION_ROWS",
    "PATCHES",
    "RESNET_ROWS",
    "STEMS",
    "architecture_with",
    "bottleneck_rows",
    "conv_norm",
    "embedding_of",
    "patch_argument",
    "refuse_hybrid",
]

PATCHES, CONVOLUTIONS = "patch_embed.proj.weight", "patch_embed.backbone.0.conv.weight"
"""Names by which families are found: of a patch projection, and of the first convolution in its place."""

HYBRIDS = {
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_small_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}
"""timm's ResNets by their depths, each with an architecture that has it."""
MOBILE_CLIP = Stem(patch=Size(16, 16), widths=(192, 192), overlap=False, activation="gelu")
"""The only stem that timm builds, for a model of width 768."""
BEHIND = tuple(row for row in VIT_ROWS if not row.ours[0].startswith("embedding."))


def _has_stages(config: Config) -> bool:
    return isinstance(config, ViTConfig) and isinstance(config.embedding, ResNetStem) and bool(config.embedding.depths)


def conv_norm(ours: str, conv: str, norm: str, **when) -> tuple[Row, ...]:
    return Row((f"{ours}.conv.weight",), (f"{conv}.weight",), **when), *both(f"{ours}.norm", norm, **when)


def bottleneck_rows(theirs: str) -> tuple[Row, ...]:
    """Return the rows of a stage's blocks, whose layers timm and transformers name alike."""
    ours = "embedding.stages.{s}.{i}"
    return (
        *conv_norm(f"{ours}.shortcut", f"{theirs}.downsample.conv", f"{theirs}.downsample.norm"),
        *conv_norm(f"{ours}.reduce", f"{theirs}.conv1", f"{theirs}.norm1"),
        *conv_norm(f"{ours}.mix", f"{theirs}.conv2", f"{theirs}.norm2"),
        *conv_norm(f"{ours}.expand", f"{theirs}.conv3", f"{theirs}.norm3"),
    )


RESNET_ROWS = (
    *conv_norm(
        "embedding.stem", "{p}patch_embed.backbone.stem.conv", "{p}patch_embed.backbone.stem.norm", when=_has_stages
    ),
    *conv_norm(
        "embedding.stem",
        "{p}patch_embed.backbone.conv",
        "{p}patch_embed.backbone.norm",
        when=lambda config: not _has_stages(config),
    ),
    *bottleneck_rows("{p}patch_embed.backbone.stages.{s}.blocks.{i}"),
    *both("embedding.projection", "{p}patch_embed.proj"),
    *BEHIND,
)
CONVOLUTION_ROWS = (
    *both("embedding.projection", "{p}patch_embed.backbone.2.conv"),  # the last: before the numbers of the others
    *conv_norm_rows("embedding.layers.{i}", "{p}patch_embed.backbone.{i}"),
    *BEHIND,
)


STEMS = "patch_embed.backbone.stem.conv.weight", "patch_embed.backbone.conv.weight"
"""The first convolution of a ResNet, and of one without stages."""
BLOCK = re.compile(r"patch_embed\.backbone\.stages\.(\d+)\.blocks\.(\d+)\.")


def embedding_of(shapes: Mapping[str, Sequence[int]]) -> ResNetStem | Stem | None:
    """Return what a model with these names (without prefix) and shapes has in place of plain patches; None if none."""
    if CONVOLUTIONS in shapes:
        return MOBILE_CLIP
    stem = next((shapes[name] for name in STEMS if name in shapes), None)
    if stem is None:
        return None
    blocks = {found.groups() for name in shapes if (found := BLOCK.match(name))}
    depths = Counter(int(stage) for stage, _ in blocks)
    cells = shapes.get(PATCHES, ())[2:]
    require(len(cells) == 2, f"the weights have no {PATCHES} of cells of the ResNet's map; the file is not whole")
    return ResNetStem(depths=tuple(depths[stage] for stage in sorted(depths)), width=stem[0], cells=Size(*cells))


def patch_argument(embedding: Embedding) -> Size:
    """Return timm's patch_size, which a hybrid counts in cells of its last map."""
    match embedding:
        case ResNetStem():
            return embedding.cells
        case Stem():
            return Size(1, 1)
    return embedding.patch


def architecture_with(embedding: Embedding) -> str | None:
    """Return an architecture of timm's that begins with such convolutions; None for plain patches."""
    match embedding:
        case ResNetStem():
            return HYBRIDS[embedding.depths]
        case Stem():
            return "vit_base_mci_224"
    return None


def refuse_hybrid(config: Config) -> str | None:
    """Refuse what timm has no hybrid for."""
    if not isinstance(config, ViTConfig):
        return "it is a plain Vision Transformer"
    match config.embedding:
        case ResNetStem(depths=depths, width=64, groups=32) if depths in HYBRIDS:
            return None
        case ResNetStem():
            return f"its ResNets have width 64, 32 groups and depths {', '.join(map(str, HYBRIDS))}"
        case Stem() as stem if stem != MOBILE_CLIP or config.width != 768:
            return f"its only stem is {MOBILE_CLIP}, of width 768"
        case Stem():
            return None
    return "it is a hybrid, and this model is not"
