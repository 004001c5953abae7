from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from PIL import Image

from peer_models import randomise, relative_error, save_timm
from peers import timm, transformers
from vitrail import embed, parts
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.checkpoint.read import load
from vitrail.checkpoint.write import save
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


def engine_of(config: ViTConfig) -> LeanEngine:
    torch.manual_seed(0)
    state = {name: tensor + torch.randn_like(tensor) * 0.1 for name, tensor in build(config).state_dict().items()}
    engine = build_engine(Checkpoint(config=config, tensors=state, preprocessing=Preprocessing(image=config.image)))
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


@given(height=st.integers(1, 3000), width=st.integers(1, 3000), budget=st.sampled_from([40, 256, 1024]))
def test_a_filled_grid_is_the_one_that_timms_naflex_resizes_to(height: int, width: int, budget: int):
    """timm refuses images that it would enlarge a hundred times."""
    sizes = timm.data.naflex_transforms.get_image_size_for_seq
    try:
        _, (rows, columns) = sizes((height, width), 16, budget)
    except ValueError:
        assume(False)
        raise
    assert native_grid(Size(height, width), Size(16, 16), budget, fill=True) == Size(rows // 16, columns // 16)


@torch.no_grad()
@pytest.mark.parametrize("name", ["naflexvit_base_patch16_gap", "naflexvit_base_patch16_siglip"])
def test_images_of_many_sizes_get_the_vectors_that_timms_naflexvit_gives_them(name: str, tmp_path: Path):
    """timm pads flat patches and masks them; here they are packed."""
    sizes = {"embed_dim": 48, "depth": 2, "num_heads": 3, "pos_embed_grid_size": (5, 5)}
    theirs = save_timm(tmp_path / "timm", name, **sizes, num_classes=0)
    checkpoint = load(tmp_path / "timm")
    assert checkpoint.preprocessing.patch_budget == 25
    engine = build_engine(checkpoint)
    assert isinstance(engine, LeanEngine)
    pictures = [image.repeat_interleave(2, 0).repeat_interleave(2, 1) for image in images()]  # patches of 16
    steps, patchify = checkpoint.preprocessing, timm.data.naflex_transforms.Patchify(16)
    flat = [(patchify(steps.normalise(image.permute(2, 0, 1)[None])[0]), 0) for image in pictures]
    batch, _ = timm.data.naflex_dataset.NaFlexCollator(max_seq_len=40)(flat)
    assert relative_error(PackedEngine(engine).vectors(pictures), theirs(batch)) < 1e-5


@torch.no_grad()
def test_native_sizes_of_siglip_2_are_those_of_its_processor(tmp_path: Path):
    """Images that need no resampling are equal; the pixels of others may differ by a level of 255."""
    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 96}
    theirs = randomise(
        transformers.Siglip2VisionModel(transformers.Siglip2VisionConfig(**sizes, patch_size=8, num_patches=25))
    )
    theirs.save_pretrained(tmp_path / "siglip2")
    processor = transformers.Siglip2ImageProcessor(patch_size=8, max_num_patches=35)
    processor.save_pretrained(tmp_path / "siglip2")
    dice = np.random.default_rng(0)
    fitting = [dice.integers(0, 256, (*shape, 3), np.uint8) for shape in ((40, 56), (56, 40), (8, 280), (24, 88))]
    smooth = np.linspace(0, 255, 90 * 120 * 3).reshape(90, 120, 3).astype(np.uint8)
    found = embed([*fitting, smooth], tmp_path / "siglip2", engine="torch", native=True, exact=True, workers=1)
    vectors = torch.tensor(found["vector"].to_pylist())
    given = processor([Image.fromarray(image) for image in (*fitting, smooth)], return_tensors="pt")
    expected = theirs(**given).pooler_output
    assert relative_error(vectors[:4], expected[:4]) < 1e-5
    assert relative_error(vectors[4:], expected[4:]) < 2e-2

    save(load(tmp_path / "siglip2"), tmp_path / "back")
    again = transformers.AutoImageProcessor.from_pretrained(tmp_path / "back")
    assert (again.max_num_patches, again.patch_size, again.resample) == (35, 8, processor.resample)


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
