"""Adapting a ViT-L file to another image size, beside copying the file and beside timm's own way.

    python benchmarks/adapt.py [--json] [--rounds 5] [--threads 2] [--folder /tmp]

A ViT-L/16 at 224 in timm's names, float32, safetensors → the same at 384×640. Every candidate runs in a process of
its own, after its imports, and ends with the result flushed to the disk; candidates take turns. Memory is the peak of
the resident set (which counts mapped pages of the input) less what it was after the imports.

    copy     read the file and write it, 8 MiB at a time: the least that anything can cost
    vitrail  load → adapt → save
    judged   load → adapt → assess → save: what the report costs on top
    timm     create_model(img_size=(384, 640)) → load_checkpoint with its filter → save_file
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter

IMAGE = (384, 640)
GOAL_TIME, GOAL_MEMORY = 2.0, 1.25


# ── one candidate, in a process of its own ──────────────────────────────────────────────────────────────────────


def prepare_copy() -> Callable[[Path, Path], None]:
    def run(source: Path, out: Path) -> None:
        with source.open("rb") as read, out.open("wb") as write:
            while block := read.read(8 << 20):
                write.write(block)

    return run


def prepare_vitrail(*, judged: bool = False) -> Callable[[Path, Path], None]:
    from vitrail.checkpoint.assess.report import assess
    from vitrail.checkpoint.read import load
    from vitrail.checkpoint.surgery.adapt import adapt
    from vitrail.checkpoint.write import save

    def run(source: Path, out: Path) -> None:
        before = load(source)
        adapted, changes = adapt(before, {"image": IMAGE})
        if judged:
            assess(before, adapted, changes)
        save(adapted, out)

    return run


def prepare_timm() -> Callable[[Path, Path], None]:
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    from safetensors.torch import save_file

    from peers import timm

    def run(source: Path, out: Path) -> None:
        model = timm.create_model("vit_large_patch16_224", img_size=IMAGE)
        resize = timm.models.vision_transformer.checkpoint_filter_fn
        timm.models.load_checkpoint(model, str(source), filter_fn=resize)
        save_file(model.state_dict(), out)

    return run


CANDIDATES = {
    "copy": prepare_copy,
    "vitrail": prepare_vitrail,
    "judged": partial(prepare_vitrail, judged=True),
    "timm": prepare_timm,
}


def child(name: str, source: Path, out: Path, threads: int) -> None:
    import torch

    torch.set_num_threads(threads)
    run = CANDIDATES[name]()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    before = _status("VmRSS")
    start = perf_counter()
    run(source, out)
    with out.open("rb") as file:
        os.fsync(file.fileno())
    seconds = perf_counter() - start
    print(json.dumps({"seconds": seconds, "peak_bytes": _status("VmHWM") - before}))


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(field)).split()[1])


# ── all of them ─────────────────────────────────────────────────────────────────────────────────────────────────


def make_file(path: Path) -> None:
    """Weights of the right shapes; their values do not matter for time."""
    import torch

    from vitrail.checkpoint.checkpoint import Checkpoint
    from vitrail.checkpoint.preprocessing import Preprocessing
    from vitrail.checkpoint.write import save
    from vitrail.nn.build import build
    from vitrail.presets import preset

    config = preset("L/16")
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in build(config).state_dict().items()}
    tensors = {name: torch.randn(shape) * 0.02 for name, shape in shapes.items()}
    save(Checkpoint(config=config, tensors=tensors, preprocessing=Preprocessing(image=config.image)), path, "timm")


def measure(name: str, source: Path, out: Path, threads: int) -> dict:
    command = [sys.executable, __file__, "--child", name, str(source), str(out), "--threads", str(threads)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    out.unlink()
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--rounds", type=int, default=5, help="how often every candidate runs")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads that every candidate has")
    parser.add_argument("--folder", type=Path, default=None, help="where the files go; the system's unless given")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        name, source, out = options.child
        return child(name, Path(source), Path(out), options.threads)

    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        source = Path(folder, "vit-l.safetensors")
        subprocess.run([sys.executable, "-c", f"import adapt; adapt.make_file(adapt.Path({str(source)!r}))"],
                       check=True, cwd=Path(__file__).parent)  # fmt: skip
        size = source.stat().st_size
        runs: dict[str, list[dict]] = {name: [] for name in CANDIDATES}
        for round_ in range(options.rounds + 1):
            for name in CANDIDATES:
                found = measure(name, source, Path(folder, f"{name}.safetensors"), options.threads)
                if round_:  # the first fills the page cache
                    runs[name].append(found)
    seconds = {name: [each["seconds"] for each in found] for name, found in runs.items()}
    result = {
        "file_bytes": size,
        "rounds": options.rounds,
        "threads": options.threads,
        "candidates": {
            name: {
                "seconds": median(seconds[name]),
                "times_copy": median(a / b for a, b in zip(seconds[name], seconds["copy"], strict=True)),
                "peak_bytes": max(each["peak_bytes"] for each in runs[name]),
                "peak_of_file": max(each["peak_bytes"] for each in runs[name]) / size,
            }
            for name in CANDIDATES
        },
        "goal": {"times_copy": GOAL_TIME, "peak_of_file": GOAL_MEMORY},
    }
    if options.json:
        print(json.dumps(result, indent=2))
        return None
    print(f"ViT-L/16, {size / 2**20:,.0f} MiB, 224×224 → {IMAGE[0]}×{IMAGE[1]}, {options.rounds} rounds\n")
    print(f"{'':10}{'seconds':>10}{'× copy':>10}{'peak MiB':>12}{'of file':>10}")
    for name, each in result["candidates"].items():
        print(
            f"{name:10}{each['seconds']:10.2f}{each['times_copy']:10.2f}{each['peak_bytes'] / 2**20:12,.0f}"
            f"{each['peak_of_file']:10.0%}"
        )
    print(f"\ngoal: ≤ {GOAL_TIME} × copy, peak ≤ {GOAL_MEMORY:.0%} of the file")
    return None


if __name__ == "__main__":
    main()
