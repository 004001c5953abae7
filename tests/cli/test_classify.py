from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import skimage
import torch
from PIL import Image

from command import call
from embedding import save_weights
from vitrail import load
from vitrail.errors import VitrailError
from vitrail.images.decode import ImageError

PHOTOS = Path(skimage.__file__).parent / "data"


def test_a_prediction_is_the_softmax_of_the_models_logits():
    checkpoint = load("default")
    logits = checkpoint.model()(checkpoint.transform(PHOTOS / "chelsea.png"))[0]
    found = checkpoint.predict(PHOTOS / "chelsea.png", top=3)
    likely = logits.softmax(0).sort(descending=True)
    assert [each.label for each in found] == [checkpoint.labels[index] for index in likely.indices[:3].tolist()]
    torch.testing.assert_close(torch.tensor([each.probability for each in found]), likely.values[:3].detach())
    assert found[0].label == checkpoint.labels[int(logits.argmax())]


def test_a_file_its_bytes_a_pillow_image_and_an_array_are_the_same_picture(tmp_path: Path):
    checkpoint, file = load("default"), tmp_path / "turned.jpg"
    picture = Image.open(PHOTOS / "rocket.jpg").resize((90, 60))
    exif = Image.Exif()
    exif[0x0112] = 6  # stored on its side
    picture.save(file, exif=exif, quality=95)
    from vitrail.images.decode import decode

    with Image.open(file) as opened:
        given = checkpoint.transform(file, str(file), file.read_bytes(), opened, decode(file))
    assert all(torch.equal(each, given[0]) for each in given)


def test_a_folder_becomes_a_table_and_a_csv_and_a_broken_image_its_error(tmp_path: Path, capsys):
    folder, out = tmp_path / "photos", tmp_path / "labels.csv"
    folder.mkdir()
    for name in ("chelsea.png", "rocket.jpg"):
        (folder / name).write_bytes((PHOTOS / name).read_bytes())
    (folder / "broken.jpg").write_bytes((PHOTOS / "rocket.jpg").read_bytes()[:5000])
    assert call("classify", str(folder), "--top", "2", "--out", str(out)) == 1
    shown = capsys.readouterr().out
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert [Path(row["image"]).name for row in rows] == ["broken.jpg", "chelsea.png", "rocket.jpg"]
    assert "damaged" in rows[0]["error"]
    assert rows[0]["label_1"] == ""
    checkpoint = load("default")
    for row in rows[1:]:
        best, second = checkpoint.predict(row["image"], top=2)
        assert (row["label_1"], row["label_2"], row["error"]) == (best.label, second.label, "")
        assert float(row["probability_1"]) == pytest.approx(best.probability, abs=1e-6)
        assert best.label in shown
    assert "damaged" in shown


def test_json_names_every_image_with_its_labels(capsys):
    photo = str(PHOTOS / "chelsea.png")
    assert call("classify", photo, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found[photo]) == 5
    assert sum(each["probability"] for each in found[photo]) <= 1


def test_weights_without_a_head_or_labels_say_so(tmp_path: Path, capsys):
    headless = save_weights(tmp_path / "headless.safetensors")
    with pytest.raises(VitrailError, match="no classifier"):
        load(headless).but(config=load(headless).config.but(classes=0)).predict(PHOTOS / "chelsea.png")
    assert call("classify", str(PHOTOS / "chelsea.png"), "--out", str(tmp_path / "labels.txt")) == 2
    assert "is not a CSV file" in capsys.readouterr().err


def test_a_file_that_is_no_picture_raises_an_image_error(tmp_path: Path):
    (tmp_path / "words.png").write_text("no picture")
    with pytest.raises(ImageError):
        load("default").predict(tmp_path / "words.png")
