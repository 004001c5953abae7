"""Linear layers in 8 bits: static ranges calibrated on the user's images, smoothed, with oneDNN's integer product.

    y = (q − zero)·scale @ (w·scales)ᵀ + b      q: uint8 tokens, w: int8 weights with a scale per output

Large channels are scaled down and the weights that read them scaled up (SmoothQuant, arXiv 2211.10438), so that one
range fits all channels. Quantising a token to q (divide, shift, add half a step to round) is folded into the layer
before it: a norm's affine part, or the values that attention averages, since its weights sum to one. What remains is to
clamp to 0 and the highest step, and to convert.

Without VNNI instructions, pairs of products are added in 16 bits and saturate; tokens then have 7 bits, so that they
do not. A small product that would saturate detects such a machine.

Shapes: B images, T tokens, D width, K inputs of a layer, N outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache

import torch
from torch import Tensor, nn

from vitrail.config import Config, ViTConfig
from vitrail.geometry import Size, fit
from vitrail.nn.layout import Layout
from vitrail.nn.patches import BytePatchEmbed
from vitrail.vectors.engines.lean import Dense, LeanBlock, Map, Norm

__all__ = [
    "InputRange",
    "IntegerDense",
    "IntegerPatches",
    "byte_weights",
    "highest_step",
    "input_ranges",
    "quantise",
    "watched",
    "why_no_int8",
]


SMOOTHING = 0.7
"""Share of a channel's range that moves into the weights: on trained ViT-S weights 0.65 to 0.8 are equally good,
and 0.5 loses twice as much cosine."""


@cache
def highest_step() -> int:
    """Return 255, or 127 if this machine's 8-bit product saturates."""
    ones = IntegerDense(torch.full((16, 64), 127.0), None, step=1.0, zero=0, weight_steps=127)
    exact = ones.product(torch.full((16, 64), 255, dtype=torch.uint8))
    return 255 if bool((exact == 255 * 127 * 64).all()) else 127


def byte_weights(weight: Tensor, steps: int = 127) -> tuple[Tensor, Tensor]:
    """(N, K) → int8 (N, K) of at most `steps`, and the scale (N,) of every output."""
    scales = (weight.abs().amax(dim=1) / steps).clamp_min(torch.finfo(torch.float32).tiny)
    return (weight / scales[:, None]).round().clamp(-steps, steps).to(torch.int8), scales


class IntegerDense:
    """x Wᵀ + b on quantised tokens: x in units of `step`, shifted by `zero` and by half a step."""

    def __init__(
        self, weight: Tensor, bias: Tensor | None, *, step: float, zero: int, top: int = 255, weight_steps: int = 127
    ) -> None:
        self.step, self.zero, self.top, self.bias = step, zero, top, bias
        self.outputs = weight.shape[0]
        steps, self.scales = byte_weights(weight, weight_steps)
        self.packed = torch.ops.onednn.qlinear_prepack(steps, None)
        self.zeros = torch.zeros(self.outputs, dtype=torch.int32)

    def __call__(self, x: Tensor) -> Tensor:
        steps = x.clamp_(0, self.top + 0.5).to(torch.uint8)
        return self.product(steps.view(-1, steps.shape[-1])).view(*x.shape[:-1], self.outputs)

    def product(self, steps: Tensor) -> Tensor:
        """uint8 (rows, K) → float32 (rows, N)."""
        return torch.ops.onednn.qlinear_pointwise(
            steps, self.step, self.zero, self.packed, self.scales, self.zeros, self.bias,
            1.0, 0, torch.float32, "none", [], "",
        )  # fmt: skip


