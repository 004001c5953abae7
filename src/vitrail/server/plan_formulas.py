"""The formulas of figures that several rooms plan: tokens, attention, parameters, FLOPs, memory, batch and time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from vitrail.config import ViTConfig
from vitrail.geometry import attention_elements
from vitrail.parts import Adaptive, Patches
from vitrail.plan.cards import Card
from vitrail.plan.fit import need_bytes
from vitrail.plan.folklore import claim
from vitrail.plan.hardware import Bound
from vitrail.plan.ledger import Ledger, Row
from vitrail.plan.workload import Workload
from vitrail.server.formulas import Formula, short

__all__ = [
    "attention_formula",
    "batch_formula",
    "bound_formula",
    "forward_formula",
    "parameters_formula",
    "peak_formula",
    "tokens_formula",
]


def tokens_formula(config: ViTConfig) -> Formula:
    """The length of the sequence."""
    embedding, prefix = config.embedding, config.prefix.count
    (height, width), (rows, columns) = config.fit(config.image).fitted, config.grid
    total = f"{rows} · {columns} + {prefix} = {short(config.tokens)}"
    if isinstance(embedding, Adaptive):
        return Formula(name="tokens", symbols="rows · columns + prefix, if every patch is the smallest", numbers=total)
    if isinstance(embedding, Patches) and embedding.stride not in (None, embedding.patch):
        (down, across), (below, beside) = embedding.patch, embedding.stride
        numbers = f"(({height} − {down}) / {below} + 1) · (({width} − {across}) / {beside} + 1) + {prefix}"
        return Formula(
            name="tokens", symbols="((H − P) / S + 1) · ((W − P) / S + 1) + prefix", numbers=f"{numbers} = {total}"
        )
    down, across = config.patch
    return Formula(
        name="tokens",
        symbols="N = (H / P) · (W / P) + prefix",
        numbers=f"({height} / {down}) · ({width} / {across}) + {prefix} = {total}",
    )


def attention_formula(tokens: int) -> Formula:
    """The elements of one head's attention matrix."""
    return Formula(
        name="attention elements",
        symbols="N²",
        numbers=f"{short(tokens)}² = {short(attention_elements(tokens))}",
        folklore=claim("doubled-side").words,
    )


def forward_formula(costs: Ledger) -> Formula:
    """The FLOPs of one image, by the parts of the model."""
    return _sum("forward", costs, lambda row: row.flops, " FLOP")


def parameters_formula(costs: Ledger) -> Formula:
    """The parameters, by the parts of the model."""
    found = _sum("parameters", costs, lambda row: row.params, "")
    return found.model_copy(update={"folklore": claim("attention-parameters").words})


def _sum(name: str, costs: Ledger, cost: Callable[[Row], int], unit: str) -> Formula:
    """Add up the parts of a model; equal blocks are counted once, times their number."""
    parts: dict[str, int] = {}
    for row in costs.rows:
        part = ".".join(row.path.split(".")[: 2 if row.path.startswith("blocks.") else 1])
        parts[part] = parts.get(part, 0) + cost(row)
    blocks = [value for part, value in parts.items() if part.startswith("blocks.")]
    words, numbers = [], []
    for part, value in parts.items():
        if part.startswith("blocks.") and len(set(blocks)) == 1:
            if part == "blocks.0":
                words.append("depth · block")
                numbers.append(f"{len(blocks)} · {short(value)}")
        elif value:
            words.append(part.replace("_", " ").replace("blocks.", "block "))
            numbers.append(short(value))
    return Formula(
        name=name, symbols=" + ".join(words), numbers=f"{' + '.join(numbers)} = {short(sum(parts.values()))}{unit}"
    )


def peak_formula(name: str, components: Mapping[str, int]) -> Formula:
    """The bytes of all tensors at the peak, by component."""
    found = {part.replace("_", " "): size for part, size in components.items() if size}
    return Formula(
        name=name,
        symbols=" + ".join(found),
        numbers=f"{' + '.join(map(short, found.values()))} = {short(sum(found.values()))} bytes",
    )


def batch_formula(config: ViTConfig, workload: Workload, target: Card, batch: int) -> Formula:
    """The largest batch that likely fits: it does, and one image more does not."""

    def need(images: int) -> str:
        return f"{need_bytes(config, replace(workload, batch=images), target) / 2**30:,.2f} GiB"

    memory = f"{target.visible_bytes / 2**30:,.2f} GiB"
    fits = f"needed({batch}) = {need(batch)} ≤ {memory}, but " if batch else ""
    return Formula(
        name="likely largest batch",
        symbols="the largest B with needed(B) ≤ the card's memory",
        where={"B": "images per step; needed(B) is their tensors, the context, workspaces and a likely fragmentation"},
        numbers=f"{fits}needed({batch + 1}) = {need(batch + 1)} > {memory}, so B = {short(batch)}",
        folklore=claim("batch-on-24-gb").words if workload.train else "",
    )


def bound_formula(bound: Bound | None, workload: Workload) -> Formula:
    """The roofline of one step."""
    symbols = "max(FLOPs / peak FLOP/s, bytes moved / bandwidth)"
    if bound is None:
        return Formula(name="lower bound of a step", symbols=symbols, numbers="the rates of this card are not known")
    compute, moved = (f"{1e3 * seconds:,.4g} ms" for seconds in (bound.compute_seconds, bound.memory_seconds))
    return Formula(
        name="lower bound of a step",
        symbols=symbols,
        numbers=f"max({compute}, {moved}) = {1e3 * bound.seconds:,.4g} ms",
        folklore=claim("checkpointing").words if workload.train else "",
    )
