"""Sentences that warn about an adapted model: one for every change that makes it differ from the trained one.

Without a sentence, the vectors are unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.surgery.changes import Change, Resized
from vitrail.checkpoint.surgery.resample import Method
from vitrail.config import Config, MobileConfig, PyramidConfig, ViTConfig, padded_grids
from vitrail.errors import VitrailError
from vitrail.parts import (
    AttentionPool,
    ClsPool,
    FullAttention,
    Learned,
    Prefix,
    RelativeBias,
    Rotary3d,
    RotaryMixed,
    SinCos1d,
    SinCos3d,
    Tubelets,
    WindowedAttention,
)

__all__ = ["caveats"]

REMEDY = "fine-tune, or measure it on images"
IN_TIME = (SinCos1d, SinCos3d, Rotary3d)
"""Positions that are computed from the step too."""
TRAINING_ONLY = ("dropout", "attention_dropout", "drop_path")
"""Fields that matter only in training."""


def caveats(
    checkpoint: Checkpoint, target: Config, changes: Sequence[Change], *, method: Method | None = None
) -> tuple[str, ...]:
    source = checkpoint.config
    resized = [change.resized for change in changes if change.resized is not None]
    patch, tables = ([each for each in resized if (each.what == "patch") == wanted] for wanted in (True, False))
    found = [
        *_on_method(source, target, tables, method),
        *_on_grid(source, target, tables),
        *_on_windows(source, target),
        *_on_frames(source, target),
        *_on_channels(checkpoint, target),
        *_on_projection(patch),
    ]
    if not isinstance(source, MobileConfig) and not isinstance(target, MobileConfig):
        found += [
            *_on_prefix(source.prefix, target.prefix),
            *_on_parts(source, target),
            *_on_pool(source, target),
        ]
    found += [*_on_fields(source, target), *_on_head(checkpoint, target, changes), *_on_rest(changes)]
    return tuple(found)


def _on_method(source: Config, target: Config, tables: Sequence[Resized], method: Method | None) -> Iterator[str]:
    same = getattr(source, "position", None) == getattr(target, "position", None)  # unless the convention changed
    if method is not None and not tables and same:
        yield f"method {method} has nothing to resample here: no table of positions goes to another grid"


def _on_grid(source: Config, target: Config, tables: Sequence[Resized]) -> Iterator[str]:
    old, new = source.position_grid, target.position_grid
    if old == new:
        return
    in_blocks = isinstance(source, PyramidConfig) and source.position.acts_on == "scores"
    if isinstance(source, MobileConfig) or in_blocks:
        kind = "feature map" if isinstance(source, MobileConfig) else "grid"
        yield f"the last {kind} goes from {source.grid}, which the model was trained on, to {target.grid}; {REMEDY}"
        return
    position = source.position
    become = position.describe().on_new_grid
    if position.acts_on == "scores" and isinstance(source.attention, WindowedAttention):
        become = "they count offsets within a window, and are kept where the window stays"
    elif tables:
        become = f"resampled by {tables[0].by}"
    yield f"positions ({type(position).__name__}) go from grid {old} to {new}: {become}; {REMEDY}"


def _on_frames(source: Config, target: Config) -> Iterator[str]:
    """Say what equal frames give, and what becomes of positions in time."""
    if not isinstance(source, ViTConfig) or not isinstance(target, ViTConfig) or source.embedding == target.embedding:
        return
    if source.frames != target.frames:
        words = f"frames {source.frames} → {target.frames}"
        if target.frames == 1:
            yield f"{words}: a still image is read as a tubelet of equal frames; {REMEDY}"
        elif source.frames > 1:
            yield f"{words}: steps {source.steps} → {target.steps}; {REMEDY}"
        else:
            nearly = _on_equal_frames(source, target)
            features = f" only nearly, as {' and '.join(nearly)}" if nearly else ""
            equal = f"a clip of equal frames gives the still image's features{features}"
            yield f"{words}: {equal}; motion was not trained: {REMEDY}"
    if source.steps != target.steps:
        name = type(source.position).__name__
        if isinstance(source.position, Learned):
            how = "repeated in every step" if source.steps == 1 else "resampled linearly in time"
        elif isinstance(source.position, IN_TIME):
            how = "computed for every step"
        else:
            how = "the same in every step, so that the model does not know the order of steps"
        yield f"positions ({name}) go from {source.steps} to {target.steps} steps: {how}"


def _on_equal_frames(source: ViTConfig, target: ViTConfig) -> list[str]:
    """Return why a clip of equal frames does not give exactly what the still image gave."""
    reasons = []
    if target.steps > 1 and target.prefix.count:
        patches = target.tokens - target.prefix.count
        tokens = f"{target.prefix.count} prefix token{'s' * (target.prefix.count > 1)}"
        reasons.append(f"there are {patches:,} patches beside {tokens}, not {source.grid.area:,}")
    if target.steps > 1 and isinstance(target.position, IN_TIME):
        reasons.append("positions differ from step to step")
    return reasons


def _on_channels(checkpoint: Checkpoint, target: Config) -> Iterator[str]:
    old, new, steps = checkpoint.config.channels, target.channels, checkpoint.preprocessing
    if old == new:
        return
    if new == 1:
        alike = len({*steps.mean}) == len({*steps.std}) == 1
        done = "summed, which is exact" if alike else "summed and mean and std averaged, which is nearly exact"
        yield f"channels {old} → 1: the filters are {done} for grey images and loses colour; {REMEDY}"
    else:
        yield (
            f"channels {old} → {new}: filters, mean and std are repeated in turn, the filters times {old}/{new}, "
            f"as if every channel were one of the old; {REMEDY}"
        )


def _on_projection(resized: Sequence[Resized]) -> Iterator[str]:
    """Warn when tokens change: a larger patch keeps them, except with "interpolate"."""
    for each in resized[:1]:  # the others are resized in proportion
        words = f"the patch projection {each.old} → {each.new} ({each.by})"
        if each.new.height < each.old.height or each.new.width < each.old.width:
            yield f"{words} loses detail, and nothing undoes it; fine-tune"
        elif each.by == "interpolate":
            yield f"{words} changes tokens, where pinv would keep them; {REMEDY}"


def _on_prefix(old: Prefix, new: Prefix) -> Iterator[str]:
    """Warn when the prefix changes: every token attends to it, so all vectors change."""
    for name, before, after in (
        ("CLS token", old.cls, new.cls),
        ("distillation token", old.distillation, new.distillation),
        ("register", old.registers, new.registers),
    ):
        count = abs(after - before)
        tokens = f"{count} {name}{'s' * (count > 1)}" if name == "register" else f"the {name}"
        are, them = ("are", "them") if count > 1 else ("is", "it")
        if after < before:
            yield f"{tokens} {are} dropped, and every other token attended to {them}: all vectors change; {REMEDY}"
        if after > before:
            yield f"{tokens} {are} new and untrained, and every token attends to {them}: all vectors change; {REMEDY}"


def _on_parts(source: ViTConfig | PyramidConfig, target: ViTConfig | PyramidConfig) -> Iterator[str]:
    """Warn about parts that keep their tensors but compute differently."""
    if not _in_proportion(source, target):
        yield _changed("embedding", source.embedding, target.embedding)
    old, new = source.position, target.position
    exact = isinstance(old, Learned | RotaryMixed)  # removed rows are added to their tokens; frequencies stay
    if isinstance(old, Learned):
        exact = isinstance(new, Learned) and old.inside == new.inside
    if isinstance(old, RelativeBias) and isinstance(new, RelativeBias) and old.shared == new.shared:
        exact = (
            old.prefix == new.prefix or new.prefix or target.prefix.count == 0
        )  # new entries are zero, others are removed with their tokens
    if old != new and not exact:
        yield _changed("position", old, new)
    old, new = source.attention, target.attention
    exact = isinstance(old, FullAttention) and isinstance(new, FullAttention)
    if isinstance(old, WindowedAttention) and isinstance(new, WindowedAttention):
        exact = old == new.but(window_padding=old.window_padding)  # what pads windows is said where any is padded
    if old != new and not exact:
        yield _changed("attention", old, new)
    if not isinstance(source, ViTConfig) or not isinstance(target, ViTConfig):
        return
    fits = [config.embedding.fit(config.image, config.remainder) for config in (source, target)]
    if source.remainder != target.remainder and any(fit.fitted != fit.image for fit in fits):
        yield _changed("remainder", source.remainder, target.remainder)


def _in_proportion(source: ViTConfig | PyramidConfig, target: ViTConfig | PyramidConfig) -> bool:
    """Whether the embedding differs only in its patch size and its frames."""
    try:
        embedding, wanted = source.embedding.with_patch(target.patch), target.embedding
        tubelet = wanted.tubelet if isinstance(wanted, Tubelets) else None
        return embedding == wanted or embedding.with_frames(wanted.frames, tubelet) == wanted
    except VitrailError:
        return False


def _on_pool(source: ViTConfig | PyramidConfig, target: ViTConfig | PyramidConfig) -> Iterator[str]:
    old, new = source.pool, target.pool
    if type(old) is not type(new):
        names = f"the vector is pooled by {type(new).__name__}, and what reads it was trained on {type(old).__name__}"
        untrained = ", and the pool itself is new and untrained" if isinstance(new, AttentionPool) else ""
        yield f"{names}{untrained}: fine-tune"
    elif old != new:
        yield _changed("pool", old, new)
    norms = {source.final_norm, target.final_norm}
    cls_alone = isinstance(old, ClsPool) and isinstance(new, ClsPool)  # norm then CLS equals CLS then norm
    if len(norms) == 2 and not (cls_alone and "none" not in norms):
        match source.final_norm, target.final_norm:
            case "none", _:
                done = "is new and untrained"
            case _, "none":
                done = "is dropped"
            case _, where:
                done = f"moves to {'the pooled vector' if where == 'pooled' else 'the tokens'}"
        yield f"the final norm {done}: vectors change; {REMEDY}"


ELSEWHERE = (*TRAINING_ONLY, "image", "channels", "classes", "head_bias", "prefix", "pool", "final_norm")
PARTS = ("embedding", "position", "attention", "remainder")


def _on_fields(source: Config, target: Config) -> Iterator[str]:
    """Warn about changed fields without tensors that no other sentence covers."""
    said = (*ELSEWHERE, *PARTS)
    for field in fields(source):
        old, new = getattr(source, field.name), getattr(target, field.name)
        if field.name not in said and old != new:
            yield _changed(field.name, old, new)


def _on_head(checkpoint: Checkpoint, target: Config, changes: Sequence[Change]) -> Iterator[str]:
    status = {change.name: change.status for change in changes}
    names = f", and its {len(checkpoint.labels)} class names are dropped" if checkpoint.labels else ""
    if status.get("head.weight") == "missing":
        yield f"the head is new and zero{names}: logits say nothing until it is trained"
    elif status.get("head.weight") == "unused":
        yield f"the head is dropped{names}: the model gives its pooled vector instead of logits"
    elif status.get("head.bias") == "unused":
        yield f"the head's bias is dropped: logits change; {REMEDY}"
    if status.get("head.weight") == "kept" and status.get("distillation_head.weight") == "missing":
        yield "the distillation head is new and zero: logits, the mean of both heads, are halved until it is trained"
    if status.get("head.weight") == "kept" and status.get("distillation_head.weight") == "unused":
        yield f"the distillation head is dropped: logits were the mean of both heads, and change; {REMEDY}"


EXPLAINED = ("prefix.", "pool.", "head.", "distillation_head.", "norm.")
"""Tensors that the sentences above explain."""


def _on_rest(changes: Sequence[Change]) -> Iterator[str]:
    for status, meaning in (("missing", "new and untrained"), ("unused", "trained and left out")):
        names = [each.name for each in changes if each.status == status and not each.name.startswith(EXPLAINED)]
        if names:
            listed = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            yield f"{listed}: {meaning}; {REMEDY}"


def _changed(name: str, old: object, new: object) -> str:
    return f"{name} changes from {old} to {new}: the model computes something else than it was trained for; {REMEDY}"


def _on_windows(source: Config, target: Config) -> Iterator[str]:
    """Say how windows that do not divide the new grids are padded."""
    if isinstance(source, MobileConfig) or isinstance(target, MobileConfig):
        return
    odd = padded_grids(target)
    if not odd or not isinstance(target.attention, WindowedAttention):
        return
    if (source.attention, padded_grids(source)) == (target.attention, odd):
        return
    padding = target.attention.window_padding
    how = {
        "masked": "the padding is masked and changes nothing; timm's Swin would let zeros take part",
        "zeros": "zeros take part in attention, as in timm's Swin",
    }[padding]
    windows, grids = (", ".join(dict.fromkeys(map(str, each))) for each in (odd.values(), odd))
    yield f"windows of {windows} do not divide grid {grids}: {how} (window_padding {padding!r})"
