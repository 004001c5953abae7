"""PiT: read from timm with equal outputs, written back with equal tensors, carried to other images."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from peer_models import randomise
from peers import timm
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.checkpoint.read import load
from vitrail.checkpoint.surgery.adapt import adapt
from vitrail.checkpoint.write import save
from vitrail.config import PyramidConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.nn.build import build
from vitrail.nn.resample import resample_grid
from vitrail.parts import GridPooling, MeanPool, Prefix
from vitrail.presets import preset

IMAGE = Size(48, 80)
"""Grid 5x9: odd sides, which pooling rounds up."""


def timms(name: str, folder: Path, image: Size = IMAGE) -> torch.nn.Module:
    arguments = {"img_size": tuple(image), "num_classes": 7}
    model = randomise(timm.create_model(name, **arguments)).eval()
    timm.models.save_for_hf(model, folder, model_args={"img_size": [*image]}, safe_serialization=True)
    return model


def same(ours: Checkpoint, theirs: torch.nn.Module) -> None:
    """In float64, where rounding is far below the tolerance."""
    pixels = torch.randn(2, 3, *ours.config.image, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(ours.model().double()(pixels), theirs.double()(pixels), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["pit_ti_224", "pit_ti_distilled_224"])
def test_a_pit_read_from_timm_gives_timms_numbers_and_goes_back_to_the_bit(name: str, tmp_path: Path):
    theirs = timms(name, tmp_path / "timm")
    ours = load(tmp_path / "timm")
    assert ours.config == preset(name, image=IMAGE, classes=7)
    assert ours.evidence.grid == "the shape of the position table"
    same(ours, theirs)
    for dialect in ("vitrail", "timm"):
        save(ours, tmp_path / f"{dialect}.safetensors", dialect=dialect)
        ours = load(tmp_path / f"{dialect}.safetensors")
    again, state = load_file(tmp_path / "timm.safetensors"), theirs.float().state_dict()
    assert again.keys() == state.keys()
    assert all(torch.equal(again[key], value) for key, value in state.items())


def test_the_smallest_pit_equals_timms_at_its_own_size(tmp_path: Path):
    theirs = timms("pit_ti_224", tmp_path / "timm", Size(224, 224))
    ours = load(tmp_path / "timm").model()
    pixels = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        expected = theirs(pixels)
        assert float((ours(pixels) - expected).abs().max() / expected.std()) < 1e-5


def weights(name: str, image: Size, **changes: Tensor) -> dict[str, Tensor]:
    with torch.device("meta"):
        shapes = timm.create_model(name, img_size=tuple(image)).state_dict()
    return {key: torch.zeros(value.shape) for key, value in shapes.items()} | changes


def test_the_image_follows_from_the_table_and_no_other_is_believed(tmp_path: Path):
    path = tmp_path / "alone.safetensors"
    save_file(weights("pit_b_224", Size(56, 98)), path)
    expected = preset("pit-B", image=Size(56, 98))
    assert (load(path).config, expected.grids[0]) == (expected, Size(7, 13))
    with pytest.raises(VitrailError, match="has positions on grid 7x13, for image 56x98, and not for image 98x56"):
        load(path, from_image=Size(98, 56))
    save_file(weights("pit_b_224", IMAGE, pos_embed=torch.zeros(1, 35, 256)), path)
    with pytest.raises(VitrailError, match="no table of positions with the height and width of a grid"):
        load(path)
    save_file(weights("pit_s_224", IMAGE) | {"patch_embed.conv.weight": torch.zeros(96, 3, 16, 16)}, path)
    with pytest.raises(VitrailError, match="has the shape of no preset"):
        load(path)


def test_arguments_that_leave_no_trace_are_refused(tmp_path: Path):
    model = timm.create_model("pit_ti_224", base_dims=(64, 64, 64), heads=(1, 2, 4))  # the shapes of pit-Ti
    arguments = {"base_dims": [64, 64, 64], "heads": [1, 2, 4]}
    timm.models.save_for_hf(model, tmp_path / "timm", model_args=arguments, safe_serialization=True)
    with pytest.raises(VitrailError, match=r"has base_dims '.64, 64, 64.', which vitrail does not know"):
        load(tmp_path / "timm")


def made(config: PyramidConfig) -> Checkpoint:
    torch.manual_seed(3)
    return Checkpoint(
        config=config, tensors=build(config).state_dict(), preprocessing=Preprocessing(image=config.image)
    )


def test_an_adapted_pit_is_the_same_model_run_on_the_other_image(tmp_path: Path):
    before = made(preset("pit-Ti", image=IMAGE, classes=5))
    after, changes = adapt(before, {"image": "64x56"})
    assert changes.resampled == ("position.table",)
    assert changes.notes[0].startswith("positions (Learned) go from grid 5x9 to 7x6: resampled by timm")
    expected = resample_grid(before.tensors["position.table"], old=Size(5, 9), new=Size(7, 6), convention="timm")
    torch.testing.assert_close(after.tensors["position.table"], expected, rtol=0, atol=1e-6)
    pixels = torch.randn(2, 3, 64, 56)
    with torch.no_grad():
        torch.testing.assert_close(after.model()(pixels), before.model()(pixels), rtol=1e-4, atol=1e-5)
    save(after, tmp_path / "timm.safetensors", dialect="timm")
    assert load(tmp_path / "timm.safetensors").config == after.config


def test_a_grid_that_pools_to_the_same_last_one_is_still_another_grid():
    before = made(preset("pit-Ti", image=Size(64, 72), classes=0))
    after, changes = adapt(before, {"image": "72x64"})
    assert before.config.grid == after.config.grid == Size(2, 2)
    assert after.evidence.grid == "adapted to 8x7 from 7x8"
    assert "go from grid 7x8 to 8x7" in changes.notes[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"pool": MeanPool()}, "its pool is ClsPool"),
        ({"prefix": Prefix(registers=2)}, "it has no place for prefix.registers"),
        ({"norm_eps": 1e-5}, "its norm_eps is 1e-06, this model's 1e-05"),
    ],
)
def test_what_timms_pit_cannot_say_is_not_written(change: dict, words: str, tmp_path: Path):
    checkpoint = made(preset("pit-Ti", image=IMAGE, classes=0).but(**change))
    with pytest.raises(VitrailError, match=words):
        save(checkpoint, tmp_path / "timm.safetensors", dialect="timm")


def test_rules_between_the_parts_of_a_pyramid_name_the_remedy():
    swin, pit = preset("swin-T"), preset("pit-S")
    with pytest.raises(VitrailError, match=r"PatchMerging has no way for prefix tokens; use GridPooling\(\)"):
        swin.but(prefix=Prefix())
    with pytest.raises(VitrailError, match="PatchMerging needs patches that do not overlap, and stride 8x8 of patch"):
        swin.but(embedding=pit.embedding)
    with pytest.raises(
        VitrailError, match="stage width 144 is not a multiple of 96, which GridPooling needs; try 96 or 192"
    ):
        swin.but(merging=GridPooling(), stages=(*swin.stages[:1], swin.stages[1].but(width=144, num_heads=6)))
    with pytest.raises(VitrailError, match="ClsPool needs a CLS token"):
        pit.but(prefix=Prefix(cls=False))
    with pytest.raises(VitrailError, match=r"image 230x224 is not divisible by patch 16x16 at stride 8 \(230 leaves 6"):
        pit.but(image=Size(230, 224))
