import json
from html import escape
from pathlib import Path

import pytest
import torch
from PIL import Image

from command import call
from peers import timm
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.checkpoint.read import load
from vitrail.checkpoint.write import encode
from vitrail.config import ViTConfig
from vitrail.geometry import Size
from vitrail.images.synthesize import synthesize_image
from vitrail.nn.build import build
from vitrail.parts import Learned, MeanPool, Mlp, Patches, Prefix

KNOWN = ("--from-image", "20x28", "--num-heads", "3")


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """timm's own, on a 5×7 grid that nothing in the file says."""
    model = timm.models.VisionTransformer(
        img_size=(20, 28), patch_size=4, embed_dim=24, depth=2, num_heads=3, num_classes=6
    )
    path = tmp_path_factory.mktemp("weights") / "vit.pth"
    torch.save(model.state_dict(), path)
    return str(path)


def test_adapt_writes_what_timm_reads_and_says_what_it_did(weights, tmp_path, capsys):
    out = tmp_path / "out.pth"
    assert call("adapt", weights, str(out), "--image", "32x20", *KNOWN) == 0
    shown = capsys.readouterr().out
    assert "grid 5x7 → image 32x20, grid 8x5" in shown
    assert "5x7 → 8x5 by timm" in shown
    model = timm.models.VisionTransformer(
        img_size=(32, 20), patch_size=4, embed_dim=24, depth=2, num_heads=3, num_classes=6
    ).eval()
    model.load_state_dict(torch.load(out))
    image = torch.randn(2, 3, 32, 20)
    with torch.no_grad():
        assert torch.allclose(model(image), load(out, from_image="32x20", num_heads=3).model()(image), atol=1e-5)


def test_every_option_at_once(weights, tmp_path, capsys):
    for seed in range(2):
        (tmp_path / "images").mkdir(exist_ok=True)
        Image.fromarray(synthesize_image(seed, Size(30, 40))).save(tmp_path / "images" / f"{seed}.png")
    out, page = tmp_path / "out.safetensors", tmp_path / "report.html"
    arguments = [
        *("--image", "24x16", "--patch", "2x4", "--prefix", "registers=2", "--pool", "mean", "--channels", "1"),
        *("--classes", "9", "--to", "vitrail", "--method", "hf", "--projection", "natural", "--seed", "3"),
        *("--images", str(tmp_path / "images"), "--report", str(page), "--json"),
    ]
    assert call("adapt", weights, str(out), *arguments, *KNOWN) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["dialect"] == "vitrail"
    assert found["counts"]["unused"] == 1
    assert found["tables"][0]["method"] == "huggingface"
    assert found["projection"]["how"] == "natural"
    assert len(found["drift"]["images"]) == 2
    assert page.read_text().startswith("<!doctype html>")
    config = load(out).config
    assert isinstance(config, ViTConfig)
    assert (config.image, config.channels, config.classes) == (Size(24, 16), 1, 9)
    assert (config.patch, config.prefix, config.pool) == (Size(2, 4), Prefix(cls=False, registers=2), MeanPool())


@pytest.fixture(scope="module")
def dinov2(tmp_path_factory) -> Path:
    """DINOv2's own names, two registers and a mask token that training would use."""
    config = ViTConfig(
        image=Size(28, 56),
        embedding=Patches(patch=Size(14, 14)),
        prefix=Prefix(registers=2),
        position=Learned(prefix="cls"),
        width=24,
        depth=1,
        num_heads=3,
        mlp=Mlp(width=96),
        layer_scale=1.0,
        classes=0,
    )
    checkpoint = Checkpoint(
        config=config, tensors=build(config).state_dict(), preprocessing=Preprocessing(image=config.image)
    )
    path = tmp_path_factory.mktemp("weights") / "dinov2.pth"
    tensors = {**encode(checkpoint, "dinov2").tensors, "dino_head.last_layer.weight": torch.randn(3, 24)}
    torch.save(tensors, path)
    return path


