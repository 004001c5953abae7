"""Export a checkpoint to ONNX or OpenVINO's IR; the file is read back and compared before it is renamed into place.

The graph takes normalised pixels, float32 (batch, channels, height, width), as `image`, and gives `vector`, float32
(batch, width). The metadata of an ONNX file has the preprocessing and the config.

Shapes: B images, C channels, H×W pixels, h×w grid, N = h·w patches, D width.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail import parts
from vitrail.atomic import flush, temporary_folder
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.header import CONFIG_KEY, PREPROCESSING_KEY
from vitrail.codec import to_plain
from vitrail.config import Config, ViTConfig
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size
from vitrail.nn.layout import Layout
from vitrail.nn.patches import PatchEmbed
from vitrail.nn.pool import one_vector
from vitrail.nn.positions import LearnedTable
from vitrail.nn.vit import ViT
from vitrail.vectors.engines.runtime import openvino_core

__all__ = ["SUFFIXES", "Exported", "export", "why_fixed"]

SUFFIXES = (".onnx", ".xml")
LEAST_COSINE = 0.9999
LARGEST = 2**31 - 2**24
"""At most this many bytes of weights: an ONNX file is limited to 2 GiB."""

Runner = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Exported:
    """The exported file, and its agreement with torch on the images that it was compared on."""

    path: str
    bytes: int
    dynamic: bool
    opset: int
    images: int
    sizes: tuple[Size, ...]
    """The image sizes that were compared."""
    largest_difference: float
    lowest_cosine: float


def export(checkpoint: Checkpoint, path: Path, images: Tensor, *, dynamic: bool = False, opset: int = 18) -> Exported:
    """Write .onnx or .xml (with its .bin), and raise VitrailError if it differs from torch on uint8 (B, H, W, C)."""
    require(path.suffix in SUFFIXES, f"{path} does not end in {' or '.join(SUFFIXES)}; name a file like model.onnx")
    checkpoint.config.require_still("export")
    require(path.parent.is_dir(), f"folder {path.parent} does not exist; make it first")
    _require_extra("onnx" if path.suffix == ".onnx" else "openvino")
    reason = why_fixed(checkpoint.config) if dynamic else None
    require(reason is None, f"the image's size must stay fixed: {reason}; export without --dynamic")
    weights = sum(tensor.numel() * 4 for tensor in checkpoint.tensors.values())
    require(weights < LARGEST, f"{weights:,} bytes of weights are above ONNX's 2 GiB; export a smaller model")
    model = checkpoint.model(dtype=torch.float32)
    pixels = checkpoint.preprocessing.normalise(images.permute(0, 3, 1, 2))
    tried = [pixels, *([_other_size(pixels, checkpoint.config)] if dynamic else [])]
    try:
        with temporary_folder(path) as folder:
            onnx = folder / "model.onnx"
            _write_onnx(model, checkpoint, onnx, pixels[:1], dynamic=dynamic, opset=opset)
            written, run = (onnx, _onnxruntime(onnx)) if path.suffix == ".onnx" else _openvino(onnx)
            difference, cosine = _compare(run, model, tried)
            require(
                cosine >= LEAST_COSINE,
                f"{path} was not written: its vectors' cosine to torch's is {cosine:.5f}, below {LEAST_COSINE}; "
                f"try another --opset, or with or without --dynamic",
            )
            size = 0
            for suffix in (".onnx",) if path.suffix == ".onnx" else (".bin", ".xml"):  # readers open the .xml
                part = written.with_suffix(suffix)
                size += part.stat().st_size
                flush(part)
                part.replace(path.with_suffix(suffix))
    except OSError as error:
        raise VitrailError(f"{path} was not written ({error.strerror or error}); choose another place") from None
    return Exported(
        path=str(path),
        bytes=size,
        dynamic=dynamic,
        opset=opset,
        images=len(images),
        sizes=tuple(Size(*each.shape[2:]) for each in tried),
        largest_difference=difference,
        lowest_cosine=cosine,
    )


def why_fixed(config: Config) -> str | None:
    """Return why the image size cannot be dynamic in a graph; None if it can."""
    if not isinstance(config, ViTConfig):
        return f"{type(config).__name__} has windows, stages or maps that are computed for one size"
    if not isinstance(config.embedding, parts.Patches) or config.remainder != "error":
        return f"{type(config.embedding).__name__} with remainder {config.remainder!r} reads the size in Python"
    if not isinstance(config.attention, parts.FullAttention):
        return f"{type(config.attention).__name__} is computed for one grid"
    match config.position:
        case parts.NoPosition():
            return None
        case parts.Learned(rotary=rotary) if rotary is not None:
            return f"{type(rotary).__name__} is computed for one grid"
        case parts.Learned(convention="timm" | "huggingface"):
            return None
        case parts.Learned(convention=convention):
            return f"ONNX has no operator that resamples positions as {convention} does"
    return f"{type(config.position).__name__} is computed for one grid"


class _Fixed(nn.Module):
    """(B, C, H, W) → (B, D), at the traced size."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: Tensor) -> Tensor:
        return one_vector(self.model.vector(image))  # type: ignore[operator]


