"""Which weights a training step changes: all of them, some parts, norms or biases alone, or low-rank adapters (LoRA).

The planner and training read the same `Tuning`, so that what is planned can be run. A part is named as the model names
it: embedding, blocks[:8], head. `Tuning.on` settles the names for one config.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from vitrail.config import Config, MobileConfig, PyramidConfig, ViTConfig
from vitrail.errors import VitrailError, require, shown
from vitrail.parts import AttentionPool, FullAttention, Learned, QueryPooling, TiledTable
from vitrail.rules import NonNegativeInt, PositiveInt, Range
from vitrail.value import Value

__all__ = ["Lora", "LoraLayer", "Tuned", "Tuning", "blocks_of", "parts_of"]

LoraLayer = Literal["qkv", "out", "mlp", "fc1", "fc2"]

KINDS = ("norms", "biases")
"""Names that select tensors of every part by what they are."""


@dataclass(frozen=True, kw_only=True)
class Lora(Value):
    """Low-rank adapters (arXiv 2106.09685): a layer's output gets alpha / rank · B(A(x)), and only A and B are trained.

    >>> from vitrail import Lora
    >>> Lora(rank=16, on=("qkv", "mlp"))
    Lora(rank=16, on=('qkv', 'mlp'))
    """

    rank: PositiveInt = 8
    on: tuple[LoraLayer, ...] = ("qkv",)
    """Linear layers of every block: qkv, out, fc1, fc2, or mlp for both of the last."""
    alpha: Annotated[float, Range("(0, inf)", "the rank, or twice the rank, is usual")] | None = None
    """Scale of the adapter, times the rank (default: the rank, so that the scale is 1)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(len(self.on) > 0, "lora on no layer adapts nothing; name qkv, out, mlp, fc1 or fc2")

    @property
    def scale(self) -> float:
        return 1.0 if self.alpha is None else self.alpha / self.rank

    @property
    def layers(self) -> tuple[str, ...]:
        """Paths of the adapted layers inside a block."""
        where = {"qkv": ["attention.qkv"], "out": ["attention.out"], "fc1": ["mlp.fc1"], "fc2": ["mlp.fc2"]}
        where["mlp"] = [*where["fc1"], *where["fc2"]]
        return tuple(dict.fromkeys(path for name in self.on for path in where[name]))


@dataclass(frozen=True, kw_only=True)
class Tuning(Value):
    """What is trained; by default everything.

    >>> from vitrail import ViTConfig
    >>> chosen = Tuning(freeze=("embedding", "blocks[:8]")).on(ViTConfig())
    >>> chosen.trains("blocks.7.mlp.fc1", "weight"), chosen.trains("blocks.8.mlp.fc1", "weight")
    (False, True)
    """

    freeze: tuple[str, ...] = ()
    """Parts that are not trained, e.g. embedding, blocks[:8]; or norms, or biases."""
    last: NonNegativeInt | None = None
    """Train the last blocks and what follows them; 0 is only what follows the blocks."""
    only: tuple[str, ...] = ()
    """Train nothing but these, e.g. head; norms, head; biases, head."""
    lora: Lora | None = None
    """Adapters in every block that is not frozen. Other weights are then trained only if `only` names them (default:
    the head)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for term in (*self.freeze, *self.only):
            _parse(term)

    @property
    def is_everything(self) -> bool:
        return not (self.freeze or self.only) and self.last is None and self.lora is None

    def on(self, config: Config) -> Tuned:
        """Settle the names for a config; a name that it does not have is refused."""
        parts = parts_of(config)
        frozen, kinds = _select(self.freeze, parts)
        if self.last is not None:
            frozen |= set(_before(parts, self.last))
        only, only_kinds = _select(self.only, parts)
        if self.lora is not None and not self.only:
            only = {part for part in parts if _group(part) == "head"}
        tuned = Tuned(
            lora=self.lora,
            parts=parts,
            open_parts=frozenset(part for part in parts if part not in frozen),
            frozen_kinds=frozenset(kinds),
            only_parts=frozenset(only),
            only_kinds=frozenset(only_kinds),
            everything_open=not self.only and self.lora is None,
        )
        require(
            self.lora is None or any(map(_is_block, tuned.open_parts)),
            f"{self!r} leaves no block to adapt; freeze fewer blocks, or leave lora out",
        )
        return tuned

    def refuse(self) -> VitrailError:
        """Return the error for a model of which nothing is trained."""
        return VitrailError(f"{self} trains no tensor of this model; freeze less, or name what is trained")

    def __str__(self) -> str:
        """Return a description for a title.

        >>> str(Tuning(lora=Lora(rank=16), last=4)), str(Tuning(freeze=("embedding", "blocks[:8]")))
        ('LoRA of rank 16 on qkv, in the last 4 blocks', 'all but embedding, blocks[:8]')
        """
        last = {None: "", 0: "what follows the blocks", 1: "the last block"}
        where = last.get(self.last, f"the last {self.last} blocks")
        but = f"all but {', '.join(self.freeze)}" if self.freeze else ""
        words = [f"LoRA of rank {self.lora.rank} on {', '.join(self.lora.on)}"] if self.lora else []
        words += [f"in {where}" if self.lora else where] if where else []
        words += [f"only {', '.join(self.only)}"] if self.only and self.lora is None else []
        words += [f"and {', '.join(self.only)}"] if self.only and self.lora else []
        return ", ".join([*words, *([but] if but else [])]) or "everything"


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """A `Tuning` settled for a config: whether a tensor, by its module's path and its name, is trained."""

    lora: Lora | None
    parts: tuple[str, ...]
    """All parts of the model, in the order in which an image meets them."""
    open_parts: frozenset[str]
    """Parts that are not frozen."""
    frozen_kinds: frozenset[str]
    only_parts: frozenset[str]
    only_kinds: frozenset[str]
    everything_open: bool
    """Whether whatever is not frozen is trained; otherwise only what is named."""

    def trains(self, path: str, name: str) -> bool:
        """Return whether a tensor of the model is trained; adapters are."""
        if name in ("lora_a", "lora_b"):
            return True
        part = _part(path)
        if part not in self.open_parts or any(_is_kind(kind, path, name) for kind in self.frozen_kinds):
            return False
        if self.everything_open or part in self.only_parts:
            return True
        return any(_is_kind(kind, path, name) for kind in self.only_kinds)

    def adapts(self, path: str) -> bool:
        """Return whether the linear layer at `path` has an adapter."""
        if self.lora is None:
            return False
        part = _part(path)
        return part in self.open_parts and path[len(part) + 1 :] in self.lora.layers and _is_block(part)

    def in_the_way(self) -> tuple[str, ...]:
        """Return the names of trained parts, other than blocks, that stand before frozen blocks."""
        frozen = [place for place, part in enumerate(self.parts) if _is_block(part) and part not in self.open_parts]
        before = [part for part in self.parts[: min(frozen, default=0)] if not _is_block(part)]
        trained = self.open_parts if self.everything_open else self.open_parts & self.only_parts
        return tuple(dict.fromkeys(_group(part) for part in before if part in trained))

    def status(self, part: str) -> tuple[bool, bool]:
        """Return what distinguishes a block from others: blocks of equal status train the same tensors."""
        return part in self.open_parts, part in self.only_parts


