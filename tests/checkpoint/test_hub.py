"""Weights by name: the real client of the Hugging Face Hub against a server on loopback."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants

from command import call
from hub_server import TOKEN, Hub
from peer_models import save_timm, save_transformers
from vitrail.checkpoint.assess.describe import describe
from vitrail.checkpoint.read import load
from vitrail.checkpoint.sources.names import names_weights, weights_path
from vitrail.errors import VitrailError

SMALL = {"embed_dim": 24, "depth": 2, "num_heads": 3, "img_size": (32, 48), "num_classes": 5}
SIZES = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "image_size": 32, "patch_size": 8}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models as their own libraries save them."""
    folder = tmp_path_factory.mktemp("models")
    save_timm(folder / "timm", "vit_base_patch16_224", **SMALL)
    save_transformers(folder / "dinov2", "Dinov2Model", "Dinov2Config", mlp_ratio=2, **SIZES)
    return folder


@pytest.fixture
def no_network(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Nobody listens on the Hub's port any more."""

    def go() -> None:
        dead = "http://127.0.0.1:9"
        monkeypatch.setattr(constants, "ENDPOINT", dead)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", dead + "/{repo_id}/resolve/{revision}/{filename}")

    return go


def same(name: str, folder: Path) -> None:
    """By name as from the folder: config, weights, pixels and evidence."""
    found, expected = load(name), load(folder)
    assert (found.config, found.preprocessing, found.evidence) == (
        expected.config,
        expected.preprocessing,
        expected.evidence,
    )
    assert found.tensors.keys() == expected.tensors.keys()
    assert all(torch.equal(found.tensors[key], expected.tensors[key]) for key in expected.tensors)


def refused(name: str, *words: str) -> None:
    with pytest.raises(VitrailError) as error:
        load(name)
    line = str(error.value)
    assert "\n" not in line
    assert len(line) < 400
    for word in words:
        assert word in line, line


# ── loading ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("model", ["timm", "dinov2"])
@pytest.mark.parametrize("form", ["{}", "{}@main", "hf-hub:{}", "hf-hub:{}@{commit}"])
def test_a_name_loads_what_its_folder_holds(hub: Hub, folders: Path, model: str, form: str):
    repo = hub.add_folder("owner/small.tag", folders / model)
    same(form.format("owner/small.tag", commit=repo.commit), folders / model)


def test_only_what_is_read_is_downloaded(hub: Hub, folders: Path):
    repo = hub.add_folder("owner/small", folders / "timm")
    repo.files |= {"pytorch_model.bin": b"x", "README.md": b"x", "tf_model.h5": b"x", "onnx/model.onnx": b"x"}
    load("owner/small")
    for file in ("pytorch_model.bin", "README.md", "tf_model.h5", "model.onnx"):
        assert not hub.transferred(file)
    assert len(hub.transferred("storage/owner/small/model.safetensors")) == 1


def test_a_second_load_downloads_nothing(hub: Hub, folders: Path):
    repo = hub.add_folder("owner/small", folders / "timm")
    load("owner/small")
    hub.asked.clear()
    load("owner/small")
    assert not hub.transferred("model.safetensors")
    hub.asked.clear()
    load(f"owner/small@{repo.commit}")  # a commit never changes: all that is asked is which files it has
    assert hub.asked == [f"GET /api/models/owner/small/revision/{repo.commit}"]


def test_what_another_program_left_out_of_the_cache_is_downloaded(hub: Hub, folders: Path):
    repo = hub.add_folder("owner/small", folders / "dinov2")
    repo.files["preprocessor_config.json"] = json.dumps({"image_mean": [0.1, 0.2, 0.3]}).encode()
    folder = weights_path("owner/small")
    (folder / "preprocessor_config.json").unlink()
    assert load(f"owner/small@{repo.commit}").preprocessing.mean == (0.1, 0.2, 0.3)


def test_an_updated_model_is_downloaded_again_and_the_old_commit_stays(hub: Hub, folders: Path):
    repo = hub.add_folder("owner/small", folders / "timm")
    old = repo.commit
    assert load("owner/small").source == f"owner/small@{old}"
    new = hub.add_folder("owner/small", folders / "dinov2").commit
    assert load("owner/small").source == f"owner/small@{new}"
    same(f"owner/small@{old}", folders / "timm")


def test_shards_are_read_by_their_index(hub: Hub, folders: Path, tmp_path: Path):
    from safetensors.torch import load_file, save

    folder = folders / "dinov2"
    tensors = load_file(folder / "model.safetensors")
    parts = [dict(list(tensors.items())[::2]), dict(list(tensors.items())[1::2])]
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    index = {"weight_map": {key: name for part, name in zip(parts, names, strict=True) for key in part}}
    repo = hub.add_folder("owner/sharded", folder)
    del repo.files["model.safetensors"]
    repo.files |= {name: save(part) for part, name in zip(parts, names, strict=True)}
    repo.files["model.safetensors.index.json"] = json.dumps(index).encode()
    same("owner/sharded", folder)


def test_a_pickle_is_read_where_there_is_nothing_else_and_runs_no_code(hub: Hub, folders: Path, tmp_path: Path):
    from safetensors.torch import load_file

    repo = hub.add_folder("owner/pickled", folders / "timm")
    torch.save(load_file(folders / "timm" / "model.safetensors"), tmp_path / "w.bin")
    repo.files["pytorch_model.bin"] = (tmp_path / "w.bin").read_bytes()
    del repo.files["model.safetensors"]
    same("owner/pickled", folders / "timm")
    torch.save({"x": Path("code")}, tmp_path / "w.bin")
    repo.files["pytorch_model.bin"] = (tmp_path / "w.bin").read_bytes()
    refused("owner/pickled", "pytorch_model.bin")


def test_the_image_processor_is_read_alone_or_inside_the_processor_of_a_model_with_text(
    hub: Hub, folders: Path, tmp_path: Path
):
    said = {"size": {"shortest_edge": 40}, "crop_size": 32, "image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}
    alone = hub.add_folder("owner/alone", folders / "dinov2")
    alone.files["preprocessor_config.json"] = json.dumps(said).encode()
    inside = hub.add_folder("owner/inside", folders / "dinov2")
    inside.files["processor_config.json"] = json.dumps({"image_processor": said, "processor_class": "X"}).encode()
    assert load("owner/inside").preprocessing == load("owner/alone").preprocessing
    assert load("owner/inside").preprocessing.mean == (0.1, 0.2, 0.3)


def test_an_existing_path_wins_over_a_name(hub: Hub, folders: Path, tmp_path: Path):
    (tmp_path / "owner").mkdir()
    (tmp_path / "owner" / "small").symlink_to(folders / "timm")
    assert load("owner/small").source == ""
    refused("owner/other", "owner/other does not exist")  # in a folder that is here
    assert hub.asked == []


def test_a_renamed_repository_is_followed(hub: Hub, folders: Path):
    hub.add_folder("new-owner/new-name", folders / "timm")
    hub.renamed["owner/small"] = "new-owner/new-name"
    same("owner/small", folders / "timm")


def test_inspect_says_the_name_and_the_commit(hub: Hub, folders: Path, capsys: pytest.CaptureFixture[str]):
    repo = hub.add_folder("owner/small", folders / "timm")
    assert describe(load("owner/small")).source == f"owner/small@{repo.commit}"
    assert call("inspect", "owner/small") == 0
    assert repo.commit in capsys.readouterr().out


# ── what goes wrong on the way ──────────────────────────────────────────────────────────────────────────────────


def test_a_cut_connection_is_resumed_where_it_ended(hub: Hub, folders: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 500)
    hub.add_folder("owner/small", folders / "timm")
    hub.cut["model.safetensors"] = 1000
    same("owner/small", folders / "timm")
    assert [line.rpartition(" ")[2] for line in hub.transferred("storage/")][1:] == ["bytes=1000-"]


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_a_damaged_file_is_refused_and_not_kept(hub: Hub, folders: Path, file: str):
    hub.add_folder("owner/small", folders / "timm")
    hub.damaged.add(file)
    refused("owner/small", file, "damaged", "again")
    hub.damaged.clear()
    same("owner/small", folders / "timm")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"model_type": "vit"}, ("model.safetensors", "it is another architecture")),
        ({"image_size": 64}, ("17 rows", "64 patches")),
        ({"num_attention_heads": 5}, ("width 24 is not divisible by num_heads 5",)),
    ],
)
def test_a_file_that_is_not_what_its_config_says_is_the_readers_line(
    hub: Hub, folders: Path, wrong: dict[str, object], words: tuple[str, ...]
):
    repo = hub.add_folder("owner/small", folders / "dinov2")
    said = json.loads(repo.files["config.json"])
    repo.files["config.json"] = json.dumps({**said, **wrong}).encode()
    refused("owner/small", *words)