@pytest.mark.parametrize(
    ("arguments", "warning"),
    [
        (("--prefix", "cls"), "2 registers are dropped, and every other token attended to them"),
        (("--prefix", "cls,registers=3"), "1 register is new and untrained, and every token attends to it"),
        (("--prefix", "cls,distillation"), "the distillation token is new and untrained"),
        (("--prefix", "registers=2", "--pool", "max"), "the CLS token is dropped"),
        (("--pool", "mean"), "the vector is pooled by MeanPool, and what reads it was trained on ClsPool"),
        (("--pool", "attention"), "the pool itself is new and untrained"),
        (("--channels", "4"), "channels 3 → 4: filters, mean and std are repeated in turn"),
        (("--classes", "5"), "the head is new and zero: logits say nothing until it is trained"),
        (("--image", "28x28"), "positions (Learned) go from grid 2x4 to 2x2: resampled by timm"),
        (("--patch", "7"), "the patch projection 14x14 → 7x7 (pinv) loses detail"),
    ],
)
def test_a_change_that_needs_training_is_a_warning_everywhere(dinov2, tmp_path, capsys, arguments, warning):
    page, known = tmp_path / "report.html", ("--from-image", "28x56", "--num-heads", "3", "--to", "vitrail")
    assert call("adapt", str(dinov2), str(tmp_path / "a.safetensors"), *arguments, *known, "--report", str(page)) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"! {warning}" in shown or (f", and {warning}" in shown and "! " in shown)
    caution = page.read_text().partition("Before you rely on it")[2].partition("</section>")[0]
    assert escape(warning) in caution
    assert call("adapt", str(dinov2), str(tmp_path / "b.safetensors"), *arguments, *known, "--json") == 0
    assert any(warning in note for note in json.loads(capsys.readouterr().out)["notes"])


def test_only_what_is_written_is_said_to_be_carried(dinov2, tmp_path, capsys):
    known = ("--from-image", "28x56", "--num-heads", "3", "--image", "42x28")
    assert call("adapt", str(dinov2), str(tmp_path / "own.pth"), *known) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "! not used by the model, and written as they were: dino_head.last_layer.weight" in shown
    assert "dino_head.last_layer.weight" in torch.load(tmp_path / "own.pth")
    assert call("adapt", str(dinov2), str(tmp_path / "timm.safetensors"), *known, "--to", "timm") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "written as they were" not in shown
    assert "dino_head.last_layer.weight" in shown.partition("! without ")[2].partition(", which timm has no place")[0]


def test_drift_is_measured_with_a_distillation_token_on_one_side(dinov2, tmp_path, capsys):
    Image.fromarray(synthesize_image(0, Size(30, 40))).save(tmp_path / "0.png")
    arguments = ("--prefix", "cls,distillation,registers=2", "--to", "vitrail", "--images", str(tmp_path), "--json")
    known = ("--from-image", "28x56", "--num-heads", "3")
    assert call("adapt", str(dinov2), str(tmp_path / "out.safetensors"), *arguments, *known) == 0
    assert -1 <= json.loads(capsys.readouterr().out)["drift"]["mean"] < 1


def test_a_dialect_with_a_directory(weights, tmp_path, capsys):
    assert call("adapt", weights, str(tmp_path / "vit"), "--image", "32x20", "--to", "huggingface", *KNOWN) == 0
    assert load(tmp_path / "vit").config.grid == Size(8, 5)
    assert "huggingface" in capsys.readouterr().out


def test_nothing_to_do_is_the_same_file_again(weights, tmp_path, capsys):
    assert call("adapt", weights, str(tmp_path / "same.pth"), *KNOWN) == 0
    before, after = torch.load(weights), torch.load(tmp_path / "same.pth")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--num-heads", "3"), "--from-image"),
        (("--image", "30x28", *KNOWN), "not divisible by patch 4x4"),
        (("--prefix", "none", *KNOWN), "choose another pool as well, such as mean"),
        (("--prefix", "cls,tokens=3", *KNOWN), "not understood at 'tokens=3'"),
        (("--pool", "sum", *KNOWN), 'Invalid value "sum" for --pool. Choose from: "cls", "mean"'),
        (("--method", "cubic", *KNOWN), "method 'cubic' is unknown"),
        (("--patch", "2", "--projection", "magic", *KNOWN), 'Invalid value "magic" for --projection. Choose'),
        (("--to", "keras", *KNOWN), "dialect 'keras' is unknown"),
        (("--channels", "0", *KNOWN), "channels 0"),
        (("--images", "/nowhere", *KNOWN), "/nowhere is not a folder"),
    ],
)
def test_bad_input_is_one_line_exit_2_and_no_file(weights, tmp_path, capsys, arguments, reason):
    out = tmp_path / "out.pth"
    assert call("adapt", weights, str(out), *arguments) == 2
    shown = capsys.readouterr()
    assert reason in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""
    assert not out.exists()
