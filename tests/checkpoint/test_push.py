"""Pushing: what the Hub then holds loads by name in vitrail, timm and transformers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import yaml

from command import call
from hub_server import TOKEN, Hub
from peer_models import relative_error
from peers import timm, transformers
from vitrail import adapt, assess, load, push
from vitrail.checkpoint.checkpoint import Checkpoint
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.config import ViTConfig
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.nn.build import build
from vitrail.parts import Learned, Mlp, Patches, Rotary

# the library uploads in a way that its own HTTP client deprecates
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")

CONFIG = ViTConfig(
    image=Size(32, 32),
    embedding=Patches(patch=Size(8, 8)),
    width=24,
    depth=2,
    num_heads=3,
    mlp=Mlp(width=96),
    position=Learned(convention="timm"),
    classes=4,
)


def made(config: ViTConfig = CONFIG) -> Checkpoint:
    torch.manual_seed(0)
    return Checkpoint(
        config=config,
        tensors=build(config).state_dict(),
        preprocessing=Preprocessing(image=config.image),
        labels=("ant", "bee", "cow", "dog")[: config.classes],
    )


@pytest.fixture(autouse=True)
def token(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)


def logits(checkpoint: Checkpoint, image: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return checkpoint.model()(image)


@pytest.mark.parametrize("dialect", ["timm", "huggingface", "vitrail"])
def test_what_is_pushed_loads_by_its_name(hub: Hub, dialect: str):
    address = push(made(), "me/small", dialect=dialect)  # type: ignore[arg-type]
    commit = hub.repos["me/small"].commit
    assert address == f"{hub.endpoint}/me/small/commit/{commit}"
    assert [line for line in hub.asked if "/commit/" in line] == ["POST /api/models/me/small/commit/main"]
    found = load("me/small")
    assert found.source == f"me/small@{commit}"
    assert found.labels == made().labels
    image = torch.randn(2, 3, 32, 32)
    assert relative_error(logits(found, image), logits(made(), image)) < 1e-6


def test_timm_and_transformers_load_what_is_pushed_for_them(hub: Hub):
    image = torch.randn(2, 3, 32, 32)
    expected = logits(made(), image)
    push(made(), "me/for-timm", dialect="timm")
    with torch.inference_mode():
        theirs = timm.create_model("hf-hub:me/for-timm", pretrained=True).eval()(image)
    assert relative_error(theirs, expected) < 1e-5
    push(made(), "me/for-transformers", dialect="huggingface")
    model = transformers.AutoModelForImageClassification.from_pretrained("me/for-transformers")
    with torch.inference_mode():
        assert relative_error(model.eval()(image).logits, expected) < 1e-5
    assert model.config.id2label[2] == "cow"


@pytest.mark.parametrize(("classes", "task"), [(4, "image-classification"), (0, "image-feature-extraction")])
@pytest.mark.parametrize(("dialect", "library"), [("timm", "timm"), ("huggingface", "transformers")])
def test_the_card_says_what_the_hub_asks_for(hub: Hub, classes: int, task: str, dialect: str, library: str):
    push(made(CONFIG.but(classes=classes)), "me/small", dialect=dialect, license="mit")  # type: ignore[arg-type]
    card = hub.repos["me/small"].files["README.md"].decode()
    facts = yaml.safe_load(card.split("---")[1])
    assert (facts["library_name"], facts["pipeline_tag"], facts["license"]) == (library, task, "mit")
    assert {task, library, "vitrail"} <= set(facts["tags"])
    assert "24, 2, 3" in card
    assert ("ant, bee, cow, dog" in card) == (classes > 0)
    assert 'vitrail.load("me/small")' in card


def test_the_python_of_a_card_runs(hub: Hub, tmp_path: Path):
    from PIL import Image

    Image.new("RGB", (40, 30), (10, 90, 200)).save(tmp_path / "photo.jpg")
    for dialect in ("timm", "huggingface", "vitrail"):
        push(made(), f"me/{dialect}", dialect=dialect)  # type: ignore[arg-type]
        card = hub.repos[f"me/{dialect}"].files["README.md"].decode()
        for block in re.findall(r"^```python\n(.*?)^```", card, re.DOTALL | re.MULTILINE):
            exec(block, {})


def test_the_card_has_the_transfer_report(hub: Hub):
    wide, changes = adapt(made(), {"image": "32x48"})
    report = assess(made(), wide, changes)
    push(wide, "me/wide", report=report)
    card = hub.repos["me/wide"].files["README.md"].decode()
    assert "from image 32x32, grid 4x4, to image 32x48, grid 4x6" in card
    assert f"{report.tables[0].round_trip:.1%}" in card
    assert f"| kept | {len(changes.kept)} |" in card
    for note in report.notes:
        assert note in card


def test_a_branch_and_a_private_repository_are_created(hub: Hub):
    push(made(), "me/secret", private=True, revision="trial")
    assert hub.repos["me/secret"].private
    assert "trial" in hub.repos["me/secret"].tags
    assert "POST /api/models/me/secret/commit/trial" in hub.asked
    push(made(), "me/secret", message="again")  # one that exists is committed to


def test_what_cannot_be_pushed_is_one_line(hub: Hub, monkeypatch: pytest.MonkeyPatch):
    for repo in ("small", "me/small@main", "hf-hub:me/small", "me/a/b"):
        with pytest.raises(VitrailError, match="write owner/name"):
            push(made(), repo)
    with pytest.raises(VitrailError, match="choose timm, huggingface, vitrail"):
        push(made(), "me/small", dialect="google")  # type: ignore[arg-type]
    with pytest.raises(VitrailError, match="timm"):
        push(made(CONFIG.but(position=Rotary())), "me/small", dialect="timm")
    with pytest.raises(VitrailError, match="timm has no architecture of this shape"):
        push(made(CONFIG.but(norm_eps=1e-5)), "me/small", dialect="timm")
    assert hub.asked == []  # nothing is created for what is not written
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(VitrailError, match=r"answered 401 for me/small .*set HF_TOKEN"):
        push(made(), "me/small")


def test_the_command_pushes_and_prints_the_address(hub: Hub, capsys: pytest.CaptureFixture[str]):
    assert call("push", "default", "me/cifar", "--to", "huggingface", "--license", "apache-2.0") == 0
    assert capsys.readouterr().out == f"{hub.endpoint}/me/cifar/commit/{hub.repos['me/cifar'].commit}\n"
    assert load("me/cifar").config.but(position=Learned()) == load("default").config.but(position=Learned())
