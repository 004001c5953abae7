"""A table of names: vitrail's on the left, another library's on the right, read one way and written the other.

A name may hold `{p}`, what the file puts before the model's names, `{i}` or `{s}`, a block's or a stage's number,
`{g}`, a block's number where those of all stages are counted, and `{n}`, any rest of a name. A name without `{i}` for
one of ours with it is a tensor that holds those of all blocks. Where the tensors differ too, the row names the
transform between them. A name on our side that begins with "+" is of a tensor that the architecture has no use for: it
is kept aside, and comes back where a dialect has a place for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import count, takewhile

import torch
from torch import Tensor

from vitrail.config import Config
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size

__all__ = [
    "BACKGROUND",
    "CHANNELS_TURNED",
    "CLS",
    "DENSE",
    "GRID",
    "GRID_LAST",
    "HEADS_IN",
    "HEADS_IN_BIAS",
    "HEADS_OUT",
    "HWIO",
    "JOINED",
    "KEY_FIRST",
    "MASK_TOKEN",
    "PIXELS_LAST",
    "POINTWISE",
    "Q_AND_KV",
    "SAME",
    "SPLIT",
    "STACKED_AXES",
    "TABLE",
    "TOKEN",
    "TUBELETS",
    "TWO_TOKENS",
    "WINDOW",
    "Row",
    "Sizes",
    "Transform",
    "always",
    "both",
    "never",
    "pointwise",
    "read_rows",
    "write_rows",
]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes that a transform needs and that shapes may not show."""

    num_heads: int = 1
    patch: Size = Size(1, 1)
    channels: int = 3
    grid: Size | None = None
    """The grid of a position table that is stored with its height and width."""
    tubelet: int = 1
    """Frames that a patch is deep."""
    background: Size | None = None
    window: Size | None = None
    """The grids of the two tables of tiled positions."""
    depths: tuple[int, ...] = ()
    """Blocks of every stage, if the library counts them through."""

    def place(self, number: int) -> dict[str, str]:
        """Return the stage, and the number in it, of a block that is counted through."""
        for stage, depth in enumerate(self.depths):
            if number < depth:
                return {"s": str(stage), "i": str(number)}
            number -= depth
        return {"s": str(len(self.depths)), "i": str(number)}

    def number(self, stage: int, index: int) -> str:
        return str(sum(self.depths[:stage]) + index)


Change = Callable[[list[Tensor], Sizes, int], list[Tensor]]


@dataclass(frozen=True)
class Transform:
    """A conversion from the library's tensors to vitrail's and back; it is given the number of tensors to return."""

    read: Change
    write: Change


def _each(read: Callable[[Tensor, Sizes], Tensor], write: Callable[[Tensor, Sizes], Tensor]) -> Transform:
    return Transform(
        read=lambda tensors, sizes, _: [read(tensor, sizes) for tensor in tensors],
        write=lambda tensors, sizes, _: [write(tensor, sizes) for tensor in tensors],
    )


SAME = _each(lambda x, _: x, lambda x, _: x)
TABLE = _each(lambda x, _: x[0], lambda x, _: x[None])
"""A position table behind a batch axis."""


def _map(of: Callable[[Sizes], Size | None]) -> Transform:
    return _each(lambda x, _: x[0].flatten(1).T, lambda x, sizes: x.T.unflatten(1, tuple(of(sizes) or ()))[None])


