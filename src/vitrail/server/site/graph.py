"""One ONNX graph per model: from the pixels of an image to every number that the image rooms of an exported page show.

The rooms' own functions are traced, so that each formula exists once. torch's newer exporter refuses them, because they
look at values (which tokens are patches?) that do not depend on the image; tracing takes these as constants.

Shapes: H×W pixels, T tokens of which p are the prefix, N patches, h heads, C channels, P×Q patch.
"""

from __future__ import annotations

import tempfile
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.errors import VitrailError, require
from vitrail.geometry import Size
from vitrail.images.decode import Pixels
from vitrail.look.filters import Filters, filter_responses, projection_filters
from vitrail.look.record import Recording, record
from vitrail.look.rollout import fuse_heads
from vitrail.look.subject import Subject
from vitrail.look.walk import walk_through
from vitrail.nn.patches import PatchEmbed, cut_patches
from vitrail.nn.pool import one_vector
from vitrail.nn.vit import ViT
from vitrail.server.guess import NAMED
from vitrail.server.rooms.attention.attention_frames import Heads, all_rows, heads_of
from vitrail.server.rooms.projection.projection_filters import PRINCIPAL, pictures, response_tensors, signed
from vitrail.server.rooms.tokens.sequence import run_sequence
from vitrail.server.rooms.walk.walk_tensors import ends_of, rows_of, shown
from vitrail.server.site.colours import token_colours
from vitrail.server.site.matching import matched_tokens
from vitrail.server.site.operators import OPSET, operators

__all__ = ["Graph", "Outputs", "trace"]

LEAST_COSINE = 0.9999
MOST_DIFFERENCE = 0.01
"""Two or three bytes of a row that is scaled to 255, and far above float32's rounding."""
Outputs = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Graph:
    """A graph as bytes, and how well it agrees with torch on another image than it was traced with."""

    onnx: bytes
    inputs: dict[str, Size]
    """Its inputs: uint8 (H, W, C) by name."""
    outputs: Outputs
    """What torch computes for that image."""
    cosine: float
    """Of the vector to torch's."""


class Views(nn.Module):
    """The pixels at the studio's size and, where that is another, at the training size → the numbers of the rooms."""

    def __init__(self, seen: Subject, trained: Subject | None, steps: Preprocessing) -> None:
        super().__init__()
        self.seen, self.trained, self.steps = seen, trained, steps
        self.models = nn.ModuleList([each.model for each in (seen, trained) if each])
        self.learned = projection_filters(seen.model)
        self.names: list[str] = []

    def named(self, *pixels: Tensor) -> Outputs:
        first, *others = (self.steps.normalise(each.permute(2, 0, 1)[None]) for each in pixels)
        model = self.seen.model
        assert isinstance(model, ViT)
        recording = record(model, first)
        subject = replace(self.seen, image=first)
        found = {
            "vector": one_vector(model.pooled(*recording.features))[0],
            **_attention(recording, _heads(self.seen, recording)),
            **_sequence(subject),
            **_walk(subject, pixels[0], recording),
            **_filters(subject, self.learned),
            **token_colours(recording),
            **matched_tokens(recording),
            **_guess("seen", recording.output[0], self.seen),
        }
        for image in others:
            assert self.trained is not None
            found |= _guess("trained", self.trained.model(image)[0], self.trained)
        return found

    def forward(self, *pixels: Tensor) -> tuple[Tensor, ...]:
        found = self.named(*pixels)
        self.names = list(found)
        return tuple(found.values())


def _heads(seen: Subject, recording: Recording) -> Heads:
    """Return the statistics of all heads; their mean maps are filled chunk by chunk, which tracing does not follow."""
    heads = heads_of(seen, recording.attention)
    fused = [fuse_heads(inputs.rows()) for inputs in recording.attention]
    pairs = zip(heads.statistics, fused, strict=True)
    return replace(heads, statistics=[replace(each, fused=mean) for each, mean in pairs])


