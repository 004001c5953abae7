"""The cost of two vision towers and of the merger that joins them."""

from __future__ import annotations

from vitrail.config import TwoBranches
from vitrail.plan import ops
from vitrail.plan.graph import Tensor, module, view
from vitrail.plan.model.attention import shares_position, within
from vitrail.plan.model.layout import Sizes
from vitrail.plan.model.neck import neck, neck_at
from vitrail.plan.model.vit import embedded, encode, features, runs, sizes
from vitrail.plan.repetition import flat
from vitrail.plan.tape import Tape
from vitrail.plan.workload import Workload

__all__ = ["two_branches"]


@module
def two_branches(t: Tape, spec: TwoBranches, workload: Workload, images: Tensor) -> Tensor:
    low, high = sizes(spec.low, workload), sizes(spec.high, workload)
    area = spec.low.channels * spec.low.image.area * workload.batch
    with t.model("low"):
        tokens = features(t, spec.low, low, view(images.storage, area, images.size))
    with t.model("high"):
        early, last = _fine(t, spec, high, view(images.storage, images.count - area, images.size))
    with t.model("merger"):
        return merge(t, spec, low, high, tokens, last, early)


def _fine(t: Tape, spec: TwoBranches, n: Sizes, image: Tensor) -> tuple[Tensor, Tensor]:
    c = spec.high
    assert c.neck is not None
    start = [embedded(t, c, n, image)]
    shared = within(t, c, n, "position", start[0].size) if shares_position(c) else None
    every = flat(runs(c))
    early = encode(t, c, n, start.pop(), shared, [run for run in every if run[-1][-1] <= spec.early])
    first, *rest = [run for run in every if run[-1][-1] > spec.early]
    # the first block after it is like no other: its input's gradient is added to the merger's
    last = encode(t, c, n, early, shared, [run for run in (first[:1], first[1:], *rest) if run])
    return early, neck(t, c, c.neck, n, last)


@module
def merge(t: Tape, spec: TwoBranches, low: Sizes, high: Sizes, tokens: Tensor, last: Tensor, early: Tensor) -> Tensor:
    assert spec.high.neck is not None
    channels, width = spec.high.neck.width, spec.merger.width
    own = _shrunk(t, low, channels, last)
    more = [_shrunk(t, low, channels, neck_at(t, "neck", spec.high, high, early, channels, "layer"))]
    scaled = [ops.multiply(t, "", more.pop(), t.parameter("", 1, "alpha"), spread=True)]
    fine = ops.add(t, own, scaled.pop())
    del own
    halves = [
        _project(t, "high", fine, 4 * channels, width // 2, low.batch > 1 and low.patches > 1),
        ops.Linear(t, "low", tokens, spec.low.width, width // 2),
    ]
    joined = ops.cat(t, *halves)
    halves.clear()
    activated = [ops.activate(t, "", joined)]
    return ops.Linear(t, "out", activated.pop(), width, width)


@module
def _project(t: Tape, path: str, x: Tensor, width: int, out: int, copied: bool) -> Tensor:
    """A linear layer of tokens that are stored channel by channel: those of several images are copied, and the bias is
    added apart."""
    if not copied:
        return ops.linear(t, path, x, width, out)
    given = t.cast(x, t.compute)
    product = [ops.linear(t, path, ops.copy(t, given), width, out, False)]
    return ops.add(t, product.pop(), t.weight(path, out, "bias"), spread=True)


def _shrunk(t: Tape, low: Sizes, channels: int, x: Tensor) -> Tensor:
    places = low.batch * low.patches
    x = ops.pad(t, x, 16 * places * channels)  # four times the low grid along each side
    halved = [ops.Conv(t, "conv1", x, 9 * channels * 2 * channels, 2 * channels, 4 * places, False)]
    return ops.Conv(t, "conv2", halved.pop(), 9 * 2 * channels * 4 * channels, 4 * channels, places, False)
