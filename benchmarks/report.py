"""Run the benchmarks and write docs/benchmarks.md: `make bench`, about 15 minutes on a quiet machine of two cores."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "benchmarks.md"


def run(script: str, *options: str) -> dict:
    print(f"benchmarks/{script} {' '.join(options)} …", file=sys.stderr)
    command = [sys.executable, HERE / script, "--json", *options]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
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


def engines_section(result: dict) -> list[str]:
    lines = [
        "## Engines",
        "",
        "`python benchmarks/embed.py --section forward`: the same weights and photographs at 224 px, all candidates of",
        "a row in turns. The engine is the fastest of ours, as `vitrail embed` takes it; the ratio is the peer's time",
        "over its time. onnxruntime and OpenVINO run timm's graph, compiled for the batch; in int8, quantised",
        "dynamically and by nncf.",
        "Cosines are means over held-out photographs; S/16 and B/16 have random weights, which are hard on int8.",
        "",
        "| | engine | ms | beside each peer | cosine of int8: ours; theirs |",
        "|---|---|---:|---|---|",
    ]
    for cell in result["forward"]:
        chosen = cell["chosen"]
        ratios = ", ".join(f"{who.partition(' : ')[2]} {value:.2f}×" for who, value in cell["ratio"].items())
        theirs = ", ".join(f"{who} {value:.4f}" for who, value in cell["cosine"].items() if "vitrail" not in who)
        cosine = f"{cell['cosine'][chosen]:.4f}; {theirs}" if cell["cosine"] else ""
        milliseconds = f"{1e3 * cell['seconds'][chosen]:.1f}"
        lines.append(f"| {cell['what']} | {chosen.split()[-1]} | {milliseconds} | {ratios} | {cosine} |")
    return lines


def folder_section(result: dict) -> list[str]:
    lines = [
        "## A folder of photographs, end to end",
        "",
        f"`python benchmarks/folder.py`: {result['images']} JPEGs of 1–2 megapixels, whole processes with their start;",
        "peers at their best of three batch sizes and two thread counts. The first run holds the tournament, if any.",
        "",
        "| model | engine | first run, ms an image | later, ms an image | timm + Pillow | transformers' pipeline |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for cell in result["cells"]:
        for engine, ratios in cell["whole"]["ratio"].items():
            later = 1e3 * cell["whole"]["seconds_per_image"][engine]
            beside = " | ".join(f"{ratios[peer]:.2f}×" for peer in ("timm", "transformers"))
            lines.append(f"| {cell['model']} | {engine} | {1e3 * cell['first'][engine]:.1f} | {later:.1f} | {beside} |")
    return lines


def main() -> None:
    forward, patch = run("forward.py", "--seconds", "1"), run("patch.py")
    engines, folder = run("embed.py", "--section", "forward"), run("folder.py")
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
        *engines_section(engines),
        "",
        *folder_section(folder),
        "",
    ]
    PAGE.write_text("\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
