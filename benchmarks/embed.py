"""Images → vectors beside what people use: the same weights, the same images, in turns.

    python benchmarks/embed.py [--section forward patch decode packed fewer calibration] [--quick] [--json]
                               [--seconds 0.7] [--threads 2 1] [--batches 1 8 32] [--photos FOLDER] [--trained]

forward   ViT-S/16, B/16 and DINOv2-S/14 at 224, batch 1, 8 and 32, on all cores and on one, float32 and int8: our
          engines against timm eager (fused attention), transformers (sdpa), and onnxruntime and OpenVINO on timm's
          graph (runtimes.py). The ratio is of the fastest of our engines, as `vitrail embed` takes the fastest; in
          int8, of those that come as near to float32 as our own.
patch     uint8 batch → tokens, P=16, D=768, batch 1, 8, 64: float and 8-bit weights against to float → normalise →
          convolution.
decode    JPEG of 1–2 megapixels → 224, one thread: the fast and the exact path against Pillow's decode and bicubic.
packed    64 images of mixed shapes, ViT-S/16: packed against padded behind a mask.
fewer     trained weights (needs --trained), 32 images: merged tokens and adaptive patches against all tokens, and the
          cost in cosine.

Photographs: those of --photos, else scikit-image's, scaled to 1–2 megapixels and stored as JPEG (quality 88) in a
temporary folder. DINOv2-S/14 has trained weights once they are fetched (vitrail weights fetch dinov2-S/14). About ten
minutes on two quiet cores, eight of them for the section forward. A ratio above 1 means that vitrail is that much
faster; cosines are to float32 on the exact pixels.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from measure import finish, machine, ratio, take_turns
from photos import DINO, STEPS, make_photos, models
from PIL import Image
from runtimes import Peers, Run

from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.pixels import prepare
from vitrail.checkpoint.preprocessing import HALF
from vitrail.checkpoint.read import load
from vitrail.checkpoint.surgery.adapt import adapt
from vitrail.checkpoint.surgery.adaptive import with_adaptive_patches
from vitrail.config import ViTConfig
from vitrail.geometry import Size
from vitrail.images.folder import image_files
from vitrail.nn.adaptive import tokens_saved
from vitrail.nn.patches import PatchEmbed
from vitrail.nn.remainder import pad_batch
from vitrail.nn.vit import ViT
from vitrail.vectors.engines.adaptive import AdaptiveEngine
from vitrail.vectors.engines.engine import (
    Engine,
    LeanEngine,
    PlainEngine,
    agreement,
    agreement_of,
    build_engine,
    images_at_once,
)
from vitrail.vectors.engines.graph import write_graph
from vitrail.vectors.engines.int8 import IntegerPatches
from vitrail.vectors.engines.names import RUNTIMES
from vitrail.vectors.engines.pack import PackedEngine
from vitrail.vectors.engines.runtime import GraphEngine
from vitrail.vectors.engines.tournament import least_cosine

SECTIONS = ("forward", "patch", "decode", "packed", "fewer", "calibration")
MERGED, ADAPTED, BOTH = (0.02, 0.05, 0.1, 0.15, 0.2, 0.22), (0.05, 0.15, 0.35, 0.5, 0.7), ((0.35, 0.15), (0.35, 0.18))
"""Settings of the section fewer, the smallest of which save hardly a token."""


def main() -> None:
    options = arguments()
    torch.set_num_threads(options.threads[0])
    with tempfile.TemporaryDirectory() as folder:
        photos = make_photos(Path(folder), options.photos, 8 if options.quick else 64)
        result: dict[str, Any] = {"machine": machine(), "photographs": len(photos)}
        for section in options.section:
            result[section] = RUN[section](options, photos)
    lines = [f"{len(photos)} photographs; ratio = peer's time / vitrail's"]
    for section in options.section:
        lines += [f"— {section}", *(_line(cell) for cell in result[section])]
    finish(result, options.json, lines)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--section", nargs="+", choices=SECTIONS, default=SECTIONS)
    parser.add_argument("--batches", type=int, nargs="+", default=(1, 8, 32), help="of the section forward")
    parser.add_argument("--quick", action="store_true", help="ViT-S only, few images, one batch: to see that it runs")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seconds", type=float, default=0.7, help="time per candidate and cell, at least")
    parser.add_argument("--threads", type=int, nargs="+", default=[len(os.sched_getaffinity(0)), 1])
    parser.add_argument("--photos", type=Path, help="a folder of large photographs")
    parser.add_argument("--trained", action="store_true", help="section fewer, with the fetched dinov2-S/14")
    return parser.parse_args()


def _line(cell: dict[str, Any]) -> str:
    times = "  ".join(f"{who} {1e3 * time:.1f} ms" for who, time in cell.get("seconds", {}).items())
    ratios = "  ".join(f"{who} {value:.2f}×" for who, value in cell.get("ratio", {}).items())
    cosines = "  ".join(f"{who} {value:.5f}" for who, value in cell.get("cosine", {}).items())
    parts = [cell["what"], times, ratios, f"cosine {cosines}" if cosines else "", cell.get("note", "")]
    return "   ".join(part for part in parts if part)


def compared(what: str, candidates: dict[str, Callable[[], object]], ours: tuple[str, ...], options, **more) -> dict:
    """Times of all, and of each of ours how many times as fast it is as every peer."""
    spent = take_turns(candidates, seconds=0.2 if options.quick else options.seconds)
    peers = [who for who in candidates if who not in ours]
    return {
        "what": what,
        "seconds": {who: median(times) for who, times in spent.items()},
        "ratio": {f"{us} : {who}": ratio(spent, us, who) for us in ours for who in peers},
        **more,
    }


# ── material ────────────────────────────────────────────────────────────────────────────────────────────────────


def pixels_of(photos: list[Path], count: int) -> torch.Tensor:
    few = [prepare(photos[index % len(photos)], STEPS, exact=True).pixels for index in range(count)]
    return torch.stack([torch.from_numpy(each) for each in few])


# ── sections ────────────────────────────────────────────────────────────────────────────────────────────────────


def forward(options, photos: list[Path]) -> list[dict]:
    """Every model, thread count and batch, float32 and int8, all candidates of a cell in turns."""
    cells = []
    for name in ("S/16",) if options.quick else ("S/16", "B/16", DINO):
        checkpoint, theirs = models(name)
        seen = torch.stack([torch.from_numpy(prepare(path, checkpoint.preprocessing).pixels) for path in photos[:32]])
        with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
            peers = Peers(checkpoint, theirs, Path(folder), seen[::2])
            lean = LeanEngine(checkpoint)
            ranges = lean.ranges(seen[::2])
            graphs = {kind: Path(folder) / kind for kind in ("float32", "int8")}
            for kind, path in graphs.items():
                path.mkdir()
                write_graph(lean, path, ranges if kind == "int8" else None)
            reference = PlainEngine(checkpoint).vectors(seen[1::2])
            cosines: dict[str, dict[str, float]] = {}
            for threads in options.threads:
                torch.set_num_threads(threads)
                for batch in (1,) if options.quick else options.batches:
                    images = torch.cat([seen] * 2)[:batch]
                    for kind in ("float32", "int8"):
                        ours = own_engines(checkpoint, graphs[kind], ranges if kind == "int8" else None, batch, threads)
                        found = (peers.float32 if kind == "float32" else peers.int8)(batch, threads)
                        if kind not in cosines:  # at batch 1; other batches and threads sum in another order only
                            cosines[kind] = measured_cosines(checkpoint, ours, found, seen[1::2], reference)
                        what = {"what": f"{name} {kind}, batch {batch}, threads {threads}"}
                        cells.append(what | cell(checkpoint, ours, found, images, cosines[kind], options, kind))
                        print(_line(cells[-1]), file=sys.stderr)
    return cells


def own_engines(
    checkpoint: Checkpoint, graph: Path, ranges: dict[str, torch.Tensor] | None, batch: int, threads: int
) -> dict[str, Engine]:
    """What `vitrail embed` chooses from."""
    config = checkpoint.config
    assert isinstance(config, ViTConfig)
    torch_engine = build_engine(checkpoint) if ranges is None else build_engine(checkpoint, "int8", calibration=ranges)
    few, int8 = images_at_once(config, checkpoint.preprocessing.image, batch), ranges is not None
    graphs = {name: GraphEngine(graph, name, batch=few, threads=threads, int8=int8) for name in RUNTIMES}
    return {"vitrail torch": torch_engine, **{f"vitrail {name}": engine for name, engine in graphs.items()}}


def measured_cosines(
    checkpoint: Checkpoint,
    ours: dict[str, Engine],
    peers: dict[str, Run],
    judged: torch.Tensor,
    reference: torch.Tensor,
) -> dict[str, float]:
    """Mean cosines to the plain model on held-out images, one at a time, as graphs of batch 1 take them."""
    pixels = checkpoint.preprocessing.normalise(judged.permute(0, 3, 1, 2)).contiguous()
    vectors = {who: engine.vectors(judged) for who, engine in ours.items()}
    for who, run in peers.items():
        vectors[who] = torch.from_numpy(np.concatenate([run(part) for part in pixels.split(1)]))
    return {who: agreement_of(each, reference).mean for who, each in vectors.items()}


def cell(
    checkpoint: Checkpoint,
    ours: dict[str, Engine],
    peers: dict[str, Run],
    images: torch.Tensor,
    cosine: dict[str, float],
    options,
    kind: str,
) -> dict:
    """Times and cosines of all; the ratio is of our fastest to every peer, as `--engine` chooses the fastest."""
    normalise = checkpoint.preprocessing.normalise
    image = normalise(images.permute(0, 3, 1, 2)).contiguous()
    candidates = {
        **{who: lambda engine=engine: engine.vectors(images) for who, engine in ours.items()},
        **{who: lambda run=run: run(image) for who, run in peers.items()},
    }
    # of ours in int8, those that come as near as our own kernels, which is the rule of `--engine int8`
    least = least_cosine(cosine["vitrail torch"]) if kind == "int8" else 0.0
    fair = [who for who in ours if cosine[who] >= least]
    short = len(images) == 1
    seconds = 0.2 if options.quick else options.seconds
    spent = take_turns(candidates, seconds=seconds, at_least=9 if short else 1, warm=short)
    best = min(fair, key=lambda who: median(spent[who]))
    return {
        "seconds": {who: median(times) for who, times in spent.items()},
        "chosen": best,
        "ratio": {f"{best} : {who}": ratio(spent, best, who) for who in peers},
        "cosine": cosine if kind == "int8" else {},
    }


def patch(options, photos: list[Path]) -> list[dict]:
    embed = PatchEmbed(Size(16, 16), 768)
    folded = embed.from_bytes(*HALF)
    integer = IntegerPatches(folded)

    def usual(pixels: torch.Tensor) -> torch.Tensor:
        image = pixels.permute(0, 3, 1, 2).contiguous().float().div(255).sub(0.5).div(0.5)
        return F.conv2d(image, embed.weight, embed.bias, stride=16).flatten(2).mT

    cells = []
    for batch in (1,) if options.quick else (1, 8, 64):
        pixels = pixels_of(photos, batch)
        with torch.inference_mode():
            exact = usual(pixels)
            torch.testing.assert_close(folded(pixels)[0], exact, rtol=1e-4, atol=1e-4)
            cosine = {"int8": F.cosine_similarity(integer(pixels)[0], exact, dim=-1).mean().item()}
            candidates = {
                "float": lambda pixels=pixels: folded(pixels),
                "int8": lambda pixels=pixels: integer(pixels),
                "usual": lambda pixels=pixels: usual(pixels),
            }
            cells.append(compared(f"batch {batch}", candidates, ("float", "int8"), options, cosine=cosine))
    return cells


def decode(options, photos: list[Path]) -> list[dict]:
    files = [path.read_bytes() for path in photos[: 4 if options.quick else 24]]
    torch.set_num_threads(1)

    def pillow(data: bytes) -> np.ndarray:
        image = Image.open(io.BytesIO(data)).convert("RGB")
        short = min(image.size)
        width, height = (int(248 * side / short) for side in image.size)
        image = image.resize((width, height), Image.Resampling.BICUBIC)
        left, top = round((width - 224) / 2), round((height - 224) / 2)
        return np.asarray(image.crop((left, top, left + 224, top + 224)))

    fast, exact = ([prepare(data, STEPS, exact=exact).pixels.astype(int) for data in files] for exact in (False, True))
    assert all((a == pillow(data)).all() for a, data in zip(exact, files, strict=True))
    levels = max(np.abs(a - b).mean() for a, b in zip(fast, exact, strict=True))
    candidates = {
        "fast": lambda: [prepare(data, STEPS) for data in files],
        "exact": lambda: [prepare(data, STEPS, exact=True) for data in files],
        "pillow": lambda: [pillow(data) for data in files],
    }
    note = f"fast differs by {levels:.2f} levels on average at worst"
    cell = compared(f"{len(files)} photographs", candidates, ("fast", "exact"), options, note=note)
    torch.set_num_threads(options.threads[0])
    return [cell]


def packed(options, photos: list[Path]) -> list[dict]:
    checkpoint, _ = models("S/16")
    engine = build_engine(checkpoint)
    assert isinstance(engine, LeanEngine)
    packing = PackedEngine(engine)
    dice = np.random.default_rng(0)
    count = 8 if options.quick else 64
    shapes = [(16 * int(h), 16 * int(w)) for h, w in dice.integers(5, 20, (count, 2))]
    images = [torch.from_numpy(dice.integers(0, 256, (*shape, 3), dtype=np.uint8)) for shape in shapes]
    config = checkpoint.config
    assert isinstance(config, ViTConfig)
    # on a canvas positions are its top left part; for equal work and not for equal vectors, the table is a drawn one
    canvas = ViT(config.but(image=Size(16 * 19, 16 * 19), remainder="pad")).eval()

    def padded() -> list[torch.Tensor]:
        vectors = []
        for start in range(0, count, 16):
            few = [(image.permute(2, 0, 1) / 255 - 0.5) / 0.5 for image in images[start : start + 16]]
            vectors.append(canvas.vector(*pad_batch(few)))
        return vectors

    with torch.inference_mode():
        alone = torch.cat([engine.vectors(image[None]) for image in images[:4]])
        torch.testing.assert_close(packing.vectors(images)[:4], alone, rtol=1e-3, atol=1e-3)
        candidates = {"packed": lambda: packing.vectors(images), "padded": padded}
        return [compared(f"{count} images of 5…19 patches a side", candidates, ("packed",), options)]


def fewer(options, photos: list[Path]) -> list[dict]:
    if not options.trained:
        return [{"what": "left out: needs --trained"}]
    trained = adapt(load("dinov2-S/14"), {"image": 224})[0]
    seen = torch.stack([torch.from_numpy(prepare(path, trained.preprocessing).pixels) for path in photos[:32]])
    plain = build_engine(trained)
    engines: dict[str, Any] = {f"merge {each}": build_engine(trained, merge=each) for each in MERGED}
    left = {}
    for threshold, merge in (*((each, 0.0) for each in ADAPTED), *BOTH):
        name = f"adaptive {threshold}" + (f", merge {merge}" if merge else "")
        engine = build_engine(with_adaptive_patches(trained, threshold), merge=merge)
        assert isinstance(engine, LeanEngine)
        with torch.inference_mode():
            saved = [tokens_saved(engine.embed(part)[1]).share for part in seen.split(1)]
        engines[name] = AdaptiveEngine(engine)
        left[name] = f"{1 - sum(saved) / len(saved):.0%} of the patches left" if not merge else ""
    candidates = {who: lambda engine=engine: engine.vectors(seen) for who, engine in engines.items()}
    spent = take_turns({**candidates, "all": lambda: plain.vectors(seen)}, seconds=options.seconds)
    cells = []
    for who, engine in engines.items():
        found = agreement(engine, plain, seen)
        cosine = {"mean": found.mean, "low": found.lowest}
        cells.append(
            {"what": who, "ratio": {"all": ratio(spent, who, "all")}, "cosine": cosine, "note": left.get(who, "")}
        )
    return cells


def calibration(options, photos: list[Path]) -> list[dict]:
    """int8 on other images than it is calibrated on, by how many those are; peers and times are not compared."""
    if not options.trained or options.photos is None:
        return [{"what": "left out: needs --trained and --photos"}]
    trained = adapt(load("dinov2-S/14"), {"image": 224})[0]
    found = image_files(options.photos, limit=60 + 288)
    images = torch.stack([torch.from_numpy(prepare(path, trained.preprocessing).pixels) for path in found])
    plain, lean, cells = build_engine(trained), LeanEngine(trained), []
    for draw in range(3):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(draw))
        judged, others = images[order[:60]], images[order[60:]]
        for count in (32, 96, 288):
            engine = build_engine(trained, "int8", calibration=lean.ranges(others[:count]))
            seen = agreement(engine, plain, judged)
            what = f"draw {draw}, calibrated on {len(others[:count])}, judged on {len(judged)}"
            cells.append({"what": what, "cosine": {"mean": seen.mean, "low": seen.lowest}})
    return cells


RUN = {
    "forward": forward,
    "patch": patch,
    "decode": decode,
    "packed": packed,
    "fewer": fewer,
    "calibration": calibration,
}

if __name__ == "__main__":
    main()