class IntegerPatches(BytePatchEmbed):
    """The patch projection with 8-bit weights; uint8 pixels need no quantisation.

    Pixels are centred at 128, near their mean, so that rounding a weight is not multiplied by that mean.
    """

    ZERO = 128

    def __init__(self, embed: BytePatchEmbed) -> None:
        nn.Module.__init__(self)
        self.patch = embed.patch
        weight, bias = embed.weight.detach(), embed.bias.detach()
        bias = (bias.double() + self.ZERO * weight.double().sum(dim=1)).float()
        # 255 · 63 · 2 fits into 16 bits, 255 · 127 · 2 does not
        steps = 127 if highest_step() == 255 else 63
        self.dense = IntegerDense(weight, bias, step=1.0, zero=self.ZERO, weight_steps=steps)

    def forward(self, image: Tensor, inside: Tensor | None = None) -> tuple[Tensor, Layout]:
        """uint8 (B, H, W, C) → (B, N, D)."""
        grid = fit(Size(*image.shape[1:3]), self.patch).grid
        windows = image.reshape(len(image), grid.height, self.patch.height, grid.width, -1).transpose(2, 3)
        tokens = self.dense.product(windows.reshape(len(image) * grid.area, -1))
        return tokens.view(len(image), grid.area, -1), Layout(grid=grid, frame=grid)


class _Watch:
    """A layer that records the range of every input channel."""

    def __init__(self, dense: Dense) -> None:
        self.dense = dense
        self.seen = torch.zeros(2, dense.weight.shape[1])
        """(2, K): the minima and the maxima."""

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, -2)
        self.seen = torch.stack([torch.minimum(self.seen[0], rows.amin(0)), torch.maximum(self.seen[1], rows.amax(0))])
        return self.dense(x)


def why_no_int8(config: Config) -> str | None:
    """Return why a model has no 8-bit layers; None if it has them."""
    if not isinstance(config, ViTConfig):
        return f"{type(config).__name__} has no int8 engine"
    if config.frames > 1:
        return f"it takes clips of {config.frames} frames, which are not cut from bytes"
    if config.attention_norm:
        return "it normalises what attention mixed, and int8 folds its steps into the values before"
    if config.block_norm == "after":
        return "its norms stand behind the layers, and int8 folds its steps into norms before them"
    return None


def watched(blocks: Sequence[LeanBlock], run: Callable[[], object]) -> dict[str, Tensor]:
    """Return the input range (2, K) of each "block.layer" while `run` passes images through the blocks."""
    layers = [_layers(block) for block in blocks]
    watches = [{name: _Watch(layer) for name, layer in each.items()} for each in layers]
    for block, each in zip(blocks, watches, strict=True):
        _put(block, each)
    run()
    for block, each in zip(blocks, layers, strict=True):
        _put(block, each)
    return {f"{index}.{name}": watch.seen for index, each in enumerate(watches) for name, watch in each.items()}


def quantise(blocks: Sequence[LeanBlock], ranges: Mapping[str, Tensor]) -> None:
    """Replace the blocks' layers by integer ones for the `watched` ranges."""
    for block, each in zip(blocks, input_ranges(blocks, ranges), strict=True):
        _quantise(block, _layers(block), each)


def input_ranges(blocks: Sequence[LeanBlock], ranges: Mapping[str, Tensor]) -> list[dict[str, InputRange]]:
    """Return how the inputs of every block's "qkv", "out", "fc1" and "fc2" are quantised, by the `watched` ranges."""
    found = []
    for index, block in enumerate(blocks):
        layers = _layers(block)
        groups = {"qkv": [name for name in layers if name.startswith("qkv")], "out": ["out"], "fc1": ["fc1"]}
        found.append(
            {
                group: InputRange([layers[name] for name in names], [ranges[f"{index}.{name}"] for name in names])
                for group, names in (groups | {"fc2": ["fc2"]}).items()
            }
        )
    return found


def _layers(block: LeanBlock) -> dict[str, Dense]:
    named: dict[str, Map] = {f"qkv{index}": layer for index, layer in enumerate(block.qkv)}
    named |= {"out": block.out, "fc1": block.fc1, "fc2": block.fc2}
    assert all(isinstance(layer, Dense) for layer in named.values())
    return named  # type: ignore[return-value]