def _attention(recording: Recording, heads: Heads) -> Outputs:
    found: Outputs = {}
    for layer, rows in enumerate(all_rows(recording.attention)):
        found |= {f"heads{layer}": rows.bytes, f"exact{layer}": rows.exact}
    rolled = heads.rolled()
    found |= {"rolled": rolled.bytes, "exact-rolled": rolled.exact, "contrast": rolled.contrast}
    for layer, each in enumerate(heads.statistics):
        distance, entropy = each.distance[0], each.entropy[0]
        found |= {
            f"distance{layer}": distance,
            f"mean_distance{layer}": distance.mean(),
            f"entropy{layer}": entropy,
            f"mean_entropy{layer}": entropy.mean(),
            f"effective_tokens{layer}": entropy.exp2(),
        }
    return found


def _sequence(subject: Subject) -> Outputs:
    tokens = run_sequence(subject)
    return {
        "patches": torch.stack([tokens.values(index) for index in range(len(tokens.boxes))]),
        "projected": tokens.projected,
        "position": tokens.vectors - tokens.projected,
        "vectors": tokens.vectors,
        "length": tokens.vectors.norm(dim=-1),
    }


def _walk(subject: Subject, pixels: Tensor, recording: Recording) -> Outputs:
    """Return the tensors of a walk through every block, and the bytes (H, W, C) of every patch."""
    model = subject.model
    if not isinstance(model, ViT) or not isinstance(model.embedding, PatchEmbed):
        return {}
    walks = [walk_through(model, subject.image, block=block, recording=recording) for block in range(len(model.blocks))]
    ends, (_, tokens, _) = ends_of(walks[0]), walks[0].tokens.shape
    blocks = [rows_of(walked, torch.arange(int(tokens))) for walked in walks]
    inside = {name: torch.cat([each[name] for each in blocks]) for name in blocks[0]}
    patch, stride = model.embedding.patch, model.embedding.stride
    colours = cut_patches(pixels.permute(2, 0, 1)[None].float(), patch, stride)[0]  # (N, C·P·Q)
    pictures = {
        "colours": colours.unflatten(1, (-1, *patch)).permute(0, 2, 3, 1).byte(),
        "shown-projected": shown(ends["projected"]),
        "shown-entering": shown(ends["stages"][0]),
        "shown-leaving": shown(ends["stages"][-1]),
    }
    found = {f"walk-{name}": each for name, each in {**ends, **inside, **pictures}.items()}
    whole = (torch.bool, torch.int64)
    return {name: each.int() if each.dtype in whole else each for name, each in found.items()}


def _filters(subject: Subject, learned: Filters) -> Outputs:
    """Return the filters as pictures, and their responses."""
    found: Outputs = {}
    for name, weight in (("filter", None), ("principal", learned.principal[:PRINCIPAL])):
        maps = filter_responses(subject.model, subject.image, weight)[0]
        tensors = response_tensors(maps)
        tensors |= {"pictures": pictures(learned.filters if weight is None else weight), "responses": signed(maps)}
        found |= {f"{name}-{key}": each.int() if each.dtype == torch.int64 else each for key, each in tensors.items()}
    return found


def _guess(name: str, logits: Tensor, subject: Subject) -> Outputs:
    """As `most_likely` does; none for a model without a head."""
    if not subject.model.config.classes:
        return {}
    likely = logits.softmax(dim=-1).topk(min(NAMED, len(logits)))
    return {f"logits-{name}": logits, f"probabilities-{name}": likely.values, f"classes-{name}": likely.indices.int()}


