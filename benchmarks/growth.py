"""Does a run stay as fast and as small as it grows? Milliseconds per image and memory, from 100 to 100,000 images.

    python benchmarks/growth.py [--counts 100 1000 10000 100000] [--json]

Folders of small JPEGs (1,000 different ones, linked under other names) go through `vitrail embed` with the bundled
model on torch, so that what surrounds the model (listing, planning, decoding, writing) is most of the work. `seconds`
are those of the whole command, its start included; `ms` is the time of an image after that start, which the command
on one image takes. Memory is that of the largest process. Flat means that the ratios stay near 1.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

from measure import arguments, finish, machine
from PIL import Image

from vitrail.geometry import Size
from vitrail.images.synthesize import synthesize_image

DIFFERENT = 1000
FOLDER = 5000
"""Files of a folder."""


def main() -> None:
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", type=int, nargs="+", default=[100, 1000, 10_000, 100_000])
    options = arguments(__doc__, parser)
    with tempfile.TemporaryDirectory() as work:
        drawn = draw(Path(work, "drawn"))
        start, _ = embed(linked(drawn, Path(work, "one"), 1), Path(work, "start"))
        rows: list[dict[str, Any]] = []
        for count in options.counts:
            seconds, peak = embed(linked(drawn, Path(work, str(count)), count), Path(work, f"{count}-vectors"))
            rows.append({"images": count, "seconds": seconds, "ms": 1e3 * (seconds - start) / count, "mib": peak})
    reference = next(row for row in rows if row["images"] >= min(DIFFERENT, max(options.counts)))
    for row in rows:
        row["ratio"] = row["ms"] / reference["ms"]
    lines = [
        f"start-up {start:.1f} s; ratios are to {reference['images']:,} images",
        *(
            f"{row['images']:9,} images {row['seconds']:8.1f} s {row['ms']:7.2f} ms each, {row['ratio']:.2f} × "
            f"{row['mib']:6.0f} MiB"
            for row in rows
        ),
    ]
    finish({**machine(), "start": start, "rows": rows}, options.json, lines)


def draw(folder: Path) -> list[Path]:
    folder.mkdir()
    paths = [folder / f"{seed}.jpg" for seed in range(DIFFERENT)]
    for seed, path in enumerate(paths):
        Image.fromarray(synthesize_image(seed, Size(48, 64))).save(path, quality=90)
    return paths


def linked(drawn: list[Path], folder: Path, count: int) -> Path:
    for number in range(count):
        part = folder / f"{number // FOLDER:04}"
        if number % FOLDER == 0:
            part.mkdir(parents=True)
        os.link(drawn[number % len(drawn)], part / f"{number:07}.jpg")
    return folder


def embed(images: Path, out: Path) -> tuple[float, float]:
    """Seconds of a run, and the MiB of its largest process."""
    command = [sys.executable, "-m", "vitrail", "embed", str(images), "--weights", "default", "--out", str(out)]
    began = perf_counter()
    run = subprocess.Popen([*command, "--engine", "torch"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(run.pid, 0)
    if status:
        raise SystemExit(
            f"{' '.join(command)} failed with {os.waitstatus_to_exitcode(status)}; run it alone to see why"
        )
    return perf_counter() - began, usage.ru_maxrss / 1024


if __name__ == "__main__":
    main()
