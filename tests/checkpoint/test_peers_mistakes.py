"""Resolution transfer: what goes wrong elsewhere, case by case, beside what vitrail does."""

from pathlib import Path
from typing import Any

import pytest
import torch

from peers import timm, transformers, vit_pytorch
from vitrail.checkpoint.assess.projection_loss import predicted_loss
from vitrail.checkpoint.assess.simulate import known_table
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.read import load
from vitrail.checkpoint.surgery.adapt import adapt
from vitrail.checkpoint.surgery.resample import resample_relative, resample_table
from vitrail.checkpoint.write import save
from vitrail.geometry import Size
from vitrail.nn.relative import offset_index
from vitrail.parts import MeanPool, Prefix

SHAPE: dict[str, Any] = {"embed_dim": 24, "depth": 2, "num_heads": 3, "patch_size": 4, "num_classes": 6}


def timm_vit(image: tuple[int, int], **changes: Any) -> Any:
    model = timm.models.VisionTransformer(img_size=image, **{**SHAPE, **changes}).eval()
    generator = torch.Generator().manual_seed(7)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3
    return model


def read_timm(model: Any, image: str, folder: Path) -> Checkpoint:
    path = folder / "timm.pth"
    torch.save(model.state_dict(), path)
    return load(path, from_image=image, num_heads=3)


def pixels(*size: int) -> torch.Tensor:
    return torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(8))


