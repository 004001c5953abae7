import json

import numpy as np
import pytest
from PIL import Image

from bad_images import CORPUS
from command import call, run
from vitrail.config import ViTConfig


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for index in range(5):
        coarse = rng.integers(0, 256, (30, 50, 3), np.uint8)
        Image.fromarray(coarse.repeat(8, 0).repeat(8, 1)).save(tmp_path / f"{index}.png")
    (tmp_path / "broken.jpg").write_bytes(b"nothing")
    return tmp_path


def advised(capsys, *arguments: str) -> dict:
    assert call("advise", *arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_advice_as_json_holds_a_config_that_can_be_planned(capsys, tmp_path):
    found = advised(capsys, "--image", "448", "--object", "24", "--gpu", "rtx-4090", "--data-size", "50000")
    config = tmp_path / "config.json"
    config.write_text(json.dumps(found["config"]))
    assert ViTConfig.from_json(config.read_text()).image.height == found["image"]["height"]
    assert call("plan", str(config), "--json") == 0
    assert json.loads(capsys.readouterr().out)["tokens"] == found["tokens"]
    assert found["batch"] <= found["max_batch"]
    assert found["would_change"]


def test_advice_from_a_folder_measures_it_and_lists_what_it_could_not_read(capsys, folder):
    found = advised(capsys, "--images", str(folder))
    survey = found["survey"]
    assert survey["images"] == 5
    assert [path for path, _ in survey["failed"]] == [str(folder / "broken.jpg")]
    assert survey["median"] == {"height": 240, "width": 400}
    # one shape: it is kept, and detail is measured at the input that was chosen
    assert survey["image"]["width"] > survey["image"]["height"]
    shares = [detail["within_share"] for detail in survey["details"]]
    assert shares == sorted(shares)


def test_advice_for_people_gives_reasons_warnings_and_what_would_change_it(capsys, folder):
    assert call("advise", "--images", str(folder), "--object", "30", "--gpu", "rtx-4090") == 0
    shown = capsys.readouterr().out
    for part in (
        "very little data",
        "measured",
        "Your images at",
        "not read",
        "What would change this answer",
        "score",
    ):
        assert part in shown


def test_boxes_say_how_large_objects_are(capsys, tmp_path):
    boxes = [{"bbox": [0, 0, 10, 40]}, {"bbox": [5, 5, 30, 30]}, {"bbox": [1, 1, 4, 9]}]
    (tmp_path / "boxes.json").write_text(json.dumps({"annotations": boxes}))
    by_boxes = advised(capsys, "--boxes", str(tmp_path / "boxes.json"), "--image", "448")
    assert by_boxes == advised(capsys, "--object", "20", "--image", "448")


def test_a_folder_of_awkward_images_is_advised_on(capsys, tmp_path):
    for case in CORPUS:
        (tmp_path / case.name).write_bytes(case.data)
    found = advised(capsys, "--images", str(tmp_path))
    known = [case for case in CORPUS if not case.name.endswith((".pdf", ".eps"))]
    assert found["survey"]["images"] == sum(not case.error for case in known)
    assert len(found["survey"]["failed"]) == sum(bool(case.error) for case in known)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--application", "cooking"), "application 'cooking' is unknown"),
        (("--images", "nowhere"), "nowhere is not a folder"),
        (("--object", "-3"), "object_pixels -3"),
        (("--data-size", "-3"), "data_size -3"),
        (("--gpu", "x9"), "gpu 'x9' is not a known card"),
        (("--gpu", "64MiB"), "no model can be trained"),
        (("--boxes", "nowhere.json"), "boxes nowhere.json cannot be read"),
        (("--image", "7"), "no model can be trained at 7x7"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(capsys, arguments, reason):
    assert call("advise", *arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert reason in shown.err
    assert shown.err.count("\n") == 1


def test_advice_from_the_shell(folder):
    found = run("advise", "--images", str(folder), "--json")
    assert found.returncode == 0
    assert found.stderr == ""
    assert json.loads(found.stdout)["survey"]["images"] == 5