# ── the parts of a model, in the order in which an image meets them ─────────────────────────────────────────────


def parts_of(config: Config) -> tuple[str, ...]:
    """Return the paths of the parts that have weights; every tensor of the model belongs to one.

    >>> from vitrail import ViTConfig
    >>> parts_of(ViTConfig(depth=2))
    ('embedding', 'prefix', 'position', 'blocks.0', 'blocks.1', 'norm', 'head')
    """
    match config:
        case ViTConfig():
            return tuple(_vit_parts(config))
        case PyramidConfig():
            return tuple(_pyramid_parts(config))
        case MobileConfig():
            return tuple(_mobile_parts(config))


def blocks_of(config: Config) -> int:
    """Return the number of blocks that `Tuning.last` counts.

    >>> from vitrail import preset
    >>> blocks_of(preset("swin-T"))
    12
    """
    return sum(map(_is_block, parts_of(config)))


def _front_parts(c: ViTConfig | PyramidConfig, *, table: bool) -> Iterator[str]:
    """Yield what precedes the blocks; `table`: whether positions are a learned table before them."""
    yield "embedding"
    if isinstance(c, ViTConfig) and c.patch_norm:
        yield "patch_norm"
    if c.prefix.count:
        yield "prefix"
    if table:
        yield "position"
    if c.embedding_norm:
        yield "embedding_norm"


def _head_parts(c: ViTConfig | PyramidConfig) -> Iterator[str]:
    if c.classes:
        yield from ("head", "distillation_head") if c.prefix.distillation else ("head",)


def _vit_parts(c: ViTConfig) -> Iterator[str]:
    yield from _front_parts(c, table=c.position_parameters > 0 and not c.position.per_block)
    yield from (f"blocks.{number}" for number in range(c.depth))
    if c.final_norm != "none":
        yield "norm"
    if c.neck is not None:
        yield "neck"
    if isinstance(c.pool, AttentionPool):
        yield "pool"
    if c.merger is not None:
        yield "merger"
    yield from _head_parts(c)


def _pyramid_parts(c: PyramidConfig) -> Iterator[str]:
    yield from _front_parts(c, table=isinstance(c.position, Learned | TiledTable))
    for level, stage in enumerate(c.stages):
        if level and not isinstance(c.merging, QueryPooling):
            yield f"stages.{level}.merge"
        yield from (f"stages.{level}.blocks.{number}" for number in range(stage.depth))
    if c.final_norm != "none":
        yield "norm"
    yield from _head_parts(c)


