"""Run the benchmarks and write docs/benchmarks.md: `make bench`, on a quiet machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "benchmarks.md"


def run(script: str) -> dict:
    print(f"benchmarks/{script} …", file=sys.stderr)
    done = subprocess.run([sys.executable, HERE / script, "--json"], check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def forward_section(result: dict) -> list[str]:
    lines = [
        "## Forward pass",
        "",
        "`python benchmarks/forward.py`: float32 at 224 px, the same work in every library; the ratio is the peer's",
        "time over vitrail's. timm runs eager with fused attention, transformers with sdpa.",
        "",
        "| model | batch | vitrail, ms | share of GEMM peak | timm | transformers | vit-pytorch |",
        "|---|---|---|---|---|---|---|",
    ]
    for cell in result["cells"]:
        ratios = " | ".join(f"{cell['ratio'][who]:.2f}×" for who in ("timm", "transformers", "vit-pytorch"))
        lines.append(
            f"| {cell['model']} | {cell['batch']} | {cell['milliseconds']['vitrail']:.1f} "
            f"| {cell['share_of_gemm_peak']:.0%} | {ratios} |"
        )
    return lines


def patch_section(result: dict) -> list[str]:
    lines = [
        "## Patch step, from bytes",
        "",
        "`python benchmarks/patch.py`: uint8 (batch, 224, 224, 3) → tokens of width 768, exact in float32, beside",
        "to-float → normalise → convolution. The product itself is the floor: once vitrail's share of the GEMM peak is",
        "high, the ratio is what the usual pipeline spends beside its product, and it depends on the processor.",
        "",
        "| batch | vitrail, ms | usual, ms | ratio | share of GEMM peak |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {cell['batch']} | {cell['milliseconds']['vitrail']:.2f} | {cell['milliseconds']['usual']:.2f} "
        f"| {cell['ratio']:.2f}× | {cell['share_of_gemm_peak']:.0%} |"
        for cell in result["cells"]
    ]
    return lines


def main() -> None:
    forward, patch = run("forward.py"), run("patch.py")
    facts = forward["machine"]
    lines = [
        "# Benchmarks",
        "",
        "Written by `make bench`. Candidates take turns in one run; ratios are medians over rounds. Absolute times",
        f"belong to the machine: {facts['processor']}, {facts['threads']} threads, torch {facts['torch']}, float32",
        f"GEMM at {forward['gemm_gflops']:.0f} GFLOP/s.",
        "",
        *forward_section(forward),
        "",
        *patch_section(patch),
        "",
    ]
    PAGE.write_text("\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