def test_something_else_under_the_name_of_weights_is_the_readers_line(hub: Hub, folders: Path):
    repo = hub.add_folder("owner/small", folders / "dinov2")
    repo.files["model.safetensors"] = b"<!doctype html><html>"
    refused("owner/small", "a web page")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("owner/absent", ("no model 'owner/absent'", "HF_TOKEN")),
        ("facebook/dinov2-smal", ("did you mean facebook/dinov2-small?",)),
        ("owner/private", ("that you may see", "HF_TOKEN")),
        ("owner/gated", ("gated", "accept its licence", "HF_TOKEN")),
        ("owner/small@nowhere", ("no revision 'nowhere'", "leave it out")),
        ("owner/empty", ("none of the weights that vitrail reads", "only model.gguf", "give its path")),
        ("hf-hub:owner--x/y", ("is not a name of", "owner/name")),
    ],
)
def test_what_cannot_be_had_is_one_line_with_the_remedy(hub: Hub, folders: Path, name: str, words: tuple[str, ...]):
    hub.add_folder("owner/small", folders / "timm")
    hub.add_folder("owner/private", folders / "timm", private=True)
    hub.add_folder("owner/gated", folders / "timm", gated=True)
    hub.add_folder("owner/empty", folders / "timm").files = {"model.gguf": b"x", "README.md": b"x"}
    refused(name, *words)


