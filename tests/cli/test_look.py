from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from command import call
from vitrail.cli.look import What
from vitrail.images.synthesize import synthesize_image

TINY = ("--model", "cifar")


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "photo.png"
    Image.fromarray(synthesize_image(3, 96)).save(path)
    return path


@pytest.mark.parametrize("what", What.__args__)
def test_every_kind_of_picture_is_written(what: str, photo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / f"{what}.png"
    assert call("look", str(photo), *TINY, "--what", what, "--out", str(out)) == 0
    with Image.open(out) as picture:
        assert min(picture.size) > 300
    said = capsys.readouterr().out
    assert said == f"{out}: {what} · cifar with random weights (seed 0) · image 32×32\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([out.name, "photo.png"])


def test_without_a_photo_one_is_drawn(tmp_path: Path):
    for seed in ("0", "1"):
        out = tmp_path / f"{seed}.svg"
        assert call("look", *TINY, "--layer", "2", "--head", "1", "--seed", seed, "--out", str(out)) == 0
    assert (tmp_path / "0.svg").read_bytes() != (tmp_path / "1.svg").read_bytes()


def test_without_weights_or_a_model_it_is_the_bundled_model(photo: Path, tmp_path: Path, capsys):
    out = tmp_path / "bundled.svg"
    assert call("look", str(photo), "--layer", "-1", "--out", str(out)) == 0
    assert capsys.readouterr().out == f"{out}: attention · the bundled model · image 32×32\n"


def test_another_image_size_and_query(photo: Path, tmp_path: Path):
    out = tmp_path / "wide.svg"
    arguments = ("--image", "24x40", "--layer", "-1", "--head", "3", "--query", "5x9", "--smooth")
    assert call("look", str(photo), *TINY, *arguments, "--out", str(out)) == 0
    assert out.read_text().startswith("<?xml")


def test_weights_are_read_and_not_called_random(photo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    import torch

    from vitrail.checkpoint.header import CONFIG_KEY
    from vitrail.nn.build import build
    from vitrail.presets import preset

    torch.manual_seed(5)
    config = preset("cifar")
    state = build(config).state_dict()
    from safetensors.torch import save_file

    save_file(state, tmp_path / "trained.safetensors", metadata={CONFIG_KEY: config.to_json()})
    out = tmp_path / "positions.png"
    arguments = ("--weights", str(tmp_path / "trained.safetensors"), "--what", "positions", "--out", str(out))
    assert call("look", str(photo), *arguments) == 0
    assert "trained.safetensors · image 32×32" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["nowhere.jpg"], "nowhere.jpg: cannot be read"),
        (["--layer", "6"], "layer 6 is out of range for 6 layers; use 0 to 5"),
        (["--layer", "2", "--head", "9"], "head 9 is out of range for layer 2's 4; use 0 to 3"),
        (["--query", "8x0"], "patch (8, 0) is outside the grid 8x8"),
        (["--query", "here"], "query 'here' is not ROWxCOLUMN"),
        (["--image", "33x32"], "image 33x32 is not divisible by patch 4x4"),
        (["--image", "9000x9000"], "above 4,194,304 pixels"),
        (["--weights", "w.safetensors"], "both given"),
        (["--what", "nothing"], "Invalid value"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: list[str], line: str, photo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    given = [str(photo), *arguments] if arguments[0].startswith("--") else arguments
    assert call("look", *given, *TINY, "--out", str(tmp_path / "out.png")) == 2
    error = capsys.readouterr().err
    assert line in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == [photo]


def test_the_name_of_the_picture_is_checked_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert call("look", "--out", str(tmp_path / "out.gif")) == 2
    assert "does not end in .png, .svg, .pdf" in capsys.readouterr().err


def test_a_picture_that_cannot_be_written_leaves_the_old_one(photo: Path, tmp_path: Path):
    out = tmp_path / "kept.png"
    out.write_bytes(b"old")
    assert call("look", str(photo), *TINY, "--image", "33x32", "--out", str(out)) == 2
    assert out.read_bytes() == b"old"