@torch.no_grad()
def trace(subjects: dict[str, Subject], others: dict[str, Pixels], steps: Preprocessing) -> Graph:
    """Write the graph of a model that sees one image, and compare it with torch on another.

    `subjects` are the model at the studio's size ("seen") and, if that is another, at its training size ("trained");
    `others` are the other image's pixels for each. A value of the first image that became a constant is then found.
    """
    import onnxruntime

    if "trained" in subjects:
        _share(subjects["seen"].model, subjects["trained"].model)
    views = Views(subjects["seen"], subjects.get("trained"), steps).eval()
    traced = {name: _input(each.pixels, steps) for name, each in subjects.items()}
    tried = {name: _input(each, steps) for name, each in others.items()}
    expected = views.named(*tried.values())
    with tempfile.TemporaryDirectory(prefix="vitrail-") as scratch, warnings.catch_warnings(), operators():
        path = Path(scratch, "views.onnx")
        warnings.simplefilter("ignore")  # the tracer warns about every constant that it keeps
        try:
            torch.onnx.export(
                views,
                tuple(traced.values()),
                path,
                dynamo=False,
                opset_version=OPSET,
                input_names=list(traced),
                output_names=list(expected),
            )
        except (torch.onnx.errors.OnnxExporterError, RuntimeError) as error:
            first = str(error).strip().splitlines()[0]
            raise VitrailError(f"torch cannot export this model ({first[:120]}); leave it out of --weights") from None
        onnx = _smaller(path)
    session = onnxruntime.InferenceSession(onnx, providers=["CPUExecutionProvider"])
    values = session.run(None, {name: each.numpy() for name, each in tried.items()})
    found = {name: torch.from_numpy(np.asarray(each)) for name, each in zip(expected, values, strict=True)}
    return Graph(
        onnx=onnx,
        inputs={name: Size(*each.shape[:2]) for name, each in traced.items()},
        outputs=expected,
        cosine=_compare(found, expected, subjects["seen"].words),
    )


def _input(pixels: Pixels, steps: Preprocessing) -> Tensor:
    return torch.from_numpy(pixels[:, :, : steps.channels].copy())


def _compare(found: Outputs, expected: Outputs, words: str) -> float:
    """Return the cosine of the vectors; refuse a graph whose numbers are not torch's."""
    cosine = F.cosine_similarity(found["vector"].double(), expected["vector"].double(), dim=0).item()
    ours, theirs = _comparable(found), _comparable(expected)
    differences = {name: _difference(ours[name], theirs[name]) for name in theirs}
    worst = max(differences, key=differences.__getitem__)
    require(
        cosine >= LEAST_COSINE and differences[worst] <= MOST_DIFFERENCE,
        f"the graph of {words} is not the model (cosine {cosine:.5f} to torch, {worst} off by "
        f"{differences[worst]:.2g}); leave it out of --weights",
    )
    return cosine


def _comparable(outputs: Outputs) -> Outputs:
    """Return the outputs with norms as values: norms that are nearly equal have bytes of rounding noise."""

    def value(name: str, output: Tensor) -> Tensor:
        if not name.startswith("norms"):
            return output
        low, high = outputs[name.replace("norms", "range")]
        return low + (high - low) * output / 255

    return {name: value(name, output) for name, output in outputs.items()}


def _difference(found: Tensor, expected: Tensor) -> float:
    """Return the largest difference, relative to the largest value; equal probabilities may swap their classes."""
    if expected.dtype == torch.int32:
        return 0.0
    if expected.shape[-1:] == (3,) and expected.dtype == torch.uint8:  # colours: of equal components, any are right
        return (found.double() - expected.double()).abs().mean().item() / 255
    scale = 255.0 if expected.dtype == torch.uint8 else expected.double().abs().max().clamp_min(1e-6).item()
    return (found.double() - expected.double()).abs().max().item() / scale


def _share(one: nn.Module, other: nn.Module) -> None:
    """Let two models have equal parameters in common, which are then stored once."""
    own = dict(one.named_parameters())
    for name, parameter in list(other.named_parameters()):
        if name in own and torch.equal(own[name], parameter):
            path, _, last = name.rpartition(".")
            setattr(other.get_submodule(path), last, own[name])


def _smaller(path: Path) -> bytes:
    """Return the graph with equal constants stored once: each layer has a copy of the distances between patches."""
    import onnx
    import onnx_ir
    from onnx_ir.passes import Sequential
    from onnx_ir.passes import common as passes

    model = onnx_ir.from_proto(onnx.load(path))
    Sequential(
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=16),
        passes.DeduplicateInitializersPass(size_limit=2**31),
        passes.CommonSubexpressionEliminationPass(),
        passes.RemoveUnusedNodesPass(),
    )(model)
    return onnx_ir.to_proto(model).SerializeToString()