@pytest.mark.parametrize("facts", [{"private": True}, {"gated": True}])
def test_a_token_opens_what_is_closed(hub: Hub, folders: Path, monkeypatch: pytest.MonkeyPatch, facts: dict[str, bool]):
    hub.add_folder("owner/closed", folders / "timm", **facts)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    same("owner/closed", folders / "timm")


def test_offline_and_without_a_network_the_cache_is_used(
    hub: Hub, folders: Path, monkeypatch: pytest.MonkeyPatch, no_network: Callable[[], None]
):
    hub.add_folder("owner/small", folders / "timm")
    load("owner/small")
    hub.asked.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    same("owner/small", folders / "timm")
    assert hub.asked == []
    refused("owner/other", "not in the cache", "HF_HUB_OFFLINE", "unset it")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    no_network()
    same("owner/small", folders / "timm")
    refused("owner/other", "cannot be reached", "check the network", "vitrail weights")


def test_without_the_extra_the_line_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    refused("facebook/dinov2-small", "pip install 'vitrail[hub]'")


# ── names ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("B/16", ("'B/16' is a preset", "google/vit-base-patch16-224")),
        ("vit_base_patch16_224", ("is a preset", "google/vit-base-patch16-224")),
        ("ViT-L/14", ("is a preset", "Hugging Face Hub")),
        ("dinov2-s/14", ("is a preset", "vitrail weights fetch dinov2-S/14")),
        ("vit_small_patch14_dinov2.lvd142m", ("timm/vit_small_patch14_dinov2.lvd142m",)),
        ("dinov2-S/14", ("not been fetched yet", "vitrail weights fetch dinov2-S/14")),
        ("defualt", ("did you mean 'default'?",)),
        ("nowhere.safetensors", ("does not exist",)),
        ("runs/nowhere.safetensors", ("does not exist",)),
        ("./owner/name", ("does not exist",)),
        ("/owner/name", ("does not exist",)),
    ],
)
def test_what_is_no_name_of_the_hub_asks_nobody(hub: Hub, name: str, words: tuple[str, ...]):
    refused(name, *words)
    assert hub.asked == []


