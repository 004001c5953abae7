"""A wheel as a stranger meets it: `python tests/wheel/run.py dist/*.whl` installs it into an empty environment, without
extras, and runs every command there. Each must work, or say in one line which extra it needs.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINES: list[tuple[str, str | None]] = [
    ("plan B/16 --image 384x640 --batch 8 --train --gpu rtx-4090", None),
    ("plan B/16 --chart plan.png", "plot"),
    ("compare B/16 default", None),
    ("presets dinov2", None),
    ("cards", None),
    ("compare --chart compare.svg", "plot"),
    ("advise --images photos", None),
    ("laws", None),
    ("inspect default", None),
    ("inspect facebook/dinov2-small", "hub"),
    ("weights", None),
    ("push default me/cifar", "hub"),
    ("convert default timm.safetensors --to timm", None),
    ("convert default huggingface --to huggingface", None),
    ("adapt default wide.safetensors --image 40x48 --report report.html", None),
    ("adapt default clips.safetensors --frames 2", None),
    ("simulate", None),
    ("simulate --chart simulate.png", None),
    ("classify photos/0.png", None),
    ("classify photos --out labels.csv", None),
    ("train --data shapes --model cifar-small --steps 2 --batch 8 --out run", None),
    ("train --data shapes --model cifar-small --steps 2 --out events --tensorboard", "tensorboard"),
    ("train --data shapes.parquet --model cifar-small --steps 2 --out table", "parquet"),
    ("train --data shapes --model cifar-small --steps 2 --batch 8 --seed 1 --out again", None),
    ("evaluate run", None),
    ("probe default --data shapes --limit 32", None),
    ("compare-runs run again", None),
    ("experiment", None),
    ("look photos/0.png --weights default --out look.png", "plot"),
    ("match photos/0.png photos/1.png", None),
    ("match photos/0.png photos/1.png --out match.png", "plot"),
    ("dense photos/0.png --save features.npy", None),
    ("dense photos/0.png --out dense.png", "plot"),
    ("embed photos --weights default --out vectors", "parquet"),
    ("search vectors photos/0.png", "parquet"),
    ("atlas photos", "parquet"),
    ("export default model.onnx", "onnx"),
    ("export default model.xml", "openvino"),
    ("bench default", None),
    ("studio --no-open", "studio"),
    ("serve --port 0", "serve"),
    ("demo", None),
]
"""Commands, and the extra that each needs. `data` asks other package clients, so its help stands for it."""


def main(wheel: Path) -> int:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        venv.create(place / "venv", with_pip=True)
        python, vitrail = place / "venv/bin/python", place / "venv/bin/vitrail"
        pip = [python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt"]
        subprocess.run([*pip, wheel.resolve()], check=True)
        (place / "photos").mkdir()
        (place / "shapes.parquet").write_bytes(b"PAR1 and no more")
        draw = "from PIL import Image; from vitrail import synthesize_image as draw\n"
        draw += "for seed in range(3): Image.fromarray(draw(seed)).save(f'photos/{seed}.png')"
        subprocess.run([python, "-c", draw], check=True, cwd=place)
        asked = "from vitrail.cli import COMMANDS; print(*COMMANDS)"
        commands = subprocess.run([python, "-c", asked], check=True, cwd=place, capture_output=True, text=True).stdout
        lines = [*LINES, *((f"{command} --help", None) for command in commands.split())]
        untried = set(commands.split()) - {line.split()[0] for line, _ in LINES} - {"data"}
        faults = [f"no line tries {command}" for command in sorted(untried)]
        for line, extra in lines:
            start = time.perf_counter()
            ran = subprocess.run([vitrail, *shlex.split(line)], cwd=place, capture_output=True, text=True, timeout=300)
            fault = judge(ran, extra)
            faults += [f"vitrail {line}: {fault}"] if fault else []
            needs = f"needs {extra}" if extra else "works"
            sys.stdout.write(f"{time.perf_counter() - start:5.1f} s  {fault or needs:<20} vitrail {line}\n")
        sys.stdout.writelines(f"FAULT {fault}\n" for fault in faults)
    return len(faults) > 0


def judge(ran: subprocess.CompletedProcess[str], extra: str | None) -> str | None:
    """What is wrong with a command's end: its exit code, its lines on standard error, the extra that it names."""
    complaint = [line for line in ran.stderr.splitlines() if line.startswith("vitrail: ")]
    if "Traceback" in ran.stderr:
        return f"traceback: {ran.stderr.splitlines()[-1]}"
    if extra is None:
        return None if ran.returncode == 0 else f"exit code {ran.returncode}: {ran.stderr.strip()}"
    if ran.returncode != 2 or len(complaint) != 1:
        return f"exit code {ran.returncode} where {extra} is missing: {ran.stderr.strip()}"
    return None if f"vitrail[{extra}]" in complaint[0] else f"names not vitrail[{extra}]: {complaint[0]}"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
