from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from peer_models import randomise, relative_error
from peers import transformers
from vitrail import parts
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.checkpoint.read import load
from vitrail.config import ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.nn.build import build
from vitrail.vectors.engines.engine import LeanEngine, build_engine
from vitrail.vectors.engines.pack import PackedEngine, native_grid, prepare_native

SMALL = ViTConfig(
    image=Size(40, 56),
    embedding=parts.Patches(patch=Size(8, 8)),
    width=48,
    depth=3,
    num_heads=3,
    mlp=parts.Mlp(width=80),
)
SHAPES = [(40, 56), (16, 72), (56, 40), (8, 8), (40, 56), (72, 16), (24, 48)]


def engine_of(config: ViTConfig, merge: int = 0) -> LeanEngine:
    torch.manual_seed(0)
    state = {name: tensor + torch.randn_like(tensor) * 0.1 for name, tensor in build(config).state_dict().items()}
    engine = build_engine(
        Checkpoint(config=config, tensors=state, preprocessing=Preprocessing(image=config.image)), merge=merge
    )
    assert isinstance(engine, LeanEngine)
    return engine


def images() -> list[torch.Tensor]:
    dice = torch.Generator().manual_seed(2)
    return [torch.randint(0, 256, (*shape, 3), dtype=torch.uint8, generator=dice) for shape in SHAPES]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"prefix": parts.Prefix(registers=2), "layer_scale": 0.3, "qk_norm": True},
        {"prefix": parts.Prefix(distillation=True)},
        {"pool": parts.MeanPool(), "position": parts.SinCos2d()},
        {"pool": parts.AttentionPool(num_heads=3, mlp_width=40), "position": parts.Rotary()},
        {"position": parts.RelativeBias()},
        {"position": parts.RelativeMlp(width=8), "block_norm": "after", "cosine_attention": True},
        {"position": parts.RotaryMixed(), "mlp": parts.SwiGLU(width=40)},
        {"attention": parts.WindowedAttention(window=Size(3, 2)), "embedding_norm": True},
    ],
    ids=lambda changes: "-".join(changes) or "plain",
)
@pytest.mark.parametrize("rows", [10, 1600])
def test_a_packed_image_gets_the_vector_that_it_gets_alone(changes, rows: int, monkeypatch: pytest.MonkeyPatch):
    """Products of other heights may add in another order: 2e-5 is some float32 roundings."""
    monkeypatch.setattr("vitrail.vectors.engines.pack.ROWS", rows)
    engine = engine_of(SMALL.but(**changes))
    packed = PackedEngine(engine)
    alone = torch.cat([engine.vectors(image[None]) for image in images()])
    torch.testing.assert_close(packed.vectors(images()), alone, rtol=2e-5, atol=2e-5)


def test_no_image_reaches_anothers_vector():
    engine = PackedEngine(engine_of(SMALL))
    before, changed = images(), images()
    changed[1] = 255 - changed[1]
    same, moved = engine.vectors(before), engine.vectors(changed)
    rows = [index for index in range(len(SHAPES)) if index != 1]
    assert torch.equal(same[rows], moved[rows])
    assert not torch.equal(same[1], moved[1])


def test_int8_packs_too():
    torch.manual_seed(0)
    checkpoint = Checkpoint(
        config=SMALL, tensors=build(SMALL).state_dict(), preprocessing=Preprocessing(image=SMALL.image)
    )
    calibration = torch.randint(0, 256, (4, 40, 56, 3), dtype=torch.uint8)
    engine = build_engine(checkpoint, "int8", calibration=calibration)
    assert isinstance(engine, LeanEngine)
    alone = torch.cat([engine.vectors(image[None]) for image in images()])
    cosines = torch.nn.functional.cosine_similarity(PackedEngine(engine).vectors(images()), alone)
    assert cosines.min() > 0.9999  # a token at the edge of a step may round the other way


def test_merging_and_native_sizes_are_refused_together():
    with pytest.raises(VitrailError, match="cannot be combined"):
        PackedEngine(engine_of(SMALL, merge=2))


sides = st.integers(1, 30_000)


@given(height=sides, width=sides, patch=st.sampled_from([Size(16, 16), Size(14, 14), Size(8, 32)]), budget=sides)
def test_a_native_grid_is_within_the_budget_and_never_enlarges(height: int, width: int, patch: Size, budget: int):
    grid = native_grid(Size(height, width), patch, budget)
    assert 1 <= grid.area <= budget
    assert grid.height <= max(1, height // patch.height)
    assert grid.width <= max(1, width // patch.width)


def test_a_native_image_keeps_its_aspect_ratio_to_within_a_patch():
    buffer = io.BytesIO()
    Image.fromarray(np.full((300, 600, 3), 90, np.uint8)).save(buffer, "JPEG")
    ready = prepare_native(buffer.getvalue(), Preprocessing(image=Size(224, 224)), Size(16, 16), 100)
    assert ready.pixels.shape == (7 * 16, 14 * 16, 3)
    assert ready.original == Size(300, 600)


def test_a_budget_of_none_is_refused():
    with pytest.raises(VitrailError, match="token budget 0"):
        native_grid(Size(64, 64), Size(16, 16), 0)


@torch.no_grad()
def test_images_of_many_sizes_get_the_vectors_that_siglip_2_gives_them_at_native_resolution(tmp_path: Path):
    """transformers pads flat patches and masks them; here they are packed."""
    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 96}
    config = transformers.Siglip2VisionConfig(**sizes, patch_size=8, num_patches=25)
    theirs = randomise(transformers.Siglip2VisionModel(config))
    theirs.save_pretrained(tmp_path / "siglip2")
    engine = build_engine(load(tmp_path / "siglip2"))
    assert isinstance(engine, LeanEngine)

    patches = torch.zeros(len(SHAPES), 40, 192)
    mask, grids = torch.zeros(len(SHAPES), 40, dtype=torch.int32), []
    for index, image in enumerate(images()):
        rows, columns = image.shape[0] // 8, image.shape[1] // 8
        flat = (image / 127.5 - 1).view(rows, 8, columns, 8, 3).transpose(1, 2).reshape(rows * columns, 192)
        patches[index, : len(flat)], mask[index, : len(flat)] = flat, 1
        grids.append([rows, columns])
    output = theirs(patches, pixel_attention_mask=mask, spatial_shapes=torch.tensor(grids))
    assert relative_error(PackedEngine(engine).vectors(images()), output.pooler_output) < 1e-5