def test_a_preset_is_no_weights_and_a_name_of_the_hub_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert names_weights("google/vit-base-patch16-224")
    assert names_weights("default")
    assert not names_weights("B/16")
    assert not names_weights("vit_base_patch16_224")
    assert not names_weights("clip-L/14-336")


# ── wherever weights are taken ──────────────────────────────────────────────────────────────────────────────────


def test_a_run_is_tuned_and_taught_by_name_and_records_the_commit(hub: Hub, folders: Path, tmp_path: Path):
    from vitrail.training.prepare import open_checkpoint, prepare
    from vitrail.training.recipe import Recipe

    repo = hub.add_folder("owner/small", folders / "timm")
    job, start, _ = prepare(data="shapes", model="owner/small", recipe=Recipe(steps=1, batch=2), teacher="owner/small")
    assert start is not None
    assert job.data.start == f"owner/small@{repo.commit}"
    assert job.data.teacher == "owner/small"
    assert open_checkpoint("owner/small").config == load(folders / "timm").config


def test_an_embedded_folder_records_the_snapshot_and_resumes_from_it(
    hub: Hub, folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], no_network: Callable[[], None]
):
    from PIL import Image

    from vitrail.vectors.job.plan import read_plan

    repo = hub.add_folder("owner/small", folders / "timm")
    (tmp_path / "photos").mkdir()
    for number in range(3):
        Image.new("RGB", (40, 30), (number, 90, 200)).save(tmp_path / "photos" / f"{number}.png")
    embed = ("embed", "photos", "--weights", "owner/small", "--out", "vectors", "--workers", "1")
    assert call(*embed) == 0
    plan = read_plan(tmp_path / "vectors")
    assert plan.weights == str(weights_path("owner/small").absolute())
    assert plan.weights_name == f"owner/small@{repo.commit}"
    (Path(plan.weights) / "README.md").write_text("another program's download into the same snapshot")
    no_network()
    assert call(*embed) == 0
    assert call("search", "vectors", "photos/1.png", "--top", "2") == 0
    assert repo.commit in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ("convert", "owner/small", "out", "--to", "huggingface"),
        ("adapt", "owner/small", "out.safetensors", "--image", "48x64", "--report", "report.html"),
        ("classify", "photo.png", "--weights", "owner/small"),
        ("look", "photo.png", "--weights", "owner/small", "--out", "look.png"),
        ("simulate", "--weights", "owner/small"),
        ("evaluate", "owner/small", "--data", "shapes", "--batch", "64"),
    ],
)
def test_commands_take_names(hub: Hub, folders: Path, tmp_path: Path, arguments: tuple[str, ...]):
    from PIL import Image

    hub.add_folder("owner/small", folders / "timm")
    Image.new("RGB", (40, 30), (10, 90, 200)).save(tmp_path / "photo.png")
    assert call(*arguments) == 0


def test_the_studio_takes_names(hub: Hub, folders: Path):
    from vitrail.server.session import Session

    hub.add_folder("owner/small", folders / "timm")
    session = Session(["default", "owner/small", str(folders / "dinov2")])
    assert session.weights == ["default", "owner/small", "dinov2"]
    assert session.checkpoint("owner/small").config == load(folders / "timm").config
