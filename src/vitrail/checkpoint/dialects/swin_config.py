"""What timm and transformers say of a Swin or a Swin v2 in their configs, as a PyramidConfig and back: they differ in
the names of two keys."""

from __future__ import annotations

from typing import Any

from vitrail.checkpoint.dialects.json_config import JsonConfig
from vitrail.config import Config, PyramidConfig, PyramidStage
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size
from vitrail.parts import Patches, PatchMerging, RelativeBias, RelativeMlp, WindowedAttention

__all__ = ["is_second", "swin_config", "swin_fields"]


def swin_config(said: JsonConfig, image: Size, *, second: bool, **own: Any) -> PyramidConfig:
    """Return the model that the arguments describe, with fields of its `own`; classes are the weights'."""
    depths, heads = _wholes(said, "depths", (2, 2, 6, 2)), _wholes(said, "num_heads", (3, 6, 12, 24))
    require(
        len(depths) == len(heads), f"{said.where} has depths {depths} and num_heads {heads}; one of them is another's"
    )
    width, ratio = said.whole("embed_dim", 96), said.number("mlp_ratio", 4.0)
    require(ratio == int(ratio), f"{said.where} has mlp_ratio {ratio}, and a pyramid's is a whole number")
    windows = _windows(said, len(depths), second=second)
    first = windows[0]
    stages = tuple(
        PyramidStage(
            width=width * 2**level,
            depth=depth,
            num_heads=heads[level],
            window=None if windows[level] == first else windows[level],
        )
        for level, depth in enumerate(depths)
    )
    biased = said.flag("qkv_bias", True)
    own["position"] = RelativeBias(prefix=False, convention="timm")
    if second:
        reference = tuple(Size.of(side) for side in _wholes(said, "pretrained_window_sizes", (0,)) if side)
        own |= {
            "position": RelativeMlp(reference=reference),
            "cosine_attention": True,
            "merging": PatchMerging(norm="after"),
            "block_norm": "after",
        }
    return PyramidConfig(
        image=image,
        channels=said.whole("num_channels" if "num_channels" in said else "in_chans", 3),
        embedding=Patches(patch=said.size("patch_size") or Size(4, 4)),
        stages=stages,
        attention=WindowedAttention(window=first, window_padding="zeros"),
        qkv_bias=("no_key" if second else "all") if biased else "none",
        mlp_ratio=int(ratio),
        **own,
    )


def swin_fields(config: PyramidConfig) -> dict[str, Any]:
    """Return the arguments that describe a model, without image, channels and classes."""
    assert isinstance(config.attention, WindowedAttention)
    windows = [stage.window or config.attention.window for stage in config.stages]
    for window in windows:
        require(
            window.height == window.width, f"window {window} is not square, and Swin's are; write it as vitrail's own"
        )
    require(
        len(windows) != 2 or windows[0] == windows[1],
        "two windows would be taken for a height and a width; write it as vitrail's own",
    )
    sides, position = [window.height for window in windows], config.position
    return {
        "patch_size": config.patch.height,
        "embed_dim": config.stages[0].width,
        "depths": [stage.depth for stage in config.stages],
        "num_heads": [stage.num_heads for stage in config.stages],
        "window_size": sides[0] if len({*sides}) == 1 else sides,
        "mlp_ratio": float(config.mlp_ratio),
        "qkv_bias": config.qkv_bias != "none",
        **(
            {"pretrained_window_sizes": [window.height for window in position.reference] or [0] * len(windows)}
            if isinstance(position, RelativeMlp)
            else {}
        ),
    }


def is_second(config: Config) -> bool:
    """Whether a pyramid of windows is a Swin v2."""
    return isinstance(config, PyramidConfig) and config.cosine_attention


def _windows(said: JsonConfig, stages: int, *, second: bool) -> list[Size]:
    value = said.values.get("window_size")
    if not second and isinstance(value, list) and len(value) != 2:  # one for each stage; two are height and width
        sides = _wholes(said, "window_size", ())
        require(len(sides) == stages, f"{said.where} has window_size {list(sides)} for {stages} stages; mend it")
        return [Size.of(side) for side in sides]
    return [said.size("window_size") or Size(7, 7)] * stages


def _wholes(said: JsonConfig, key: str, default: tuple[int, ...]) -> tuple[int, ...]:
    value = said.values.get(key)
    if value is None:
        return default
    if not isinstance(value, list) or not value or not all(type(each) is int and each >= 0 for each in value):
        raise VitrailError(f"{said.where} has {key} {str(value)[:40]!r}, which is not a list of whole numbers; mend it")
    return tuple(value)
