"""Reads every ViT of the peers, with the config beside the weights and without, and compares outputs with the peer's.

    python tests/survey/run.py [PART …]    # only names that hold a part; all of them take minutes

A model is read and equal, or refused with the reason, or it is read and differs: then this fails. Without arguments
the table in docs/adapting.md is written anew.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from rich.console import Console
from rich.progress import track
from safetensors.torch import load_file, save_file

from peers import timm
from survey.cases import Case, cases, timm_names
from survey.document import Outcome, write_table
from vitrail.checkpoint.dialects.timm_architectures import architecture_named
from vitrail.checkpoint.formats.file import Stored
from vitrail.checkpoint.read import load, read_stored
from vitrail.config import ViTConfig
from vitrail.errors import VitrailError

EQUAL = 1e-3
"""The largest difference in units of the outputs' deviation that rounding in float32 explains."""


def beside(case: Case, directory: Path) -> tuple[Outcome, Outcome]:
    """With the config beside the weights; then the weights alone, told the image and the heads."""
    if case.outline is not None:
        try:
            read_stored(case.outline())
        except VitrailError as error:
            return ("refused", str(error)), ("-", "")
        except Exception as error:
            return ("not built", type(error).__name__), ("-", "")
    try:
        answer = case.save(directory)
    except Exception as error:  # the peer does not build it this way: not ours to read
        return ("not built", type(error).__name__), ("not built", "")
    images = torch.randn(2, *_input_shape(directory, case), generator=torch.Generator().manual_seed(0))
    found = read(directory, answer, images)
    return found, bare(directory, answer, images) if found[0] == "equal" else ("-", "")


def _input_shape(directory: Path, case: Case) -> tuple[int, ...]:
    """Frames, if the model takes clips, channels, and the sides of the case."""
    try:
        *leading, _, _ = load(directory).config.input_shape
    except VitrailError:
        leading = [3]
    return (*leading, *case.image)


def read(path: Path, answer, images: torch.Tensor, **told) -> Outcome:
    try:
        checkpoint = load(path, **told)
    except VitrailError as error:
        return "refused", str(error).replace(str(path), "it")
    model = checkpoint.model()
    with torch.no_grad():
        try:
            expected = answer(images)
        except (AttributeError, RuntimeError, TypeError, ValueError) as error:  # the peer cannot
            return "not run", type(error).__name__
        if expected is None:
            return "not run", "no vector"
        found = model.vector(images) if model.head is None else model(images)
    if expected.shape != found.shape:
        return "differs", f"gives {tuple(found.shape)} for {tuple(expected.shape)}"
    sigma = float((found - expected).abs().max() / expected.std())
    if sigma < EQUAL:
        return "equal", ""
    return "differs", f"{sigma:.2g}σ" + "".join(f"; assumed {each}" for each in checkpoint.evidence.assumed)


def bare(directory: Path, answer, images: torch.Tensor) -> Outcome:
    config = load(directory).config
    if config.frames > 1:  # weights do not say how many frames there are
        return "-", ""
    path = next(directory.glob("*.safetensors"))
    alone = directory / "alone.safetensors"
    save_file(load_file(path), alone)
    told = {"from_image": config.image, "num_heads": config.num_heads} if isinstance(config, ViTConfig) else {}
    kind, detail = read(alone, answer, images, **told)
    return ("assumed", detail) if kind == "differs" and "assumed" in detail else (kind, detail)


def by_shape(name: str) -> Outcome:
    """timm's model at its full size, without values or config: the same config as with its name, or a refusal."""
    with torch.device("meta"):
        tensors = timm.create_model(name).state_dict()
    stored = Stored(path=Path("it"), format="memory", tensors=tensors)
    native = list(timm.models.get_pretrained_cfg(name).input_size)
    named = {"architecture": name, "pretrained_cfg": {"input_size": native}}
    try:
        alone = read_stored(stored).config
    except VitrailError as error:
        return "refused", str(error)
    try:
        expected = read_stored(Stored(path=Path("it"), format="memory", tensors=tensors, config=named)).config
    except VitrailError as error:
        return "differs", f"read alone, refused by its name: {error}"
    # two images whose remainders are dropped may give one grid
    remainder = {"remainder": expected.remainder} if isinstance(expected, ViTConfig) else {}
    same = alone.but(image=expected.image, **remainder)
    return ("equal", "") if (same, alone.grid) == (expected, expected.grid) else ("differs", f"{alone}, not {expected}")


def main(parts: list[str]) -> None:
    torch.set_num_threads(2)
    console = Console()
    chosen = [case for case in cases() if not parts or any(part in f"{case.library} {case.name}" for part in parts)]
    rows: list[tuple[Case, Outcome, Outcome]] = []
    home = Path(tempfile.mkdtemp())
    for case in track(chosen, "Reading the peers' models", console=console, disable=not console.is_terminal):
        directory = home / "model"
        rows.append((case, *beside(case, directory)))
        shutil.rmtree(directory, ignore_errors=True)
    whole = [name for name in timm_names() if not parts or any(part in f"timm {name}" for part in parts)]
    shapes: dict[str, Outcome] = {}
    for name in track(whole, "Known by shape alone", console=console):
        try:
            architecture_named(name)
        except VitrailError:
            continue
        shapes[name] = by_shape(name)
    shutil.rmtree(home)
    for case, found, alone in rows:
        if "differs" in (found[0], alone[0]) or parts:
            console.print(
                f"{case.library} {case.name}: {found[0]} {found[1]} | alone: {alone[0]} {alone[1]}", markup=False
            )
    for name, (kind, detail) in shapes.items():
        if kind == "differs" or parts:
            console.print(f"timm {name} by shape: {kind} {detail}", markup=False)
    console.print(Counter(f"{case.library}: {found[0]}" for case, found, _ in rows))
    console.print(Counter(f"{case.library} alone: {alone[0]}" for case, _, alone in rows))
    console.print(Counter(f"timm by shape: {kind}" for kind, _ in shapes.values()))
    if not parts:
        write_table(rows, shapes)
    if any("differs" in (found[0], alone[0]) for _, found, alone in rows) or "differs" in dict(shapes.values()):
        raise SystemExit("some models are read and differ")


if __name__ == "__main__":
    main(sys.argv[1:])
