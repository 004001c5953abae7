"""Controls, images and the config: what all rooms share."""

from __future__ import annotations

import io
import json
import threading

import numpy as np
import pytest
from client import client
from PIL import Image

from bad_images import CORPUS, Case
from command import call
from vitrail.checkpoint.preprocessing import Preprocessing
from vitrail.config import config_from_json
from vitrail.geometry import Size
from vitrail.images.decode import decode
from vitrail.presets import preset
from vitrail.server.errors import BusyError
from vitrail.server.session import Session


def controls():
    return client().get("/api/controls").json()


def test_every_room_takes_only_controls_that_are_described():
    said = controls()
    assert all(set(names) <= set(said["controls"]) for names in said["rooms"].values())
    assert set(said["config"]) <= set(said["controls"])


def test_the_controls_are_described_once_in_a_session(monkeypatch):
    first = client().get("/api/controls")
    monkeypatch.setattr("vitrail.server.rooms.shared.controls_of", None)  # would raise if it were called again
    assert client().get("/api/controls").content == first.content


def test_a_number_has_a_range_that_holds_its_default_and_everything_has_help():
    for name, control in controls()["controls"].items():
        assert control["label"], name
        assert control["help"], name
        if control["kind"] == "number":
            assert control["minimum"] <= control["default"] <= control["maximum"], name
        if control["kind"] == "choice" and not control["source"]:
            assert control["default"] in [value for value, _ in control["options"]], name


@pytest.mark.parametrize("shape", [(64, 96), (96, 64), (50, 50), (20, 90)])
def test_the_middle_is_the_part_that_a_model_gets(shape):
    ramp = np.add.outer(2 * np.arange(60), np.arange(84))[..., None].repeat(3, axis=2).astype(np.uint8)
    image, buffer = Image.fromarray(ramp), io.BytesIO()
    image.save(buffer, "PNG")
    name = client().post("/api/images", content=buffer.getvalue()).json()["image"]
    height, width = shape
    said = client().get(f"/api/images/{name}/middle", params={"height": height, "width": width}).json()
    left, top = said["left"] * image.width, said["top"] * image.height
    right, bottom = left + said["width"] * image.width, top + said["height"] * image.height
    box = (left, top, min(right, image.width), min(bottom, image.height))  # Pillow refuses a rounding beyond it
    ours = image.resize((width, height), Image.Resampling.BICUBIC, box=box)
    given = Preprocessing(image=Size(height, width)).pixels(ramp, exact=True).pixels
    # A box one pixel off would differ by 2 levels or more on this ramp; edges know nothing of what is beyond.
    assert np.abs(np.asarray(ours).astype(int) - given)[4:-4, 4:-4].max() <= 1


def test_what_the_controls_allow_is_what_the_server_takes():
    said = controls()["controls"]["height"]
    for value, status in (
        (said["minimum"], 200),
        (said["maximum"], 200),
        (said["minimum"] - 1, 422),
        (said["maximum"] + 1, 422),
    ):
        assert client().get("/api/patch", params={"height": int(value)}).status_code == status


def test_the_models_to_choose_can_all_be_planned():
    for option in controls()["options"]["models"]:
        sizes = {name: option[name] for name in ("height", "width", "patch_height", "patch_width")}
        answer = client().get("/api/patch", params={"model": option["value"], **sizes})
        assert answer.status_code == 200
        config = preset(option["value"])
        assert answer.json()["grid"] == [config.grid.height, config.grid.width]


def test_the_drawn_window_is_there_from_the_start():
    said = client().get("/api/images/default").json()
    picture = Image.open(io.BytesIO(client().get("/api/images/default/pixels?side=128").content))
    assert max(picture.size) == 128
    assert picture.height * said["width"] == pytest.approx(picture.width * said["height"], rel=0.02)


def png(height: int, width: int) -> bytes:
    buffer = io.BytesIO()
    shades = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    Image.fromarray(shades).save(buffer, "PNG")
    return buffer.getvalue()


def test_an_uploaded_image_comes_back_pixel_for_pixel():
    data = png(37, 53)
    said = client().post("/api/images", content=data).json()
    assert (said["height"], said["width"]) == (37, 53)
    back = client().get(f"/api/images/{said['image']}/pixels?side=53").content
    np.testing.assert_array_equal(decode(back), decode(data))


def test_the_same_bytes_have_the_same_id():
    first, second, other = (
        client().post("/api/images", content=png(*size)).json() for size in ((5, 7), (5, 7), (7, 5))
    )
    assert first == second != other


def test_only_the_last_few_images_are_kept():
    first = client().post("/api/images", content=png(3, 4)).json()["image"]
    for side in range(5, 14):
        client().post("/api/images", content=png(side, 3))
    gone = client().get(f"/api/images/{first}")
    assert gone.status_code == 400
    assert "drop it on the page again" in gone.json()["error"]


@pytest.mark.parametrize("case", [case for case in CORPUS if case.error], ids=lambda case: case.name)
def test_a_bad_file_is_an_error_in_a_line(case: Case):
    answer = client().post("/api/images", content=case.data)
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("image: ")


def test_a_pixel_bomb_is_refused_by_its_header():
    flat = io.BytesIO()
    Image.new("1", (8000, 8000)).save(flat, "PNG")
    assert len(flat.getvalue()) < 20_000
    answer = client().post("/api/images", content=flat.getvalue())
    assert answer.status_code == 400
    assert "64,000,000 pixels" in answer.json()["error"]


def test_what_takes_too_long_is_refused_with_a_remedy(monkeypatch):
    monkeypatch.setattr("vitrail.server.session.SECONDS", 0.0)
    session, end = Session(), threading.Event()
    with pytest.raises(BusyError, match="use a smaller image or model"):
        session.once("key", end.wait)
    end.set()
    session.close()


def test_an_id_is_never_a_path():
    for name in ("..%2f..%2fpyproject.toml", "%2fetc%2fpasswd", "pyproject.toml"):
        assert client().get(f"/api/images/{name}").status_code in (400, 404)


def test_the_exported_config_is_one_that_the_command_line_plans(tmp_path, capsys):
    asked = {"model": "S/16", "height": 96, "width": 160, "patch_height": 8, "patch_width": 16}
    text = client().get("/api/config", params=asked).text
    assert config_from_json(text) == preset("S/16").but(**changed(96, 160, 8, 16))
    path = tmp_path / "config.json"
    path.write_text(text)
    assert call("plan", str(path), "--json") == 0
    assert json.loads(capsys.readouterr().out)["tokens"] == 12 * 10 + 1


def changed(height: int, width: int, down: int, across: int):
    from vitrail.geometry import Size
    from vitrail.parts import Patches

    return {"image": Size(height, width), "embedding": Patches(patch=Size(down, across))}


def test_an_error_is_one_line_whatever_a_parameter_is_called():
    answer = client().get("/api/patch", params={"a\nname": 1})
    assert answer.status_code == 422
    assert answer.json()["error"].startswith("a\\nname: extra inputs are not permitted")