GRID, BACKGROUND, WINDOW = (
    _map(lambda each: each.grid),
    _map(lambda each: each.background),
    _map(lambda each: each.window),
)
"""A position table as a feature map, (1, width, height, width of the grid), of the grid or of tiled positions."""
GRID_LAST = _each(lambda x, _: x[0].flatten(0, 1), lambda x, sizes: x.unflatten(0, tuple(sizes.grid or ()))[None])
"""A position table as (1, height, width of the grid, width)."""
CHANNELS_TURNED = _each(lambda x, _: x.flip(1), lambda x, _: x.flip(1))
"""A convolution of images whose channels are in the other order."""
TOKEN = _each(lambda x, _: x[None], lambda x, _: x[0])
"""A token without a batch axis."""
TWO_TOKENS = Transform(
    read=lambda tensors, _, count: list(tensors[0].tensor_split(count, dim=1)),
    write=lambda tensors, _, count: [torch.cat(tensors, dim=1)],
)
"""CLS and distillation token in one tensor."""
CLS = _each(lambda x, _: x[None, None], lambda x, _: x[0, 0])
"""A CLS token without batch and token axes."""
DENSE = _each(lambda x, _: x.T, lambda x, _: x.T)
"""A linear layer's weight as (in, out)."""
HWIO = _each(lambda x, _: x.permute(3, 2, 0, 1), lambda x, _: x.permute(2, 3, 1, 0))
"""A convolution's weight as (height, width, in, out)."""
TUBELETS = _each(
    lambda x, _: x.transpose(1, 2).flatten(1, 2), lambda x, sizes: x.unflatten(1, (sizes.tubelet, -1)).transpose(1, 2)
)
"""A projection of tubelets as a 3D convolution's weight, (out, in, frames, height, width)."""
PIXELS_LAST = _each(
    lambda x, sizes: x.view(-1, *sizes.patch, sizes.channels).permute(0, 3, 1, 2),
    lambda x, _: x.permute(0, 2, 3, 1).flatten(1),
)
"""A patch projection as a linear layer over (row, column, channel)."""
POINTWISE = _each(lambda x, _: x.flatten(1), lambda x, _: x[:, :, None, None])
"""A linear layer over the values of a pixel as a 1×1 convolution's weight."""
JOINED = Transform(
    read=lambda tensors, _, count: [torch.cat(tensors)],
    write=lambda tensors, _, count: list(tensors[0].chunk(count)),
)
"""Layers of one input that they keep apart and we do not: q, k and v; gate and value."""
KEY_FIRST = Transform(
    read=lambda tensors, _, count: [torch.cat([tensors[1], tensors[0], tensors[2]])],
    write=lambda tensors, _, count: [tensors[0].chunk(count)[place] for place in (1, 0, 2)],
)
"""q, k and v that are kept apart, named with k first: the row is for models whose keys have a bias."""
SPLIT = Transform(read=JOINED.write, write=JOINED.read)
"""A tensor that they keep whole and we do not."""
Q_AND_KV = Transform(
    read=lambda tensors, _, count: list(tensors[0].tensor_split([tensors[0].shape[0] // 3])),
    write=JOINED.read,
)
"""One projection to q, k and v, of which k and v stay together."""
STACKED_AXES = Transform(
    read=lambda tensors, _, count: list(tensors[0].flip(0).unbind(1)),
    write=lambda tensors, _, count: [torch.stack(tensors, dim=1).flip(0)],
)
"""(2, depth, …) of columns and rows, and a tensor of rows and columns in every block."""
HEADS_IN = Transform(
    read=lambda tensors, _, count: [torch.cat([x.flatten(1).T for x in tensors])],
    write=lambda tensors, sizes, count: [x.T.unflatten(1, (sizes.num_heads, -1)) for x in tensors[0].chunk(count)],
)
"""q, k and v as (in, heads, values) each."""
HEADS_IN_BIAS = Transform(
    read=lambda tensors, _, count: [torch.cat([x.flatten() for x in tensors])],
    write=lambda tensors, sizes, count: [x.unflatten(0, (sizes.num_heads, -1)) for x in tensors[0].chunk(count)],
)
HEADS_OUT = _each(lambda x, _: x.flatten(0, 1).T, lambda x, sizes: x.T.unflatten(0, (sizes.num_heads, -1)))
"""The output projection as (heads, values, out)."""


MASK_TOKEN = "+mask_token"
"""(1, 1, D): what masked patches were replaced by in pretraining."""


def always(config: Config) -> bool:
    return True


def never(config: Config) -> bool:
    """Marks names that are read, and written back only to the file's own dialect."""
    return False


@dataclass(frozen=True)
class Row:
    """vitrail's names, the library's names, the transform between them, and the configs that have this row."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    transform: Transform = SAME
    when: Callable[[Config], bool] = always


def both(
    ours: str, *theirs: str, transform: Transform = SAME, when: Callable[[Config], bool] = always
) -> tuple[Row, Row]:
    """Return the two rows of a layer: weight and bias."""
    weight, bias = (
        Row((f"{ours}.{part}",), tuple(f"{name}.{part}" for name in theirs), transform, when)
        for part in ("weight", "bias")
    )
    return weight, bias


def pointwise(ours: str, theirs: str) -> tuple[Row, Row]:
    """Return the two rows of a linear layer that they have as a 1×1 convolution."""
    weight, bias = both(ours, theirs)
    return replace(weight, transform=POINTWISE), bias


def read_rows(
    rows: tuple[Row, ...], tensors: Mapping[str, Tensor], prefix: str, sizes: Sizes
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Convert the library's tensors to vitrail's (extras under "+" names); return unmatched names too."""
    ours: dict[str, Tensor] = {}
    rest = dict(tensors)
    for row in rows:
        pattern = _pattern(row.theirs[0], prefix)
        for name in list(rest):  # what an earlier row has taken is not offered again
            found = pattern.fullmatch(name)
            if found is None or name not in rest:
                continue
            places = found.groupdict()
            if "g" in places:
                places |= sizes.place(int(places["g"]))
            names = [each.format(p=prefix, **places) for each in row.theirs]
            missing = [each for each in names if each not in tensors]
            require(not missing, f"the weights have {name} but not {', '.join(missing)}; the file is not whole")
            given = [tensors[each] for each in names]
            try:
                made = row.transform.read(given, sizes, len(row.ours))
            except (RuntimeError, IndexError, ValueError):
                shapes = ", ".join(str(tuple(tensor.shape)) for tensor in given)
                raise VitrailError(
                    f"{name} has shape {shapes}, which is not the shape of such a layer; the file is another model's"
                ) from None
            if _is_stacked(row):
                targets = [row.ours[0].format(i=index) for index in range(len(made))]
            else:
                targets = [each.format(**places) for each in row.ours]
            for target, tensor in zip(targets, made, strict=True):
                require(
                    target not in ours, f"the weights give {target} twice, once as {name}; the file mixes two models"
                )
                ours[target] = tensor
            for each in names:
                rest.pop(each, None)
    return ours, rest


def write_rows(
    rows: tuple[Row, ...],
    tensors: Mapping[str, Tensor],
    kept: Mapping[str, Tensor],
    prefix: str,
    sizes: Sizes,
    config: Config,
) -> tuple[dict[str, Tensor], list[str]]:
    """Convert vitrail's tensors and extras to the library's; also return the names that no row can write."""
    theirs: dict[str, Tensor] = {}
    rest = dict.fromkeys(tensors)
    available = {**kept, **tensors}
    for row in rows:
        if not row.when(config):
            continue
        pattern = _pattern(row.ours[0], "")
        for name in available:
            found = pattern.fullmatch(name)
            if found is None:
                continue
            places = found.groupdict()
            names = [each.format(**places) for each in row.ours]
            if _is_stacked(row):
                if places.pop("i") != "0":
                    continue
                names = list(takewhile(available.__contains__, (row.ours[0].format(i=index) for index in count())))
            if any(each not in available and not each.startswith("+") for each in names):
                continue
            given = [available[each] if each in available else torch.zeros_like(available[name]) for each in names]
            if "{g}" in row.theirs[0]:
                places["g"] = sizes.number(int(places["s"]), int(places["i"]))
            targets = [each.format(p=prefix, **places) for each in row.theirs]
            theirs.update(zip(targets, row.transform.write(given, sizes, len(targets)), strict=True))
            for each in names:
                rest.pop(each, None)
    return theirs, list(rest)


def _is_stacked(row: Row) -> bool:
    return "{i}" in row.ours[0] and "{i}" not in row.theirs[0] and "{g}" not in row.theirs[0]


@cache
def _pattern(name: str, prefix: str) -> re.Pattern[str]:
    text = re.escape(name.replace("{p}", prefix))
    for place, kind in (("i", r"\d{1,4}"), ("s", r"\d{1,4}"), ("g", r"\d{1,4}"), ("n", r"[^+].*")):
        text = text.replace(rf"\{{{place}\}}", f"(?P<{place}>{kind})")
    return re.compile(text)