def relative(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(((a - b).norm() / b.norm()).detach())


# ── timm ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_timm_leaves_a_2x8_table_as_it_is_on_4x4_and_vitrail_resamples_it(tmp_path):
    model = timm_vit((8, 32))  # a grid of 2×8
    checkpoint = read_timm(model, "8x32", tmp_path)
    before = model.pos_embed.detach().clone()
    model.set_input_size((16, 16))  # 4×4, the same count
    assert torch.equal(model.pos_embed, before)

    adapted, changes = adapt(checkpoint, {"image": "16x16"})
    expected = timm.layers.resample_abs_pos_embed(before, [4, 4], [2, 8])[0]
    assert torch.equal(adapted.tensors["position.table"], expected)
    assert changes.resampled == ("position.table",)
    assert relative(before[0, 1:], expected[1:]) > 0.3


def test_timms_filter_reads_2x8_as_4x4_and_vitrail_knows_its_grid(tmp_path):
    model = timm_vit((8, 32))
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    larger = timm_vit((16, 24))  # 4×6
    filtered = timm.models.vision_transformer.checkpoint_filter_fn(state, larger)["pos_embed"]
    as_a_square = timm.layers.resample_abs_pos_embed(state["pos_embed"], [4, 6], [4, 4])
    assert torch.equal(filtered, as_a_square)

    adapted, _ = adapt(read_timm(model, "8x32", tmp_path), {"image": "16x24"})
    expected = timm.layers.resample_abs_pos_embed(state["pos_embed"], [4, 6], [2, 8])[0]
    assert torch.equal(adapted.tensors["position.table"], expected)
    assert relative(filtered[0], expected) > 0.3


def test_timm_refuses_registers_and_vitrail_adds_them(tmp_path):
    model, with_registers = timm_vit((20, 28)), timm_vit((20, 28), reg_tokens=4)
    with pytest.raises(RuntimeError, match="shape"):  # it takes prefix rows from the grid's, and finds no square
        timm.models.vision_transformer.checkpoint_filter_fn(dict(model.state_dict()), with_registers)
    with pytest.raises(RuntimeError, match="reg_token"):
        with_registers.load_state_dict(model.state_dict())

    adapted, _ = adapt(read_timm(model, "20x28", tmp_path), {"prefix": Prefix(registers=4)})
    save(adapted, tmp_path / "out.pth")
    with_registers.load_state_dict(torch.load(tmp_path / "out.pth"))
    image = pixels(20, 28)
    assert relative(with_registers(image), adapted.model()(image)) < 1e-5


def test_timm_refuses_cls_in_a_model_of_the_mean_and_vitrail_drops_it(tmp_path):
    model = timm_vit((20, 28))
    mean = timm_vit((20, 28), class_token=False, global_pool="avg", fc_norm=False)
    with pytest.raises(RuntimeError, match="cls_token"):
        mean.load_state_dict(model.state_dict())

    changes = {"prefix": Prefix(cls=False), "pool": MeanPool(), "image": "32x20"}
    adapted, _ = adapt(read_timm(model, "20x28", tmp_path), changes)
    save(adapted, tmp_path / "out.pth")
    mean = timm_vit((32, 20), class_token=False, global_pool="avg", fc_norm=False)
    mean.load_state_dict(torch.load(tmp_path / "out.pth"))
    image = pixels(32, 20)
    assert relative(mean(image), adapted.model()(image)) < 1e-5


@pytest.mark.parametrize("size", [(32, 20), (12, 40)], ids=str)
def test_an_adapted_file_loads_into_timm_at_the_new_size_with_our_outputs(tmp_path, size):
    adapted, _ = adapt(read_timm(timm_vit((20, 28)), "20x28", tmp_path), {"image": Size(*size)})
    save(adapted, tmp_path / "out.pth")
    peer = timm_vit(size)
    peer.load_state_dict(torch.load(tmp_path / "out.pth"))
    assert relative(peer(pixels(*size)), adapted.model()(pixels(*size))) < 1e-5


def test_a_resized_patch_loads_into_timm_and_is_timms_own(tmp_path):
    model = timm_vit((32, 48), patch_size=8)
    adapted, _ = adapt(read_timm(model, "32x48", tmp_path), {"patch": 4})
    save(adapted, tmp_path / "out.pth")
    peer = timm_vit((32, 48))
    peer.load_state_dict(torch.load(tmp_path / "out.pth"))
    assert relative(peer(pixels(32, 48)), adapted.model()(pixels(32, 48))) < 1e-5
    model.set_input_size((32, 48), (4, 4))
    assert relative(model(pixels(32, 48)), adapted.model()(pixels(32, 48))) < 1e-4  # its pseudo-inverse is float32's


# ── transformers ────────────────────────────────────────────────────────────────────────────────────────────────


def hugging_face(image: tuple[int, int] | int, kind: str = "ViT", **extra: Any) -> Any:
    config = getattr(transformers, f"{kind}Config")(
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=48,
        image_size=image,
        patch_size=4,
        **extra,
    )
    model = getattr(transformers, f"{kind}Model")(config).eval()
    generator = torch.Generator().manual_seed(9)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3
    return model


def test_transformers_interpolates_a_native_2x8_grid_into_something_else_and_vitrail_leaves_it(tmp_path):
    model = hugging_face((8, 32))
    image = pixels(8, 32)
    with torch.no_grad():
        native = model(image).last_hidden_state
        interpolated = model(image, interpolate_pos_encoding=True).last_hidden_state
    assert relative(interpolated, native) > 0.05  # the same image at its own size, another result

    model.save_pretrained(tmp_path / "vit")
    checkpoint = load(tmp_path / "vit")
    adapted, changes = adapt(checkpoint, {"image": "8x32"})
    assert adapted is checkpoint
    assert not changes.resampled
    tokens, _ = adapted.model().features(image)  # type: ignore[operator]
    assert relative(tokens, native) < 1e-5


def test_transformers_raises_on_a_native_3x8_grid_and_vitrail_carries_it(tmp_path):
    model = hugging_face((12, 32))
    with pytest.raises(RuntimeError, match="shape"), torch.no_grad():
        model(pixels(12, 32), interpolate_pos_encoding=True)

    model.save_pretrained(tmp_path / "vit")
    checkpoint = load(tmp_path / "vit")
    adapted, _ = adapt(checkpoint, {"image": "20x24"})
    table = model.embeddings.position_embeddings.detach()[0, 1:]
    expected = resample_table(table, old=Size(3, 8), new=Size(5, 6), method="huggingface")
    assert torch.equal(adapted.tensors["position.table"][1:], expected)

    save(adapted, tmp_path / "adapted")
    peer = transformers.ViTModel.from_pretrained(tmp_path / "adapted").eval()
    tokens, _ = adapted.model().features(pixels(20, 24))  # type: ignore[operator]
    with torch.no_grad():
        assert relative(peer(pixels(20, 24)).last_hidden_state, tokens) < 1e-5


def test_transformers_beit_swaps_height_and_width_and_vitrail_does_not():
    config = transformers.BeitConfig(
        hidden_size=24, image_size=(12, 28), patch_size=4, num_attention_heads=3, use_relative_position_bias=True
    )
    module = transformers.models.beit.modeling_beit.BeitRelativePositionBias(config)
    table = torch.randn(module.relative_position_bias_table.shape, generator=torch.Generator().manual_seed(1))
    module.relative_position_bias_table.data = table
    grid, new = Size(3, 7), Size(5, 4)
    native = table[:-3].T[:, offset_index(grid, grid)]
    with torch.no_grad():
        assert relative(module(tuple(grid))[0, :, 1:, 1:], native) > 0.5  # at its own size: rows read as columns
        theirs = module(tuple(new))[0, :, 1:, 1:]

    assert resample_relative(table, old=grid, new=grid) is table
    ours = resample_relative(table, old=grid, new=new, method="bilinear")[:-3]
    image = table[:-3].view(5, 13, 3).permute(2, 0, 1)[None]
    expected = torch.nn.functional.interpolate(image, size=(9, 7), mode="bilinear")[0].flatten(1)
    assert torch.equal(ours.T, expected)
    assert relative(theirs, ours.T[:, offset_index(new, new)]) > 0.5


# ── vit-pytorch, torchvision ────────────────────────────────────────────────────────────────────────────────────


def test_vit_pytorch_cuts_positions_and_vitrail_resamples_them():
    model = vit_pytorch.ViT(
        image_size=(20, 28), patch_size=4, num_classes=6, dim=24, depth=1, heads=3, mlp_dim=48, dim_head=8
    ).eval()
    table = model.pos_embedding.detach()  # (1 + 35, 24), grid 5×7
    table[1:] = known_table(Size(5, 7), 24)
    used = []
    model.dropout.register_forward_pre_hook(lambda _, inputs: used.append(inputs[0]))
    with torch.no_grad():
        image = torch.zeros(1, 3, 12, 16)  # grid 3×4
        model(image)
        embedded = model.to_patch_embedding(image)[0]
    positions = used[0][0, 1:] - embedded
    assert torch.allclose(positions, table[1:13], atol=1e-6)  # the first 12 rows, from two lines of the old grid

    ours = resample_table(table[1:], old=Size(5, 7), new=Size(3, 4))
    corner = ours.view(3, 4, -1)[2, 0]
    rows = table[1:].view(5, 7, -1)
    similarity = torch.nn.functional.cosine_similarity
    assert similarity(corner, rows[4, 0], dim=0) > 0.8  # bottom left stays bottom left
    assert similarity(positions[8], rows[4, 0], dim=0) < 0.5


def test_torchvision_takes_square_grids_only_and_vitrail_any():
    from torchvision.models.vision_transformer import interpolate_embeddings

    rows = known_table(Size(5, 7), 24).float()
    cls = torch.zeros(1, 24)
    with pytest.raises(ValueError, match="not a perfect square"):
        interpolate_embeddings(32, 4, {"encoder.pos_embedding": torch.cat([cls, rows])[None]})  # type: ignore[arg-type]
    oblong = known_table(Size(2, 8), 24).float()
    state: Any = {"encoder.pos_embedding": torch.cat([cls, oblong])[None]}
    read_as_square = interpolate_embeddings(24, 4, state)["encoder.pos_embedding"][0, 1:]
    assert torch.equal(read_as_square, resample_table(oblong, old=Size(4, 4), new=Size(6, 6), method="torchvision"))

    right = resample_table(oblong, old=Size(2, 8), new=Size(6, 6), method="torchvision")
    assert relative(read_as_square, right) > 0.3
    assert resample_table(rows, old=Size(5, 7), new=Size(8, 3), method="torchvision").shape == (24, 24)


# ── conventions and the projection ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("side", "expected"),
    [
        (24, {"huggingface": 0.044, "dinov2": 0.059, "torchvision": 0.144, "big_vision": 0.157, "siglip2": 0.097}),
        (7, {"huggingface": 0.280, "dinov2": 0.309, "torchvision": 0.512, "big_vision": 0.433, "siglip2": 0.120}),
    ],
)
def test_conventions_differ_by_per_cents_from_timms(side, expected):
    """On a 14×14 table of width 384 whose power falls as 1/f²; smoother tables differ less, rougher ones more."""
    table, old, new = known_table(Size(14, 14), 384), Size(14, 14), Size(side, side)
    base = resample_table(table, old=old, new=new, method="timm")
    for method, value in expected.items():
        assert relative(resample_table(table, old=old, new=new, method=method), base) == pytest.approx(value, abs=0.001)


