"""The patch step from a decoder's bytes beside the usual pipeline: to float → normalise → convolution.

    python benchmarks/patch.py [--json] [--seconds 3] [--threads 2]

A uint8 (batch, 224, 224, 3) batch → 196 tokens of width 768 per image, exact in float32, batch 1, 8 and 64. The usual
pipeline is what image libraries and models do between them: channels first, to float, / 255, − mean, / std, strided
convolution, flatten, transpose. A ratio above 1 means that vitrail's `BytePatchEmbed` is that much faster.
"""

from __future__ import annotations

from statistics import median

import torch
import torch.nn.functional as F
from measure import arguments, finish, gemm_flops_per_second, machine, ratio, take_turns

from vitrail.geometry import Size
from vitrail.nn.patches import PatchEmbed

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BATCHES = (1, 8, 64)


def main() -> None:
    options = arguments(__doc__)
    peak = gemm_flops_per_second()
    embed = PatchEmbed(Size(16, 16), 768)
    folded = embed.from_bytes(MEAN, STD)
    mean, std = (torch.tensor(values).view(1, 3, 1, 1) for values in (MEAN, STD))
    flops = 2 * 196 * 768 * 768

    def usual(pixels: torch.Tensor) -> torch.Tensor:
        image = pixels.permute(0, 3, 1, 2).contiguous().float().div(255).sub(mean).div(std)
        return F.conv2d(image, embed.weight, embed.bias, stride=16).flatten(2).mT

    cells = []
    for batch in BATCHES:
        pixels = torch.randint(0, 256, (batch, 224, 224, 3), dtype=torch.uint8)
        with torch.inference_mode():
            torch.testing.assert_close(folded(pixels)[0], usual(pixels), rtol=1e-4, atol=1e-4)
            spent = take_turns(
                {"vitrail": lambda pixels=pixels: folded(pixels), "usual": lambda pixels=pixels: usual(pixels)},
                seconds=options.seconds,
            )
        cells.append(
            {
                "batch": batch,
                "milliseconds": {who: 1e3 * median(times) for who, times in spent.items()},
                "ratio": ratio(spent, "vitrail", "usual"),
                "share_of_gemm_peak": flops * batch / median(spent["vitrail"]) / peak,
            }
        )
    result = {"machine": machine(), "gemm_gflops": peak / 1e9, "cells": cells}
    lines = [
        f"GEMM peak {peak / 1e9:.0f} GFLOP/s, {options.threads} threads; ratio = usual pipeline's time / vitrail's"
    ]
    lines += [
        f"batch {cell['batch']:2}  {cell['milliseconds']['vitrail']:8.2f} ms {cell['share_of_gemm_peak']:4.0%} of peak "
        f"usual {cell['milliseconds']['usual']:8.2f} ms   {cell['ratio']:.2f}×"
        for cell in cells
    ]
    finish(result, options.json, lines)


if __name__ == "__main__":
    main()
