"""The weights that come with vitrail, and the names of a model's outputs."""

import json
from pathlib import Path

import pytest
import torch
from skimage import data as photographs

from vitrail import Patches, Size, ViTConfig, adapt, build, load, save
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.checkpoint.sources.names import bundled_path
from vitrail.errors import VitrailError
from vitrail.look.subject import subject_of

THINGS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SMALL = ViTConfig(image=Size(10, 14), embedding=Patches(patch=Size(2, 2)), width=12, depth=1, num_heads=3, classes=3)


def _small(**changes: object) -> Checkpoint:
    torch.manual_seed(3)
    return Checkpoint(
        config=SMALL,
        tensors=build(SMALL).state_dict(),
        preprocessing=Preprocessing(image=SMALL.image),
        labels=("ox", "yak", "zebu"),
    ).but(**changes)


def test_the_default_model_is_small_whole_and_knows_what_its_outputs_are_called():
    checkpoint = load("default")
    assert checkpoint.labels == THINGS
    assert sum(tensor.numel() for tensor in checkpoint.tensors.values()) <= 1_000_000
    assert bundled_path().stat().st_size <= 6_000_000
    assert all(tensor.isfinite().all() for tensor in checkpoint.tensors.values())


@torch.inference_mode()
def test_the_default_model_knows_a_cat_when_it_sees_one():
    checkpoint = load("default")
    near = photographs.chelsea()[30:290, 60:450]  # as the studio shows it
    cat = subject_of(checkpoint.model(), near, checkpoint.preprocessing, words="")
    assert THINGS[int(cat.model(cat.image).argmax())] == "cat"


def test_its_card_names_the_files_own_figures():
    card = bundled_path().with_name("README.md").read_text(encoding="utf-8")
    parameters = sum(tensor.numel() for tensor in load("default").tensors.values())
    assert f"{parameters:,} parameters" in card
    for word in ("vitrail data fetch cifar10", "vitrail train", "accuracy"):
        assert word in card


def test_a_file_named_default_is_not_the_embedded_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    save(_small(), "default.safetensors")
    Path("default.safetensors").rename("default")
    assert load("default").labels == THINGS
    assert load("./default").labels == ("ox", "yak", "zebu")


def test_labels_survive_writing_reading_and_another_image_size(tmp_path: Path):
    save(_small(), tmp_path / "small.safetensors")
    read = load(tmp_path / "small.safetensors")
    assert read.labels == ("ox", "yak", "zebu")
    assert adapt(read, {"image": "14x18"})[0].labels == ("ox", "yak", "zebu")


def test_a_new_head_has_no_labels_yet():
    assert adapt(_small(), {"classes": 5})[0].labels == ()


def test_transformers_names_are_read_and_its_placeholders_are_not_names(tmp_path: Path):
    for labels, expected in ((("ox", "yak", "zebu"), ("ox", "yak", "zebu")), (("LABEL_0", "LABEL_1", "LABEL_2"), ())):
        folder = tmp_path / labels[0]
        save(_small(labels=()), folder, "huggingface")
        config = json.loads((folder / "config.json").read_text())
        config["id2label"] = {str(index): label for index, label in enumerate(labels)}
        (folder / "config.json").write_text(json.dumps(config))
        assert load(folder).labels == expected


def test_labels_that_are_not_json_are_refused_in_one_line(tmp_path: Path):
    from safetensors.torch import load_file, save_file

    save(_small(), tmp_path / "a.safetensors")
    save_file(load_file(tmp_path / "a.safetensors"), tmp_path / "b.safetensors", {"vitrail_labels": "["})
    with pytest.raises(VitrailError, match=r"the label metadata of .* is not JSON"):
        load(tmp_path / "b.safetensors", from_image="10x14", num_heads=3)