def test_the_pseudo_inverse_is_exact_upward_and_loses_downward_and_on_the_way_back():
    """Random filters: for tokens on photographs, then for the filters themselves (white noise)."""
    weight = torch.randn(256, 3, 16, 16, generator=torch.Generator().manual_seed(2))
    found = {side: predicted_loss(weight, Size(side, side)) for side in (32, 20, 14, 8)}
    assert max(found[32].natural, found[32].white, found[20].white) < 1e-6
    assert [found[side].natural for side in (14, 8)] == pytest.approx([0.031, 0.128], abs=0.005)
    assert [found[side].white for side in (14, 8)] == pytest.approx([0.483, 0.866], abs=0.005)
    assert all(each.round_trip_white > 0.9 for each in found.values())


# ── there and into the peer ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["Dinov2", "Dinov2WithRegisters", "DINOv3ViT", "Beit", "SiglipVision", "CLIPVision"])
def test_an_adapted_directory_loads_into_transformers_at_the_new_size_with_our_outputs(tmp_path, kind):
    """Square: at other shapes some of these interpolate their native table into something else, as above."""
    extra = {"Beit": {"use_relative_position_bias": True}, "DINOv3ViT": {"num_register_tokens": 2}}
    model = hugging_face(20, kind, **extra.get(kind, {}))
    model.save_pretrained(tmp_path / "before")
    adapted, changes = adapt(load(tmp_path / "before"), {"image": "32x32"})
    assert changes.resampled if kind != "DINOv3ViT" else not changes.resampled
    save(adapted, tmp_path / "after")
    peer = type(model).from_pretrained(tmp_path / "after").eval()
    ours, image = adapted.model(), pixels(32, 32)
    with torch.no_grad():
        theirs = peer(image)
        if kind == "CLIPVision":  # it normalises the pooled token only
            assert relative(theirs.pooler_output, ours.vector(image)) < 1e-5  # type: ignore[operator]
        else:
            assert relative(theirs.last_hidden_state, ours.features(image)[0]) < 1e-5  # type: ignore[operator]
