import math
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import scipy.ndimage
import torch
import torch.nn.functional as F

from peers import timm, transformers
from vitrail.checkpoint.surgery.resample import (
    METHODS,
    axis_matrix,
    cut_relative,
    method_of,
    resample_relative,
    resample_table,
)
from vitrail.config import ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.nn.front import VisionFrontEnd
from vitrail.nn.relative import offset_index
from vitrail.parts import Learned, MeanPool, Patches, Prefix

GRIDS = [Size(8, 11), Size(3, 4), Size(5, 9), Size(11, 7)]
OLD = Size(5, 7)


def table(grid: Size = OLD, width: int = 24, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(grid.area, width, generator=torch.Generator().manual_seed(grid.height), dtype=dtype)


@pytest.mark.parametrize("method", METHODS)
def test_resampling_to_the_same_grid_is_the_same_object(method):
    rows = table()
    assert resample_table(rows, old=OLD, new=OLD, method=method) is rows


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("new", GRIDS, ids=str)
def test_a_constant_stays_constant_and_rows_are_not_columns(method, new):
    assert torch.allclose(
        resample_table(torch.full((OLD.area, 3), 2.5), old=OLD, new=new, method=method), torch.tensor(2.5)
    )
    place = torch.cartesian_prod(torch.arange(5.0), torch.arange(7.0))
    rows, columns = resample_table(place, old=OLD, new=new, method=method).view(*new, 2).unbind(-1)
    assert torch.allclose(rows, rows[:, :1], atol=1e-5)
    assert torch.allclose(columns, columns[:1], atol=1e-5)
    assert rows[0, 0] < rows[-1, 0]
    assert columns[0, 0] < columns[0, -1]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_a_table_keeps_its_type_and_is_computed_in_float32_at_least(method, dtype):
    new = Size(8, 11)
    result = resample_table(table(dtype=torch.float64).to(dtype), old=OLD, new=new, method=method)
    assert result.dtype == dtype
    precise = resample_table(table(dtype=torch.float64).to(dtype).double(), old=OLD, new=new, method=method)
    # one rounding to the type, after float32's own error
    assert torch.allclose(result.double(), precise, rtol=torch.finfo(dtype).eps, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("new", GRIDS, ids=str)
def test_a_method_is_one_matrix_per_axis(method, new):
    rows, columns = axis_matrix(5, new.height, method), axis_matrix(7, new.width, method)
    old = table(dtype=torch.float64)
    expected = torch.einsum("ai,bj,ijd->abd", rows, columns, old.view(*OLD, -1)).flatten(0, 1)
    assert torch.allclose(resample_table(old, old=OLD, new=new, method=method), expected, atol=1e-12)


# ── to the bit: what each library does ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("new", GRIDS, ids=str)
def test_timm_is_reproduced_to_the_bit(new):
    rows = table()
    expected = timm.layers.resample_abs_pos_embed(rows[None], list(new), list(OLD), num_prefix_tokens=0)[0]
    assert torch.equal(resample_table(rows, old=OLD, new=new, method="timm"), expected)


@pytest.mark.parametrize("new", [Size(9, 5), Size(3, 4), Size(8, 11)], ids=str)
@pytest.mark.parametrize(
    "family", ["ViT", "Dinov2", "Beit", "IJepa", "CLIPVision", "Siglip", "ViTMSN", "Dinov2WithRegisters"]
)
def test_transformers_is_reproduced_to_the_bit(family, new):
    """Square sources: transformers knows no others."""
    old, rows = Size(6, 6), table(Size(6, 6))
    embeddings = _embeddings(family)
    with torch.no_grad():
        weight = next(value for name, value in embeddings.named_parameters() if "position" in name)
        weight.view(-1, 24)[-36:] = rows
        tokens = torch.zeros(1, new.area + (weight.numel() // 24 - 36), 24)
        expected = embeddings.interpolate_pos_encoding(tokens, 4 * new.height, 4 * new.width)[0, -new.area :]
    method = "timm" if family == "Dinov2WithRegisters" else "huggingface"
    assert torch.equal(resample_table(rows, old=old, new=new, method=method), expected)


def _embeddings(family: str) -> Any:
    settings = {"hidden_size": 24, "image_size": 24, "patch_size": 4, "num_hidden_layers": 1, "num_attention_heads": 3}
    settings["intermediate_size"] = 48
    extra = {"use_absolute_position_embeddings": True} if family == "Beit" else {}
    name = {"CLIPVision": "CLIPVision", "Siglip": "SiglipVision"}.get(family, family)
    config = getattr(transformers, f"{name}Config")(**settings, **extra)
    model = getattr(transformers, f"{name}Model")(config)
    return next(module for module in model.modules() if hasattr(module, "interpolate_pos_encoding"))


@pytest.mark.parametrize("new", [Size(9, 5), Size(3, 4), Size(8, 11)], ids=str)
def test_facebooks_dinov2_offset_is_reproduced_to_the_bit(new):
    """Its code: scale factors (new + 0.1) / old, bicubic, not antialiased."""
    rows = table(Size(6, 6))
    expected = F.interpolate(
        rows.reshape(1, 6, 6, 24).permute(0, 3, 1, 2),
        scale_factor=(float(new.height + 0.1) / 6, float(new.width + 0.1) / 6),
        mode="bicubic",
        antialias=False,
    )
    assert expected.shape[2:] == tuple(new)
    expected = expected.permute(0, 2, 3, 1).reshape(-1, 24)
    assert torch.equal(resample_table(rows, old=Size(6, 6), new=new, method="dinov2"), expected)


@pytest.mark.parametrize("side", [3, 9, 11])
def test_torchvision_is_reproduced_to_the_bit(side):
    from torchvision.models.vision_transformer import interpolate_embeddings  # importable once peers is

    rows, cls = table(Size(6, 6)), torch.zeros(1, 24)
    state = OrderedDict({"encoder.pos_embedding": torch.cat([cls, rows])[None]})
    expected = interpolate_embeddings(4 * side, 4, state)["encoder.pos_embedding"][0, 1:]
    assert torch.equal(resample_table(rows, old=Size(6, 6), new=Size(side, side), method="torchvision"), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("new", [*GRIDS, Size(37, 31), Size(1, 3)], ids=str)
def test_big_vision_is_reproduced_to_the_bit(new, dtype):
    """Its code: scipy.ndimage.zoom of order 1."""
    rows = table(dtype=dtype)
    zoom = (new.height / OLD.height, new.width / OLD.width, 1)
    expected = np.asarray(scipy.ndimage.zoom(rows.view(*OLD, -1).numpy(), zoom, order=1)).reshape(new.area, -1)
    assert np.array_equal(resample_table(rows, old=OLD, new=new, method="big_vision").numpy(), expected)


@pytest.mark.parametrize("new", GRIDS, ids=str)
def test_siglip2_is_reproduced_to_the_bit(new):
    """transformers resizes the table for every image of a batch, and pads the rows to the longest."""
    rows = table(Size(6, 6))
    embeddings = transformers.models.siglip2.modeling_siglip2.Siglip2VisionEmbeddings
    shapes = torch.tensor([tuple(new), (4, 5)])
    expected = embeddings.resize_positional_embeddings(rows.view(6, 6, -1), shapes, max_length=99)[0, : new.area]
    assert torch.equal(resample_table(rows, old=Size(6, 6), new=new, method="siglip2"), expected)


@torch.no_grad()
def test_siglip2_on_another_grid_has_transformers_tokens():
    """A whole embedding: SigLIP 2 takes patches that are cut already, each with rows before columns before channels."""
    config = transformers.Siglip2VisionConfig(hidden_size=24, patch_size=4, num_patches=36, num_attention_heads=3)
    theirs = transformers.models.siglip2.modeling_siglip2.Siglip2VisionEmbeddings(config).eval()
    ours = VisionFrontEnd(
        ViTConfig(
            image=Size(24, 24),
            embedding=Patches(patch=Size(4, 4)),
            prefix=Prefix(cls=False),
            position=Learned(convention="siglip2"),
            width=24,
            num_heads=3,
            pool=MeanPool(),
        )
    )
    weight = theirs.patch_embedding.weight.view(24, 4, 4, 3).permute(0, 3, 1, 2)
    ours.load_state_dict(
        {
            "embedding.weight": weight,
            "embedding.bias": theirs.patch_embedding.bias,
            "position.table": theirs.position_embedding.weight,
        }
    )
    image = torch.randn(2, 3, 20, 36, generator=torch.Generator().manual_seed(2))
    patches = image.unflatten(3, (9, 4)).unflatten(2, (5, 4)).permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
    expected = theirs(patches, torch.tensor([[5, 9], [5, 9]]))
    torch.testing.assert_close(ours(image), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("new", GRIDS, ids=str)
def test_siglip2_is_jaxs_linear_resize(new):
    """jax.image.resize "linear", FlexiViT's: a triangle as wide as the coarser spacing, normalised at the edges."""

    def matrix(old: int, after: int) -> torch.Tensor:
        place = (torch.arange(after, dtype=torch.float64) + 0.5) * old / after - 0.5
        distance = (place[:, None] - torch.arange(old, dtype=torch.float64)).abs()
        weights = (1 - distance / max(1, old / after)).clamp(min=0)
        return weights / weights.sum(dim=1, keepdim=True)

    rows = table(dtype=torch.float64)
    expected = torch.einsum("ai,bj,ijd->abd", matrix(5, new.height), matrix(7, new.width), rows.view(*OLD, -1))
    assert torch.allclose(resample_table(rows, old=OLD, new=new, method="siglip2"), expected.flatten(0, 1), atol=1e-12)


def test_area_is_the_mean_of_what_a_cell_covers():
    rows = table(Size(6, 4), dtype=torch.float64)
    expected = rows.view(3, 2, 2, 2, -1).mean(dim=(1, 3)).flatten(0, 1)
    assert torch.allclose(resample_table(rows, old=Size(6, 4), new=Size(3, 2), method="area"), expected)


# ── exact ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_exact_up_and_back_is_the_identity():
    rows = table(dtype=torch.float64)
    up = resample_table(rows, old=OLD, new=Size(8, 11), method="exact")
    assert torch.allclose(resample_table(up, old=Size(8, 11), new=OLD, method="exact"), rows, atol=1e-13)


@pytest.mark.parametrize("new", GRIDS, ids=str)
def test_exact_reads_a_cosine_that_both_grids_carry_where_it_is(new):
    def wave(grid: Size) -> torch.Tensor:
        row, column = ((torch.arange(side, dtype=torch.float64) + 0.5) / side for side in grid)
        return (torch.cos(math.pi * 2 * row)[:, None] * torch.cos(math.pi * 3 * column)).reshape(-1, 1)

    assert torch.allclose(resample_table(wave(OLD), old=OLD, new=new, method="exact"), wave(new), atol=1e-13)


def test_exact_downward_keeps_what_the_new_grid_carries_and_nothing_else():
    rows, new = table(dtype=torch.float64), Size(3, 4)
    down = resample_table(rows, old=OLD, new=new, method="exact")
    kept = resample_table(down, old=new, new=OLD, method="exact")
    again = resample_table(kept, old=OLD, new=new, method="exact")
    assert torch.allclose(again, down, atol=1e-13)
    assert abs(((rows - kept) * kept).sum()) < 1e-10  # the rest is orthogonal to what is kept


# ── relative biases ─────────────────────────────────────────────────────────────────────────────────────────────


def bias(grid: Size, entries: int = 3) -> torch.Tensor:
    count = (2 * grid.height - 1) * (2 * grid.width - 1) + entries
    return torch.randn(count, 3, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("entries", [0, 3])
@pytest.mark.parametrize("method", METHODS)
def test_relative_bias_to_the_same_grid_is_the_same_object(method, entries):
    old = bias(OLD, entries)
    assert resample_relative(old, old=OLD, new=OLD, method=method) is old


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("new", GRIDS, ids=str)
def test_relative_bias_keeps_prefix_entries_centre_and_symmetry(method, new):
    old = bias(OLD)
    offsets = old[:-3].view(9, 13, 3)
    offsets = offsets + offsets.flip(0, 1)  # a bias that does not tell left from right
    result = resample_relative(torch.cat([offsets.flatten(0, 1), old[-3:]]), old=OLD, new=new, method=method)
    assert torch.equal(result[-3:], old[-3:])
    image = result[:-3].view(2 * new.height - 1, 2 * new.width - 1, 3)
    if method != "dinov2":  # its 0.1 shifts the centre, which is why it is not for biases
        assert torch.allclose(image, image.flip(0, 1), atol=1e-5)
    keeps_centre = method in ("timm", "huggingface", "torchvision", "big_vision", "bilinear")
    if keeps_centre and new.height > 5 and new.width > 7:
        assert torch.allclose(image[new.height - 1, new.width - 1], offsets[4, 6], atol=1e-5)


@pytest.mark.filterwarnings("ignore::UserWarning")  # timm's own
@pytest.mark.parametrize("entries", [0, 3])
@pytest.mark.parametrize(("old", "new"), [(5, Size(8, 11)), (7, Size(9, 4)), (5, Size(5, 3)), (1, Size(2, 3))], ids=str)
def test_timms_relative_biases_are_reproduced_to_the_bit(old, new, entries):
    """Square sources: timm knows no others."""
    before, rows = bias(Size(old, old), entries), (2 * new.height - 1) * (2 * new.width - 1) + entries
    expected = timm.layers.resize_rel_pos_bias_table(before, tuple(new), (rows, 3))
    assert torch.equal(resample_relative(before, old=Size(old, old), new=new, method="timm"), expected)


def test_timms_relative_biases_are_linear_between_geometric_offsets():
    """A closed form in float64: numpy's interpolation along rows, then columns, at knots that the ratio places."""

    def knots(old: int, after: int) -> np.ndarray:
        far, ratio = after - 1, np.linspace(1.01, 1.5, 490_001)
        reach = sum(ratio**power for power in range(old - 1))
        best = ratio[np.abs(reach - far).argmin()]
        steps = np.cumsum(best ** np.arange(old - 1))
        return np.concatenate([-steps[::-1], [0.0], steps])

    before, new = bias(OLD, 0).double(), Size(8, 11)
    image = before.view(9, 13, 3).numpy()
    rows = np.apply_along_axis(lambda y: np.interp(np.arange(-7, 8), knots(5, 8), y), 0, image)
    expected = np.apply_along_axis(lambda y: np.interp(np.arange(-10, 11), knots(7, 11), y), 1, rows)
    found = resample_relative(before, old=OLD, new=new, method="timm").view(15, 21, 3).numpy()
    assert np.allclose(found, expected, atol=1e-4)  # both find the ratio to 1e-6, and offsets are sums of its powers


@pytest.mark.parametrize("family", ["beit", "data2vec"])
@pytest.mark.parametrize("new", [Size(8, 8), Size(3, 4), Size(9, 6)], ids=str)
def test_transformers_relative_biases_are_reproduced_to_the_bit(family, new):
    """Square sources: of others, transformers swaps the sides."""
    settings = {"hidden_size": 24, "image_size": 20, "patch_size": 4, "num_attention_heads": 3}
    if family == "beit":
        config = transformers.BeitConfig(**settings, use_relative_position_bias=True)
        module = transformers.models.beit.modeling_beit.BeitRelativePositionBias(config)
    else:
        config = transformers.Data2VecVisionConfig(**settings, use_relative_position_bias=True)
        module = transformers.models.data2vec.modeling_data2vec_vision.Data2VecVisionRelativePositionBias(
            config, (5, 5)
        )
    before = bias(Size(5, 5))
    with torch.no_grad():
        module.relative_position_bias_table.copy_(before)
        expected = module(tuple(new))[0]
        again = module(tuple(new), interpolate_pos_encoding=True, dim_size=1 + new.area)[0]
    assert torch.equal(again, expected)  # its second interpolation is to the size that is there already
    result = resample_relative(before, old=Size(5, 5), new=new, method="huggingface")
    assert torch.equal(result[:-3].T[:, offset_index(new, new)], expected[:, 1:, 1:])
    assert torch.equal(result[-3:].T, torch.stack([expected[:, 0, 1], expected[:, 1, 0], expected[:, 0, 0]], dim=1))


def test_a_smaller_window_keeps_the_offsets_that_it_has():
    old, new = Size(5, 7), Size(3, 4)
    before = bias(old, 0)
    full, cut = before[offset_index(old, old)], cut_relative(before, old=old, new=new)[offset_index(new, new)]
    inside = (torch.arange(3)[:, None] * 7 + torch.arange(4)).flatten()
    assert torch.equal(cut, full[inside][:, inside])


# ── mistakes ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_table_that_is_not_on_the_grid_is_refused():
    with pytest.raises(VitrailError, match=r"\(35, 24\) is not on a grid of 6x6, which has 36 rows"):
        resample_table(table(), old=Size(6, 6), new=Size(3, 3))
    with pytest.raises(VitrailError, match="is not on a grid of 6x6, which has 121 offsets"):
        resample_relative(bias(OLD), old=Size(6, 6), new=Size(3, 3))


def test_an_unknown_method_is_refused_and_short_names_are_known():
    with pytest.raises(VitrailError, match="method 'cubic' is unknown; use one of timm, huggingface"):
        method_of("cubic")
    assert (method_of("hf"), method_of("flexi")) == ("huggingface", "siglip2")
