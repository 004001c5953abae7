import io

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.fft import dctn

from vitrail.checkpoint.assess.kind_transfer import learned_table, survival, survival_of
from vitrail.checkpoint.assess.simulate import known_spectrum, known_table, simulate
from vitrail.checkpoint.assess.transfer_picture import band_chart, component_maps
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.checkpoint.surgery.resample import METHODS, resample_table
from vitrail.config import ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.nn.build import build
from vitrail.parts import Learned, Mlp, NoPosition, Patches, Position, RelativeBias, Rotary, RotaryMixed, SinCos2d

OLD = Size(5, 7)


def test_the_known_table_has_the_known_spectrum():
    """Measured by scipy's DCT over many channels; the mean is left out."""
    table = known_table(OLD, 20_000).view(5, 7, -1).numpy()
    power = torch.from_numpy(np.asarray(dctn(table, axes=(0, 1), norm="ortho"))).square().mean(dim=2)
    expected = known_spectrum(OLD)
    assert torch.allclose(power / power.sum(), expected / expected.sum(), rtol=0.06, atol=1e-12)
    assert power[0, 0] < 1e-20


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("new", [Size(8, 11), Size(3, 4), Size(9, 5)], ids=str)
def test_the_closed_form_is_what_a_long_table_measures(method, new):
    """2,000 random channels leave a few per cent of error in a band."""
    known = simulate(OLD, new, method)
    measured = simulate(OLD, new, method, table=known_table(OLD, 2000))
    assert known.error == pytest.approx(measured.error, rel=0.05, abs=1e-12)
    assert known.round_trip == pytest.approx(measured.round_trip, rel=0.05, abs=1e-12)
    for ours, theirs in zip(known.bands, measured.bands, strict=True):
        assert (ours.energy, ours.error) == pytest.approx((theirs.energy, theirs.error), rel=0.1, abs=1e-9)


def test_measured_error_is_the_distance_to_the_exact_table():
    table, new = known_table(OLD, 16), Size(8, 11)
    found = simulate(OLD, new, "torchvision", table=table, bands=3)
    given = resample_table(table, old=OLD, new=new, method="torchvision")
    exact = resample_table(table, old=OLD, new=new, method="exact")
    assert found.error == pytest.approx(((given - exact).norm() / exact.norm()).item())
    back = resample_table(given, old=new, new=OLD, method="torchvision")
    assert found.round_trip == pytest.approx(((back - table).norm() / table.norm()).item())
    assert sum(band.energy for band in found.bands) == pytest.approx(1)
    assert (found.bands[0].low, found.bands[-1].high, len(found.bands)) == (0, 1, 3)


def test_exact_has_no_error_and_only_what_the_grid_cannot_carry_is_lost():
    up = simulate(OLD, Size(8, 11), "exact")
    assert max(up.error, up.round_trip) < 1e-12
    down = simulate(OLD, Size(5, 4), "exact")
    rows, columns = torch.meshgrid(torch.arange(5), torch.arange(7), indexing="ij")
    power = known_spectrum(OLD)
    assert down.error < 1e-12
    assert down.round_trip == pytest.approx((power[columns >= 4].sum() / power.sum()).sqrt().item())
    assert rows.shape == power.shape


def test_errors_grow_with_frequency_upward():
    for method in set(METHODS) - {"exact"}:
        errors = [band.error for band in simulate(Size(14, 14), Size(24, 40), method).bands]
        assert errors == sorted(errors)


def test_simulation_refuses_what_has_no_frequencies():
    with pytest.raises(VitrailError, match="a grid of 1x1 has no frequencies"):
        simulate(Size(1, 1), Size(2, 2), "timm")
    with pytest.raises(VitrailError, match="bands 0 is not positive"):
        simulate(OLD, OLD, "timm", bands=0)


# ── which kind survives ─────────────────────────────────────────────────────────────────────────────────────────


def test_every_kind_survives_its_own_grid():
    for kind in survival(OLD, OLD):
        assert (kind.place, kind.step, kind.unseen) == pytest.approx((1, 1, 0), abs=1e-5)


@pytest.mark.parametrize("new", [Size(24, 40), Size(28, 28), Size(9, 8)], ids=str)
def test_scaled_kinds_keep_places_and_counted_kinds_keep_steps(new):
    found = {kind.kind: kind for kind in survival(Size(14, 14), new)}
    scaled = [found[name] for name in ("Learned", "RelativeBias (huggingface)", "Rotary (normalised)")]
    counted = [found[name] for name in ("Rotary (index)", "RotaryMixed", "SinCos2d")]
    plain = [kind for kind in scaled if not kind.kind.startswith("RelativeBias")]
    assert min(kind.place for kind in plain) > max(kind.place for kind in counted)
    assert min(kind.step for kind in counted) > 0.9999 > max(kind.step for kind in scaled)
    assert all(kind.unseen == 0 for kind in scaled)
    stretched, geometric = (found[f"RelativeBias ({name})"] for name in ("huggingface", "timm"))
    assert stretched.place > geometric.place  # near offsets stay as many patches as before
    assert stretched.step < geometric.step


def test_unseen_pairs_are_those_farther_apart_than_the_old_grid():
    (index,) = (kind for kind in survival(Size(3, 5), Size(4, 5)) if kind.kind == "Rotary (index)")
    assert index.unseen == pytest.approx(2 / 16)  # rows 0 and 3, both ways


def made(position: Position) -> Checkpoint:
    config = ViTConfig(
        image=Size(20, 28),
        embedding=Patches(patch=Size(4, 4)),
        width=24,
        depth=2,
        num_heads=3,
        mlp=Mlp(width=40),
        position=position,
    )
    return Checkpoint(
        config=config, tensors=build(config).state_dict(), preprocessing=Preprocessing(image=config.image)
    )


@pytest.mark.parametrize(
    "position", [Learned(), RelativeBias(), RelativeBias(shared=True), Rotary(), RotaryMixed(), SinCos2d()], ids=repr
)
def test_trained_weights_are_measured_as_they_are(position):
    checkpoint = made(position)
    same, other = survival_of(checkpoint, OLD), survival_of(checkpoint, Size(8, 11))
    assert (same.place, same.step) == pytest.approx((1, 1), abs=1e-5)
    assert other.kind.startswith(type(position).__name__)
    assert other.place < 1
    assert (learned_table(checkpoint) is None) == (not isinstance(position, Learned))


def test_weights_without_positions_are_refused():
    with pytest.raises(VitrailError, match="NoPosition has no positions to carry"):
        survival_of(made(NoPosition()), Size(8, 11))


# ── pictures ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_pictures_open_and_name_every_method():
    found = [simulate(OLD, Size(8, 11), method) for method in METHODS]
    chart = band_chart(found)
    assert chart.startswith("<svg")
    assert all(f">{method}</text>" in chart for method in METHODS)
    with Image.open(io.BytesIO(component_maps(found, known_table(OLD, 3)))) as picture:
        assert picture.format == "PNG"
        assert picture.height > len(found) * 180


@pytest.mark.parametrize("grids", [(Size(8, 8), Size(1, 8)), (Size(8, 1), Size(8, 8))])
def test_a_grid_without_neighbours_is_refused_in_one_line(grids: tuple[Size, Size]):
    with pytest.raises(VitrailError, match="has no neighbour to step to"):
        survival(*grids)