class _Open(nn.Module):
    """(B, C, H, W) → (B, D) at any size that the patch divides: the graph resamples the positions."""

    def __init__(self, model: ViT) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: Tensor) -> Tensor:
        model, embedding = self.model, self.model.embedding
        assert isinstance(embedding, PatchEmbed)
        stride = tuple(embedding.stride or embedding.patch)
        patches = F.conv2d(image, embedding.weight, embedding.bias, stride=stride)  # (B, D, h, w)
        grid = model.config.grid
        layout = Layout(grid=grid, frame=grid)  # full attention and pools read only its prefix
        x, layout = model.prefix(patches.flatten(2).mT, layout)
        if isinstance(model.position, LearnedTable):
            x = x + _position(model.position, patches.shape[2], patches.shape[3], layout.prefix)
        if model.embedding_norm is not None:
            x = model.embedding_norm(x)
        for block in model.blocks:
            x = block(x, layout)
        return one_vector(model.pooled(model.normed(x, layout), layout))


def _position(table: LearnedTable, rows: int, columns: int, prefix: int) -> Tensor:
    """(1, prefix + N, D): always resampled, which changes nothing on the table's own grid."""
    before, patches = table.table.split([table.prefix_rows, table.grid.area])
    image = patches.T.reshape(1, -1, *table.grid)  # (1, D, h, w)
    image = F.interpolate(
        image, size=(rows, columns), mode="bicubic", antialias=table.convention == "timm", align_corners=False
    )
    before = F.pad(before, (0, 0, 0, prefix - table.prefix_rows))
    return torch.cat([before[None], image.flatten(2).mT], dim=1)


def _require_extra(extra: str) -> None:
    """OpenVINO's files are made from ONNX, so that its extra includes the other."""
    for name in ("onnx", "onnxruntime", "onnxscript", *(("openvino",) if extra == "openvino" else ())):
        require(
            find_spec(name) is not None,
            f"exporting needs {name}, which is not installed; pip install 'vitrail[{extra}]'",
        )


def _write_onnx(
    model: nn.Module, checkpoint: Checkpoint, path: Path, pixels: Tensor, *, dynamic: bool, opset: int
) -> None:
    axes: dict[int, Any] = {0: torch.export.Dim("batch", max=4096)}
    if dynamic:
        patch = checkpoint.config.patch
        axes |= {
            2: patch.height * torch.export.Dim("rows", min=2, max=512),
            3: patch.width * torch.export.Dim("columns", min=2, max=512),
        }
        assert isinstance(model, ViT)
    module = (_Open(model) if dynamic else _Fixed(model)).eval()  # type: ignore[arg-type]
    logging.getLogger("onnxscript").setLevel(logging.ERROR)  # it logs every node that it does not optimise
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter warns about its own code
        try:
            program = torch.onnx.export(
                module,
                (pixels.expand(2, -1, -1, -1).contiguous(),),
                dynamo=True,
                dynamic_shapes=(axes,),
                input_names=["image"],
                output_names=["vector"],
                opset_version=opset,
                verbose=False,
            )
        except torch.onnx.errors.OnnxExporterError as error:
            first = str(error).strip().splitlines()[0]
            raise VitrailError(f"torch cannot export this model ({first[:120]}); try another --opset") from None
    assert program is not None
    notes = {CONFIG_KEY: checkpoint.config, PREPROCESSING_KEY: checkpoint.preprocessing}
    program.model.metadata_props.update({name: json.dumps(to_plain(value)) for name, value in notes.items()})
    program.save(str(path))


def _onnxruntime(path: Path) -> Runner:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda pixels: torch.from_numpy(session.run(None, {"image": pixels.numpy()})[0])


def _openvino(onnx: Path) -> tuple[Path, Runner]:
    import openvino

    path = onnx.with_suffix(".xml")
    openvino.save_model(openvino.convert_model(str(onnx)), str(path), compress_to_fp16=False)
    compiled = openvino_core().compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return path, lambda pixels: torch.from_numpy(compiled(pixels.numpy())[0].copy())


def _other_size(pixels: Tensor, config: Config) -> Tensor:
    """Resize the images to another aspect ratio: fewer patches along one axis, more along the other."""
    assert isinstance(config, ViTConfig)
    grid, patch = config.grid, config.patch
    size = (max(2, grid.height * 3 // 4) * patch.height, (grid.width + 2) * patch.width)
    return F.interpolate(pixels, size=size, mode="bilinear", antialias=True)


@torch.inference_mode()
def _compare(run: Runner, model: Any, tried: list[Tensor]) -> tuple[float, float]:
    difference, cosine = 0.0, 1.0
    for pixels in tried:
        ours, theirs = run(pixels).double(), one_vector(model.vector(pixels)).double()
        difference = max(difference, (ours - theirs).abs().max().item())
        cosine = min(cosine, F.cosine_similarity(ours, theirs, dim=1).min().item())
    return difference, cosine
