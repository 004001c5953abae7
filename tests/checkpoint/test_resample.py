import math
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import scipy.ndimage
import torch
import torch.nn.functional as F

from peers import timm, transformers
from vitrail.checkpoint.resample import (
    METHODS,
    Method,
    axis_matrix,
    cut_relative,
    method_of,
    resample_relative,
    resample_table,
)
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.nn.relative import offset_index

TABLES: list[Method] = [method for method in METHODS if method != "geometric"]
GRIDS = [Size(8, 11), Size(3, 4), Size(5, 9), Size(11, 7)]
OLD = Size(5, 7)


def table(grid: Size = OLD, width: int = 24, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(grid.area, width, generator=torch.Generator().manual_seed(grid.height), dtype=dtype)


@pytest.mark.parametrize("method", TABLES)
def test_resampling_to_the_same_grid_is_the_same_object(method):
    rows = table()
    assert resample_table(rows, old=OLD, new=OLD, method=method) is rows


@pytest.mark.parametrize("method", TABLES)
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


@pytest.mark.parametrize("method", TABLES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_a_table_keeps_its_type_and_is_computed_in_float32_at_least(method, dtype):
    new = Size(8, 11)
    result = resample_table(table(dtype=torch.float64).to(dtype), old=OLD, new=new, method=method)
    assert result.dtype == dtype
    precise = resample_table(table(dtype=torch.float64).to(dtype).double(), old=OLD, new=new, method=method)
    # one rounding to the type, after float32's own error
    assert torch.allclose(result.double(), precise, rtol=torch.finfo(dtype).eps, atol=1e-5)


@pytest.mark.parametrize("method", TABLES)
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
def test_flexi_is_jaxs_linear_resize(new):
    """jax.image.resize "linear": a triangle as wide as the coarser spacing, weights normalised at the edges."""

    def matrix(old: int, after: int) -> torch.Tensor:
        place = (torch.arange(after, dtype=torch.float64) + 0.5) * old / after - 0.5
        distance = (place[:, None] - torch.arange(old, dtype=torch.float64)).abs()
        weights = (1 - distance / max(1, old / after)).clamp(min=0)
        return weights / weights.sum(dim=1, keepdim=True)

    rows = table(dtype=torch.float64)
    expected = torch.einsum("ai,bj,ijd->abd", matrix(5, new.height), matrix(7, new.width), rows.view(*OLD, -1))
    assert torch.allclose(resample_table(rows, old=OLD, new=new, method="flexi"), expected.flatten(0, 1), atol=1e-12)


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
    if method in ("torchvision", "big_vision", "geometric", "bilinear") and new.height > 5 and new.width > 7:
        assert torch.allclose(image[new.height - 1, new.width - 1], offsets[4, 6], atol=1e-5)


@pytest.mark.filterwarnings("ignore::UserWarning")  # timm's own
@pytest.mark.parametrize(("old", "new"), [(5, 8), (7, 9)])
def test_geometric_is_timms_for_beit(old, new):
    """timm: square grids only. Its knots are float32, hence the tolerance."""
    before = bias(Size(old, old))
    expected = timm.layers.resize_rel_pos_bias_table(before, (new, new), ((2 * new - 1) ** 2 + 3, 3))
    result = resample_relative(before, old=Size(old, old), new=Size(new, new), method="geometric")
    assert torch.allclose(result, expected, atol=2e-5)


@pytest.mark.parametrize("new", [Size(8, 8), Size(3, 4)], ids=str)
def test_bilinear_is_transformers_for_beit_on_square_grids(new):
    config = transformers.BeitConfig(
        hidden_size=24, image_size=20, patch_size=4, num_attention_heads=3, use_relative_position_bias=True
    )
    module = transformers.models.beit.modeling_beit.BeitRelativePositionBias(config)
    before = bias(Size(5, 5))
    with torch.no_grad():
        module.relative_position_bias_table.copy_(before)
        expected = module(tuple(new))[0]
    result = resample_relative(before, old=Size(5, 5), new=new, method="bilinear")
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


def test_an_unknown_method_and_geometric_for_places_are_refused():
    with pytest.raises(VitrailError, match="method 'cubic' is unknown; use one of timm, huggingface"):
        method_of("cubic")
    with pytest.raises(VitrailError, match="for relative biases"):
        resample_table(table(), old=OLD, new=Size(3, 3), method="geometric")
    assert method_of("hf") == "huggingface"
