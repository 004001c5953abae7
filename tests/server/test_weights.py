"""The models that a studio looks with: the user's first, dropped ones added, and each with its own ranges."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from client import HOST, client
from frames import read_frame
from loaded import OWN, studio_with

from vitrail import parts
from vitrail.checkpoint.read import load
from vitrail.checkpoint.surgery.adapt import adapt
from vitrail.checkpoint.write import save
from vitrail.config import ViTConfig, config_from_json
from vitrail.errors import VitrailError
from vitrail.geometry import Size
from vitrail.presets import PRESETS
from vitrail.server import uploads
from vitrail.server.app import create_app
from vitrail.server.controls import Seen
from vitrail.server.guess import predict
from vitrail.server.session import Session

CONFIG = ViTConfig(
    image=Size(20, 28),
    embedding=parts.Patches(patch=Size(4, 4)),
    width=24,
    depth=3,
    num_heads=2,
    mlp=parts.Mlp(width=32),
    classes=5,
)


@pytest.fixture(scope="module")
def studio(tmp_path_factory):
    session, asking = studio_with(CONFIG, tmp_path_factory.mktemp("weights"))
    yield session, asking
    session.close()


@pytest.fixture
def fresh():
    session = Session()
    yield session, client(create_app(session, hosts=frozenset({HOST})))
    session.close()


def weights_of(asking) -> dict[str, dict]:
    return {option["value"]: option for option in asking.get("/api/controls").json()["options"]["weights"]}


# ── the list ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_users_weights_come_first_in_their_order(studio, tmp_path):
    assert list(weights_of(studio[1]))[:2] == [OWN, "default"]
    own = tmp_path / OWN
    own.write_bytes(b"")
    for given, first in (([own, "default"], [OWN, "default"]), (["default", own, "default"], ["default", OWN])):
        session = Session(given)
        assert session.weights[:2] == first
        session.close()


def test_two_files_of_one_name_are_refused(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / OWN).write_bytes(b"")
    with pytest.raises(VitrailError, match="given twice; rename one"):
        Session([tmp_path / "a" / OWN, tmp_path / "b" / OWN])


def test_ranges_are_the_models(studio):
    limits = weights_of(studio[1])[OWN]["limits"]
    ranges = {name: (limit["minimum"], limit["maximum"]) for name, limit in limits.items()}
    assert ranges["block"] == ranges["position_layer"] == (0, CONFIG.depth - 1)
    assert ranges["layer"] == (-1, CONFIG.depth - 1)
    assert ranges["head"] == (0, CONFIG.num_heads - 1)
    assert ranges["unit"] == (0, CONFIG.width - 1)
    for name in ("block", "head", "unit"):
        last = {name: ranges[name][1]}
        assert studio[1].get("/api/walk", params={"weights": OWN, **last}).status_code == 200
        assert studio[1].get("/api/walk", params={"weights": OWN, name: last[name] + 1}).status_code == 400


def test_the_largest_input_size_is_taken_and_the_next_is_refused(studio):
    session, _ = studio
    limit = weights_of(studio[1])[OWN]["limits"]["seen"]
    assert session.seen_size(OWN, limit["maximum"]) == Size(limit["maximum"], limit["maximum"])
    with pytest.raises(VitrailError, match="choose an input size below"):
        session.seen_size(OWN, limit["maximum"] + limit["step"])


def test_the_automatic_size_is_the_same_in_every_room(studio):
    _, asking = studio
    said = weights_of(asking)[OWN]["limits"]["seen"]["automatic"]
    asked = {"weights": OWN}
    assert said == [64, 64]  # 16 patches, since the training's 5x7 are few
    assert asking.get("/api/attention", params=asked).json()["seen"] == said
    sequence, _ = read_frame(asking.get("/api/tokens/sequence", params=asked).content)
    assert sequence["image"] == said
    filters, _ = read_frame(asking.get("/api/projection/filters", params=asked).content)
    assert filters["seen"] == said
    walked, _ = read_frame(asking.get("/api/walk", params=asked).content)
    assert [walked["shapes"]["H"], walked["shapes"]["W"]] == said


def test_what_it_says_is_said_at_the_training_size(studio):
    session, asking = studio
    walked, _ = read_frame(asking.get("/api/walk", params={"weights": OWN}).content)
    assert walked["verdict"]["image"] == [20, 28]
    assert walked["verdict"]["model"] == "toy model, 5 classes, 20 × 28 px"
    guess = predict(Seen(weights=OWN), session)
    assert guess is not None
    assert guess.probabilities == pytest.approx(walked["verdict"]["probabilities"])


def test_the_config_of_the_loaded_model_is_at_its_input_size(studio):
    _, asking = studio
    for asked, image in (({}, Size(64, 64)), ({"seen": 24}, Size(24, 24))):
        plain = asking.get("/api/config/loaded", params={"weights": OWN, **asked}).text
        assert config_from_json(plain) == CONFIG.but(image=image)


# ── dropped files ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def file(studio) -> bytes:
    return Path(studio[0]._paths[OWN]).read_bytes()


def drop(asking, data: bytes, name: str = "mine.safetensors"):
    return asking.post("/api/weights", params={"name": name}, content=data)


def kept(session: Session) -> list[Path]:
    return sorted(session.uploads._folder.iterdir()) if session.uploads._folder else []


def test_a_dropped_file_is_listed_with_its_ranges_and_removed_at_the_end(fresh, file):
    session, asking = fresh
    answer = drop(asking, file).json()
    assert answer["value"] == "mine.safetensors"
    assert answer["limits"]["block"]["maximum"] == CONFIG.depth - 1
    assert answer == weights_of(asking)["mine.safetensors"]
    assert session.weights[0] == "default"
    walked, _ = read_frame(asking.get("/api/walk", params={"weights": "mine.safetensors"}).content)
    assert walked["shapes"]["L"] == CONFIG.depth
    assert drop(asking, file).json()["value"] == "mine.safetensors (2)"
    (first, _), folder = kept(session), session.uploads._folder
    assert load(first).config == CONFIG
    session.close()
    assert not folder.exists()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"GIF89a, an image of something else", "not safetensors"),
        (b"{}", "too few for safetensors"),
        ((99).to_bytes(8, "little") + b"{}", "mine.safetensors claims a header"),
        ((2).to_bytes(8, "little") + b"{}", "mine.safetensors holds nothing"),
    ],
)
def test_what_is_no_model_is_refused_in_a_line_and_not_kept(fresh, data, words):
    session, asking = fresh
    answer = drop(asking, data)
    assert answer.status_code == 400
    assert words in answer.json()["error"]
    assert "/tmp" not in answer.json()["error"]
    assert kept(session) == []
    assert "mine.safetensors" not in session.weights


@pytest.mark.parametrize("declared", [True, False])
def test_a_file_above_the_limit_is_refused_while_it_arrives(fresh, file, monkeypatch, declared):
    session, asking = fresh
    for module in ("vitrail.server.uploads", "vitrail.server.rooms.shared"):
        monkeypatch.setattr(f"{module}.MAX_WEIGHTS", len(file) - 1)
    answer = drop(asking, file if declared else iter([file[:100], file[100:]]))  # type: ignore[arg-type]
    assert answer.status_code == 400
    assert "--weights FILE" in answer.json()["error"]
    assert kept(session) == []


def test_only_a_few_dropped_files_are_kept(fresh, file):
    _, asking = fresh
    assert [drop(asking, file).status_code for _ in range(uploads.MAX_FILES + 1)] == [200] * uploads.MAX_FILES + [400]


@pytest.mark.parametrize("name", ["../mine.safetensors", "mine.pt", "a\nb.safetensors", "x" * 100 + ".safetensors"])
def test_a_name_is_never_a_path(fresh, file, name):
    assert drop(fresh[1], file, name).status_code == 422


def test_the_upload_is_the_pages_alone(fresh, file):
    answer = fresh[1].post(
        "/api/weights", params={"name": "a.safetensors"}, content=file, headers={"Origin": "http://other"}
    )
    assert answer.status_code == 403
    assert json.loads(answer.text)["error"]


def test_a_model_of_clips_is_refused_when_it_is_dropped_and_when_it_is_given(fresh, tmp_path):
    clips, _ = adapt(load("default"), {"frames": 4})
    save(clips, tmp_path / OWN)
    answer = drop(fresh[1], (tmp_path / OWN).read_bytes(), OWN)
    assert answer.status_code == 400
    assert "the studio takes still images, and this model clips of 4 frames" in answer.text
    assert kept(fresh[0]) == []
    session = Session([tmp_path / OWN])
    with pytest.raises(VitrailError, match="adapt it to still images with vitrail adapt --frames 1"):
        session.open_weights()
    with pytest.raises(VitrailError, match="the studio takes still images"):
        session.config("videomae-B")
    assert not any(PRESETS[name].frames > 1 for name in session.plannable)
    session.close()
