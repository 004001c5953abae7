"""Many plain ViTs at once: the same tape, run on arrays of sizes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from vitrail.config import ViTConfig
from vitrail.errors import require
from vitrail.parts import ClsPool, FullAttention, Learned, MaxPool, MeanPool, NoPosition, Patches, SinCos1d, SinCos2d
from vitrail.plan.encoder import Numbers
from vitrail.plan.memory import estimate_notes, held_bytes
from vitrail.plan.meter import ArrayMeter
from vitrail.plan.step import run_step
from vitrail.plan.workload import Workload

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Sweep", "sweep"]


@dataclass(frozen=True)
class Sweep:
    """Arrays of one shape, an entry per config; where a config breaks a rule, `valid` is false and the rest is 0."""

    valid: np.ndarray
    tokens: np.ndarray
    params: np.ndarray
    flops_forward: np.ndarray
    flops_train: np.ndarray
    peak_bytes: np.ndarray
    exact: np.ndarray
    """Whether `memory` would call the bytes proven."""


def sweep(
    config: ViTConfig,
    workload: Workload,
    *,
    batch: Any = None,
    image: Any = None,
    patch: Any = None,
    width: Any = None,
    depth: Any = None,
    num_heads: Any = None,
    mlp_width: Any = None,
    classes: Any = None,
) -> Sweep:
    """Plan every combination of arrays that broadcast together; what is not given is the config's or the workload's.

    `image` and `patch` are sides of squares, or pairs of arrays: heights and widths. A config is valid where the
    patch divides the image and the heads divide the width.
    """
    import numpy as np

    _check_structure(config)
    require(workload.shard is None, f"a sweep is of one device, not of {workload.shard}; call memory() for each config")
    heights, widths = _sides(image, config.image)
    patch_heights, patch_widths = _sides(patch, config.patch)
    given = {
        "batch": (batch, workload.batch),
        "width": (width, config.width),
        "depth": (depth, config.depth),
        "num_heads": (num_heads, config.num_heads),
        "mlp_width": (mlp_width, config.mlp.width),
        "classes": (classes, config.classes),
    }
    arrays = [own if value is None else value for value, own in given.values()]
    sizes = np.broadcast_arrays(heights, widths, patch_heights, patch_widths, *arrays)
    shape = sizes[0].shape
    height, width_, patch_height, patch_width, *rest = (np.asarray(size, dtype=np.int64).ravel() for size in sizes)
    columns = dict(zip(given, rest, strict=True))
    valid = (height % patch_height == 0) & (width_ % patch_width == 0) & (columns["width"] % columns["num_heads"] == 0)
    valid &= np.minimum.reduce([height // patch_height, width_ // patch_width, *rest[:-1]]) > 0
    valid &= (columns["classes"] > 0) == (config.classes > 0)

    columns["patch"], columns["pixels"] = patch_height * patch_width, height * width_
    columns["grid"] = columns["cells"] = (height // patch_height) * (width_ // patch_width)
    columns["tokens"] = columns["grid"] + config.prefix.count
    names = ("params", "flops_forward", "flops_train", "peak_bytes", "exact")
    found = {name: np.zeros(len(valid), dtype=np.int64 if name != "exact" else np.bool_) for name in names}
    for group in _groups(columns, valid):
        chosen = {name: column[group] for name, column in columns.items()}
        for name, values in _plan(config, workload, chosen).items():
            found[name][group] = values
    tokens = np.where(valid, columns["tokens"], 0)
    results = {"valid": valid, "tokens": tokens, **found}
    return Sweep(**{name: values.reshape(shape) for name, values in results.items()})


def _check_structure(config: ViTConfig) -> None:
    plain = (
        isinstance(config.embedding, Patches)
        and config.embedding.stride in (None, config.patch)
        and config.remainder == "error"
        and isinstance(config.attention, FullAttention)
        and isinstance(config.position, Learned | SinCos1d | SinCos2d | NoPosition)
        and isinstance(config.pool, ClsPool | MeanPool | MaxPool)
        and config.drop_path == 0
    )
    require(
        plain,
        "a sweep takes plain patches, full attention, an added position and no drop_path; call memory() for each",
    )


def _sides(value: Any, own: Any) -> tuple[Any, Any]:
    if value is None:
        return own.height, own.width
    return value if isinstance(value, tuple) else (value, value)


def _groups(columns: dict[str, np.ndarray], valid: np.ndarray) -> list[np.ndarray]:
    """Configs that one run answers for: one image or several, few blocks or many, heads of one kind of width."""
    import numpy as np

    head_width = columns["width"] // np.maximum(columns["num_heads"], 1)
    odd = np.where(head_width % 8 == 0, 0, head_width)
    key = (columns["batch"] == 1) + 2 * (np.minimum(columns["depth"], 4) + 5 * odd)
    return [np.flatnonzero(valid & (key == value)) for value in np.unique(key[valid])]


def _plan(config: ViTConfig, workload: Workload, columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    import numpy as np

    first = {name: int(column[0]) for name, column in columns.items()}
    n = Numbers(offsets=0, channels=config.channels, **columns)  # type: ignore[arg-type]
    if first["batch"] == 1:
        n.batch = 1
    if first["depth"] < 4:
        n.depth = first["depth"]
    if (first["width"] // first["num_heads"]) % 8:
        n.head_width_ = first["width"] // first["num_heads"]
    step = run_step(config, workload, ArrayMeter(), n)
    train = step if workload.train else run_step(config, replace(workload, train=True), ArrayMeter(), n)
    held, temporary = held_bytes(workload, step.tape)
    fixed = sum(held.values())
    peaks = [peak + fixed for peak in step.phase_peaks.values()]
    if workload.train:
        peaks.append(step.after["live"] + fixed + temporary)
    forward = step.tape.total(step.tape.flops)
    both = train.tape.total(train.tape.flops) + train.tape.total(train.tape.backward_flops)
    return {
        "params": step.tape.total(step.tape.params),
        "flops_forward": forward // n.batch,
        "flops_train": both // n.batch,
        "peak_bytes": np.maximum.reduce(peaks),
        "exact": np.full(len(columns["width"]), not estimate_notes(workload, step.tape)),
    }