def _put(block: LeanBlock, layers: dict) -> None:
    block.qkv = [layer for name, layer in layers.items() if name.startswith("qkv")]
    block.out, block.fc1, block.fc2 = layers["out"], layers["fc1"], layers["fc2"]


class InputRange:
    """How a layer's input is quantised: x / smooth / step + zero."""

    def __init__(self, layers: list[Dense], seen: list[Tensor]) -> None:
        weight = torch.cat([each.weight for each in layers])
        low = torch.stack([each[0] for each in seen]).amin(0)
        high = torch.stack([each[1] for each in seen]).amax(0)
        largest, read = torch.maximum(-low, high).clamp_min(1e-5), weight.abs().amax(0).clamp_min(1e-5)
        self.smooth = largest**SMOOTHING / read ** (1 - SMOOTHING)
        low, high = (low / self.smooth).amin().item(), (high / self.smooth).amax().item()
        self.top = highest_step()
        self.step = max(high - low, 1e-8) / self.top
        self.zero = round(-low / self.step)
        self.factor = 1 / (self.smooth * self.step)
        self.shift = self.zero + 0.5

    def dense(self, weight: Tensor, bias: Tensor | None) -> IntegerDense:
        return IntegerDense(weight * self.smooth, bias, step=self.step, zero=self.zero, top=self.top)

    def smoothed_norm(self, norm: Norm) -> Norm:
        """Divide a layer norm's output by `smooth`."""
        assert norm.bias is not None
        return Norm(norm.weight / self.smooth, norm.bias / self.smooth, norm.eps)

    def smoothed_values(self, values: Dense) -> Dense:
        """Divide the last outputs of a layer, the values that attention averages, by `smooth`."""
        return _scaled_values(values, 1 / self.smooth, 0.0)


def _scaled_values(layer: Dense, factor: Tensor, shift: float) -> Dense:
    """The values are the last outputs of a layer; attention's weights sum to one, so that it keeps factor and shift."""
    weight, values = layer.weight.clone(), slice(-len(factor), None)
    bias = weight.new_zeros(len(weight)) if layer.bias is None else layer.bias.clone()
    weight[values] *= factor[:, None]
    bias[values] = bias[values] * factor + shift
    return Dense(weight, bias)


def _quantise(block: LeanBlock, layers: dict[str, Dense], ranges: Mapping[str, InputRange]) -> None:
    into, out, fc1, fc2 = (ranges[name] for name in ("qkv", "out", "fc1", "fc2"))
    assert isinstance(block.norm1, Norm)
    assert isinstance(block.norm2, Norm)
    block.norm1, block.norm2 = _folded(block.norm1, into), _folded(block.norm2, fc1)
    *queries, last = (layer for name, layer in layers.items() if name.startswith("qkv"))
    last = _scaled_values(last, out.factor, out.shift)  # so that attention passes quantised inputs to `out`
    block.qkv = [into.dense(each.weight, each.bias) for each in (*queries, last)]
    block.out = out.dense(layers["out"].weight, layers["out"].bias)
    block.fc1 = fc1.dense(layers["fc1"].weight, layers["fc1"].bias)
    block.fc2 = fc2.dense(layers["fc2"].weight, layers["fc2"].bias)
    block.between = _stepped(block.between, fc2)


def _folded(norm: Norm, to: InputRange) -> Norm:
    bias = torch.zeros_like(norm.weight) if norm.bias is None else norm.bias
    return Norm(norm.weight * to.factor, bias * to.factor + to.shift, norm.eps, rms=norm.rms)


def _stepped(between: Map, to: InputRange) -> Map:
    shift = torch.tensor(to.shift)

    def apply(x: Tensor) -> Tensor:
        return torch.addcmul(shift, between(x), to.factor)

    return apply