def _mobile_parts(c: MobileConfig) -> Iterator[str]:
    yield "stem"
    for level, stage in enumerate(c.stages):
        yield from (f"stages.{level}.residuals.{number}" for number in range(stage.depth))
        if stage.transformer_depth:
            inside = f"stages.{level}.transformer"
            yield from (f"{inside}.local", f"{inside}.into")
            yield from (f"{inside}.blocks.{number}" for number in range(stage.transformer_depth))
            yield from (f"{inside}.norm", f"{inside}.back")
            if isinstance(c.attention, FullAttention):
                yield f"{inside}.fuse"
    yield from (part for part, has in (("last", c.last_width), ("head", c.classes)) if has)


_PART = re.compile(
    r"(?:stages\.\d+\.)?(?:transformer\.)?blocks\.\d+"
    r"|stages\.\d+\.(?:merge|residuals\.\d+|transformer\.\w+)"
    r"|\w+"
)


def _part(path: str) -> str:
    """Return the part that a module belongs to."""
    found = _PART.match(path)
    assert found is not None, path
    return found[0]


def _group(part: str) -> str:
    """Return the name that selects a part; both heads of a distilled model are its head."""
    return "head" if part == "distillation_head" else part.split(".")[0]


def _is_block(part: str) -> bool:
    return re.search(r"(^|\.)blocks\.\d+$", part) is not None


def _is_kind(kind: str, path: str, name: str) -> bool:
    if kind == "norms":
        return "norm" in path.rpartition(".")[2]
    return name == "bias" or name.endswith("_bias")


# ── names ───────────────────────────────────────────────────────────────────────────────────────────────────────

_TERM = re.compile(r"(\w+)(?:\[(-?\d{1,6})?(:)?(-?\d{1,6})?\])?")


def _parse(term: str) -> tuple[str, slice | int | None]:
    """Read blocks, blocks[3], blocks[:8] or blocks[-4:]."""
    match = _TERM.fullmatch(term)
    bracket = match is not None and "[" in term
    if match is None or (bracket and not any(match.groups()[1:])) or (match[4] is not None and match[3] is None):
        raise VitrailError(f"{shown(term)} does not name a part of a model; write head, blocks[3] or blocks[:8]")
    first, last = (None if text is None else int(text) for text in (match[2], match[4]))
    return match[1], slice(first, last) if match[3] else first


def _before(parts: tuple[str, ...], count: int) -> tuple[str, ...]:
    """Return the parts before the last `count` blocks."""
    blocks = [place for place, part in enumerate(parts) if _is_block(part)]
    require(
        count <= len(blocks),
        f"the last {count} blocks are more than the model's {len(blocks)}; give {len(blocks)} or less",
    )
    return parts[: blocks[-1] + 1] if count == 0 else parts[: blocks[-count]]


def _select(terms: Iterable[str], parts: tuple[str, ...]) -> tuple[set[str], set[str]]:
    """Return the parts and the kinds of tensors that the terms name."""
    found, kinds = set(), set()
    for term in terms:
        name, place = _parse(term)
        if name in KINDS and place is None:
            kinds.add(name)
        else:
            found |= _named(term, name, place, parts)
    return found, kinds


def _named(term: str, name: str, place: slice | int | None, parts: tuple[str, ...]) -> set[str]:
    """Return the parts that one term names."""
    alike = [part for part in parts if (_is_block(part) if name == "blocks" else _group(part) == name)]
    groups = dict.fromkeys(_group(part) for part in parts)
    names = [*groups, *(["blocks"] if "blocks" not in groups and any(map(_is_block, parts)) else []), *KINDS]
    require(
        bool(alike),
        f"{term!r} is no part of this model; name {', '.join(names)}, with [3] or [:8] after blocks or stages",
    )
    if place is None:
        return set(alike)
    numbers = {part: part if name == "blocks" else ".".join(part.split(".")[:2]) for part in alike}
    numbered = list(dict.fromkeys(numbers.values()))
    require(numbered[0] != name, f"{term!r} numbers {name}, which is one part; write {name}")
    count = len(numbered)
    if isinstance(place, int):
        require(-count <= place < count, f"{term!r} is beyond the model's {count} {name}; give at most {count - 1}")
        chosen = {numbered[place]}
    else:
        within = all(edge is None or -count <= edge <= count for edge in (place.start, place.stop))
        require(within, f"{term!r} goes beyond the model's {count} {name}; give at most {count}")
        chosen = set(numbered[place])
        require(bool(chosen), f"{term!r} selects none of the model's {count} {name}; they are 0 to {count - 1}")
    return {part for part in alike if numbers[part] in chosen}
